"""Readers see only records that lie wholly below the confirm offset, whatever they read by."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import NOON_MS, draft, open_store, small_config

from tianzhou.errors import WritesRefused
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import NO_LIMIT, Boundary, ReadStatus

FOREVER_MS = NOON_MS + 10**9
COUNT = 30


@pytest.fixture
def store() -> MessageStore:
    """Messages in two queues, with more than one log file and queue file each."""
    store = open_store(small_config(), SimulatedDisk())
    for number in range(COUNT):
        store.append(draft("t", number % 2, b"x" * 300, key=f"k{number}"))
    return store


def ends(store: MessageStore) -> list[int]:
    """The end of each record in the order of the log."""
    found: list[int] = []
    for number in range(COUNT):
        queue = store.queues.get("t", number % 2)
        assert queue is not None
        entry = queue.entry(number // 2)
        assert entry is not None
        found.append(entry[0] + entry[1])
    return found


def test_without_a_limit_readers_see_the_whole_log(store: MessageStore) -> None:
    assert not store.shows_confirmed
    assert store.confirmed_log_offset == NO_LIMIT
    assert store.readable_log_offset == store.end_log_offset
    assert not store.confirm(5), "a confirm offset must not limit what nothing limited"
    assert store.max_offset("t", 0) == COUNT // 2


@pytest.mark.parametrize("inside", [0, -1, 1])
@pytest.mark.parametrize("seen", [0, 1, 2, 3, 14, 15, 16, 28, 29])
def test_each_read_ends_before_the_first_record_that_is_not_wholly_below(
    store: MessageStore, seen: int, inside: int
) -> None:
    """`inside`: the confirm offset is not the end of a record, but in it or in the next one."""
    at = ends(store)
    confirmed = (at[seen - 1] if seen else 0) + inside
    store.show_confirmed(confirmed)
    if inside < 0:
        seen = max(seen - 1, 0)
    for queue_id in (0, 1):
        count = (seen + 1 - queue_id) // 2
        assert store.max_offset("t", queue_id) == count
        read_count = 0
        while read_count < count:
            read = store.read("t", queue_id, read_count, 1000)
            assert read.status is ReadStatus.FOUND
            assert read.max_offset == count
            assert read.next_offset <= count
            read_count += len(read.records)
            assert read_count == read.next_offset
        assert not store.read("t", queue_id, count, 32).records
        found = [store.store_time("t", queue_id, each) for each in range(COUNT // 2)]
        assert [each is not None for each in found] == [each < count for each in range(COUNT // 2)]
        assert store.offset_by_time("t", queue_id, FOREVER_MS) == count
        last = store.offset_by_time("t", queue_id, FOREVER_MS, Boundary.UPPER)
        assert last == max(count - 1, 0)
        assert (store.earliest_time("t", queue_id) is None) == (count == 0)
    assert (store.earliest_log_time() is None) == (seen == 0)
    for number, end in enumerate(at):
        is_seen = number < seen
        found_by_key = store.query("t", f"k{number}", 0, FOREVER_MS, 10)
        assert len(found_by_key) == is_seen
        queue = store.queues.get("t", number % 2)
        entry = None if queue is None else queue.entry(number // 2)
        assert entry is not None
        log_offset = entry[0]
        assert log_offset + entry[1] == end
        assert (store.record_at(log_offset) is not None) == is_seen
        assert store.with_unconfirmed.record_at(log_offset) is not None


READS: dict[str, Callable[[MessageStore], Any]] = {
    "max offset": lambda store: store.max_offset("t", 0),
    "read": lambda store: len(store.read("t", 0, 4, 32).records),
    "time": lambda store: store.offset_by_time("t", 0, FOREVER_MS),
    "store time": lambda store: store.store_time("t", 0, 5),
    "key": lambda store: len(store.query("t", "k10", 0, FOREVER_MS, 10)),
}


@pytest.mark.parametrize("name", READS)
def test_the_brokers_own_work_sees_what_readers_do_not(store: MessageStore, name: str) -> None:
    read, at = READS[name], ends(store)
    whole: Any = read(store)
    store.show_confirmed(at[9])  # queue 0 has offsets 0 to 4 below it
    assert read(store) != whole, "the limit has no effect"
    unlimited: Any = store.with_unconfirmed
    assert read(unlimited) == whole
    store.confirm(store.end_log_offset)
    assert read(store) == whole


def test_the_confirm_offset_never_falls_and_never_passes_the_log(store: MessageStore) -> None:
    at = ends(store)
    store.show_confirmed(at[3])
    assert store.confirm(at[5])
    assert not store.confirm(at[4])
    assert store.readable_log_offset == at[5]
    assert store.confirm(at[-1] + 1_000_000)
    assert store.readable_log_offset == store.end_log_offset
    # A later record is not confirmed by an earlier call, although its position was.
    store.append(draft("t", 0, b"later"))
    assert store.readable_log_offset == at[-1]
    assert store.max_offset("t", 0) == COUNT // 2


def test_a_reader_ahead_of_the_confirm_offset_waits_where_it_is(store: MessageStore) -> None:
    """It has read from a master that knew more; to go back would deliver messages twice."""
    store.show_confirmed(ends(store)[9])
    assert store.max_offset("t", 0) == 5
    for ahead in (6, COUNT // 2):
        read = store.read("t", 0, ahead, 32)
        assert (read.status, read.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, ahead)
    read = store.read("t", 0, COUNT // 2 + 1, 32)
    assert (read.status, read.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 5)
    # Nothing of the queue is known to be confirmed.
    store.show_confirmed(0)
    read = store.read("t", 0, 1, 32)
    assert (read.status, read.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 1)
    assert store.read("t", 0, 0, 32).status is ReadStatus.NO_MESSAGE_IN_QUEUE


def test_writes_are_refused_with_the_reason_and_accepted_again(store: MessageStore) -> None:
    end = store.end_log_offset
    store.stop_writes(WritesRefused(1, "too few"))
    with pytest.raises(WritesRefused, match="too few"):
        store.append(draft("t", 0, b"refused"))
    assert store.end_log_offset == end
    store.is_copy = True
    store.stop_writes(None)
    assert "slave" in str(store.refusal), "a slave stores nothing by itself, open or not"
    store.is_copy = False
    store.append(draft("t", 0, b"accepted"))
    assert store.end_log_offset > end
