"""Prefetching: messages are read from disk in a thread before the event loop reads them."""

import asyncio
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.brokers import eventually
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import BORN, HERE, NOON_MS, open_store, small_config

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import DelayLevels
from tianzhou.broker.scheduled.timer_loop import Timer
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.storing.disk_prefetch import QueueRange, prefetch
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.halves import Halves
from tianzhou.clock import steady_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.message import StoredMessage
from tianzhou.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.filter import parse_tags
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.files.real_disk import RealDisk
from tianzhou.store.message_store import Draft, MessageStore


def test_entries_and_records_are_read_from_their_files() -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        for _ in range(9):
            store.append(Draft("t", 0, b"x" * 2000, "", NOON_MS, BORN, HERE))
        store.flush()
        before = disk.calls["read"]
        prefetch(store, [QueueRange("t", 0, range(2, 4)), QueueRange("t", 0, range(8, 9))])
        # Two ranges of entries, three records.
        assert disk.calls["read"] - before == 5


def test_missing_messages_are_left_out() -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        store.append(Draft("t", 0, b"x", "", NOON_MS, BORN, HERE))
        store.flush()
        prefetch(
            store,
            [
                QueueRange("t", 0, range(5, 9)),
                QueueRange("t", 7, range(1)),
                QueueRange("?", 0, range(1)),
            ],
        )
        for path in disk.files():
            if "consumequeue" in str(path) or "commitlog" in str(path):
                disk.damage(path, None)
        before = disk.calls["read"]
        prefetch(store, [QueueRange("t", 0, range(1))])
        assert disk.calls["read"] == before


def test_prefetching_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        for _ in range(9):
            store.append(Draft("t", 0, b"x" * 2000, "", NOON_MS, BORN, HERE))
        store.flush()
        for limit_bytes, record_count in ((5000, 2), (1, 1)):
            monkeypatch.setattr("tianzhou.broker.storing.disk_prefetch._NEXT_BYTES", limit_bytes)
            before = disk.calls["read"]
            disk_prefetch.prefetch_next(store, "t", 0, 3, 32)
            assert disk.calls["read"] - before == 1 + record_count


def test_only_old_messages_that_are_not_cached_need_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        for _ in range(9):
            store.append(Draft("t", 0, b"x" * 2000, "", NOON_MS, BORN, HERE))
        store.flush()

        def needed() -> list[bool]:
            return [disk_prefetch.needs_disk(store, "t", 0, at, 3) for at in (-1, 0, 5, 8, 9, 99)]

        assert needed() == [False] * 6
        monkeypatch.setattr("tianzhou.broker.storing.disk_prefetch.HOT_BYTES", 5000)
        assert needed() == [False] * 6
        # As a real disk does: what is old is not cached, what is new is.
        new, entries_there = store.end_log_offset - 5000, True

        def is_cached(view: memoryview, start: int, stop: int) -> bool:
            return start >= new

        def entries_are_cached(queue: ConsumeQueue, queue_offsets: range) -> bool:
            return entries_there

        monkeypatch.setattr(disk, "is_cached", is_cached)
        monkeypatch.setattr(disk_prefetch, "_has_entries", entries_are_cached)
        assert needed() == [False, True, True, False, False, False]
        entries_there = False
        assert needed() == [False, True, True, True, False, False]
        assert not disk_prefetch.needs_disk(store, "?", 0, 0, 3)


def has_entries(queue: ConsumeQueue, queue_offsets: range) -> bool:
    return True


def test_only_messages_that_the_next_read_returns_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    config = replace(
        small_config(log_file_bytes=1 << 20), max_transfer_bytes_on_message_in_memory=7000,
        max_transfer_count_on_message_in_memory=4,
    )  # fmt: skip
    monkeypatch.setattr(disk_prefetch, "HOT_BYTES", 0)
    monkeypatch.setattr(disk_prefetch, "_has_entries", has_entries)
    with open_store(config, disk) as store:
        starts = [
            store.append(
                Draft("t", 0, bytes(2000 if number < 8 else 20), f"TAGS\x01{tag}\x02", NOON_MS,
                      BORN, HERE)
            ).log_offset
            for number, tag in enumerate("abababab" + "cccccccc")
        ]  # fmt: skip
        store.flush()
        evicted = 0

        def is_cached(view: memoryview, start: int, stop: int) -> bool:
            return not start <= starts[evicted] < stop

        monkeypatch.setattr(disk, "is_cached", is_cached)

        def waited_for(queue_offset: int, count: int, tag: str | None = None) -> list[int]:
            """The messages that such a pull would wait for if they were evicted."""
            nonlocal evicted
            accept = None if tag is None else parse_tags(tag).matches
            waited: list[int] = []
            for evicted in range(16):
                needs = disk_prefetch.needs_disk(store, "t", 0, queue_offset, count, accept)
                assert needs == disk_prefetch.prefetch_next(
                    store, "t", 0, queue_offset, count, accept
                )
                waited += [evicted] * needs
            return waited

        assert waited_for(0, 1) == [0]
        assert waited_for(0, 32) == [0, 1, 2], "7000 bytes"
        assert waited_for(9, 3) == [9, 10, 11]
        assert waited_for(9, 32) == [9, 10, 11, 12], "4 messages"
        assert waited_for(0, 32, "b") == [1, 3, 5]
        assert waited_for(0, 1, "b") == [1]


def test_messages_of_two_files_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    monkeypatch.setattr(disk_prefetch, "HOT_BYTES", 0)
    monkeypatch.setattr(disk_prefetch, "_has_entries", has_entries)
    with open_store(small_config(), disk) as store:
        for _ in range(6):
            store.append(Draft("t", 0, bytes(2000), "", NOON_MS, BORN, HERE))
        store.flush()
        first, second = store.log.segments.files[:2]
        views = {id(file.view().obj): file for file in (first, second)}
        cached_file = first

        def is_cached(view: memoryview, start: int, stop: int) -> bool:
            return views.get(id(view.obj)) is cached_file

        monkeypatch.setattr(disk, "is_cached", is_cached)
        queue = store.queues.get("t", 0)
        assert queue is not None
        count = sum(log_offset < first.stop for log_offset, _, _ in queue.raw_entries(0, 6))
        assert 0 < count < 6
        assert not disk_prefetch.needs_disk(store, "t", 0, 0, count)
        assert disk_prefetch.needs_disk(store, "t", 0, 0, count + 1)
        cached_file = second
        assert disk_prefetch.needs_disk(store, "t", 0, 0, count)
        assert not disk_prefetch.needs_disk(store, "t", 0, count, 6 - count)


def test_a_real_disk_knows_what_is_cached(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    file = disk.open(path)
    view = file.map()
    with path.open("rb") as plain:
        os.fsync(plain.fileno())
        os.posix_fadvise(plain.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if disk.is_cached(view, 0, 1 << 20):
        pytest.skip("this file system keeps everything in memory")
    file.read(0, 1 << 20)
    assert disk.is_cached(view, 0, 1 << 20)
    file.close()


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
def test_old_messages_that_are_due_next_are_listed(
    hot_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.broker.storing.disk_prefetch.HOT_BYTES", hot_bytes)
    with open_store(small_config(), SimulatedDisk(), lambda: NOON_MS) as store:
        levels = DelayLevels(store, (1000, 60_000))
        one = Timer(store, tmp_path / "i.sqlite", None, lambda: 1 << 40)
        writer = MessageWriter(store)
        writer.add_redirect(levels.redirect)
        writer.add_redirect(
            lambda draft, found: timer_rules.timed(
                draft, found, NOON_MS, enabled=True, max_delay_s=86_400
            )
        )
        for wait in ({"DELAY": "1"}, {"DELAY": "2"}, {"TIMER_DELAY_MS": "9000"}, {"DELAY": "1"},
                     {"TIMER_DELAY_MS": "500"}):  # fmt: skip
            writer.append(Draft("t", 0, b"x", properties.encode(wait), NOON_MS, BORN, HERE))
        one.run_slice(NOON_MS)
        soon_ms = NOON_MS + 1000
        named = levels.upcoming(soon_ms, 10) + one.upcoming(soon_ms, 10)
        assert levels.upcoming(NOON_MS + 999, 10) == []
        one.close()
    if hot_bytes:
        assert named == [], "what was written just now is in memory"
    else:
        assert named == [
            QueueRange(SCHEDULE_TOPIC, 0, range(2)), QueueRange(TIMER_TOPIC, 0, range(1, 2)),
        ]  # fmt: skip


async def test_halves_are_prefetched_by_a_thread_before_they_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {
        "storePathRootDir": tmp_path, "transactionTimeOut": 1, "transactionCheckInterval": 10,
        "mappedFileSizeCommitLog": 1 << 20, "diskMaxUsedSpaceRatio": 95,
        "diskSpaceCleanForciblyRatio": 99, "diskSpaceWarningLevelRatio": 100,
    }  # fmt: skip
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    settings = LiveSettings(load_broker_config(environ={}, flags=given))
    happened: list[tuple[str, int, bool]] = []
    fetch = disk_prefetch.prefetch
    loop_thread = threading.get_ident()

    def note(what: str, queue_offset: int) -> None:
        happened.append((what, queue_offset, threading.get_ident() == loop_thread))

    def fetching(store: MessageStore, ranges: Iterable[QueueRange]) -> None:
        ranges = list(ranges)
        for topic, _, queue_offsets in ranges:
            for queue_offset in queue_offsets if topic == HALF_TOPIC else ():
                note("fetched", queue_offset)
        fetch(store, ranges)

    def ask(half: StoredMessage) -> bool:
        note("asked", int(half.body))
        return True

    monkeypatch.setattr(disk_prefetch, "prefetch", fetching)
    with MessageStore.open(settings.config) as store:
        writer = MessageWriter(store)
        halves = Halves(
            settings, store, Durability(store, settings), writer, OffsetTable(), lambda: NOON_MS,
            steady_ms, HERE,
        )  # fmt: skip
        topics = TopicTable((), lambda: NOON_MS)
        checks = CheckLoop(halves, topics, ask)
        writer.add_redirect(halves.redirect)
        text = properties.encode({"TRAN_MSG": "true", "PGROUP": "p"})
        for number in range(3):
            writer.append(Draft("t", 0, b"%d" % number, text, NOON_MS - 60_000, BORN, HERE))
        running = asyncio.create_task(checks.run())
        await eventually(lambda: sum(each[0] == "asked" for each in happened) >= 3, "all asked")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    for number in range(3):
        fetched = happened.index(("fetched", number, False))
        assert fetched < happened.index(("asked", number, True)), happened
