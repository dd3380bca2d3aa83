"""The store through its door: appends, reads, group commit, recovery, start-up with many queues.

Everything runs in a temporary directory under `--directory` (default: the system's), which must
be on the disk that is to be measured. CPU figures are of the writing thread; the machine's other
work does not count in them, in the others it does. `--json` prints one line per figure.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.machine import rss_mib
from tianzhou.errors import StoreError
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.message_store import Appended, Draft, MessageStore

HOST = ("127.0.0.1", 10911)
PROPERTIES = "TAGS\x01TagA\x02KEYS\x01order-{0:08d}\x02UNIQ_KEY\x017F0000010A1B18B4AAC2{0:012X}\x02"
QUEUES = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    what: str
    unit: str
    value: float


def drafts(count: int, body_bytes: int) -> list[Draft]:
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    return [
        Draft(
            "TopicBench", n % QUEUES, body[:body_bytes], PROPERTIES.format(n), 0, HOST, HOST
        )
        for n in range(count)
    ]  # fmt: skip


@contextmanager
def scratch(directory: Path | None) -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=directory) as made:
        yield Path(made)


def appends(directory: Path | None, count: int) -> Iterator[Figure]:
    """Append cost, then reads of the same store."""
    for body_bytes in (100, 1024):
        with scratch(directory) as root:
            config = StoreConfig(store_path_root_dir=root)
            messages = drafts(count, body_bytes)
            with MessageStore.open(config) as store:
                wall, cpu = time.perf_counter(), time.thread_time()
                for message in messages:
                    store.append(message)
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                yield Figure(f"append {body_bytes} B", "messages/s", count / wall)
                yield Figure(f"append {body_bytes} B", "ns CPU/message", cpu / count * 1e9)
                yield from reads(store, body_bytes, count)


def reads(store: MessageStore, body_bytes: int, count: int) -> Iterator[Figure]:
    found, at, start = 0, 0, time.perf_counter()
    while at < store.max_offset("TopicBench", 0):
        answer = store.read("TopicBench", 0, at, 32)
        found, at = found + len(answer.records), answer.next_offset
    spent = time.perf_counter() - start
    yield Figure(f"read {body_bytes} B, 32 at a time", "messages/s", found / spent)
    dice, rounds = random.Random(1), min(count, 20_000)
    places = [dice.randrange(store.max_offset("TopicBench", 1)) for _ in range(rounds)]
    start = time.perf_counter()
    for place in places:
        store.read("TopicBench", 1, place, 1)
    spent = time.perf_counter() - start
    yield Figure(f"read {body_bytes} B at random, one at a time", "messages/s", rounds / spent)


def device(directory: Path | None, seconds: float) -> Figure:
    """What the disk itself can do: 4 KiB written and synced, again and again."""
    with scratch(directory) as root:
        handle = os.open(root / "raw", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(handle, 0, 64 << 20)
        page, count, start = bytes(4096), 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            os.pwrite(handle, page, count * 4096 % (64 << 20))
            os.fdatasync(handle)
            count += 1
        rate = count / (time.perf_counter() - start)
        os.close(handle)
    return Figure("fdatasync of the device", "calls/s", rate)


def group_commit(directory: Path | None, seconds: float) -> Iterator[Figure]:
    """So many senders, each of which sends the next message when the last one is on the disk."""
    for waiters in (1, 16, 256):
        with scratch(directory) as root:
            config = StoreConfig(
                store_path_root_dir=root, flush_disk_type=FlushDiskType.SYNC_FLUSH,
                mapped_file_size_commit_log=256 << 20,
            )  # fmt: skip
            with MessageStore.open(config) as store:
                yield from _commit(store, waiters, seconds)


def _commit(store: MessageStore, waiters: int, seconds: float) -> Iterator[Figure]:
    message = drafts(1, 1024)[0]
    free = threading.Semaphore(waiters - 1)
    latencies: list[float] = []

    def send() -> Appended:
        done, start = store.append(message), time.perf_counter()

        def told(reason: StoreError | None) -> None:
            if reason is None:
                latencies.append(time.perf_counter() - start)
            free.release()

        store.when_flushed(done.end_log_offset, told)
        return done

    start = time.perf_counter()
    last = send()
    while time.perf_counter() - start < seconds:
        free.acquire()
        last = send()
    store.flushed(last.end_log_offset).result(30)
    spent = time.perf_counter() - start
    latencies.sort()
    yield Figure(f"sync flush, {waiters} waiting", "messages/s", len(latencies) / spent)
    middle = latencies[len(latencies) // 2] * 1000
    yield Figure(f"sync flush, {waiters} waiting, median", "ms", middle)
    late = latencies[len(latencies) * 99 // 100] * 1000
    yield Figure(f"sync flush, {waiters} waiting, 99 %", "ms", late)


def recovery(directory: Path | None, log_bytes: int) -> Iterator[Figure]:
    """Opening after a kill whose checkpoint is at the very beginning, so all is walked again."""
    with scratch(directory) as root:
        config = StoreConfig(
            store_path_root_dir=root, flush_consume_queue_thorough_interval=3_600_000
        )
        store = MessageStore.open(config)
        message = drafts(1, 1024)[0]
        before = rss_mib(os.getpid())
        while store.end_log_offset < log_bytes:
            store.append(message)
        grown = rss_mib(os.getpid()) - before
        count = sum(store.max_offset("TopicBench", n) for n in range(QUEUES))
        store.abandon()
        start = time.perf_counter()
        store = MessageStore.open(config)
        spent = time.perf_counter() - start
        assert store.report.replayed_count == count
        store.close()
        start = time.perf_counter()
        MessageStore.open(config).close()
        clean = time.perf_counter() - start
    gib = log_bytes / 2**30
    yield Figure("recovery, everything walked again", "s/GiB", spent / gib)
    yield Figure("recovery, everything walked again", "messages/s", count / spent)
    yield Figure("open and close after a clean stop", "s", clean)
    yield Figure("resident memory, mapped files included, per GiB written", "MiB", grown / gib)


def many_queues(directory: Path | None, count: int) -> Iterator[Figure]:
    with scratch(directory) as root:
        config = StoreConfig(store_path_root_dir=root, mapped_file_size_commit_log=256 << 20)
        store = MessageStore.open(config)
        start = time.perf_counter()
        for n in range(count):
            store.append(Draft(f"T{n // 8}", n % 8, b"x" * 100, "", 0, HOST, HOST))
        made = time.perf_counter() - start
        yield Figure(f"first message of {count:,} queues", "queues/s", count / made)
        store.close()
        start = time.perf_counter()
        store = MessageStore.open(config)
        yield Figure(
            f"start after a clean stop, {count:,} queues", "s", time.perf_counter() - start
        )
        store.abandon()
        start = time.perf_counter()
        store = MessageStore.open(config)
        yield Figure(f"start after a kill, {count:,} queues", "s", time.perf_counter() - start)
        store.close()


def figures(*, quick: bool = False, directory: Path | None = None) -> Iterator[Figure]:
    """Every figure of the store."""
    yield from appends(directory, 20_000 if quick else 300_000)
    yield device(directory, 1 if quick else 3)
    yield from group_commit(directory, 1 if quick else 5)
    yield from recovery(directory, 64 << 20 if quick else 1 << 30)
    yield from many_queues(directory, 500 if quick else 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds")
    parser.add_argument("--directory", type=Path, help="where to make the store")
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    options = parser.parse_args()
    for figure in figures(quick=options.quick, directory=options.directory):
        if options.json:
            print(json.dumps(asdict(figure)))
        else:
            print(f"{figure.what:<60} {figure.value:>14,.2f} {figure.unit}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
