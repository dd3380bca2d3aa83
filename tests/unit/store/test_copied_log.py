"""Copies of a master's log: what is refused, where a log begins, who is notified."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.copied_log import (
    BLANK_BYTES,
    WrittenLog,
    derived_again,
    derived_of,
    log_files,
    record,
)
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    NOON_MS,
    Ticker,
    append_batch,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
    wait_until,
)

from tianzhou.errors import StoreBroken, StoreCorrupt, StoreError, StoreFull
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.pure.record import MAGIC_BLANK, SIZE_AND_MAGIC, SIZE_MIN
from tianzhou.store.config import FlushDiskType
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.copied_log import CopiedLog, Stretch
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import ReadStatus

FILE_BYTES = 4096
CONFIG = small_config(log_file_bytes=FILE_BYTES)
TEXT = "TAGS\x01red\x02"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def log_of(*sizes: int) -> WrittenLog:
    """Messages of one queue with bodies of these sizes."""
    log = WrittenLog(FILE_BYTES)
    for number, size in enumerate(sizes):
        log.begin_file(len(record(0, "t", 0, bytes(size))))
        log.add(record(log.end, "t", number, bytes(size)))
    return log


def copy(store: MessageStore, data: bytes | bytearray) -> int:
    return store.append_copied(memoryview(data))


# -- complete and incomplete records ---------------------------------------------------------------


def test_incomplete_records_stay_with_the_caller(disk: SimulatedDisk) -> None:
    log = log_of(10, 500, 0)
    with open_store(CONFIG, disk) as store:
        taken = 0
        for end in range(1, len(log.data) + 1):
            taken += copy(store, log.data[taken:end])
            assert taken == store.end_log_offset
            assert taken == max(at for at in log.boundaries if at <= end)
        assert [len(body) for body, _ in read_queue(store, "t", 0).values()] == [10, 500, 0]
        assert copy(store, b"") == 0


def test_a_filler_is_appended_with_all_that_follows_it(disk: SimulatedDisk) -> None:
    log = log_of(3000)
    log.begin_file(1000, garbage=b"\xa5" * FILE_BYTES)
    log.add(record(log.end, "t", 1))
    with open_store(CONFIG, disk) as store:
        before = log.boundaries[1]
        assert copy(store, log.data[:before]) == before
        assert copy(store, log.data[before : FILE_BYTES - 1]) == 0
        assert copy(store, log.data[before:FILE_BYTES]) == FILE_BYTES - before
        assert store.end_log_offset == FILE_BYTES
        assert copy(store, log.data[FILE_BYTES:]) == log.end - FILE_BYTES
        assert read_queue(store, "t", 0)[1] == (b"body", FILE_BYTES)
        names = log_files(disk, CONFIG)
        assert list(names) == [f"{0:020d}", f"{FILE_BYTES:020d}"]
        assert names[f"{0:020d}"] == log.file(0)


def test_a_master_reads_a_filler_and_what_follows_it(disk: SimulatedDisk) -> None:
    with open_store(CONFIG, disk) as store:
        for _ in range(2):
            store.append(draft("t", 0, bytes(3000)))
        end = store.log.decode(0)
        assert end is not None
        rest = store.log_slice(end[-1], 2 * FILE_BYTES)
        assert rest is not None
        assert SIZE_AND_MAGIC.unpack_from(rest) == (len(rest), MAGIC_BLANK)
        assert len(rest) == FILE_BYTES - end[-1]
        assert not any(rest[BLANK_BYTES:])
        assert store.log_slice(FILE_BYTES, 2)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_full_copied_file_is_followed_by_the_next_without_a_filler(
    disk: SimulatedDisk, restarts: bool
) -> None:
    log = log_of(3000)
    log.begin_file(1000, garbage=b"\xa5" * FILE_BYTES)
    store = open_store(CONFIG, disk)
    copy(store, log.data)
    if restarts:
        store.close()
        store = open_store(CONFIG, disk)
    with store:
        assert store.end_log_offset == FILE_BYTES
        assert store.append(draft("t", 0, b"of a new master")).log_offset == FILE_BYTES
        assert log_files(disk, CONFIG)[f"{0:020d}"] == log.file(0)
        assert read_queue(store, "t", 0)[1] == (b"of a new master", FILE_BYTES)


# -- refused bytes ---------------------------------------------------------------------------------


def changed(data: bytes, at: int, to: bytes) -> bytes:
    return data[:at] + to + data[at + len(to) :]


RECORD = record(0, "t", 0, b"body")
REFUSED = {
    "magic number": changed(RECORD, 4, b"\xda\xa3\x20\xa6"),
    "size of zero": changed(RECORD, 0, bytes(4)),
    "size below that of the smallest record": changed(RECORD, 0, bytes([0, 0, 0, SIZE_MIN - 1])),
    "negative size": changed(RECORD, 0, b"\xff"),
    "size that is not that of its fields": changed(RECORD + b"\0", 3, bytes([len(RECORD) + 1])),
    "log offset": changed(RECORD, 35, b"\x01"),
    "checksum": changed(RECORD, 11, bytes([RECORD[11] ^ 1])),
    "body": RECORD.replace(b"body", b"Body"),
    "record that crosses the end of the file": record(0, "t", 0, bytes(FILE_BYTES))[:200],
    "record without space for a filler": record(0, "t", 0, bytes(FILE_BYTES - len(RECORD) - 3)),
    "filler that is too small": SIZE_AND_MAGIC.pack(FILE_BYTES - 1, MAGIC_BLANK),
    "filler that is too large": SIZE_AND_MAGIC.pack(FILE_BYTES + 1, MAGIC_BLANK),
    "filler of zero bytes": SIZE_AND_MAGIC.pack(0, MAGIC_BLANK),
    "zeros": bytes(8),
    "negative queue id": changed(RECORD, 12, b"\xff" * 4),
    "negative queue offset": changed(RECORD, 20, b"\xff" * 8),
    "time of delivery beyond 64 bits": record(
        0, SCHEDULE_TOPIC, 0, text="DELAY\x013\x02", store_time_ms=2**63 - 1
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("is_followed", [False, True])
def test_bytes_that_are_no_record_are_refused(
    disk: SimulatedDisk, name: str, is_followed: bool
) -> None:
    with open_store(CONFIG, disk) as store:
        followed = REFUSED[name] + (bytes(2 * FILE_BYTES) if is_followed else b"")
        with pytest.raises(StoreCorrupt, match="nothing of it was stored"):
            copy(store, followed)
        assert store.end_log_offset == 0
        assert queues_of(store) == []
        assert log_files(disk, CONFIG) == {}
        assert copy(store, RECORD) == len(RECORD)


def test_records_before_refused_bytes_are_stored(disk: SimulatedDisk) -> None:
    log = log_of(10, 20, 30)
    good = bytes(log.data[: log.boundaries[2]])
    with open_store(CONFIG, disk) as store:
        with pytest.raises(StoreCorrupt, match=f"log offset {len(good)} "):
            copy(store, good + RECORD)
        assert store.end_log_offset == len(good)
        assert len(read_queue(store, "t", 0)) == 2
        written = log_files(disk, CONFIG)[f"{0:020d}"]
        assert written == good.ljust(FILE_BYTES, b"\0")
        assert copy(store, log.data[len(good) :]) == log.end - len(good)


def test_the_largest_record_of_a_file_is_accepted(disk: SimulatedDisk) -> None:
    body_bytes = FILE_BYTES - BLANK_BYTES - len(record(0, "t", 0, b""))
    largest = record(0, "t", 0, bytes(body_bytes))
    for rest in (b"", SIZE_AND_MAGIC.pack(BLANK_BYTES, MAGIC_BLANK)):
        with open_store(CONFIG, SimulatedDisk()) as store:
            assert copy(store, largest + rest) == FILE_BYTES - BLANK_BYTES + len(rest)


# -- queues ----------------------------------------------------------------------------------------


def test_a_queue_begins_with_its_first_copied_message(disk: SimulatedDisk) -> None:
    first = record(0, "t", 1_000_000, b"a")
    with open_store(CONFIG, disk) as store:
        copy(store, first + record(len(first), "t", 1_000_001, b"b"))
        assert list(read_queue(store, "t", 0)) == [1_000_000, 1_000_001]
        assert store.min_offset("t", 0) == 1_000_000


def test_a_topic_created_again_is_shown_with_its_first_message(disk: SimulatedDisk) -> None:
    log = log_of(1, 2, 3)
    log.add(record(log.end, "t", 0, b"new"))
    with open_store(CONFIG, disk) as store:
        copy(store, log.data)
        assert {body for body, _ in read_queue(store, "t", 0).values()} == {b"new"}
        assert store.append(draft("t", 0, b"newer")).queue_offset == 1


def test_a_queue_offset_that_no_message_confirms_is_left_out(disk: SimulatedDisk) -> None:
    log = log_of(1, 2)
    log.add(record(log.end, "t", 77, b"damaged"))
    with open_store(CONFIG, disk) as store:
        copy(store, log.data)
        assert list(read_queue(store, "t", 0)) == [0, 1]
        copy(store, record(log.end, "t", 78, b"confirms"))
        assert store.max_offset("t", 0) == 79
        assert len(store.read("t", 0, 77, 32).records) == 2


def test_a_stretch_that_is_cut_shorter_moves_no_queue(disk: SimulatedDisk) -> None:
    """Two damaged queue offsets in one piece, and a topic that was deleted in between."""
    log = log_of(1, 1, 1, 1, 1)
    begin = len(log.data)
    for topic, queue_offset in (
        ("t", 6),
        ("t", 6),
        ("t", 7),
        ("other", 0),
        ("other", 0),
        ("other", 1),
    ):
        log.add(record(log.end, topic, queue_offset))
    with open_store(CONFIG, disk) as store:
        copy(store, log.data[:begin])
        copy(store, log.data[begin:])
        assert store.end_log_offset == log.end
        assert derived_of(store) == derived_again(disk, CONFIG)


def test_a_topic_created_again_during_a_flush_is_flushed_by_the_next(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(1, 2, 3)
    store = open_store(CONFIG, disk)
    copy(store, log.data)
    sync = ConsumeQueue.sync

    def sync_later(queue: ConsumeQueue, queue_offset: int) -> None:
        monkeypatch.undo()
        copy(store, record(store.end_log_offset, "t", 0, b"new"))
        sync(queue, queue_offset)

    monkeypatch.setattr(ConsumeQueue, "sync", sync_later)
    store.flush()
    copy(store, record(store.end_log_offset, "t", 1, b"newer"))
    store.flush()
    after = disk.after_kill()
    store.abandon()
    with open_store(CONFIG, after) as again:
        assert again.report.notes == []
        assert [body for body, _ in read_queue(again, "t", 0).values()] == [b"new", b"newer"]


# -- the beginning of a log ------------------------------------------------------------------------


def test_a_copy_may_begin_at_any_file(disk: SimulatedDisk) -> None:
    store = open_store(CONFIG, disk)
    first = 5 * FILE_BYTES
    store.begin_copy_at(first)
    assert (store.first_log_offset, store.end_log_offset) == (first, first)
    assert store.flushed_log_offset == first
    size = copy(store, record(first, "t", 0, b"body"))
    assert list(log_files(disk, CONFIG)) == [f"{first:020d}"]
    store.close()
    with open_store(CONFIG, disk) as again:
        assert again.report.notes == []
        assert (again.first_log_offset, again.end_log_offset) == (first, first + size)
        with pytest.raises(StoreError, match="needs an empty store"):
            again.begin_copy_at(0)


@pytest.mark.parametrize("log_offset", [-FILE_BYTES, 1, FILE_BYTES + 1])
def test_a_copy_begins_at_no_other_place_than_a_file(disk: SimulatedDisk, log_offset: int) -> None:
    with (
        open_store(CONFIG, disk) as store,
        pytest.raises(StoreError, match="no multiple of 4096"),
    ):
        store.begin_copy_at(log_offset)


def test_a_log_without_records_may_begin_anew(disk: SimulatedDisk) -> None:
    """Its older file has expired, and the records of the other one were lost in a power cut."""
    log = WrittenLog(FILE_BYTES, FILE_BYTES)
    log.add(record(log.end, "t", 7, bytes(3000), "KEYS\x01k\x02"))
    log.begin_file(3000)
    log.add(record(log.end, "t", 8, bytes(3000), "KEYS\x01k\x02"))
    store = open_store(CONFIG, disk)
    store.begin_copy_at(FILE_BYTES)
    copy(store, log.data)
    store.close()
    disk.damage(CONFIG.root_directory / "checkpoint", None)
    disk.damage(CONFIG.log_directory / f"{FILE_BYTES:020d}", None)
    disk.damage(CONFIG.log_directory / f"{2 * FILE_BYTES:020d}", bytes(FILE_BYTES))
    store = open_store(CONFIG, disk)
    assert (store.first_log_offset, store.end_log_offset) == (2 * FILE_BYTES, 2 * FILE_BYTES)
    for first in (9 * FILE_BYTES, 3 * FILE_BYTES):
        store.begin_copy_at(first)
        assert (store.first_log_offset, store.flushed_log_offset) == (first, first)
    copy(store, record(first, "t", 9, b"body", "KEYS\x01k\x02"))
    store.close()
    with open_store(CONFIG, disk) as again:
        assert again.report.notes == []
        assert again.report.replayed_count == 0
        assert list(read_queue(again, "t", 0)) == [9]
        assert len(again.query("t", "k", 0, 2**62, 9)) == 1


def test_a_file_created_ahead_does_not_stay_when_the_log_begins_elsewhere(tmp_path: Path) -> None:
    config = replace(CONFIG, store_path_root_dir=tmp_path)
    store = MessageStore.open(config)
    copy(store, RECORD)
    wait_until(lambda: (config.log_directory / f"{FILE_BYTES:020d}").exists())
    store.close()
    (tmp_path / "checkpoint").unlink()
    (config.log_directory / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    store = MessageStore.open(config)
    wait_until(lambda: (config.log_directory / f"{FILE_BYTES:020d}").exists())
    store.begin_copy_at(7 * FILE_BYTES)
    copy(store, record(7 * FILE_BYTES, "t", 0))
    wait_until(lambda: (config.log_directory / f"{8 * FILE_BYTES:020d}").exists())
    store.when_flushed(store.end_log_offset, lambda reason: None)
    store.abandon()
    with MessageStore.open(config) as again:
        assert again.first_log_offset == 7 * FILE_BYTES
        assert len(read_queue(again, "t", 0)) == 1


# -- a disk that refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create", "reserve", "write", "open", "map"])
@pytest.mark.parametrize("path", ["commitlog", "consumequeue", "index"])
def test_a_full_disk_leaves_nothing_half_stored(disk: SimulatedDisk, call: str, path: str) -> None:
    config = replace(CONFIG, mapped_file_size_consume_queue=20 * 2600)
    first = 2500  # so many entries are not staged
    log, ends = WrittenLog(FILE_BYTES), [0]
    for number in range(60):
        text = f"KEYS\x01k{number}\x02"
        log.begin_file(len(record(0, "t", 0, b"body", text)))
        log.add(record(log.end, "t", first + number, b"body", text))
        ends.append(log.end)
    failed_count = 0
    with open_store(config, disk) as store:
        for end in ends[1:]:
            before = store.end_log_offset
            disk.fail(call, errno.ENOSPC, path)
            try:
                copy(store, log.data[before:end])
            except StoreFull:
                failed_count += 1
                assert store.end_log_offset == before
            disk.heal()
            stored_count = sum(0 < at <= store.end_log_offset for at in ends)
            assert len(read_queue(store, "t", 0)) == stored_count
            copy(store, log.data[store.end_log_offset : end])
            assert store.end_log_offset == end
        assert list(read_queue(store, "t", 0)) == list(range(first, first + 60))
        assert all(len(store.query("t", f"k{n}", 0, 2**62, 9)) == 1 for n in range(60))
    assert failed_count or (call, path) == ("write", "index")
    with open_store(config, disk) as again:
        assert again.report.notes == []
        assert again.report.replayed_count == 0


def test_an_error_after_a_part_was_appended_is_raised_by_the_next_call(
    disk: SimulatedDisk,
) -> None:
    log = log_of(3000, 3000)
    with open_store(CONFIG, disk) as store:
        copy(store, log.data[: log.boundaries[1]])
        rest = log.data[log.boundaries[1] :]
        disk.fail("create", errno.ENOSPC, "commitlog")
        assert copy(store, rest) == FILE_BYTES - log.boundaries[1]
        assert copy(store, log.data[FILE_BYTES:]) == log.end - FILE_BYTES


def test_a_store_that_cannot_be_written_refuses_copies(disk: SimulatedDisk) -> None:
    store = open_store(CONFIG, disk)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        copy(store, RECORD)
    with pytest.raises(StoreError, match="closed"):
        store.begin_copy_at(0)


def test_a_store_with_unknown_queues_accepts_nothing_more(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint is the one before, so that the next start derives the queues again."""
    log = log_of(10, 20)
    store = open_store(CONFIG, disk)
    copy(store, log.data[: log.boundaries[1]])

    def fail(self: CopiedLog, stretch: Stretch) -> None:
        raise StoreBroken("queues")

    monkeypatch.setattr(CopiedLog, "_put", fail)
    with pytest.raises(StoreBroken):
        copy(store, log.data[log.boundaries[1] :])
    monkeypatch.undo()
    with pytest.raises(StoreBroken):
        store.append(draft("t", 0, b""))
    store.close()
    with open_store(CONFIG, disk) as again:
        assert list(read_queue(again, "t", 0)) == [0, 1]


# -- notifications ---------------------------------------------------------------------------------


def test_arrivals_are_reported_once_for_each_queue(disk: SimulatedDisk) -> None:
    heard: list[tuple[str, int, int, int, int]] = []

    def arrived(topic: str, queue_id: int, queue_offset: int, code: int, time_ms: int) -> None:
        heard.append((topic, queue_id, queue_offset, code, time_ms))

    log = WrittenLog(FILE_BYTES)
    for topic, queue_offset, text in (("a", 0, ""), ("b", 4, TEXT), ("a", 1, TEXT), ("a", 2, "")):
        log.add(record(log.end, topic, queue_offset, b"", text))
    store = MessageStore.open(
        CONFIG, disk=disk, clock=Ticker(), background=False, on_arrival=arrived
    )
    with store:
        copy(store, log.data)
    red = properties.tags_code("red")
    assert heard == [("a", 0, 2, 0, NOON_MS), ("b", 0, 4, red, NOON_MS)]


def test_every_append_reports_that_the_end_has_moved(disk: SimulatedDisk) -> None:
    ends: list[int] = []
    with open_store(CONFIG, disk) as store:
        store.on_end_moved = lambda: ends.append(store.end_log_offset)
        store.append(draft("t", 0, b""))
        append_batch(store, [draft("t", 0, b""), draft("t", 0, b"")])
        copy(store, record(store.end_log_offset, "t", 3))
        assert copy(store, b"\0\0") == 0
        assert len(ends) == 3
        assert ends == sorted(set(ends))
        assert ends[-1] == store.end_log_offset


def test_with_staging_the_end_moves_with_a_commit(disk: SimulatedDisk) -> None:
    config = replace(CONFIG, transient_store_pool_enable=True, transient_store_pool_size=2)
    ends: list[int] = []
    with open_store(config, disk) as store:
        store.on_end_moved = lambda: ends.append(store.end_log_offset)
        store.append(draft("t", 0, b""))
        assert ends == []
        store.commit()
        assert ends == [store.end_log_offset]
        log = WrittenLog(FILE_BYTES, store.end_log_offset)
        staged = store.append(draft("t", 0, b""))
        log.add(record(staged.end_log_offset, "t", 2, b"copied"))
        assert copy(store, log.data) == len(log.data)
        assert ends[-1] == store.end_log_offset == staged.end_log_offset + len(log.data)
        assert read_queue(store, "t", 0)[2] == (b"copied", staged.end_log_offset)


def test_copied_messages_are_durable_when_the_flush_has_passed_them(disk: SimulatedDisk) -> None:
    config = small_config(log_file_bytes=FILE_BYTES, flush=FlushDiskType.SYNC_FLUSH)
    log = log_of(3000, 3000)
    store = open_store(config, disk)
    copy(store, log.data)
    assert store.flushed_log_offset < store.end_log_offset
    store.flushed(store.end_log_offset).result(timeout=0)
    after = disk.after_kill()
    store.abandon()
    with open_store(config, after) as again:
        assert again.end_log_offset == log.end
        assert again.read("t", 0, 1, 1).status is ReadStatus.FOUND
