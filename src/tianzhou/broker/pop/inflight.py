"""The in-flight table of pop consumption: which messages are invisible, and until when.

    popped             ->  in flight until pop time + invisible time
    acknowledged       ->  removed
    not acknowledged   ->  due: stored in the group's retry topic, then removed
    time changed       ->  in flight until another time; the old receipt handle becomes invalid

For each group and queue there is `next_offset`, where the next pop reads. Messages in flight lie
before it; everything before the first of them is processed and may be committed.

A queue that is popped in order has one batch at a time: no other pop gets messages until each
message of the batch is acknowledged or visible again; then the next pop begins at the first that is
not acknowledged.

Values in, values out. Each modification is a `Change`, which the caller makes durable (`index`)
before it calls `apply`.

Receipt handles and the file contain wall-clock times, because clients and other brokers read them.
Whether a time is up is decided by steady time (`now_ms` in here); otherwise a clock that is set
forward would redeliver everything in flight. Only `apply` converts between the two.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tianzhou.clock import Moment

_STALE_MAX = 1024
"""Stale heap entries, beyond as many as messages are in flight, before the heap is rebuilt."""


class Key(NamedTuple):
    """A queue as one group sees it."""

    group: str
    topic: str
    queue_id: int


class InFlight(NamedTuple):
    """A popped message that is invisible to other consumers."""

    queue_offset: int
    pop_time_ms: int
    """Wall-clock time, as in the receipt handle."""
    invisible_time_ms: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a queue that one consumer has popped in order."""

    pop_time_ms: int
    invisible_time_ms: int
    queue_offsets: tuple[int, ...]
    acked: frozenset[int] = frozenset()
    attempt_id: str | None = None
    visible_ms: dict[int, int] = {}
    """Of messages whose time was changed: the wall-clock time when they become visible."""
    counts: dict[int, int] = {}
    """How often a message was delivered before, if at all."""

    @property
    def next_offset(self) -> int:
        """The first that is not acknowledged, or else the one after the last."""
        for queue_offset in self.queue_offsets:
            if queue_offset not in self.acked:
                return queue_offset
        return self.queue_offsets[-1] + 1

    def due_ms(self, queue_offset: int, at: Moment) -> int:
        """When a message is visible again, by steady time."""
        changed_ms = self.visible_ms.get(queue_offset)
        if changed_ms is not None:
            return at.steady_ms + changed_ms - at.wall_ms
        return at.end_ms(self.pop_time_ms, self.invisible_time_ms)


class Change(NamedTuple):
    """An atomic change of one queue of a group."""

    key: Key
    next_offset: int
    put: tuple[InFlight, ...] = ()
    """In flight from now on; replaces earlier entries of the same messages."""
    drop: tuple[int, ...] = ()
    batch: Batch | None = None
    """The state of an ordered queue; None leaves it as it is, unless `clear`."""
    clear: bool = False
    """Remove the old state of the queue first."""
    remove: bool = False
    """Remove the queue."""


class _Due(NamedTuple):
    """A message in flight, and when it becomes visible, by steady time."""

    due_ms: int
    key: Key
    row: InFlight


@dataclass(slots=True)
class _QueueState:
    next_offset: int
    # Pops advance, so the first key is the smallest; finding it in a plain dict would be slow.
    in_flight: OrderedDict[int, _Due] = field(default_factory=OrderedDict[int, _Due])
    batch: Batch | None = None
    batch_dues_ms: dict[int, int] = field(default_factory=dict[int, int])
    """When each message of the batch becomes visible, by steady time."""

    @property
    def committed(self) -> int:
        return next(iter(self.in_flight), self.next_offset)

    @property
    def unblocked_ms(self) -> int | None:
        """When the batch stops blocking the queue; None if it does not block it."""
        acked = frozenset[int]() if self.batch is None else self.batch.acked
        return max(
            (due_ms for each, due_ms in self.batch_dues_ms.items() if each not in acked),
            default=None,
        )

    def set_batch(self, batch: Batch, at: Moment) -> None:
        before, known = self.batch, self.batch_dues_ms
        if before is None or before.pop_time_ms != batch.pop_time_ms:
            known = {}
        changed = {} if before is None else before.visible_ms
        self.batch_dues_ms = {
            each: known[each]
            if each in known and batch.visible_ms.get(each) == changed.get(each)
            else batch.due_ms(each, at)
            for each in batch.queue_offsets
        }
        self.batch = batch


class PopTable:
    """All messages in flight on a broker."""

    def __init__(self) -> None:
        self._queues: dict[Key, _QueueState] = {}
        self._times: list[_Due] = []
        """A heap of when messages become visible; may contain stale entries."""
        self._unblock_times: list[tuple[int, Key]] = []
        """A heap of when ordered queues are unblocked."""
        self.in_flight_count = 0

    # -- reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many queues groups have popped, summed over the groups."""
        return len(self._queues)

    def keys(self) -> list[Key]:
        """Every queue that a group has popped."""
        return list(self._queues)

    def next_offset(self, key: Key) -> int | None:
        """Where the next pop reads; None if the group never popped there."""
        state = self._queues.get(key)
        return None if state is None else state.next_offset

    def popped_to(self, key: Key) -> int:
        """Everything before this was popped; 0 if the group never popped there."""
        state = self._queues.get(key)
        if state is None:
            return 0
        batch = state.batch
        return state.next_offset if batch is None else batch.queue_offsets[-1] + 1

    def committed(self, key: Key) -> int | None:
        """Everything before this is processed; None if the group never popped there."""
        state = self._queues.get(key)
        return None if state is None else state.committed

    def count(self, key: Key) -> int:
        """How many messages of a group's queue are in flight."""
        state = self._queues.get(key)
        return 0 if state is None else len(state.in_flight)

    def batch(self, key: Key) -> Batch | None:
        state = self._queues.get(key)
        return None if state is None else state.batch

    def is_blocked(self, key: Key, attempt_id: str | None, now_ms: int) -> bool:
        """Whether an ordered pop gets no messages there now.

        A pop that repeats an attempt whose response was lost gets the same messages again.
        """
        state = self._queues.get(key)
        if state is None or state.batch is None:
            return False
        if attempt_id is not None and attempt_id == state.batch.attempt_id:
            return False
        unblocked_ms = state.unblocked_ms
        return unblocked_ms is not None and now_ms < unblocked_ms

    def in_flight(self, key: Key) -> Iterator[InFlight]:
        state = self._queues.get(key)
        return iter(()) if state is None else (each.row for each in state.in_flight.values())

    def next_due_ms(self) -> int | None:
        """When the next message becomes visible or the next queue is unblocked, or earlier."""
        first = [heap[0][0] for heap in (self._times, self._unblock_times) if heap]
        return min(first, default=None)

    # -- changes of requests -----------------------------------------------------------------------

    def acked(
        self, key: Key, queue_offset: int, pop_time_ms: int, invisible_time_ms: int
    ) -> Change | None:
        """Acknowledge a message; None if the receipt handle is no longer valid."""
        row = self._row(key, queue_offset)
        if row != (queue_offset, pop_time_ms, invisible_time_ms):
            return None
        return Change(key, self._queues[key].next_offset, drop=(queue_offset,))

    def prolonged(
        self, key: Key, old: InFlight, at: Moment, invisible_time_ms: int
    ) -> Change | None:
        """Change the invisible time of a message, from now on; None if the handle is invalid.

        A handle is invalid once the message is visible again: it may have been redelivered.
        """
        entry = self._entry(key, old.queue_offset)
        if entry is None or entry.row != old or entry.due_ms <= at.steady_ms:
            return None
        new = InFlight(old.queue_offset, at.wall_ms, invisible_time_ms)
        return Change(key, self._queues[key].next_offset, put=(new,))

    def batch_acked(self, key: Key, queue_offset: int, pop_time_ms: int) -> Change | None:
        """Acknowledge a message of an ordered queue; None if its handle is invalid."""
        batch = self._batch_of(key, queue_offset, pop_time_ms)
        if batch is None or queue_offset in batch.acked:
            return None
        batch = msgspec.structs.replace(batch, acked=batch.acked | {queue_offset})
        return Change(key, batch.next_offset, batch=batch)

    def batch_prolonged(
        self, key: Key, queue_offset: int, pop_time_ms: int, visible_ms: int
    ) -> Change | None:
        """A message of an ordered queue blocks it until then; None if its handle is invalid."""
        batch = self._batch_of(key, queue_offset, pop_time_ms)
        if batch is None or queue_offset in batch.acked:
            return None
        times = batch.visible_ms | {queue_offset: visible_ms}
        batch = msgspec.structs.replace(batch, visible_ms=times)
        return Change(key, self._queues[key].next_offset, batch=batch)

    def next_batch(
        self, key: Key, queue_offsets: Sequence[int], attempt_id: str | None, now_ms: int,
        invisible_time_ms: int,
    ) -> Batch:  # fmt: skip
        """The batch of an ordered pop."""
        before = self.batch(key)
        counts: dict[int, int] = {}
        if before is not None and attempt_id is not None and before.attempt_id == attempt_id:
            counts = before.counts
        elif before is not None:
            again = set(before.queue_offsets).intersection(queue_offsets)
            counts = {each: before.counts.get(each, 0) + 1 for each in sorted(again)}
        return Batch(
            pop_time_ms=now_ms,
            invisible_time_ms=invisible_time_ms,
            queue_offsets=tuple(queue_offsets),
            attempt_id=attempt_id,
            counts=counts,
        )

    def _entry(self, key: Key, queue_offset: int) -> _Due | None:
        state = self._queues.get(key)
        return None if state is None else state.in_flight.get(queue_offset)

    def _row(self, key: Key, queue_offset: int) -> InFlight | None:
        entry = self._entry(key, queue_offset)
        return None if entry is None else entry.row

    def _batch_of(self, key: Key, queue_offset: int, pop_time_ms: int) -> Batch | None:
        batch = self.batch(key)
        if batch is None or batch.pop_time_ms != pop_time_ms:
            return None
        return batch if queue_offset in batch.queue_offsets else None

    # -- time --------------------------------------------------------------------------------------

    def take_due(self, now_ms: int, count_max: int) -> list[tuple[Key, InFlight]]:
        """Remove messages that have become visible from the heap, earliest first, and return them.

        They stay in flight until a change drops them; `requeue` makes them due again.
        """
        due: list[tuple[Key, InFlight]] = []
        while self._times and self._times[0][0] <= now_ms and len(due) < count_max:
            entry = heapq.heappop(self._times)
            _, key, row = entry
            if self._entry(key, row.queue_offset) == entry:
                due.append((key, row))
        return due

    def requeue(self, rows: Iterable[tuple[Key, InFlight]]) -> None:
        """Make messages due again that could not be revived."""
        for key, row in rows:
            entry = self._entry(key, row.queue_offset)
            if entry is not None and entry.row == row:
                heapq.heappush(self._times, entry)

    def dropped(self, rows: Iterable[tuple[Key, InFlight]]) -> list[Change]:
        """The changes that drop rows after they were revived, one for each queue."""
        by_key: dict[Key, list[int]] = {}
        for key, row in rows:
            # It may have been acknowledged or its time changed meanwhile.
            if self._row(key, row.queue_offset) == row:
                by_key.setdefault(key, []).append(row.queue_offset)
        return [
            Change(key, self._queues[key].next_offset, drop=tuple(queue_offsets))
            for key, queue_offsets in by_key.items()
        ]

    def take_unblocked(self, now_ms: int) -> list[Key]:
        """Ordered queues that are no longer blocked because a time is up."""
        unblocked: list[Key] = []
        while self._unblock_times and self._unblock_times[0][0] <= now_ms:
            _, key = heapq.heappop(self._unblock_times)
            if self.batch(key) is not None and not self.is_blocked(key, None, now_ms):
                unblocked.append(key)
        return unblocked

    # -- changing ----------------------------------------------------------------------------------

    def apply(self, change: Change, at: Moment) -> None:
        """Apply a change that is durable already."""
        key = change.key
        state = self._queues.get(key)
        if state is not None and (change.clear or change.remove):
            self.in_flight_count -= len(state.in_flight)
            del self._queues[key]
            # Old entries must not match messages that are popped again.
            self._clear_stale()
            state = None
        if change.remove:
            return
        if state is None:
            state = self._queues[key] = _QueueState(change.next_offset)
        state.next_offset = change.next_offset
        in_flight = state.in_flight
        before, last, is_sorted = len(in_flight), next(reversed(in_flight), -1), True
        for row in change.put:
            known = in_flight.get(row.queue_offset)
            if known is None or known.row != row:
                is_sorted = is_sorted and (known is not None or row.queue_offset > last)
                due_ms = at.end_ms(row.pop_time_ms, row.invisible_time_ms)
                entry = in_flight[row.queue_offset] = _Due(due_ms, key, row)
                heapq.heappush(self._times, entry)
        if not is_sorted:
            # Messages that RocketMQ delivered may lie before those popped here.
            state.in_flight = in_flight = OrderedDict(sorted(in_flight.items()))
        for queue_offset in change.drop:
            in_flight.pop(queue_offset, None)
        self.in_flight_count += len(in_flight) - before
        if change.batch is not None:
            state.set_batch(change.batch, at)
            if (unblocked_ms := state.unblocked_ms) is not None:
                heapq.heappush(self._unblock_times, (unblocked_ms, key))
                if len(self._unblock_times) > 2 * len(self._queues) + _STALE_MAX:
                    self._unblock_times = sorted(
                        (unblocked_ms, key)
                        for key, state in self._queues.items()
                        if (unblocked_ms := state.unblocked_ms) is not None
                    )
        if len(self._times) > 2 * self.in_flight_count + _STALE_MAX:
            self._clear_stale()

    def _clear_stale(self) -> None:
        # Rows that are being revived are not in the heap and must not return to it.
        self._times = sorted(
            {entry for entry in self._times if self._entry(entry.key, entry.row[0]) == entry}
        )
