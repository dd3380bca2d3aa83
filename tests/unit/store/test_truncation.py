"""Truncation of an open store: what is refused, what readers see, the kernel, threads, disks."""

import asyncio
import errno
import random
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.copied_log import random_log
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    ROOT,
    Ticker,
    append_batch,
    draft,
    open_store,
    read_queue,
    small_config,
    wait_until,
)
from tests.support.truncated_store import FILE_BYTES, check_truncated, config_of, store_with

from tianzhou.errors import StoreBroken, StoreClosed, StoreError, TruncationRefused
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.files.real_disk import RealDisk, RealFile
from tianzhou.store.message_store import MessageStore
from tianzhou.store.truncation.record import Truncation


def to(log_offset: int) -> Truncation:
    return Truncation(to=log_offset)


def filled(store: MessageStore, count: int = 40) -> list[int]:
    """Appends messages; returns where each ends."""
    return [
        store.append(draft("t", number % 2, b"%d " % number * 60, key=f"k{number}")).end_log_offset
        for number in range(count)
    ]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(3))
def test_only_starts_of_records_and_fillers_can_be_cut_at(case: int) -> None:
    """Garbage of a foreign master's filler counts as no boundary, and no byte is changed."""
    log = random_log(random.Random(case), FILE_BYTES, 30)
    disk = SimulatedDisk()
    store = store_with(log, disk, config_of(0))
    before = {path: disk.file_bytes(path) for path in disk.files() if "log" in str(path)}
    for at in range(log.end):
        if at not in log.boundaries:
            with pytest.raises(TruncationRefused, match="no message begins there"):
                store.truncation.run(to(at), confirm=0)
    assert {path: disk.file_bytes(path) for path in before} == before
    assert not disk.exists(ROOT / "truncation")
    assert store.truncation.pending is None
    store.close()


def test_what_was_confirmed_is_never_cut() -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        ends = filled(store)
        with pytest.raises(TruncationRefused, match=f"before {ends[20]} was confirmed.*resync"):
            store.truncation.run(to(ends[19]), confirm=ends[20])
        assert store.end_log_offset == ends[-1]
        assert not disk.exists(ROOT / "truncation")
        store.truncation.run(to(ends[20]), confirm=ends[20])
        store.truncation.finish()
        assert store.end_log_offset == ends[20]


def test_a_cut_outside_of_the_log_is_refused() -> None:
    with open_store(small_config(), SimulatedDisk()) as store:
        store.begin_copy_at(3 * 8192)
        with pytest.raises(TruncationRefused, match="it begins at 24576"):
            store.truncation.run(to(2 * 8192), confirm=0)
        with pytest.raises(TruncationRefused, match="it ends at 24576"):
            store.truncation.run(to(4 * 8192), confirm=0)


def test_nothing_is_appended_before_the_tables_are_adapted() -> None:
    disk = SimulatedDisk()
    config = small_config()
    store = open_store(config, disk)
    ends = filled(store)
    store.truncation.run(to(ends[5]), confirm=0)
    with pytest.raises(StoreError, match="tables of the broker are not adapted"):
        filled(store, 1)
    with pytest.raises(StoreError, match="tables of the broker are not adapted"):
        store.append_copied(memoryview(bytes(100)))
    store.close()
    # A clean stop in between does not forget it.
    store = open_store(config, disk)
    assert store.truncation.pending == to(ends[5])
    with pytest.raises(StoreError, match="tables of the broker are not adapted"):
        filled(store, 1)
    store.truncation.finish()
    assert filled(store, 1) == [ends[6]]
    store.close()
    with open_store(config, disk) as store:
        assert store.truncation.pending is None
        assert store.end_log_offset == ends[6]


def test_a_closed_or_broken_store_is_not_cut() -> None:
    disk = SimulatedDisk()
    store = open_store(small_config(flush=FlushDiskType.SYNC_FLUSH), disk)
    ends = filled(store)
    disk.fail("sync", errno.EIO, "commitlog")
    with pytest.raises(StoreBroken):
        store.truncation.run(to(ends[5]), confirm=0)
    assert not disk.exists(ROOT / "truncation")
    store.close()
    with pytest.raises(StoreClosed):
        store.truncation.run(to(ends[5]), confirm=0)


@pytest.mark.parametrize("call", ["write", "sync", "create"])
def test_a_record_that_cannot_be_written_changes_nothing(call: str) -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        ends = filled(store)
        store.flush()
        disk.fail(call, errno.ENOSPC, "truncation")
        with pytest.raises(StoreError, match="record of a truncation"):
            store.truncation.run(to(ends[5]), confirm=0)
        assert not disk.exists(ROOT / "truncation")
        assert filled(store, 1) == [ends[-1] + ends[0]]
        assert store.truncation.pending is None


@pytest.mark.parametrize("call", ["zero", "remove", "sync_directory"])
def test_a_cut_that_fails_stops_the_store_and_is_completed_at_the_start(call: str) -> None:
    disk = SimulatedDisk()
    config = small_config()
    store = open_store(config, disk)
    ends = filled(store)
    store.flush()
    disk.fail(call, errno.EIO, "commitlog" if call == "sync_directory" else "store/c")
    with pytest.raises(StoreBroken, match="the next start completes it"):
        store.truncation.run(to(ends[5]), confirm=0)
    with pytest.raises(StoreBroken):
        filled(store, 1)
    store.abandon()
    with open_store(config, disk) as store:
        assert (store.truncation.pending, store.end_log_offset) == (to(ends[5]), ends[5])


# -- all kinds of stores ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(12))
def test_a_cut_store_is_one_that_never_had_more(case: int) -> None:
    dice = random.Random(case)
    first = (case % 2) * 7 * FILE_BYTES
    log = random_log(dice, FILE_BYTES, 60, first=first, deletes=False)
    disk = SimulatedDisk()
    store = store_with(log, disk, config_of(case))
    cut = first + dice.choice((0, *log.boundaries))
    store.truncation.run(to(cut), confirm=0)
    store.truncation.finish()
    check_truncated(store, disk, log, cut, dice)
    store.close()
    with open_store(config_of(case), disk) as store:
        assert not [note for note in store.report.notes if "again" in note or "cut" in note]


def test_queues_of_many_files_are_cut_and_keep_their_offsets() -> None:
    disk = SimulatedDisk()
    config = small_config(log_file_bytes=1 << 16)
    with open_store(config, disk) as store:
        ends = [store.append(draft("t", 0, b"%d" % n)).end_log_offset for n in range(100)]
        store.append(draft("new", 0, b"x"))
        store.truncation.run(to(ends[30]), confirm=0)
        # One that has lost all its messages is seen by those who adapt the tables.
        assert store.max_offset("t", 0) == 31
        assert store.queues.get("new", 0) is not None
        store.truncation.finish()
        assert store.queues.get("new", 0) is None
        assert [store.append(draft("t", 0, b"y")).queue_offset for _ in range(9)] == [
            *range(31, 40)
        ]
        assert [body for body, _ in read_queue(store, "t", 0).values()][29:33] == [
            b"29", b"30", b"y", b"y",
        ]  # fmt: skip


def test_a_batch_is_cut_between_its_messages() -> None:
    with open_store(small_config(), SimulatedDisk()) as store:
        done = append_batch(store, [draft("t", 0, b"%d" % n, key="k") for n in range(6)])
        store.truncation.run(to(done.log_offsets[4]), confirm=0)
        store.truncation.finish()
        assert len(read_queue(store, "t", 0)) == len(store.query("t", "k", 0, 2**62, 10)) == 4


def test_everything_can_be_removed() -> None:
    disk = SimulatedDisk()
    config = small_config()
    with open_store(config, disk) as store:
        filled(store)
        store.truncation.run(Truncation(), confirm=0)
        store.truncation.finish()
        assert (store.first_log_offset, store.end_log_offset) == (0, 0)
        assert [path for path in disk.files() if path.parent.name.isdecimal()] == []
        store.begin_copy_at(5 * 8192)
    with open_store(config, disk) as store:
        assert store.end_log_offset == 0
        assert filled(store, 1)


def test_files_of_the_record_are_replaced() -> None:
    disk = SimulatedDisk()
    disk.make_directory(ROOT)
    disk.open(ROOT / "old", create=True).write(0, b"longer content")
    disk.open(ROOT / "gone", create=True)
    with open_store(small_config(), disk) as store:
        ends = filled(store)
        files: dict[str, str | None] = {"old": "new\n", "gone": None, "never": None}
        store.truncation.run(Truncation(to=ends[3], files=files), confirm=0)
    assert disk.file_bytes(ROOT / "old") == b"new\n"
    assert not disk.exists(ROOT / "gone")


# -- a running store on a real disk ----------------------------------------------------------------


def real_config(root: Path, **changes: object) -> StoreConfig:
    config = small_config(root, log_file_bytes=1 << 20)
    sizes = {
        "mapped_file_size_consume_queue": 20 * 1000, "max_hash_slot_num": 1000,
        "max_index_num": 2000,
    }  # fmt: skip
    return replace(config, **sizes, **changes)  # type: ignore[arg-type]  # by name


@contextmanager
def running(config: StoreConfig) -> Generator[MessageStore]:
    store = MessageStore.open(config, clock=Ticker())
    try:
        yield store
    finally:
        store.close()


MODES = [
    {},
    {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    {"warm_ahead_bytes": 0, "message_index_enable": False},
]


@pytest.mark.parametrize("mode", MODES)
def test_views_stay_readable_while_the_log_is_cut(tmp_path: Path, mode: dict[str, object]) -> None:
    """A mapped file that became shorter would kill the process at the next touch."""
    with running(real_config(tmp_path, **mode)) as store:
        ends = [
            store.append(draft("t", 0, b"%05d" % n * 400, key=f"k{n}")).end_log_offset
            for n in range(2500)
        ]
        store.commit()
        assert len(store.log.segments.files) > 3
        views = [store.log.record(at) for at in ends[:-1]]
        windows = [store.log.window(file.first) for file in store.log.segments.files]
        stop = threading.Event()

        def read() -> int:
            touched = 0
            while not stop.wait(0.001):
                for window in windows:
                    assert window is not None
                    touched += sum(window[2][::4096])
                store.query("t", "k7", 0, 2**62, 4)
                store.read("t", 0, 2400, 32)
            return touched

        with ThreadPoolExecutor() as pool:
            reading = [pool.submit(read) for _ in range(2)]
            try:
                for keep in (2200, 1200, 300, 300):
                    store.truncation.run(to(ends[keep]), confirm=0)
                    store.truncation.finish()
                    assert store.end_log_offset == ends[keep]
            finally:
                stop.set()
            assert all(one.result() >= 0 for one in reading)
        # Views of what stays are as they were; those of the rest can be touched.
        assert views[200] is not None
        assert bytes(views[200]).count(b"00201" * 400) == 1
        assert all(bytes(view) for view in views if view is not None)
        # The log goes on in the same file, also where its blocks were given back.
        ends = [store.append(draft("t", 0, b"new" * 700)).end_log_offset for _ in range(1500)]
        store.flushed(ends[-1]).result(timeout=60)
        assert store.max_offset("t", 0) == 301 + 1500
    with running(real_config(tmp_path, **mode)) as store:
        assert store.report.notes == []
        assert store.max_offset("t", 0) == 301 + 1500


def test_a_flush_that_waits_ends_before_the_cut(tmp_path: Path) -> None:
    config = real_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with running(config) as store:
        ends = filled(store)
        waiting = [store.flushed(end) for end in ends]
        store.truncation.run(to(ends[4]), confirm=0)
        store.truncation.finish()
        for one in waiting:
            one.result(timeout=60)
        assert store.flushed_log_offset == ends[4]
        later = filled(store, 1)
        store.flushed(later[0]).result(timeout=60)


def test_housekeeping_works_on_while_and_after_the_log_is_cut(tmp_path: Path) -> None:
    config = real_config(
        tmp_path, flush_interval_consume_queue=1, flush_consume_queue_least_pages=0,
        flush_consume_queue_thorough_interval=1, clean_resource_interval=10,
        flush_interval_commit_log=1,
    )  # fmt: skip
    with running(config) as store:
        for _ in range(15):
            ends = filled(store)
            store.truncation.run(to(ends[10]), confirm=0)
            assert store.refusal is not None
            store.truncation.finish()
            assert store.refusal is None
        filled(store)
        end = store.end_log_offset
        wait_until(lambda: store.flushed_log_offset == end, lambda: store.flushed_log_offset)
    with running(config) as store:
        assert (store.report.notes, store.report.clean) == ([], True)
        assert store.max_offset("t", 0) + store.max_offset("t", 1) == 15 * 11 + 40


@pytest.mark.parametrize("has_holes", [True, False])
def test_a_range_is_zeroed_in_a_file_and_its_mapping(
    tmp_path: Path, has_holes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_holes:
        monkeypatch.setattr("tianzhou.store.files.real_disk._fallocate", None)
    path = tmp_path / "f"
    handle = RealDisk().open(path, create=True)
    content = random.Random(1).randbytes(300_000)
    handle.write(0, content)
    view = handle.map()
    handle.zero(1000, 200_000)
    expected = content[:1000] + bytes(200_000) + content[201_000:]
    assert path.read_bytes() == bytes(view) == expected
    handle.zero(250_000, 50_000)
    assert handle.size_bytes() == 300_000
    assert not handle.has_data(250_000)
    assert isinstance(handle, RealFile)
    handle.close()


async def test_truncation_runs_beside_an_event_loop(tmp_path: Path) -> None:
    """As a broker does it: the flush in a thread, the cut in the writer's thread."""
    with running(real_config(tmp_path)) as store:
        ends = filled(store)
        await asyncio.to_thread(store.flush)
        store.truncation.run(to(ends[4]), confirm=ends[4])
        store.truncation.finish()
        assert store.end_log_offset == ends[4]
