"""Benchmark of the store: appends, reads, group commit, recovery, start-up with many queues.

It runs in a temporary directory under `--directory` (default: the system's), which must be on the
disk to be measured. CPU figures are those of the writing thread, unaffected by other load; all
others are affected. `--json` prints one line per figure.

Figures that depend on the kernel are measured with it and, in a separate process, in pure Python;
`--part` selects figures. `--large GIB` tests a log of that size with 20,000 queues instead:
writing, memory, start-up after a kill and after a clean stop, random reads. It needs that much disk
space and a few minutes.
"""

import argparse
import json
import os
import random
import subprocess
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
from tianzhou.protocol import kernel
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
    queue_offsets = [dice.randrange(store.max_offset("TopicBench", 1)) for _ in range(rounds)]
    start = time.perf_counter()
    for queue_offset in queue_offsets:
        store.read("TopicBench", 1, queue_offset, 1)
    spent = time.perf_counter() - start
    yield Figure(f"read {body_bytes} B at random, one at a time", "messages/s", rounds / spent)


def device(directory: Path | None, seconds: float) -> Figure:
    """The speed of the disk itself: repeated writes and syncs of 4 KiB."""
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
    """Concurrent senders, each of which sends the next message when the last one is synced."""
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

        def flushed(reason: StoreError | None) -> None:
            if reason is None:
                latencies.append(time.perf_counter() - start)
            free.release()

        store.when_flushed(done.end_log_offset, flushed)
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
    """Opening after a kill with a checkpoint at the beginning, so the whole log is recovered."""
    with scratch(directory) as root:
        config = StoreConfig(
            store_path_root_dir=root, flush_consume_queue_thorough_interval=3_600_000
        )
        store = MessageStore.open(config)
        messages = drafts(1000, 1024)
        before, count = rss_mib(os.getpid()), 0
        for part in (4, 1):
            while store.end_log_offset < log_bytes // part:
                store.append(messages[count % 1000])
                count += 1
            grown = rss_mib(os.getpid()) - before
            written = f"{log_bytes // part >> 20:,} MiB"
            yield Figure(f"resident memory, mapped files included, after {written}", "MiB", grown)
        store.abandon()
        start = time.perf_counter()
        store = MessageStore.open(config)
        spent = time.perf_counter() - start
        assert store.report.replayed_count == count
        store.close()
        start = time.perf_counter()
        MessageStore.open(config).close()
        clean = time.perf_counter() - start
    yield Figure("recovery, everything walked again", "s/GiB", spent / (log_bytes / 2**30))
    yield Figure("recovery, everything walked again", "messages/s", count / spent)
    yield Figure("open and close after a clean stop", "s", clean)


def many_queues(directory: Path | None, count: int) -> Iterator[Figure]:
    with scratch(directory) as root:
        config = StoreConfig(store_path_root_dir=root, mapped_file_size_commit_log=256 << 20)
        store = MessageStore.open(config)
        start = time.perf_counter()
        for n in range(count):
            store.append(Draft(f"T{n // 8}", n % 8, b"x" * 100, "", 0, HOST, HOST))
        made = time.perf_counter() - start
        yield Figure(f"first message of {count:,} queues", "queues/s", count / made)
        start = time.perf_counter()
        store.close()
        yield Figure(
            f"clean stop that makes {count:,} queue files", "s", time.perf_counter() - start
        )
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


def large(directory: Path | None, log_bytes: int, queue_count: int) -> Iterator[Figure]:
    """A large store with many queues: writing, opening and reading."""
    body = bytes(range(256)) * 64
    with scratch(directory) as root:
        config = StoreConfig(store_path_root_dir=root)
        store = MessageStore.open(config)
        before, peak, count = rss_mib(os.getpid()), 0.0, 0
        start = time.perf_counter()
        while store.end_log_offset < log_bytes:
            queue = count % queue_count
            text = PROPERTIES.format(count)
            store.append(Draft(f"T{queue // 8}", queue % 8, body, text, 0, HOST, HOST))
            count += 1
            if count % 10_000 == 0:
                peak = max(peak, rss_mib(os.getpid()) - before)
        spent = time.perf_counter() - start
        yield Figure(f"large: written, {queue_count:,} queues", "MiB/s", log_bytes / 2**20 / spent)
        yield Figure("large: resident memory grown by at most", "MiB", peak)
        store.abandon()
        for what in ("a kill", "a clean stop"):
            start = time.perf_counter()
            store = MessageStore.open(config)
            yield Figure(f"large: start after {what}", "s", time.perf_counter() - start)
            if what == "a kill":
                yield Figure("large: of it replayed", "messages", store.report.replayed_count)
                start = time.perf_counter()
                store.close()
                yield Figure("large: clean stop", "s", time.perf_counter() - start)
        found = sum(store.max_offset(f"T{n // 8}", n % 8) for n in range(queue_count))
        assert (found, store.queues.count) == (count, queue_count)
        dice, rounds = random.Random(1), 20_000
        start = time.perf_counter()
        for _ in range(rounds):
            queue = dice.randrange(queue_count)
            queue_key = (f"T{queue // 8}", queue % 8)
            (record,) = store.read(
                *queue_key, dice.randrange(store.max_offset(*queue_key)), 1
            ).records
            assert len(record) > len(body)
        spent = time.perf_counter() - start
        yield Figure("large: reads at random, one at a time", "messages/s", rounds / spent)
        store.close()


PARTS = ("appends", "recovery", "commit", "queues")
OF_THE_KERNEL = ("appends", "recovery")


def figures(
    *, quick: bool = False, directory: Path | None = None, parts: tuple[str, ...] = PARTS
) -> Iterator[Figure]:
    """Every figure of the store; those that depend on the kernel have it in their name."""
    pure = kernel.WHY_PURE is not None
    for figure in _by_kernel(quick, directory, parts, pure=pure):
        yield Figure(f"{figure.what}, {'pure' if pure else 'kernel'}", figure.unit, figure.value)
    if not pure:
        yield from _of_the_twin(quick, directory, [one for one in parts if one in OF_THE_KERNEL])
    if "commit" in parts:
        yield device(directory, 1 if quick else 3)
        yield from group_commit(directory, 1 if quick else 5)
    if "queues" in parts:
        yield from many_queues(directory, 500 if quick else 10_000)


def _by_kernel(
    quick: bool, directory: Path | None, parts: tuple[str, ...], *, pure: bool
) -> Iterator[Figure]:
    if "appends" in parts:
        yield from appends(directory, 20_000 if quick else 100_000 if pure else 300_000)
    if "recovery" in parts:
        yield from recovery(directory, (64 if quick else 128 if pure else 1024) << 20)


def _of_the_twin(quick: bool, directory: Path | None, parts: list[str]) -> Iterator[Figure]:
    """The same figures from a process in which the kernel is switched off."""
    if not parts:
        return
    command = [sys.executable, "-m", "bench.bench_store", "--json"]
    command += [word for part in parts for word in ("--part", part)]
    command += ["--quick"] if quick else []
    command += ["--directory", str(directory)] if directory else []
    done = subprocess.run(
        command, env=os.environ | {"TIANZHOU_PURE": "1"}, stdout=subprocess.PIPE, check=True,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    for line in done.stdout.splitlines():
        yield Figure(**json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds")
    parser.add_argument("--directory", type=Path, help="where to make the store")
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may be repeated")
    parser.add_argument("--large", type=float, metavar="GIB", help="exercise a log of this size")
    options = parser.parse_args()
    if options.large:
        measured = large(options.directory, int(options.large * 2**30), 20_000)
    else:
        parts = tuple(options.part or PARTS)
        measured = figures(quick=options.quick, directory=options.directory, parts=parts)
    for figure in measured:
        if options.json:
            print(json.dumps(asdict(figure)))
        else:
            print(f"{figure.what:<70} {figure.value:>14,.2f} {figure.unit}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
