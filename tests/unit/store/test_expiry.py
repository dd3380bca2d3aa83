"""Retention: when files are deleted, which ones, and what remains readable."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    NOON_MS,
    Ticker,
    draft,
    open_store,
    read_queue,
    small_config,
)

from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import ReadStatus


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_a_view_outlives_the_deletion_of_its_file(tmp_path: Path) -> None:
    config = small_config(tmp_path, log_file_bytes=4096)
    clock = Ticker(now_ms=time.time_ns() // 1_000_000)
    with open_store(config, clock=clock) as store:
        for number in range(10):
            store.append(draft("t", 0, b"%d" % number * 1000))
        record = store.read("t", 0, 0, 1).records[0]
        clock.now_ms += 80 * 3_600_000
        assert store.expire(now=True) > 1
        assert store.read("t", 0, 0, 1).status is ReadStatus.OFFSET_TOO_SMALL
        assert store.record_at(0) is None
        assert decode_record(record).body == b"0" * 1000
    assert decode_record(record).body == b"0" * 1000


def test_queues_and_their_files_expire_with_the_log(disk: SimulatedDisk) -> None:
    config = small_config(log_file_bytes=4096)
    clock = Ticker()
    with open_store(config, disk, clock) as store:
        for number in range(60):
            store.append(draft("t", 0, bytes(300), key=f"k{number}"))
        clock.now_ms += 80 * 3_600_000
        while store.expire(now=True):
            pass
        low = store.min_offset("t", 0)
        assert 0 < low < 60
        assert sorted(read_queue(store, "t", 0)) == list(range(low, 60))
        assert store.earliest_time("t", 0) == store.earliest_log_time()
        first_queue_file = min(p for p in disk.files() if "consumequeue" in str(p))
        assert int(first_queue_file.name) == low // 7 * 140
        assert not store.query("t", "k0", 0, 2**62, 9)
    with open_store(config, disk, clock) as store:
        assert store.report.notes == []
        assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (low, 60)


def test_retention_and_memory_limit_follow_changed_settings(disk: SimulatedDisk) -> None:
    config = replace(small_config(log_file_bytes=4096), file_reserved_time=1_000_000)
    clock = Ticker()
    with open_store(config, disk, clock) as store:
        for _ in range(60):
            store.append(draft("t", 0, bytes(300)))
        clock.now_ms += 2 * 3_600_000
        assert store.expire(now=True) == 0
        memory_bytes = store.memory_bytes
        store.apply_config(
            replace(config, file_reserved_time=1, access_message_in_memory_max_ratio=20)
        )
        assert store.expire(now=True) > 0
        assert store.memory_bytes == pytest.approx(memory_bytes / 2, abs=1)


class SharedDisk(SimulatedDisk):
    """A disk that other data nearly fills; each log file uses two percent."""

    def used_ratio(self, path: Path) -> float:
        return 0.785 + 0.02 * len(self.names(path))


def test_recent_files_are_deleted_until_the_disk_is_below_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(small_config(log_file_bytes=4096), file_reserved_time=1_000_000)
    with open_store(config, SharedDisk()) as store:
        for _ in range(60):
            store.append(draft("t", 0, bytes(300)))
        file_count = len(store.log.segments.files)
        assert file_count > 5
        assert store.expire() == file_count - 3, "three take six hundredths"
        # It was over the warning ratio, too; writes do not wait for the next check.
        assert store.refusal is None
        store.append(draft("t", 0, b"x"))
        assert store.expire() == 0
    assert caplog.text.count("whatever its age") == file_count - 3


def test_the_newest_file_is_retained_when_other_data_fills_the_disk(disk: SimulatedDisk) -> None:
    config = replace(small_config(log_file_bytes=4096), file_reserved_time=1_000_000)
    with open_store(config, disk) as store:
        for _ in range(60):
            store.append(draft("t", 0, bytes(300)))
        disk.used = 0.87
        while store.expire():
            pass
        assert len(store.log.segments.files) == 1
        assert read_queue(store, "t", 0)


# -- a clock that is set -------------------------------------------------------------------------

HOUR_MS = 3_600_000
ALWAYS = ";".join(map(str, range(24)))


class Time:
    """Wall-clock and monotonic time, and a disk that sets file times."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.wall_ms, self.passed_ms = NOON_MS, 5_000
        self.pass_by(0)

    def pass_by(self, hours: int) -> None:
        self.passed_ms += hours * HOUR_MS
        self.jump(hours)

    def jump(self, hours: int) -> None:
        self.wall_ms += hours * HOUR_MS
        self.disk.now_ms = self.wall_ms

    def open(self) -> MessageStore:
        config = replace(small_config(log_file_bytes=4096), delete_when=ALWAYS)
        return MessageStore.open(
            config, disk=self.disk, clock=lambda: self.wall_ms, background=False,
            steady=lambda: self.passed_ms,
        )  # fmt: skip


def filled(store: MessageStore) -> MessageStore:
    for _ in range(60):
        store.append(draft("t", 0, bytes(300)))
    return store


def test_a_clock_jump_deletes_nothing_and_elapsed_time_does(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    time_ = Time(disk)
    with filled(time_.open()) as store:
        for hours in (100, -50, 24 * 365):
            time_.jump(hours)
            assert store.expire() == 0
        assert caplog.text.count("the clock was set") == 3
        time_.pass_by(71)
        assert store.expire() == 0
        time_.pass_by(2)
        assert store.expire() > 0


def test_after_a_clock_jump_files_are_deleted_on_a_full_disk_and_on_request(
    disk: SimulatedDisk,
) -> None:
    time_ = Time(disk)
    with filled(time_.open()) as store:
        time_.jump(100)
        assert store.expire() == 0
        disk.used = 0.87
        assert store.expire() > 0
        disk.used = 0.1
        filled(store)
        time_.jump(100)
        assert store.expire() == 0
        assert store.expire(now=True) > 0


def test_a_clock_jump_while_the_store_was_closed_deletes_nothing_for_a_day(
    disk: SimulatedDisk,
) -> None:
    time_ = Time(disk)
    filled(time_.open()).close()
    time_.jump(100)
    with time_.open() as store:
        assert store.expire() == 0
        time_.pass_by(23)
        assert store.expire() == 0
        time_.pass_by(1)
        assert store.expire() > 0
