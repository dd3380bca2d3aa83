"""A broker that dies by `kill -9` right after a chosen step.

    python -m tests.support.crash_steps STEP_FILE KILL_AT ONLY KEY=VALUE...

A step is something made durable: a record appended to the log ("append TOPIC") or a table saved
("save FILE"). Each is written as a line into STEP_FILE once it has happened; with the one that is
number KILL_AT among those that match the pattern ONLY, the process ends; with 0 it does not. So a
test first records the steps of an operation, and then interrupts it between any two of them.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import DEADLINE_S, SMALL
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.broker.tables import saver
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.protocol.records.batch import PreparedBatch
from tianzhou.store.message_store import Appended, Draft, MessageStore

STARTED = b"started\n"


# -- in the test -----------------------------------------------------------------------------------


@dataclass
class Child:
    """A broker in a process of its own."""

    process: asyncio.subprocess.Process
    step_file: Path

    def steps(self) -> list[str]:
        """The steps so far."""
        return self.step_file.read_text().splitlines() if self.step_file.exists() else []

    async def died(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        return await asyncio.wait_for(self.process.wait(), DEADLINE_S)


@asynccontextmanager
async def stepping_broker(
    port: int,
    store: Path,
    settings: dict[str, object],
    *,
    kill_at: int = 0,
    only: str = "",
    pure: bool = True,
) -> AsyncGenerator[Child]:
    """A broker that counts its steps; it is killed at the end if it still runs.

    With the kernel (`pure` is False) ordinary messages are appended past the wrapped ones.
    """
    step_file = store.with_name(f"{store.name}.steps")
    step_file.unlink(missing_ok=True)
    pairs = (
        SMALL
        | {"listenPort": port, "storePathRootDir": store, "vipListenEnable": "false"}
        | {"brokerConfigPath": store.with_name("broker.properties")}
        | settings
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.crash_steps", str(step_file), str(kill_at), only,
        *(f"{key}={value}" for key, value in pairs.items()),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"TIANZHOU_PURE": "1" if pure else "0"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        assert line == STARTED, line
        yield Child(process, step_file)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


# -- in the child ----------------------------------------------------------------------------------


class Steps:
    """Counts steps, and ends the process with one of them."""

    def __init__(self, path: Path, kill_at: int, only: str) -> None:
        self.file = path.open("ab", buffering=0)
        self.kill_at = kill_at
        self.pattern = re.compile(only)
        self.count = 0

    def happened(self, name: str) -> None:
        self.file.write(name.encode() + b"\n")
        if self.pattern.search(name):
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def wrap_all(steps: Steps) -> None:
    """Count every call that makes something durable."""
    append, append_batch, save_table = (
        MessageStore.append, MessageStore.append_batch, saver.save_table,
    )  # fmt: skip

    def appending(
        self: MessageStore, draft: Draft, found: dict[str, str] | None = None
    ) -> Appended:
        appended = append(self, draft, found)
        steps.happened(f"append {draft.topic}")
        return appended

    def appending_batch(self: MessageStore, batch: PreparedBatch) -> Appended:
        appended = append_batch(self, batch)
        steps.happened(f"append {batch.topic}")
        return appended

    def saving(path: Path, data: bytes) -> None:
        save_table(path, data)
        steps.happened(f"save {path.name}")

    replacements: list[tuple[object, str, Callable[..., object]]] = [
        (MessageStore, "append", appending),
        (MessageStore, "append_batch", appending_batch),
        (saver, "save_table", saving),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)


async def serve(pairs: list[str]) -> None:
    split = [pair.partition("=") for pair in pairs]
    given = [Given(key, value, "test", deliberate=True) for key, _, value in split]
    broker = Broker(LiveSettings(load_broker_config(environ={}, flags=given)))
    await broker.start()
    os.write(1, STARTED)
    await asyncio.Event().wait()


def main(step_file: str, kill_at: str, only: str, *pairs: str) -> None:
    wrap_all(Steps(Path(step_file), int(kill_at), only))
    asyncio.run(serve(list(pairs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
