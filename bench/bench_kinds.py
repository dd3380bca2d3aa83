"""Messages of special kinds: delay levels, the timer with a million waiting, transactions with a
million open, a storm of retries.

Delivery is measured in this process, on a store of its own and on a clock that it sets, in CPU
seconds of the thread that does the work. The storm runs against a broker as users start
it. `--json` prints one line per figure.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import psutil
from tests.integration.brokers import Peer, peer_of, send_fields

from bench.broker_servers import tianzhou
from bench.machine import Meter
from tianzhou.broker import timer
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.delay import Delays
from tianzhou.broker.intake import Intake
from tianzhou.broker.offsets import OffsetTable
from tianzhou.broker.timer_run import Timer
from tianzhou.broker.topics import TopicTable
from tianzhou.broker.transaction_checks import Halves
from tianzhou.clock import wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
BODY = b"x" * 100
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
STORM_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    what: str
    unit: str
    value: float


@contextmanager
def scratch_store(directory: Path | None, clock: Callable[[], int]) -> Generator[MessageStore]:
    with tempfile.TemporaryDirectory(prefix="bench-kinds-", dir=directory) as made:
        config = StoreConfig(
            store_path_root_dir=Path(made), disk_max_used_space_ratio=95,
            disk_space_clean_forcibly_ratio=99, disk_space_warning_level_ratio=100,
        )  # fmt: skip
        with MessageStore.open(config, clock=clock) as store:
            yield store


def own_mib() -> float:
    """Memory of this process that is not files mapped into it."""
    used = psutil.Process().memory_info()
    return float(used.rss - used.shared) / 2**20


def message(number: int, **props: str) -> Draft:
    found = {"TAGS": "TagA", "UNIQ_KEY": f"7F0000010A1B18B4AAC2{number:012X}", **props}
    text = properties.encode(found)
    return Draft("TopicBench", number % 8, BODY, text, START_MS, HOST, HOST)


# -- delay levels ----------------------------------------------------------------------------------


def delays(directory: Path | None, count: int) -> Iterator[Figure]:
    """How fast messages leave a delay level once they are due."""
    now_ms = [START_MS]
    with scratch_store(directory, lambda: now_ms[0]) as store:
        levels = Delays(store, store.config.delay_levels_ms)
        intake = Intake(store)
        intake.redirect_by(levels.redirect)
        started = time.thread_time()
        for number in range(count):
            intake.append(message(number, DELAY=str(1 + number % 4)))
        took_s = time.thread_time() - started
        yield Figure("delayed messages stored", "messages/CPU s", count / took_s)
        now_ms[0] += DAY_MS
        turns: list[float] = []
        started = time.thread_time()
        while True:
            turn_started = time.thread_time()
            wanted = levels.turn(now_ms[0])
            turns.append(time.thread_time() - turn_started)
            if wanted is None:
                break
        took_s = time.thread_time() - started
        yield Figure("delayed messages delivered", "messages/CPU s", count / took_s)
        yield Figure("turn of the loop for it, p99", "ms", percentile(turns, 99) * 1000)


# -- the timer -------------------------------------------------------------------------------------


def timers(directory: Path | None, count: int) -> Iterator[Figure]:
    """Storing and firing with so many waiting, spread over 30 days."""
    now_ms = [START_MS]
    dice = random.Random(7)
    with scratch_store(directory, lambda: now_ms[0]) as store:
        path = store.config.root_directory / "timer" / "index.sqlite"
        one = Timer(store, path, None, lambda: 100 * DAY_MS)
        intake = Intake(store)
        intake.redirect_by(
            lambda draft, found: timer.timed(
                draft, found, now_ms[0], enabled=True, max_delay_s=40 * 86_400
            )
        )
        before_mib = own_mib()
        started = time.thread_time()
        for number in range(count):
            intake.append(message(number, TIMER_DELAY_MS=str(dice.randrange(1, 30 * DAY_MS))))
            if number % 100 == 0:
                one.turn(now_ms[0])
        run_dry(one, now_ms[0])
        took_s = time.thread_time() - started
        assert one.index.count() == count
        yield Figure(f"timed messages stored, up to {count:,} waiting", "messages/CPU s",
                     count / took_s)  # fmt: skip
        yield Figure(f"memory that {count:,} waiting messages take", "MiB", own_mib() - before_mib)
        one.index.checkpoint()
        yield Figure("index on disk", "bytes/message", path.stat().st_size / count)
        now_ms[0] += 31 * DAY_MS
        started = time.thread_time()
        turns = run_dry(one, now_ms[0])
        took_s = time.thread_time() - started
        assert one.index.count() == 0
        yield Figure("timed messages delivered", "messages/CPU s", count / took_s)
        yield Figure("turn of the loop for it, p99", "ms", percentile(turns, 99) * 1000)
        one.close()


def run_dry(one: Timer, now_ms: int) -> list[float]:
    """Turns until there is nothing to do; how long each took, in seconds."""
    took: list[float] = []
    while True:
        started = time.thread_time()
        wanted = one.turn(now_ms)
        took.append(time.thread_time() - started)
        if wanted is None or wanted > now_ms:
            return took


# -- a storm of retries ----------------------------------------------------------------------------


def storm(count: int) -> Iterator[Figure]:
    """Plain sends, alone and beside consumers that give so many messages back."""
    with tianzhou() as server:
        meter = Meter(server.pid)
        figures = asyncio.run(_storm(f"127.0.0.1:{server.port}", count))
        used = meter.stop()
    yield from figures
    yield Figure("CPU of the broker for all this, per message sent back", "us",
                 used.process_cpu_s / count * 1e6)  # fmt: skip
    yield Figure("other work on the machine meanwhile", "cores", used.other_cpu_cores)


async def _storm(address: str, count: int) -> list[Figure]:
    async with peer_of(address) as plain:
        sent = await plain.send("TopicStorm", BODY)
        log_offset = int(sent.fields["msgId"][-16:], 16)
        await _sends(plain, 500)
        alone = await _sends(plain, 2000)
        # Another process gives back, so that what is measured is the broker.
        retrying = asyncio.create_task(
            asyncio.to_thread(_in_own_process, address, log_offset, count)
        )
        beside: list[float] = []
        while not retrying.done():
            beside += await _sends(plain, 100)
        return [
            Figure("messages sent back", "messages/s", await retrying),
            Figure("plain send alone, p50", "ms", statistics.median(alone) * 1000),
            Figure("plain send alone, p99", "ms", percentile(alone, 99) * 1000),
            Figure("plain send beside the storm, p50", "ms", statistics.median(beside) * 1000),
            Figure("plain send beside the storm, p99", "ms", percentile(beside, 99) * 1000),
        ]


def _in_own_process(address: str, log_offset: int, count: int) -> float:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run_send_back, address, log_offset, count).result()


def _run_send_back(address: str, log_offset: int, count: int) -> float:
    async def run() -> float:
        async with peer_of(address) as peer:
            return await _send_back(peer, log_offset, count)

    return asyncio.run(run())


async def _sends(peer: Peer, count: int) -> list[float]:
    """One after the other, some way apart; how long each took, in seconds."""
    took: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        answer = await peer.ask(
            RequestCode.SEND_MESSAGE_V2, send_fields("TopicStorm", queue_id=0), BODY
        )
        took.append(time.perf_counter() - started)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await asyncio.sleep(0.001)
    return took


async def _send_back(peer: Peer, log_offset: int, count: int) -> float:
    """Messages a second."""
    left = iter(range(count))
    fields = {"offset": str(log_offset), "group": "storm", "delayLevel": "0"}

    async def go_on() -> None:
        for _ in left:
            await peer.expect(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    started = time.perf_counter()
    await asyncio.gather(*(go_on() for _ in range(STORM_IN_FLIGHT)))
    return count / (time.perf_counter() - started)


# -- transactions ----------------------------------------------------------------------------------


@contextmanager
def scratch_halves(directory: Path | None) -> Generator[tuple[MessageStore, Intake, Halves]]:
    """A store that takes halves; no producer is there to be asked about them."""
    with tempfile.TemporaryDirectory(prefix="bench-kinds-", dir=directory) as made:
        pairs = {
            "storePathRootDir": made, "diskMaxUsedSpaceRatio": 95,
            "diskSpaceCleanForciblyRatio": 99, "diskSpaceWarningLevelRatio": 100,
        }  # fmt: skip
        given = [Given(key, str(value), "bench") for key, value in pairs.items()]
        settings = LiveSettings(load_broker_config(environ={}, flags=given))
        with MessageStore.open(settings.config) as store:
            intake = Intake(store)
            halves = Halves(
                settings, store, intake, TopicTable([], wall_ms), OffsetTable(), wall_ms, HOST,
                lambda _: True,
            )  # fmt: skip
            intake.redirect_by(halves.redirect)
            yield store, intake, halves


def transacting(directory: Path | None, count: int) -> Iterator[Figure]:
    """Transactions next to plain sends, and a round of checks over so many open halves."""
    with scratch_halves(directory) as (_, intake, halves):
        plain, prepared = message(0), {"TRAN_MSG": "true", "PGROUP": "p"}
        for what, work in (
            ("plain messages stored", lambda: intake.append(plain)),
            ("transactions: half, commit and end", lambda: transact(intake, halves, prepared)),
        ):
            started = time.thread_time()
            for _number in range(count // 10):
                work()
            took_s = time.thread_time() - started
            yield Figure(what, "messages/CPU s", count / 10 / took_s)
    with scratch_halves(directory) as (_, intake, halves):
        # Old enough to be checked, too young to be given up.
        half = msgspec.structs.replace(message(0, **prepared), born_time_ms=wall_ms() - 60_000)
        for _number in range(count):
            intake.append(half)
        before_mib = own_mib()
        halves.begin_round()
        turns: list[float] = []
        goes_on = True
        while goes_on:
            turn_started = time.thread_time()
            goes_on = halves.step()
            turns.append(time.thread_time() - turn_started)
        yield Figure(f"round over {count:,} open halves", "halves/CPU s", count / sum(turns))
        yield Figure("step of it, p99", "ms", percentile(turns, 99) * 1000)
        yield Figure("memory it takes", "MiB", own_mib() - before_mib)


def transact(intake: Intake, halves: Halves, prepared: dict[str, str]) -> None:
    stored = intake.append(message(0, **prepared))
    half = halves.find(stored.log_offset)
    assert half is not None
    halves.commit(half)
    halves.write_ends()


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def figures(*, quick: bool, directory: Path | None = None) -> Iterator[Figure]:
    yield from delays(directory, 20_000 if quick else 200_000)
    yield from timers(directory, 20_000 if quick else 1_000_000)
    yield from transacting(directory, 20_000 if quick else 1_000_000)
    yield from storm(2_000 if quick else 100_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds")
    parser.add_argument("--directory", type=Path, help="where the stores lie")
    parser.add_argument("--json", action="store_true", help="one line of JSON per figure")
    options = parser.parse_args()
    for figure in figures(quick=options.quick, directory=options.directory):
        if options.json:
            print(json.dumps(asdict(figure)))
        else:
            print(f"{figure.what:60} {figure.value:14,.2f} {figure.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
