"""Benchmark of special messages: delay levels, a million timer messages, a million open
transactions, many retries, and all of them over sockets.

Delivery is measured in this process, with its own store and a simulated clock, in CPU seconds of
the working thread. The retries, and the part named served, run against a broker with default
settings. `--json` prints one line per figure.

Longer than 500 lines: each kind of message has its own setup.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import msgspec
import psutil
from tests.support.brokers import Peer, messages_in, peer_of, send_fields

from bench.broker_servers import tianzhou
from bench.machine import Meter, stolen_cpu_s
from bench.route_load import frame
from tianzhou.broker.background.sqlite_file import remove as remove_index
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import DelayLevels
from tianzhou.broker.scheduled.timer_loop import Timer
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.halves import Halves
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.names import TIMER_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.kernel import split_frames
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
BODY = b"x" * 100
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STORM_IN_FLIGHT = 32
IN_FLIGHT = 32
SERVED_LEVELS_S = (1, 2, 3, 4)
ARRIVAL_S_MAX = 120
ROLL_LOOK_MS = 60_000
"""Interval at which the timer checks for messages with a long delay."""
WINDOW_COUNT = 1_000
"""Plain sends for the 99th percentile; a second or two."""
ALONE_WINDOWS = 10
STOLEN_MAX_S = 0.02
"""CPU that the host may steal in a valid window: two ticks of the system."""
QUIET_WINDOWS_MIN = 3


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
    """Memory of this process without mapped files."""
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
        levels = DelayLevels(store, store.config.delay_levels_ms)
        writer = MessageWriter(store)
        writer.add_redirect(levels.redirect)
        started = time.thread_time()
        for number in range(count):
            writer.append(message(number, DELAY=str(1 + number % 4)))
        took_s = time.thread_time() - started
        yield Figure("delayed messages stored", "messages/CPU s", count / took_s)
        now_ms[0] += DAY_MS
        iterations: list[float] = []
        started = time.thread_time()
        while True:
            iteration_started = time.thread_time()
            wanted = levels.run_slice(now_ms[0])
            iterations.append(time.thread_time() - iteration_started)
            if wanted is None:
                break
        took_s = time.thread_time() - started
        yield Figure("delayed messages delivered", "messages/CPU s", count / took_s)
        yield Figure("turn of the loop for it, p99", "ms", percentile(iterations, 99) * 1000)


# -- the timer -------------------------------------------------------------------------------------


def timers(directory: Path | None, count: int) -> Iterator[Figure]:
    """Timer messages spread over 30 days: stored, loaded after a restart, rolled, delivered."""
    now_ms, roll_after_ms = [START_MS], [100 * DAY_MS]
    with scratch_store(directory, lambda: now_ms[0]) as store:
        path = store.config.root_directory / "timer" / "index.sqlite"
        one = Timer(store, path, None, lambda: roll_after_ms[0])
        before_mib = own_mib()
        started = time.thread_time()
        old_count = store_timed(store, one, now_ms, count)
        took_s = time.thread_time() - started
        assert one.index.waiting_count == count
        yield Figure(f"timed messages stored, up to {count:,} waiting", "messages/CPU s",
                     count / took_s)  # fmt: skip
        yield Figure(f"memory that {count:,} waiting messages take", "MiB", own_mib() - before_mib)
        one.index.checkpoint()
        yield Figure("index on disk", "bytes/message", path.stat().st_size / count)
        for what, is_lost in (("reopened", False), ("lost and made again", True)):
            check = one.progress(now_ms[0])
            one.close()
            if is_lost:
                remove_index(path)
            started = time.perf_counter()
            one = Timer(store, path, (check, True), lambda: roll_after_ms[0])
            run_dry(one, now_ms[0])
            assert one.index.waiting_count == count
            yield Figure(f"index of {count:,} {what}", "s", time.perf_counter() - started)
        # Those of the first hour are old enough now, the others are not.
        roll_after_ms[0] = HOUR_MS
        now_ms[0] += ROLL_LOOK_MS
        started, before = time.thread_time(), store.max_offset(TIMER_TOPIC, 0)
        run_dry(one, now_ms[0])
        took_s = time.thread_time() - started
        assert store.max_offset(TIMER_TOPIC, 0) - before == old_count
        assert one.index.waiting_count == count
        yield Figure("timed messages stored anew (rolled)", "messages/CPU s", old_count / took_s)
        roll_after_ms[0] = 100 * DAY_MS
        now_ms[0] += 31 * DAY_MS
        started = time.thread_time()
        iterations = run_dry(one, now_ms[0])
        took_s = time.thread_time() - started
        assert one.index.count() == 0
        yield Figure("timed messages delivered", "messages/CPU s", count / took_s)
        yield Figure("turn of the loop for it, p99", "ms", percentile(iterations, 99) * 1000)
        one.close()


def store_timed(store: MessageStore, one: Timer, now_ms: list[int], count: int) -> int:
    """Store delayed messages; returns how many of them are an hour older than the others."""
    dice, old_count = random.Random(7), count // 10
    writer = MessageWriter(store)
    writer.add_redirect(
        lambda draft, found: timer_rules.timed(
            draft, found, now_ms[0], enabled=True, max_delay_s=40 * 86_400
        )
    )
    for number in range(count):
        if number == old_count:
            now_ms[0] += HOUR_MS
        wait_ms = dice.randrange(2 * HOUR_MS, 30 * DAY_MS)
        writer.append(message(number, TIMER_DELAY_MS=str(wait_ms)))
        if number % 100 == 0:
            one.run_slice(now_ms[0])
    run_dry(one, now_ms[0])
    return old_count


def run_dry(one: Timer, now_ms: int) -> list[float]:
    """Run iterations until nothing is left; returns their durations in seconds."""
    took: list[float] = []
    while True:
        started = time.thread_time()
        wanted = one.run_slice(now_ms)
        took.append(time.thread_time() - started)
        if wanted is None or wanted > now_ms:
            return took


# -- a storm of retries ----------------------------------------------------------------------------


def storm(count: int) -> Iterator[Figure]:
    """Ordinary sends, alone and with consumers that return many messages for retry."""
    with tianzhou() as server:
        meter = Meter(server.pid)
        figures = asyncio.run(_storm(server.port, count))
        used = meter.stop()
    yield from figures
    yield Figure("CPU of the broker for all this, per message sent back", "us",
                 used.process_cpu_s / (count + count // 10) * 1e6)  # fmt: skip
    yield Figure("other work on the machine meanwhile", "cores", used.other_cpu_cores)


async def _storm(port: int, count: int) -> list[Figure]:
    loop = asyncio.get_running_loop()
    # Another process sends back, so that only the broker is measured. It was started before.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        # With few cores it must not use CPU of the measured process.
        await loop.run_in_executor(pool, _give_way)
        async with peer_of(f"127.0.0.1:{port}") as plain:
            sent = await plain.send("TopicStorm", BODY)
            log_offset = int(sent.fields["msgId"][-16:], 16)
            await _sends(plain, 500)
            alone = Sends()
            wanted = 1 if count < QUIET_WINDOWS_MIN * WINDOW_COUNT else ALONE_WINDOWS
            while len(alone.undisturbed) < wanted and len(alone.full) < 3 * wanted:
                await alone.add(plain)
            await asyncio.sleep(1.5)  # The broker delays other work for senders for another second.
            undisturbed = await loop.run_in_executor(pool, send_back, port, log_offset, count // 10)
            retrying = loop.run_in_executor(pool, send_back, port, log_offset, count)
            beside = Sends()
            while not retrying.done():
                await beside.add(plain)
            disturbed = await retrying
    return [
        Figure("messages sent back without other sends", "messages/s", undisturbed),
        Figure("messages sent back beside plain sends", "messages/s", disturbed),
        *alone.figures("plain send alone"),
        *beside.figures("plain send beside the storm"),
        Figure("the same, against alone", "times", beside.p99_ms() / alone.p99_ms()),
    ]


def _give_way() -> None:
    """Yield the CPU immediately to any other process; low priority alone keeps its time slice."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@dataclass(slots=True)
class Window:
    """Some plain sends, one after the other."""

    took_s: list[float] = field(default_factory=list[float])
    stolen_s: float = 0.0
    """CPU seconds that the host stole meanwhile."""


class Sends:
    """Latency of ordinary sends, in windows of some seconds.

    The host of a virtual machine may steal a CPU for a while, which is no property of the broker.
    So each window has its own 99th percentile, and the median of the windows is the figure.
    Windows with stolen CPU are dropped, unless nearly all have it.
    """

    def __init__(self) -> None:
        self.full: list[Window] = []
        self._now = Window()

    async def add(self, peer: Peer) -> None:
        """Send some messages."""
        window = self._now
        before_s = stolen_cpu_s()
        window.took_s += await _sends(peer, 20)
        window.stolen_s += stolen_cpu_s() - before_s
        if len(window.took_s) >= WINDOW_COUNT:
            self.full.append(window)
            self._now = Window()

    @property
    def undisturbed(self) -> list[Window]:
        return [each for each in self.full if each.stolen_s <= STOLEN_MAX_S]

    @property
    def counted(self) -> list[Window]:
        windows = self.full or [self._now]
        quiet = self.undisturbed
        return quiet if len(quiet) >= min(QUIET_WINDOWS_MIN, len(windows)) else windows

    def p99_ms(self) -> float:
        return statistics.median(percentile(each.took_s, 99) for each in self.counted) * 1000

    def figures(self, what: str) -> Iterator[Figure]:
        counted = self.counted
        p50_s = statistics.median(chain(*(each.took_s for each in counted)))
        worst_s = max(percentile(each.took_s, 99) for each in counted)
        of = f"median of {len(counted)} windows"
        if left_out := len(self.full) - len(counted):
            of += f", {left_out} more disturbed by the host"
        elif len(self.undisturbed) < len(counted):
            of += f", of which the host disturbed {len(counted) - len(self.undisturbed)}"
        yield Figure(f"{what}, p50", "ms", p50_s * 1000)
        yield Figure(f"{what}, p99, {of}", "ms", self.p99_ms())
        yield Figure(f"{what}, p99, worst window", "ms", worst_s * 1000)


def send_back(port: int, log_offset: int, count: int) -> float:
    """Send a message back `count` times; returns the rate per second.

    On a raw socket with the same bytes each time, so that the client uses little CPU.
    """
    fields = {"offset": str(log_offset), "group": "storm", "delayLevel": "0"}
    request = frame(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    left_count = count
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(request * min(STORM_IN_FLIGHT, count))
        unsent_count = count - min(STORM_IN_FLIGHT, count)
        received = b""
        while left_count:
            received += sock.recv(65_536)
            found, rest = split_frames(received, 65_536)
            for start, stop in found:
                assert b'"code":0,' in received[start:stop], received[start:stop]
            received = received[rest:]
            left_count -= len(found)
            sock.sendall(request * min(len(found), unsent_count))
            unsent_count -= min(len(found), unsent_count)
    return count / (time.perf_counter() - started)


async def _sends(peer: Peer, count: int) -> list[float]:
    """Send one after the other with pauses; returns the durations in seconds."""
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


# -- transactions ----------------------------------------------------------------------------------


@contextmanager
def scratch_halves(directory: Path | None) -> Generator[tuple[MessageWriter, CheckLoop]]:
    """A store with half messages and no producer to check them with."""
    with tempfile.TemporaryDirectory(prefix="bench-kinds-", dir=directory) as made:
        pairs = {
            "storePathRootDir": made, "diskMaxUsedSpaceRatio": 95,
            "diskSpaceCleanForciblyRatio": 99, "diskSpaceWarningLevelRatio": 100,
        }  # fmt: skip
        given = [Given(key, str(value), "bench") for key, value in pairs.items()]
        settings = LiveSettings(load_broker_config(environ={}, flags=given))
        with MessageStore.open(settings.config) as store:
            writer = MessageWriter(store)
            durability = Durability(store, settings)
            halves = Halves(
                settings, store, durability, writer, OffsetTable(), wall_ms, steady_ms, HOST
            )
            writer.add_redirect(halves.redirect)
            topics = TopicTable([], wall_ms)
            yield writer, CheckLoop(halves, topics, lambda _: True)


def transacting(directory: Path | None, count: int) -> Iterator[Figure]:
    """Transactions next to plain sends, and a round of checks over many open half messages."""
    with scratch_halves(directory) as (writer, checks):
        halves = checks.halves
        plain, prepared = message(0), {"TRAN_MSG": "true", "PGROUP": "p"}
        for what, work in (
            ("plain messages stored", lambda: writer.append(plain)),
            (
                "transactions: half, commit and end",
                lambda: transact(writer, halves, prepared),
            ),
        ):
            started = time.thread_time()
            for _number in range(count // 10):
                work()
            took_s = time.thread_time() - started
            yield Figure(what, "messages/CPU s", count / 10 / took_s)
    with scratch_halves(directory) as (writer, checks):
        # Old enough to be checked, too young to be given up.
        half = msgspec.structs.replace(message(0, **prepared), born_time_ms=wall_ms() - 60_000)
        for _number in range(count):
            writer.append(half)
        before_mib = own_mib()
        checks.begin_round()
        iterations: list[float] = []
        goes_on = True
        while goes_on:
            iteration_started = time.thread_time()
            goes_on = checks.step()
            iterations.append(time.thread_time() - iteration_started)
        yield Figure(f"round over {count:,} open halves", "halves/CPU s", count / sum(iterations))
        yield Figure("step of it, p99", "ms", percentile(iterations, 99) * 1000)
        yield Figure("memory it takes", "MiB", own_mib() - before_mib)


def transact(writer: MessageWriter, halves: Halves, prepared: dict[str, str]) -> None:
    stored = writer.append(message(0, **prepared))
    half = halves.find(stored.log_offset)
    assert half is not None
    halves.commit(half)
    halves.write_ends()


# -- all of it over sockets ------------------------------------------------------------------------


def served(count: int) -> Iterator[Figure]:
    """Delivery delay and throughput of each kind on a running broker."""
    levels = " ".join(f"{seconds}s" for seconds in SERVED_LEVELS_S)
    with tianzhou(messageDelayLevel=levels) as server:
        meter = Meter(server.pid)
        yield from asyncio.run(_served(server.port, count))
        used = meter.stop()
    yield Figure("other work on the machine meanwhile", "cores", used.other_cpu_cores)


async def _served(port: int, count: int) -> list[Figure]:
    async with peer_of(f"127.0.0.1:{port}") as peer:
        levels_ms = await _lateness(peer, "Levels", max(count // 50, 100), _send_delayed)
        moments_ms = await _lateness(peer, "Moments", max(count // 50, 100), _send_timed)
        plain = await _per_second(count, lambda: _send_served(peer, "Plain"))
        committed = await _per_second(count, lambda: _transact_served(peer))
        started = time.perf_counter()
        await _per_second(count, lambda: _send_served(peer, "Delayed", DELAY="1"))
        await _arrived(peer, "Delayed", count)
        took_s = time.perf_counter() - started - SERVED_LEVELS_S[0]
    return [
        *_late_figures("delay level", levels_ms),
        *_late_figures("timed message", moments_ms),
        Figure(f"plain sends over a socket, {IN_FLIGHT} at a time", "messages/s", plain),
        Figure("transactions, the same way: half, end, both answered", "messages/s", committed),
        Figure("delayed messages, the same way: sent and delivered", "messages/s", count / took_s),
    ]


def _late_figures(what: str, late_ms: list[float]) -> Iterator[Figure]:
    yield Figure(f"{what}: stored for consumers late by, p50", "ms", statistics.median(late_ms))
    yield Figure(f"{what}: stored for consumers late by, p99", "ms", percentile(late_ms, 99))


async def _lateness(
    peer: Peer, topic: str, count: int, send: Callable[[Peer, str, int], Awaitable[int]]
) -> list[float]:
    """Send one after the other; returns how late the broker delivered each, in ms."""
    due_ms = {b"%d" % number: await send(peer, topic, number) for number in range(count)}
    await _arrived(peer, topic, count)
    came_ms: dict[bytes, int] = {}
    while len(came_ms) < count:
        answer = await peer.pull("bench", topic, 0, len(came_ms))
        came_ms |= {each.body: each.store_time_ms for each in messages_in(answer)}
    return [came_ms[body] - at_ms for body, at_ms in due_ms.items()]


async def _send_delayed(peer: Peer, topic: str, number: int) -> int:
    level = number % len(SERVED_LEVELS_S)
    sent = await _send_served(peer, topic, b"%d" % number, DELAY=str(level + 1))
    fields = {"offset": str(int(sent.fields["msgId"][-16:], 16))}
    waiting = decode_record((await peer.expect(RequestCode.VIEW_MESSAGE_BY_ID, fields)).body)
    return waiting.store_time_ms + SERVED_LEVELS_S[level] * 1000


async def _send_timed(peer: Peer, topic: str, number: int) -> int:
    due_ms = wall_ms() + 1000 + number % 1000
    await _send_served(peer, topic, b"%d" % number, TIMER_DELIVER_MS=str(due_ms))
    return due_ms


async def _send_served(peer: Peer, topic: str, body: bytes = BODY, **props: str) -> Command:
    fields = send_fields(topic, queue_count=1, props=props)
    return await peer.expect(RequestCode.SEND_MESSAGE_V2, fields, body)


async def _transact_served(peer: Peer) -> Command:
    half = await _send_served(peer, "Committed", TRAN_MSG="true", PGROUP="bench")
    return await peer.expect(RequestCode.END_TRANSACTION, {
        "producerGroup": "bench", "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
        "commitOrRollback": str(sysflag.TRANSACTION_COMMIT), "msgId": "",
    })  # fmt: skip


async def _per_second(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Run it `count` times, some concurrently; returns the rate per second."""
    await work()
    numbers = iter(range(count - 1))

    async def some() -> None:
        for _ in numbers:
            await work()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(some())
    return (count - 1) / (time.perf_counter() - started)


async def _arrived(peer: Peer, topic: str, count: int) -> None:
    fields = {"topic": topic, "queueId": "0"}
    deadline_s = time.monotonic() + ARRIVAL_S_MAX
    while True:
        answer = await peer.expect(RequestCode.GET_MAX_OFFSET, fields)
        if int(answer.fields["offset"]) >= count:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{answer.fields['offset']} of {count} messages in {topic}")
        await asyncio.sleep(0.01)


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


PARTS = ("delays", "timers", "transactions", "storm", "served")


def figures(
    *, quick: bool, directory: Path | None = None, parts: Collection[str] = PARTS
) -> Iterator[Figure]:
    if "delays" in parts:
        yield from delays(directory, 20_000 if quick else 200_000)
    if "timers" in parts:
        yield from timers(directory, 20_000 if quick else 1_000_000)
    if "transactions" in parts:
        yield from transacting(directory, 20_000 if quick else 1_000_000)
    if "storm" in parts:
        yield from storm(2_000 if quick else 100_000)
    if "served" in parts:
        yield from served(2_000 if quick else 20_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds")
    parser.add_argument("--directory", type=Path, help="where the stores lie")
    parser.add_argument("--json", action="store_true", help="one line of JSON per figure")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be repeated")
    options = parser.parse_args()
    parts = options.part or PARTS
    for figure in figures(quick=options.quick, directory=options.directory, parts=parts):
        if options.json:
            print(json.dumps(asdict(figure)))
        else:
            print(f"{figure.what:60} {figure.value:14,.2f} {figure.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
