"""A broker in a process of its own that kills itself at a named step, on a clock that runs fast.

It kills itself with SIGKILL when it reaches the step for the n-th time. It prints "ready", and the
name of each step when it first passes it. The parent can stop its clock, so that no test depends on
the speed of the machine.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from tests.support.brokers import SMALL
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.clock import wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.remoting import scheduler

SPEED = 100
_EPOCH_MS = 1_700_000_000_000

SETTINGS: dict[str, object] = {
    "messageDelayLevel": "1s 5s 10s 20s",
    "flushDelayOffsetInterval": 30,
    "timerFlushIntervalMs": 30,
    "timerRollWindowSlot": 60,
    "recallMessageEnable": "true",
    # On this clock everything seems slow.
    "osPageCacheBusyTimeOutMills": 10_000_000,
    "vipListenEnable": "false",
}


def fast_ms() -> int:
    """The time of day, running fast; the same in every process."""
    return _EPOCH_MS + (wall_ms() - _EPOCH_MS) * SPEED


def deadly(step: str, count: int, tell: Callable[[str], None]) -> Callable[[str], None]:
    passed = Counter[str]()

    def pass_by(name: str) -> None:
        passed[name] += 1
        if name == step and passed[name] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        if passed[name] == 1:
            tell(name)

    return pass_by


async def serve(
    port: int, folder: Path, step: str, count: int, teller: Connection, held_ms: "Synchronized[int]"
) -> None:
    pairs = SMALL | SETTINGS | {"listenPort": port, "storePathRootDir": folder}
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    loaded = load_broker_config(environ={}, flags=given)
    watched = deadly(step, count, teller.send)

    def now_ms() -> int:
        return held_ms.value or fast_ms()

    broker = Broker(LiveSettings(loaded), clock=now_ms, steady=now_ms, crash_point=watched)
    await broker.start()
    teller.send("ready")
    await asyncio.Event().wait()


def main(
    port: int, folder: Path, step: str, count: int, teller: Connection, held_ms: "Synchronized[int]"
) -> None:
    """The main function, until the process is killed by itself or by its parent."""
    # Timers of the event loop do not run fast, so waits must check the clock more often.
    scheduler._SLEEP_MS_MAX //= SPEED  # pyright: ignore[reportPrivateUsage] - no setting, as no broker needs one
    asyncio.run(serve(port, folder, step, count, teller, held_ms))
