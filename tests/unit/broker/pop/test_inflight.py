"""The in-flight table, and its file."""

import sqlite3
from pathlib import Path

import pytest

from tianzhou.broker.pop.index import PopIndex
from tianzhou.broker.pop.inflight import Change, InFlight, Key, PopTable
from tianzhou.clock import Moment

KEY = Key("g", "t", 0)
START = Moment(0, 0)


def popped(count: int, at_ms: int = 0, wait_ms: int = 10, first: int = 0) -> Change:
    rows = tuple(InFlight(first + at, at_ms, wait_ms) for at in range(count))
    return Change(KEY, first + count, put=rows)


def test_heap_entries_of_acknowledged_messages_are_removed() -> None:
    table = PopTable()
    for at in range(10_000):
        table.apply(popped(1, wait_ms=60_000, first=at), START)
        change = table.acked(KEY, at, 0, 60_000)
        assert change is not None
        table.apply(change, START)
    assert table.in_flight_count == 0
    assert len(table._times) < 2000  # pyright: ignore[reportPrivateUsage] - memory is the point
    table.apply(popped(1, wait_ms=1, first=10_000), START)
    assert table.take_due(1, 10) == [(KEY, InFlight(10_000, 0, 1))]


def test_a_message_whose_time_is_set_twice_is_due_once() -> None:
    table = PopTable()
    table.apply(popped(1), START)
    same = table.prolonged(KEY, InFlight(0, 0, 10), START, 10)
    assert same is not None
    table.apply(same, START)
    table.apply(Change(KEY, 0, clear=True), START)
    table.apply(popped(1), START)
    assert table.take_due(10, 10) == [(KEY, InFlight(0, 0, 10))]


def test_a_message_acknowledged_while_it_is_revived_is_dropped_once() -> None:
    table = PopTable()
    table.apply(popped(2), START)
    due = table.take_due(10, 10)
    change = table.acked(KEY, 0, 0, 10)
    assert change is not None
    table.apply(change, START)
    assert table.dropped(due) == [Change(KEY, 2, drop=(1,))]


def test_a_removed_queue_starts_empty() -> None:
    table = PopTable()
    table.apply(popped(3), START)
    table.apply(Change(KEY, 0, remove=True), START)
    assert table.next_offset(KEY) is None
    assert table.committed(KEY) is None
    assert table.in_flight_count == 0
    assert table.take_due(10**6, 10) == []


def test_changes_survive_reopening_the_file(tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite"
    index, table = PopIndex.open(path), PopTable()
    batch = table.next_batch(Key("g", "t", 1), [4, 5], "try-1", 100, 50)
    changes = [
        popped(3),
        Change(KEY, 3, drop=(1,)),
        Change(Key("g", "t", 1), 4, batch=batch),
        Change(Key("h", "t", 0), 9),
        Change(Key("h", "t", 0), 0, remove=True),
    ]
    index.write(changes)
    index.checkpoint()
    index.shorten_log()
    index.close()
    index = PopIndex.open(path)
    assert sorted(index.loaded()) == [
        Change(KEY, 3, put=(InFlight(0, 0, 10), InFlight(2, 0, 10))),
        Change(Key("g", "t", 1), 4, batch=batch),
    ]
    index.close()


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite"
    index = PopIndex.open(path)
    index.write([popped(1)])
    too_large = Change(Key("g", "new", 0), 2**64)
    with pytest.raises((sqlite3.Error, OverflowError)):
        index.write([Change(KEY, 7), too_large])
    index.write([Change(Key("g", "new", 0), 5)])
    index.close()
    index = PopIndex.open(path)
    assert sorted((change.key, change.next_offset) for change in index.loaded()) == [
        (Key("g", "new", 0), 5), (KEY, 1),
    ]  # fmt: skip
    index.close()


@pytest.mark.parametrize("content", [b"", b"nonsense" * 500, b"SQLite format 3\0" + bytes(100)])
def test_an_unreadable_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.sqlite"
    path.write_bytes(content)
    index = PopIndex.open(path)
    assert index.loaded() == []
    index.write([popped(1)])
    index.close()


def test_a_file_of_another_version_or_with_an_invalid_batch_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite"
    for damage in ("PRAGMA user_version = 9", "UPDATE places SET batch = 'odd'"):
        index = PopIndex.open(path)
        index.write([popped(1)])
        index.close()
        connection = sqlite3.connect(path)
        connection.execute(damage)
        connection.commit()
        connection.close()
        index = PopIndex.open(path)
        assert index.loaded() == []
        index.close()
