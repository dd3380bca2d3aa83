"""Pop consumption against a model, with a manual clock that jumps, and restarts from the index.

Nothing is lost, no message is delivered to two consumers at once, and only finished messages are
committed.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tianzhou.broker.pop.index import PopIndex
from tianzhou.broker.pop.inflight import Change, InFlight, Key, PopTable
from tianzhou.clock import Moment

KEYS = [Key("g", "t", 0), Key("g", "t", 1), Key("h", "t", 0)]
keys = st.sampled_from(KEYS)
waits_ms = st.integers(0, 50)
jumps_ms = st.sampled_from([-86_400_000, -20, 20, 86_400_000])


class Shared(RuleBasedStateMachine):
    """Queues that many consumers share. The model has every message, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pop-"))
        self.index = PopIndex.open(self.folder / "i.sqlite")
        self.table = PopTable()
        self.now_ms, self.ahead_ms = 1000, 10**12
        # The model: what is in flight, and where the next pop begins.
        self.flying: dict[Key, dict[int, InFlight]] = {key: {} for key in KEYS}
        self.next: dict[Key, int] = {}
        self.stale: list[tuple[Key, InFlight]] = []
        self.taken: list[tuple[Key, InFlight]] = []
        self.dues: dict[tuple[Key, InFlight], int] = {}
        """When each becomes visible, by steady time."""

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms + self.ahead_ms, self.now_ms)

    @rule(by_ms=jumps_ms)
    def the_clock_is_set(self, by_ms: int) -> None:
        self.ahead_ms += by_ms

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)

    def note(self, *changes: Change) -> None:
        self.index.write(changes)
        for change in changes:
            self.table.apply(change, self.now)

    @initialize()
    def begin(self) -> None:
        for key in KEYS:
            self.next[key] = 5
            self.note(Change(key, 5))

    @rule(key=keys, count=st.integers(1, 4), skipped=st.integers(0, 2), wait_ms=waits_ms)
    def pop(self, key: Key, count: int, skipped: int, wait_ms: int) -> None:
        start = self.next[key]
        assert self.table.next_offset(key) == start
        rows = tuple(InFlight(start + at, self.now.wall_ms, wait_ms) for at in range(count))
        self.dues |= {(key, row): self.now_ms + wait_ms for row in rows}
        self.note(Change(key, start + count + skipped, put=rows))
        self.flying[key] |= {row.queue_offset: row for row in rows}
        self.next[key] = start + count + skipped

    def some_row(self, key: Key, at: int) -> InFlight | None:
        rows = list(self.flying[key].values())
        return rows[at % len(rows)] if rows else None

    @rule(key=keys, at=st.integers(0, 20))
    def ack(self, key: Key, at: int) -> None:
        row = self.some_row(key, at)
        if row is None:
            return
        change = self.table.acked(key, *row)
        assert change is not None
        self.note(change)
        del self.flying[key][row.queue_offset]
        self.stale.append((key, row))

    @rule(key=keys, at=st.integers(0, 20), wait_ms=waits_ms)
    def prolong(self, key: Key, at: int, wait_ms: int) -> None:
        row = self.some_row(key, at)
        if row is None:
            return
        change = self.table.prolonged(key, row, self.now, wait_ms)
        if self.dues[key, row] <= self.now_ms:
            assert change is None, "it is on its way to somebody else"
            return
        assert change is not None
        self.note(change)
        new = InFlight(row.queue_offset, self.now.wall_ms, wait_ms)
        if new != row:
            self.dues[key, new] = self.now_ms + wait_ms
        self.flying[key][row.queue_offset] = new
        if new != row:
            self.stale.append((key, row))

    @precondition(lambda self: self.stale)
    @rule(at=st.integers(0, 20))
    def old_handle_is_ignored(self, at: int) -> None:
        key, row = self.stale[at % len(self.stale)]
        if self.flying[key].get(row.queue_offset) == row:
            return  # its message was popped again in the same millisecond
        assert self.table.acked(key, *row) is None
        assert self.table.prolonged(key, row, self.now, 10) is None

    @rule(ms=st.integers(1, 40))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count=st.integers(1, 5))
    def due_is_polled(self, count: int) -> None:
        known = set(self.taken)
        due = {
            (key, row)
            for key, rows in self.flying.items()
            for row in rows.values()
            if self.dues[key, row] <= self.now_ms and (key, row) not in known
        }
        taken = self.table.take_due(self.now_ms, count)
        assert len(taken) == len(set(taken)) == min(count, len(due))
        assert set(taken) <= due
        if taken:
            latest_ms = max(self.dues[each] for each in taken)
            left = due - set(taken)
            assert all(self.dues[each] >= latest_ms for each in left), "earliest first"
        self.taken += taken

    @precondition(lambda self: self.taken)
    @rule()
    def they_are_revived(self) -> None:
        self.note(*self.table.dropped(self.taken))
        for key, row in self.taken:
            if self.flying[key].get(row.queue_offset) == row:
                del self.flying[key][row.queue_offset]
                self.stale.append((key, row))
        self.taken = []

    @precondition(lambda self: self.taken)
    @rule()
    def they_cannot_be_revived(self) -> None:
        self.table.requeue(self.taken)
        self.taken = []

    @rule(key=keys, back=st.integers(0, 10))
    def offset_is_set(self, key: Key, back: int) -> None:
        self.next[key] = max(self.next[key] - back, 0)
        self.note(Change(key, self.next[key], clear=True))
        self.stale += [(key, row) for row in self.flying[key].values()]
        self.flying[key] = {}
        self.taken = [each for each in self.taken if each[0] != key]

    @rule()
    def restart(self) -> None:
        self.index.close()
        self.index = PopIndex.open(self.folder / "i.sqlite")
        self.table = PopTable()
        for change in self.index.loaded():
            self.table.apply(change, self.now)
        self.dues = {
            (key, row): self.now.end_ms(row.pop_time_ms, row.invisible_time_ms)
            for key, rows in self.flying.items()
            for row in rows.values()
        }
        self.taken = []

    @invariant()
    def the_table_is_as_the_model(self) -> None:
        for key, rows in self.flying.items():
            if key not in self.next:
                continue
            assert {row.queue_offset: row for row in self.table.in_flight(key)} == rows
            assert self.table.next_offset(key) == self.next[key]
            assert self.table.committed(key) == min(rows, default=self.next[key])
            assert self.table.count(key) == len(rows)
        assert self.table.in_flight_count == sum(map(len, self.flying.values()))
        times = [
            self.dues[key, row]
            for key, rows in self.flying.items()
            for row in rows.values()
            if (key, row) not in self.taken
        ]
        if times:
            next_ms = self.table.next_due_ms()
            assert next_ms is not None, "something waits and nobody would look"
            assert next_ms <= min(times)


class Ordered(RuleBasedStateMachine):
    """One ordered queue. The model is the list of messages, with consumer and time of each."""

    KEY = KEYS[0]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pop-"))
        self.index = PopIndex.open(self.folder / "i.sqlite")
        self.table = PopTable()
        self.now_ms, self.ahead_ms = 1000, 10**12
        self.attempts = 0
        self.done: set[int] = set()
        self.held: dict[int, int] = {}
        """Until when, by message."""
        self.batch: list[int] = []
        self.pop_ms = 0
        self.times: dict[int, int] = {}
        self.note(Change(self.KEY, 0))

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms + self.ahead_ms, self.now_ms)

    @rule(by_ms=jumps_ms)
    def the_clock_is_set(self, by_ms: int) -> None:
        self.ahead_ms += by_ms

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)

    def note(self, change: Change) -> None:
        self.index.write([change])
        self.table.apply(change, self.now)

    @rule(count=st.integers(1, 4), wait_ms=st.integers(1, 50))
    def pop(self, count: int, wait_ms: int) -> None:
        self.now_ms += 1  # the time of a pop names it
        blocked = any(until > self.now_ms for until in self.held.values())
        assert self.table.is_blocked(self.KEY, "new", self.now_ms) == blocked
        if blocked:
            return
        start = self.table.next_offset(self.KEY)
        first_undone = next(at for at in range(len(self.done) + 1) if at not in self.done)
        assert start is not None
        assert start <= first_undone, "nothing is passed over"
        offsets = list(range(start, start + count))
        batch = self.table.next_batch(self.KEY, offsets, None, self.now.wall_ms, wait_ms)
        again = set(self.batch)
        self.times = {each: self.times.get(each, 0) + 1 for each in offsets if each in again}
        assert batch.counts == self.times
        self.note(Change(self.KEY, offsets[0], batch=batch))
        # A redelivered batch must be acknowledged again.
        self.done -= set(offsets)
        self.batch, self.pop_ms = offsets, self.now.wall_ms
        self.held = dict.fromkeys(offsets, self.now_ms + wait_ms)

    @precondition(lambda self: self.batch)
    @rule(at=st.integers(0, 3))
    def ack(self, at: int) -> None:
        queue_offset = self.batch[at % len(self.batch)]
        change = self.table.batch_acked(self.KEY, queue_offset, self.pop_ms)
        assert (change is None) == (queue_offset in self.done)
        assert self.table.batch_acked(self.KEY, queue_offset, self.pop_ms - 1) is None
        if change is not None:
            self.note(change)
            self.done.add(queue_offset)
            self.held.pop(queue_offset)

    @precondition(lambda self: self.batch)
    @rule(at=st.integers(0, 3), wait_ms=st.integers(0, 50))
    def prolong(self, at: int, wait_ms: int) -> None:
        queue_offset = self.batch[at % len(self.batch)]
        change = self.table.batch_prolonged(
            self.KEY, queue_offset, self.pop_ms, self.now.wall_ms + wait_ms
        )
        assert (change is None) == (queue_offset in self.done)
        if change is not None:
            self.note(change)
            self.held[queue_offset] = self.now_ms + wait_ms

    @rule(ms=st.integers(1, 40))
    def time_passes(self, ms: int) -> None:
        was_blocked = any(until > self.now_ms for until in self.held.values())
        self.now_ms += ms
        is_blocked = any(until > self.now_ms for until in self.held.values())
        freed = self.table.take_unblocked(self.now_ms)
        if was_blocked and not is_blocked:
            assert self.KEY in freed, "those who wait are told"
        if is_blocked:
            assert freed == []

    @rule()
    def restart(self) -> None:
        self.index.close()
        self.index = PopIndex.open(self.folder / "i.sqlite")
        self.table = PopTable()
        for change in self.index.loaded():
            self.table.apply(change, self.now)
        batch = self.table.batch(self.KEY)
        if batch is not None:
            # After a restart only the wall clock is known.
            self.held = {each: batch.due_ms(each, self.now) for each in self.held}

    @invariant()
    def everything_committed_is_done(self) -> None:
        committed = self.table.committed(self.KEY)
        assert committed is not None
        assert set(range(committed)) <= self.done


SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestShared = Shared.TestCase
TestShared.settings = SETTINGS
TestOrdered = Ordered.TestCase
TestOrdered.settings = SETTINGS
