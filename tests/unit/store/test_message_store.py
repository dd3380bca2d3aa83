"""The store's interface: messages are read as appended, and errors name their reason."""

import errno
import random
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    BORN,
    HERE,
    NOON_MS,
    ROOT,
    Ticker,
    append_batch,
    delete_topic,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
    wait_until,
)

from tianzhou import names
from tianzhou.config.settings import Given, load
from tianzhou.errors import (
    RecordError,
    StoreBroken,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from tianzhou.protocol import host, kernel, properties, sysflag
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.message_store import Draft, MessageStore
from tianzhou.store.reading import ReadStatus


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


# -- writing and reading -------------------------------------------------------------------------


def test_a_message_is_read_as_it_was_appended(disk: SimulatedDisk) -> None:
    with open_store(small_config(), disk) as store:
        one = Draft(
            "orders", 3, b"body", "KEYS\x01a b\x02TAGS\x01red\x02", 17, ("2001:db8::1", 7), HERE,
            flag=5, reconsume_count=2, prepared_log_offset=9,
        )  # fmt: skip
        done = store.append(one)
        answer = store.read("orders", 3, 0, 10)
        message = decode_record(answer.records[0])
    assert (answer.status, answer.next_offset) == (ReadStatus.FOUND, 1)
    assert (message.topic, message.queue_id, message.body) == ("orders", 3, b"body")
    assert (message.born_time_ms, message.born_host) == (17, ("2001:db8::1", 7))
    assert (message.flag, message.reconsume_count, message.prepared_log_offset) == (5, 2, 9)
    assert (message.log_offset, message.queue_offset) == (done.log_offset, 0)
    assert (message.store_time_ms, message.size_bytes) == (done.store_time_ms, done.size_bytes)
    assert message.properties == {"KEYS": "a b", "TAGS": "red"}


def test_a_batch_is_in_one_file_with_consecutive_queue_offsets(disk: SimulatedDisk) -> None:
    config = small_config(log_file_bytes=4096)
    with open_store(config, disk) as store:
        store.append(draft("t", 0, bytes(3000)))
        done = append_batch(store, [draft("t", 0, b"%d" % n * 100, key=f"k{n}") for n in range(5)])
        assert done.log_offset == 4096
        assert (done.queue_offset, done.count, len(done.log_offsets)) == (1, 5, 5)
        found = read_queue(store, "t", 0)
        assert [found[n + 1][0] for n in range(5)] == [b"%d" % n * 100 for n in range(5)]
        assert [found[n + 1][1] for n in range(5)] == list(done.log_offsets)
        assert all(len(store.query("t", f"k{n}", 0, 2**62, 9)) == 1 for n in range(5))


def test_a_key_is_found_among_many_of_the_same_second(disk: SimulatedDisk) -> None:
    config = replace(
        small_config(log_file_bytes=1 << 20), max_hash_slot_num=100, max_index_num=10_000
    )
    clock = Ticker(step_ms=0)
    with open_store(config, disk, clock) as store:
        for moment_ms, count in ((100, 40), (500, 2000)):
            clock.now_ms = NOON_MS + moment_ms
            for number in range(count):
                store.append(draft("t", 0, b"%d at %d" % (number, moment_ms), key="k"))
        found = store.query("t", "k", NOON_MS, NOON_MS + 100, 32)
        assert [decode_record(each).body for each in found] == [
            b"%d at 100" % number for number in range(8, 40)
        ]
        assert not store.query("t", "k", NOON_MS + 101, NOON_MS + 499, 32)


def test_a_read_respects_count_bytes_and_filter(disk: SimulatedDisk) -> None:
    config = StoreConfig(
        store_path_root_dir=ROOT, mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000, max_hash_slot_num=10, max_index_num=100,
        max_transfer_bytes_on_message_in_memory=5000, max_transfer_count_on_message_in_memory=6,
    )  # fmt: skip
    with open_store(config, disk) as store:
        for number in range(40):
            tags = "even" if number % 2 == 0 else "odd"
            store.append(draft("t", 0, bytes(100 if number < 20 else 2000), tags=tags))
        assert len(store.read("t", 0, 0, 3).records) == 3
        assert len(store.read("t", 0, 0, 32).records) == 6
        assert len(store.read("t", 0, 20, 32).records) == 2
        even = properties.tags_code("even")
        answer = store.read("t", 0, 0, 4, accept_tags=lambda code: code == even)
        offsets = [decode_record(record).queue_offset for record in answer.records]
        assert (offsets, answer.next_offset) == ([0, 2, 4, 6], 7)
        nothing = store.read("t", 0, 0, 4, accept_record=lambda record: False)
        assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 40)


def test_a_single_message_over_the_byte_limit_is_read(disk: SimulatedDisk) -> None:
    config = small_config(log_file_bytes=1 << 20)
    with open_store(config, disk) as store:
        store.append(draft("t", 0, bytes(400_000)))
        assert len(store.read("t", 0, 0, 1).records) == 1


def test_a_read_at_an_invalid_offset_returns_the_valid_one(disk: SimulatedDisk) -> None:
    with open_store(small_config(), disk) as store:
        assert store.read("t", 0, 5, 1).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
        store.append(draft("t", 0, b""))
        assert store.read("t", 1, 0, 1).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
        one = store.read("t", 0, 1, 1)
        assert (one.status, one.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 1)
        badly = store.read("t", 0, 9, 1)
        assert (badly.status, badly.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 1)
        small = store.read("t", 0, -1, 1)
        assert (small.status, small.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, 0)


def test_prepared_and_rolled_back_messages_are_in_no_queue(disk: SimulatedDisk) -> None:
    with open_store(small_config(), disk) as store:
        for state in (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK):
            done = store.append(draft("t", 0, b"half", key="k", sys_flag=state))
            assert done.queue_offset == 0
            assert store.record_at(done.log_offset) is not None
        assert store.max_offset("t", 0) == 0
        committed = store.append(draft("t", 0, b"x", sys_flag=sysflag.TRANSACTION_COMMIT))
        assert committed.queue_offset == 0
        assert store.max_offset("t", 0) == 1
        # A prepared message can be queried by key, a rolled back one cannot.
        assert len(store.query("t", "k", 0, 2**62, 9)) == 1


def test_the_entry_of_a_delayed_message_has_its_delivery_time(disk: SimulatedDisk) -> None:
    clock = Ticker(step_ms=0)
    with open_store(small_config(), disk, clock) as store:
        for level, delay_ms in (("3", 10_000), ("99", 7_200_000)):
            text = f"DELAY\x01{level}\x02TAGS\x01red\x02"
            store.append(Draft(names.SCHEDULE_TOPIC, 2, b"", text, 0, BORN, HERE))
            queue = store.queues.get(names.SCHEDULE_TOPIC, 2)
            assert queue is not None
            entry = queue.entry(queue.next_offset - 1)
            assert entry is not None
            assert entry[2] == NOON_MS + delay_ms


def test_the_writer_is_notified_of_arrivals(disk: SimulatedDisk) -> None:
    heard: list[tuple[str, int, int, int, int]] = []

    def arrived(topic: str, queue_id: int, queue_offset: int, code: int, time_ms: int) -> None:
        heard.append((topic, queue_id, queue_offset, code, time_ms))

    store = MessageStore.open(
        small_config(), disk=disk, clock=Ticker(step_ms=0), background=False, on_arrival=arrived
    )
    store.append(draft("t", 1, b"", tags="red"))
    append_batch(store, [draft("t", 1, b""), draft("t", 1, b"")])
    store.close()
    code = properties.tags_code("red")
    assert heard == [("t", 1, 0, code, NOON_MS), ("t", 1, 2, 0, NOON_MS)]


def test_a_deleted_topic_starts_at_offset_zero(disk: SimulatedDisk) -> None:
    config = small_config()
    with open_store(config, disk) as store:
        for queue_id in range(3):
            store.append(draft("gone", queue_id, b"old"))
        store.append(draft("kept", 0, b"kept"))
        queue = store.queues.get("gone", 2)
        assert queue is not None
        store.remove_queues([queue])
        assert delete_topic(store, "gone") == 2
        assert queues_of(store) == [("kept", 0)]
        assert store.append(draft("gone", 0, b"new")).queue_offset == 0
    with open_store(config, disk) as store:
        assert {body for body, _ in read_queue(store, "gone", 0).values()} == {b"new"}
    with MessageStore.open(config, disk=disk, background=False, rebuild=True) as store:
        assert {body for body, _ in read_queue(store, "gone", 0).values()} == {b"new"}
        assert {body for body, _ in read_queue(store, "kept", 0).values()} == {b"kept"}


def test_raw_log_chunks_are_read_for_replication(disk: SimulatedDisk) -> None:
    with open_store(small_config(log_file_bytes=4096), disk) as store:
        for _ in range(6):
            store.append(draft("t", 0, bytes(1500)))
        assert store.first_log_offset == 0
        piece = store.log_slice(0, 100)
        assert piece is not None
        assert len(piece) == 100
        rest = store.log_slice(4000, 10_000)
        assert rest is not None
        assert len(rest) == 96
        assert store.log_slice(store.end_log_offset + 1, 10) is None


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b", "t" * 256, "\u4e00" * 86])
def test_a_topic_that_is_no_directory_name_is_rejected(disk: SimulatedDisk, topic: str) -> None:
    with open_store(small_config(), disk) as store:
        with pytest.raises(StoreError, match="cannot be the name of a queue"):
            store.append(draft(topic, 0, b""))
        assert store.end_log_offset == 0


def _record_of(one: Draft, queue_offset: int, log_offset: int) -> bytes:
    """As a version that did not check names would have stored it."""
    return kernel.encode_record(
        one.topic, one.body, one.properties_text, one.queue_id, queue_offset, log_offset, 0, 0,
        NOON_MS, host.pack(BORN), NOON_MS, host.pack(HERE), 0, 0,
    )  # fmt: skip


def test_a_store_opens_with_a_too_long_topic_name_in_its_log(tmp_path: Path) -> None:
    config, topic = small_config(tmp_path), "t" * 262
    with open_store(config) as store:
        store.append(draft("before", 0, b"1"))
        one = draft(topic, 0, b"lost to queues", key="k")
        for number in range(3):
            log_position = store.log.allocate(len(_record_of(one, number, 0)))
            store.log.append(_record_of(one, number, log_position), NOON_MS)
        store.append(draft("after", 0, b"2"))
        store.abandon()
    for _ in range(2):
        with open_store(config) as store:
            assert {queue for queue, _ in queues_of(store)} == {"before", "after"}
            assert [note for note in store.report.notes if "262 bytes" in note][1:] == []
            store.append(draft("after", 0, b"3"))
            store.flush()
    assert not [name for name in (tmp_path / "consumequeue").iterdir() if len(name.name) > 255]


def test_an_append_that_does_not_fit_is_rejected_and_changes_nothing(disk: SimulatedDisk) -> None:
    config = small_config(log_file_bytes=4096)
    with open_store(config, disk) as store:
        store.append(draft("t", 0, b"first"))
        end = store.end_log_offset
        with pytest.raises(StoreError, match="does not fit a log file"):
            store.append(draft("t", 0, bytes(4000)))
        with pytest.raises(RecordError, match="4194304 are allowed"):
            store.append(draft("t", 0, bytes(4 * 1024 * 1024 + 1)))
        with pytest.raises(RecordError):
            store.append(Draft("t", 0, b"", "x" * 40_000, 0, BORN, HERE))
        with pytest.raises(StoreError, match="one queue"):
            append_batch(store, [draft("t", 0, b""), draft("t", 1, b"")])
        with pytest.raises(StoreError, match="at least one"):
            append_batch(store, [])
        assert (store.end_log_offset, store.max_offset("t", 0)) == (end, 1)


def test_opening_a_store_twice_is_rejected(disk: SimulatedDisk, tmp_path: Path) -> None:
    for config, where in ((small_config(), disk), (small_config(tmp_path), None)):
        with open_store(config, where), pytest.raises(StoreLocked):
            open_store(config, where)
        open_store(config, where).close()


def test_a_store_on_a_full_disk_rejects_writes_and_stays_readable(disk: SimulatedDisk) -> None:
    config = small_config(log_file_bytes=4096)
    with open_store(config, disk) as store:
        store.append(draft("t", 0, bytes(3500), key="k"))
        disk.fail("reserve", errno.ENOSPC, "commitlog")
        with pytest.raises(StoreFull, match=re.escape("no space left on the disk")):
            store.append(draft("t", 0, bytes(3500)))
        assert len(read_queue(store, "t", 0)) == 1
        # Once there is space again the same message is stored, at the same offset.
        assert store.append(draft("t", 0, bytes(3500))).queue_offset == 1
    assert open_store(config, disk).report.notes == []


def test_lack_of_space_for_the_index_is_detected_before_the_log_is_written(
    disk: SimulatedDisk,
) -> None:
    with open_store(small_config(), disk) as store:
        disk.fail("reserve", errno.ENOSPC, "index")
        with pytest.raises(StoreFull):
            store.append(draft("t", 0, b"x", key="k"))
        assert store.end_log_offset == 0
        assert store.append(draft("t", 0, b"x", key="k")).queue_offset == 0


def test_lack_of_space_for_a_queue_is_detected_before_the_log_is_written(
    disk: SimulatedDisk,
) -> None:
    config = replace(small_config(), mapped_file_size_consume_queue=20_000)
    with open_store(config, disk) as store:
        store.append(draft("t", 0, b"x"))
        store.flush()
        disk.fail("reserve", errno.ENOSPC, "consumequeue")
        for _ in range(31):
            store.append(draft("t", 0, b"x"))
        end = store.end_log_offset
        with pytest.raises(StoreFull):
            store.append(draft("t", 0, b"x"))
        assert store.end_log_offset == end
        assert store.append(draft("t", 0, b"x")).queue_offset == 32


def test_lack_of_space_for_a_new_queue_file_stops_only_the_checkpoint(
    disk: SimulatedDisk,
) -> None:
    with open_store(small_config(), disk) as store:
        store.append(draft("t", 0, b"x"))
        disk.fail("write", errno.ENOSPC, "consumequeue")
        with pytest.raises(StoreFull, match="make a file of queue t/0"):
            store.flush()
        assert read_queue(store, "t", 0)[0][0] == b"x"
        assert store.append(draft("t", 0, b"y")).queue_offset == 1
    assert open_store(small_config(), disk).report.notes == []


def test_a_full_disk_in_the_background_rejects_writes_until_there_is_space(
    disk: SimulatedDisk,
) -> None:
    config = replace(
        small_config(), flush_consume_queue_thorough_interval=20, flush_interval_consume_queue=10,
        clean_resource_interval=3_600_000,
    )  # fmt: skip
    disk.fail("write", errno.ENOSPC, "consumequeue")
    with MessageStore.open(config, disk=disk, clock=Ticker()) as store:
        store.append(draft("t", 0, b"x"))
        wait_until(lambda: isinstance(store.refusal, StoreFull))
        with pytest.raises(StoreFull, match="no space left"):
            store.append(draft("t", 0, b"y"))
        store.expire()
        assert store.append(draft("t", 0, b"y")).queue_offset == 1


def test_writes_are_rejected_while_the_disk_is_over_the_warning_ratio(disk: SimulatedDisk) -> None:
    with open_store(small_config(), disk) as store:
        store.append(draft("t", 0, b"x"))
        disk.used = 0.93
        store.expire()
        with pytest.raises(StoreFull, match="93% full"):
            store.append(draft("t", 0, b"x"))
        assert len(read_queue(store, "t", 0)) == 1
        disk.used = 0.5
        store.expire()
        store.append(draft("t", 0, b"x"))


@pytest.mark.parametrize(
    ("number", "kind", "reason"),
    [
        (errno.EROFS, StoreReadOnly, "read-only"),
        (errno.EACCES, StoreReadOnly, "permission denied"),
        (errno.ENOSPC, StoreFull, "no space left"),
        (errno.EIO, StoreBroken, "input/output error"),
    ],
)
def test_a_store_that_cannot_be_opened_reports_the_reason(
    disk: SimulatedDisk, number: int, kind: type[StoreError], reason: str
) -> None:
    disk.fail("create", number)
    with pytest.raises(kind, match=reason):
        open_store(small_config(), disk)
    open_store(small_config(), disk).close()


def test_nothing_is_acknowledged_after_a_failed_sync(disk: SimulatedDisk) -> None:
    config = small_config(flush=FlushDiskType.SYNC_FLUSH)
    store = open_store(config, disk)
    safe = store.append(draft("t", 0, b"safe"))
    store.flushed(safe.end_log_offset).result(timeout=0)
    lost = store.append(draft("t", 0, b"lost"))
    disk.fail("sync", errno.EIO, "commitlog")
    with pytest.raises(StoreBroken, match="could not be put on the disk"):
        store.flushed(lost.end_log_offset).result(timeout=0)
    # The disk works again, but lost data stays lost: nothing is acknowledged.
    with pytest.raises(StoreBroken):
        store.flushed(lost.end_log_offset).result(timeout=0)
    with pytest.raises(StoreBroken):
        store.append(draft("t", 0, b"more"))
    with pytest.raises(StoreBroken):
        store.flush()
    assert store.flushed_log_offset == safe.end_log_offset
    assert len(read_queue(store, "t", 0)) == 2
    store.close()
    assert disk.exists(ROOT / "abort")
    after = disk.after_power_cut(random.Random(1))
    with open_store(config, after) as store:
        assert read_queue(store, "t", 0)[0][0] == b"safe"


def test_a_closed_store_rejects_writes(disk: SimulatedDisk) -> None:
    store = open_store(small_config(), disk)
    done = store.append(draft("t", 0, b"x"))
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.append(draft("t", 0, b"x"))
    store.flushed(done.end_log_offset).result(timeout=0)
    with pytest.raises(StoreClosed):
        store.flushed(done.end_log_offset + 1).result(timeout=0)


def test_the_error_of_a_wrong_file_size_names_the_remedy(disk: SimulatedDisk) -> None:
    with open_store(small_config(log_file_bytes=4096), disk) as store:
        for _ in range(8):
            store.append(draft("t", 0, bytes(1500)))
    with pytest.raises(StoreCorrupt, match=r"4096 bytes each.*mappedFileSizeCommitLog"):
        open_store(small_config(log_file_bytes=8192), disk)
    open_store(small_config(log_file_bytes=4096), disk).close()


def test_a_changed_queue_file_size_rebuilds_the_queues(disk: SimulatedDisk) -> None:
    with open_store(small_config(), disk) as store:
        for _ in range(20):
            store.append(draft("t", 0, b"x"))
    config = StoreConfig(
        store_path_root_dir=ROOT, mapped_file_size_commit_log=8192,
        mapped_file_size_consume_queue=200, max_hash_slot_num=5, max_index_num=12,
    )  # fmt: skip
    with open_store(config, disk) as store:
        assert any("made again" in note for note in store.report.notes)
        assert len(read_queue(store, "t", 0)) == 20


# -- threads -------------------------------------------------------------------------------------


def wait_for(what: str, condition: threading.Event) -> None:
    assert condition.wait(90), f"{what} did not happen in 90 s"


def test_many_waiters_share_syncs(tmp_path: Path) -> None:
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100, max_index_num=1000, flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )  # fmt: skip
    notified: list[int] = []
    all_told = threading.Event()
    with MessageStore.open(config) as store:
        for number in range(500):
            done = store.append(draft("t", number % 3, bytes(50)))

            def heard(reason: StoreError | None, end: int = done.end_log_offset) -> None:
                assert reason is None
                assert store.flushed_log_offset >= end
                notified.append(end)
                if len(notified) == 500:
                    all_told.set()

            store.when_flushed(done.end_log_offset, heard)
        wait_for("the flush of 500 messages", all_told)
    assert notified == sorted(notified)


def test_a_cancelled_waiter_is_not_notified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100, max_index_num=1000,
    )  # fmt: skip
    is_flushing, may_go_on = threading.Event(), threading.Event()

    def hold_up(_: StoreError | None) -> None:
        is_flushing.set()
        wait_for("the end of the pause", may_go_on)

    with MessageStore.open(config) as store:
        store.when_flushed(store.append(draft("t", 0, b"x")).end_log_offset, hold_up)
        wait_for("the first flush", is_flushing)
        end_log_offset = store.append(draft("t", 0, b"y")).end_log_offset
        gone, waiting = store.flushed(end_log_offset), store.flushed(end_log_offset)
        assert gone.cancel()
        may_go_on.set()
        waiting.result(timeout=90)
        assert gone.cancelled()
    assert "callback" not in caplog.text


def test_async_flush_runs_in_the_background(tmp_path: Path) -> None:
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100, max_index_num=1000, flush_interval_commit_log=10,
        flush_commit_log_thorough_interval=50,
    )  # fmt: skip
    with MessageStore.open(config) as store:
        done = store.append(draft("t", 0, b"x"))
        deadline = time.monotonic() + 90
        while store.flushed_log_offset < done.end_log_offset:
            assert time.monotonic() < deadline, store.flushed_log_offset
            time.sleep(0.01)


def test_log_files_are_preallocated_while_the_log_rolls(tmp_path: Path) -> None:
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 16,
        max_hash_slot_num=100, max_index_num=1000, warm_ahead_bytes=1 << 14,
    )  # fmt: skip
    with MessageStore.open(config) as store:
        for number in range(2000):
            store.append(draft("t", 0, b"%d" % number * 20))
        found = read_queue(store, "t", 0)
        assert [found[n][0] for n in range(2000)] == [b"%d" % n * 20 for n in range(2000)]
        used = {file.path.name for file in store.log.segments.files}
    # The unused preallocated file is removed by a clean stop.
    assert {path.name for path in (tmp_path / "commitlog").iterdir()} == used
    with MessageStore.open(config) as store:
        assert store.report.notes == []
        assert store.max_offset("t", 0) == 2000


def test_concurrent_readers_see_complete_messages(tmp_path: Path) -> None:
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2000, max_hash_slot_num=100, max_index_num=1000,
    )  # fmt: skip
    count, wrong, done = 3000, list[object](), threading.Event()

    def read(store: MessageStore) -> None:
        at = 0
        try:
            while at < count and not (done.is_set() and at >= store.max_offset("t", 0)):
                answer = store.read("t", 0, at, 32)
                for record in answer.records:
                    message = decode_record(record, check_crc=True)
                    if message.body != b"%d" % message.queue_offset * 9:
                        wrong.append(message)
                at = max(at, answer.next_offset if answer.records else at)
        except Exception as e:  # noqa: BLE001 - a thread's failure is the test's
            wrong.append(e)
        if at != count:
            wrong.append(at)

    with MessageStore.open(config) as store:
        readers = [threading.Thread(target=read, args=(store,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(count):
            store.append(draft("t", 0, b"%d" % number * 9))
        done.set()
        for reader in readers:
            reader.join(30)
            assert not reader.is_alive()
    assert wrong == []


# -- room and odd directories --------------------------------------------------------------------


def test_lack_of_space_for_the_first_log_file_is_reported_at_the_start(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free = 8000
    with open_store(small_config(), disk) as store:
        assert "8000 bytes are free on the disk, the first log file needs 8192" in caplog.text
        store.append(draft("t", 0, b"x"))
    caplog.clear()
    open_store(small_config(), disk).close()
    assert "bytes are free" not in caplog.text


def without_our_part(disk: SimulatedDisk) -> None:
    """Keep only RocketMQ's part of the checkpoint."""
    path = ROOT / "checkpoint"
    page = bytearray(disk.file_bytes(path))
    page[64:104] = bytes(40)
    disk.damage(path, bytes(page))


@pytest.mark.parametrize("cut_at", [1, 5, 6])
def test_missing_entries_before_the_recovered_range_rebuild_all_queues(
    disk: SimulatedDisk, cut_at: int
) -> None:
    """Without our part of the checkpoint, recovery of the last files detects the gap."""
    config = replace(small_config(log_file_bytes=4096), mapped_file_size_consume_queue=2000)
    with open_store(config, disk) as store:
        for number in range(40):
            store.append(draft("t", number % 2, b"%d" % number * 300, key=f"k{number}"))
        files = store.log.segments.files
        assert len(files) > 5
        expected = {queue: read_queue(store, *queue) for queue in queues_of(store)}
        assert expected["t", 0][cut_at][1] < files[-3].first
    without_our_part(disk)
    path = ROOT / "consumequeue" / "t" / "0" / f"{0:020d}"
    content = disk.file_bytes(path)
    disk.damage(path, content[: cut_at * 20].ljust(len(content), b"\0"))
    with open_store(config, disk) as store:
        notes = " ".join(store.report.notes)
        assert f"queue t/0: entries {cut_at} to" in notes
        assert "all queues are made again from the log" in notes
        assert {queue: read_queue(store, *queue) for queue in queues_of(store)} == expected
        for number in range(40):
            assert len(store.query("t", f"k{number}", 0, 2**62, 5)) == 1
    with open_store(config, disk) as store:
        assert store.report.notes == []


# -- memory --------------------------------------------------------------------------------------


def resident_kib(part: str) -> int:
    """Resident bytes of mapped files with `part` in their path."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            counts = part in line
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=8 << 20,
        resident_log_bytes=1 << 20, flush_interval_consume_queue=20, warm_ahead_bytes=0,
        max_hash_slot_num=100, max_index_num=100_000,
    )  # fmt: skip
    with MessageStore.open(config) as store:
        for number in range(2500):
            store.append(draft("t", 0, b"%d;" % number * 2000, key=f"k{number}"))
        assert store.end_log_offset > 16 << 20
        wait_until(
            lambda: resident_kib(str(tmp_path / "commitlog")) < 3 << 10,
            lambda: resident_kib(str(tmp_path)),
        )
        found = read_queue(store, "t", 0)
        assert [found[n][0] for n in range(2500)] == [b"%d;" % n * 2000 for n in range(2500)]
        assert len(store.query("t", "k7", 0, 2**62, 5)) == 1
        # Pages that a reader touched are released, too.
        wait_until(
            lambda: resident_kib(str(tmp_path / "commitlog")) < 3 << 10,
            lambda: resident_kib(str(tmp_path)),
        )


def test_old_names_of_size_settings_are_accepted() -> None:
    given = [
        Given("mapedFileSizeCommitLog", "8192", "a:1"),
        Given("mapedFileSizeConsumeQueue", "2000", "a:2"),
    ]
    config = load(StoreConfig, given).config
    assert config.mapped_file_size_commit_log == 8192
    assert config.mapped_file_size_consume_queue == 2000


def test_readers_see_every_entry_while_queues_move_between_memory_and_files(tmp_path: Path) -> None:
    """New queues move from memory to files, files are mapped and unmapped, while readers read."""
    config = StoreConfig(
        store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 400, max_hash_slot_num=100, max_index_num=1000,
        flush_interval_consume_queue=4, flush_consume_queue_thorough_interval=16,
        flush_consume_queue_least_pages=0, mapped_queue_files_max=16, resident_log_bytes=0,
        clean_resource_interval=10,
    )  # fmt: skip
    queues, rounds = 12, 450
    wrong: list[object] = []
    over = threading.Event()

    def read_entries(seed: int) -> None:
        dice = random.Random(seed)
        while not over.is_set():
            queue_id = dice.randrange(queues)
            high = store.max_offset("t", queue_id)
            if not high:
                continue
            at = dice.randrange(high)
            answer = store.read("t", queue_id, at, 3)
            bodies = [decode_record(record).body for record in answer.records]
            expected = [b"%d-%d" % (queue_id, at + n) for n in range(len(bodies))]
            if not bodies or bodies != expected:
                wrong.append((queue_id, at, high, answer.status, bodies))

    with MessageStore.open(config) as store:
        readers = [threading.Thread(target=read_entries, args=(seed,)) for seed in range(2)]
        for reader in readers:
            reader.start()
        for number in range(rounds):
            for queue_id in range(queues):
                store.append(draft("t", queue_id, b"%d-%d" % (queue_id, number)))
        over.set()
        for reader in readers:
            reader.join()
        assert wrong == []
        expected = {n: rounds for n in range(queues)}
        assert {n: store.max_offset("t", n) for n in range(queues)} == expected
    with MessageStore.open(config) as store:
        assert store.report.notes == []
        for queue_id in range(queues):
            found = read_queue(store, "t", queue_id)
            assert [found[n][0] for n in range(rounds)] == [
                b"%d-%d" % (queue_id, n) for n in range(rounds)
            ]
