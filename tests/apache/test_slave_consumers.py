"""Consumers of a master and its slave, both ours: the master goes and comes back, they go on.

The stock Java client, the stock Go client and ours read in processes of their own, which are
stopped while messages arrive that only the slave can serve afterwards.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.apache.backends import OURS
from tests.support.apache.go_client import built_program
from tests.support.apache.replicas import Replica
from tests.support.apache.requests import create_topic, is_registered
from tests.support.apache.servers import (
    Shell,
    java_shell,
    tianzhou_namesrv,
    wait_to_hold,
    wait_until,
)
from tests.support.brokers import peer_of
from tianzhou.protocol.codes import ResponseCode

pytestmark = [pytest.mark.apache, pytest.mark.full]

TOPIC, QUEUES = "read-on", 4
EACH = 200
"""Messages of each part: from the master, from the slave, and from the master again."""
STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
"""The slave follows a master that was started again after some time."""
REPEATED_MAX = 2
"""How often a message may be delivered: once more after each change of the broker that is read."""
PATIENCE_S = 120
READ_ON_S_MAX = 40
"""Stock clients ask for the route every 30 s; the rest is for a machine with other load."""
SETTINGS: dict[str, Any] = {"slaveReadEnable": "true", "mappedFileSizeCommitLog": 4 * 1024 * 1024}
READER = """
import asyncio, sys
from tianzhou.client import PushConsumer

async def show(message):
    print(message.body.decode(), flush=True)

async def main():
    consumer = PushConsumer(sys.argv[2] + "-ours", namesrv=sys.argv[1], start="first")
    consumer.subscribe(sys.argv[2], show)
    async with consumer:
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Reader(Protocol):
    """A consumer in a process of its own."""

    process: subprocess.Popen[str]

    def bodies(self) -> Counter[str]: ...


class Program:
    """A reader that prints a line for each message."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._lines: list[str] = []
        self._errors = (folder / "stderr.log").open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            cwd=folder,
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self._lines.extend(map(str.rstrip, lines))

    def bodies(self) -> Counter[str]:
        return Counter(list(self._lines))

    def close(self) -> None:
        """It ends with its input."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self._reading.join(PATIENCE_S)
            self._errors.close()


class JavaReader:
    def __init__(self, shell: Shell, namesrv: str) -> None:
        self._shell = shell
        self.process = shell.process
        shell.ask(
            "start_consumer", namesrv=namesrv, topic=TOPIC, name="c", way="plain",
            group=f"{TOPIC}-java",
        )  # fmt: skip

    def bodies(self) -> Counter[str]:
        return Counter(each["body"] for each in self._shell.consumed("c"))


@contextmanager
def readers(folder: Path, namesrv: str) -> Generator[dict[str, Reader]]:
    commands = {
        "go": [str(built_program()), namesrv, TOPIC, "read"],
        "ours": [sys.executable, "-c", READER, namesrv, TOPIC],
    }
    found: dict[str, Reader] = {}
    with ExitStack() as stack:
        shell = stack.enter_context(java_shell("5.5.0", "KindsShell"))
        found["java"] = JavaReader(shell, namesrv)
        for name, command in commands.items():
            (folder / name).mkdir()
            program = Program(command, folder / name)
            stack.callback(program.close)
            found[name] = program
        # Stopped processes do not end.
        stack.callback(send_all, found, signal.SIGCONT)
        yield found


def send_all(running: dict[str, Reader], sign: signal.Signals) -> None:
    for each in running.values():
        each.process.send_signal(sign)


async def send_part(address: str, part: str) -> set[str]:
    bodies = [f"{part} {number}" for number in range(EACH)]
    async with peer_of(address) as peer:
        for number, body in enumerate(bodies):
            sent = await peer.send(
                TOPIC, body.encode(), queue_id=number % QUEUES, queue_count=QUEUES
            )
            assert sent.code in STORED, sent
    return set(bodies)


def await_all(running: dict[str, Reader], expected: set[str]) -> dict[str, float]:
    """Returns after how many seconds each had everything."""
    began_s, after_s = time.monotonic(), dict[str, float]()

    def check() -> None:
        missing = {name: len(expected - each.bodies().keys()) for name, each in running.items()}
        for name in missing:
            if not missing[name]:
                after_s.setdefault(name, round(time.monotonic() - began_s, 1))
        assert not any(missing.values()), missing

    wait_to_hold(check, timeout_s=PATIENCE_S)
    return after_s


def test_consumers_go_on_at_the_slave_and_come_back(apache: None, tmp_path: Path) -> None:
    with ExitStack() as stack:
        names = stack.enter_context(tianzhou_namesrv())
        master = Replica(OURS, names, tmp_path / "a", SETTINGS | {"brokerRole": "SYNC_MASTER"})
        slave = Replica(
            OURS, names, tmp_path / "b", SETTINGS | {"brokerRole": "SLAVE", "brokerId": 1}
        )
        for each in (master, slave):
            each.life.start()
            stack.callback(each.life.stop)
        wait_until(lambda: slave.end() == master.end(), "the slave", timeout_s=PATIENCE_S)
        create_topic(master.address, TOPIC, QUEUES)
        send = partial(send_part, master.address)
        running = stack.enter_context(readers(tmp_path, names.address))
        expected = asyncio.run(send("master"))
        await_all(running, expected)
        send_all(running, signal.SIGSTOP)
        expected |= asyncio.run(send("slave"))
        wait_until(lambda: slave.end() == master.end(), "the copy", timeout_s=PATIENCE_S)
        master.life.kill()
        wait_until(
            lambda: not is_registered(names.address, master.address), "the end of the master",
            timeout_s=PATIENCE_S,
        )  # fmt: skip
        send_all(running, signal.SIGCONT)
        at_slave_s = await_all(running, expected)
        master.life.start()
        expected |= asyncio.run(send("again"))
        back_s = await_all(running, expected)
        sys.stdout.write(f"s until all was read: at the slave {at_slave_s}, again {back_s}\n")
        assert max(at_slave_s.values()) <= READ_ON_S_MAX, at_slave_s
        repeated = {name: max(each.bodies().values()) for name, each in running.items()}
        assert max(repeated.values()) <= REPEATED_MAX, repeated
        # Offsets go to the master again.
        groups = [f"{TOPIC}@{TOPIC}-{name}" for name in running]

        def committed() -> None:
            offsets = master.offsets()
            ends = {key: sum(offsets.get(key, {}).values()) for key in groups}
            assert set(ends.values()) == {3 * EACH}, ends

        wait_to_hold(committed, timeout_s=PATIENCE_S)
