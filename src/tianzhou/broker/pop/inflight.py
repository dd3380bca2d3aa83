"""Pop consumption, the part that decides: what is in flight, when it comes back, what is done with.

    popped          ->  in flight until popped + invisible time
    acknowledged    ->  gone
    not, in time    ->  due: stored in the group's retry topic, then gone from here
    longer wanted   ->  in flight until another time; the old handle is worth nothing

Each group has a place in each queue it pops: `next_offset`, where the next pop reads. Behind it
lies what is in flight; behind that everything is done with, and that is what may be committed.

A queue that is popped in order has one batch at a time: nobody else gets anything until each of its
messages is acknowledged or visible again, and then the next pop begins at the first that is not
acknowledged.

Values in, values out. Whatever happens is a `Change`, which the caller makes durable (`pop_index`)
before the table is told to apply it.

Handles and the file carry times of day, because clients and other brokers read them. When a time is
up is decided by steady time (`now_ms` in here), or a clock that is set forward would deliver
everything in flight again. Only `apply` translates between the two.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tianzhou.clock import Moment

_STALE_MAX = 1024
"""Times that no longer mean anything, beyond as many as are in flight, before they are cleared."""


class Key(NamedTuple):
    """A queue as one group sees it."""

    group: str
    topic: str
    queue_id: int


class InFlight(NamedTuple):
    """A message that a consumer has and nobody else gets."""

    queue_offset: int
    pop_time_ms: int
    """The time of day, as in the handle."""
    invisible_time_ms: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a queue that one consumer has in order."""

    pop_time_ms: int
    invisible_time_ms: int
    queue_offsets: tuple[int, ...]
    acked: frozenset[int] = frozenset()
    attempt_id: str | None = None
    visible_ms: dict[int, int] = {}
    """Of messages whose time was changed: the time of day when they are visible."""
    counts: dict[int, int] = {}
    """How often a message was delivered before, where that is above 0."""

    @property
    def next_offset(self) -> int:
        """The first that is not acknowledged, or else the one behind all."""
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
    """What is to be noted of one place, all of it or nothing."""

    key: Key
    next_offset: int
    put: tuple[InFlight, ...] = ()
    """In flight from now on, instead of what was known of the same messages."""
    drop: tuple[int, ...] = ()
    batch: Batch | None = None
    """The state of an ordered queue; kept as it is if this is None, unless `clear`."""
    clear: bool = False
    """Forget everything about the place first."""
    gone: bool = False
    """Forget the place itself."""


class _Due(NamedTuple):
    """A message in flight, and when it becomes visible, by steady time."""

    due_ms: int
    key: Key
    row: InFlight


@dataclass(slots=True)
class _Place:
    next_offset: int
    # A pop goes forward, so the first in it is the smallest; a plain dict would be slow at that.
    flying: OrderedDict[int, _Due] = field(default_factory=OrderedDict[int, _Due])
    batch: Batch | None = None
    batch_dues_ms: dict[int, int] = field(default_factory=dict[int, int])
    """When each message of the batch becomes visible, by steady time."""

    @property
    def committed(self) -> int:
        return next(iter(self.flying), self.next_offset)

    @property
    def free_ms(self) -> int | None:
        """When the batch lets others have the queue; None if they may at any time."""
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
    """Everything in flight on a broker."""

    def __init__(self) -> None:
        self._places: dict[Key, _Place] = {}
        self._times: list[_Due] = []
        """A heap of when messages become visible; what was acknowledged is left in for a while."""
        self._frees: list[tuple[int, Key]] = []
        """A heap of when ordered queues become free."""
        self.in_flight_count = 0

    # -- asking ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many queues groups have popped, counted for each group."""
        return len(self._places)

    def keys(self) -> list[Key]:
        """Every queue that some group has popped."""
        return list(self._places)

    def next_offset(self, key: Key) -> int | None:
        """Where the next pop reads; None if the group never popped there."""
        place = self._places.get(key)
        return None if place is None else place.next_offset

    def popped_to(self, key: Key) -> int:
        """Everything before this was popped; 0 if the group never popped there."""
        place = self._places.get(key)
        if place is None:
            return 0
        batch = place.batch
        return place.next_offset if batch is None else batch.queue_offsets[-1] + 1

    def committed(self, key: Key) -> int | None:
        """Everything before this is done with; None if the group never popped there."""
        place = self._places.get(key)
        return None if place is None else place.committed

    def count(self, key: Key) -> int:
        """How many messages of a place are in flight."""
        place = self._places.get(key)
        return 0 if place is None else len(place.flying)

    def batch(self, key: Key) -> Batch | None:
        place = self._places.get(key)
        return None if place is None else place.batch

    def is_blocked(self, key: Key, attempt_id: str | None, now_ms: int) -> bool:
        """Whether an ordered pop gets nothing there now.

        One that repeats the attempt whose answer it missed gets the same again.
        """
        place = self._places.get(key)
        if place is None or place.batch is None:
            return False
        if attempt_id is not None and attempt_id == place.batch.attempt_id:
            return False
        free_ms = place.free_ms
        return free_ms is not None and now_ms < free_ms

    def in_flight(self, key: Key) -> Iterator[InFlight]:
        place = self._places.get(key)
        return iter(()) if place is None else (each.row for each in place.flying.values())

    def next_due_ms(self) -> int | None:
        """When something becomes visible or free, or earlier."""
        first = [heap[0][0] for heap in (self._times, self._frees) if heap]
        return min(first, default=None)

    # -- what a request means ----------------------------------------------------------------------

    def acked(
        self, key: Key, queue_offset: int, pop_time_ms: int, invisible_time_ms: int
    ) -> Change | None:
        """A message is done with; None if the handle is worth nothing any more."""
        row = self._row(key, queue_offset)
        if row != (queue_offset, pop_time_ms, invisible_time_ms):
            return None
        return Change(key, self._places[key].next_offset, drop=(queue_offset,))

    def prolonged(
        self, key: Key, old: InFlight, at: Moment, invisible_time_ms: int
    ) -> Change | None:
        """A message shall be visible so long after now; None if the handle is worth nothing.

        It is not once the message is visible again: a copy of it may be on its way already.
        """
        entry = self._entry(key, old.queue_offset)
        if entry is None or entry.row != old or entry.due_ms <= at.steady_ms:
            return None
        new = InFlight(old.queue_offset, at.wall_ms, invisible_time_ms)
        return Change(key, self._places[key].next_offset, put=(new,))

    def batch_acked(self, key: Key, queue_offset: int, pop_time_ms: int) -> Change | None:
        """A message of an ordered queue is done with; None if its handle is worth nothing."""
        batch = self._batch_of(key, queue_offset, pop_time_ms)
        if batch is None or queue_offset in batch.acked:
            return None
        batch = msgspec.structs.replace(batch, acked=batch.acked | {queue_offset})
        return Change(key, batch.next_offset, batch=batch)

    def batch_prolonged(
        self, key: Key, queue_offset: int, pop_time_ms: int, visible_ms: int
    ) -> Change | None:
        """A message of an ordered queue shall block it until then; None as above."""
        batch = self._batch_of(key, queue_offset, pop_time_ms)
        if batch is None or queue_offset in batch.acked:
            return None
        times = batch.visible_ms | {queue_offset: visible_ms}
        batch = msgspec.structs.replace(batch, visible_ms=times)
        return Change(key, self._places[key].next_offset, batch=batch)

    def next_batch(
        self, key: Key, queue_offsets: Sequence[int], attempt_id: str | None, now_ms: int,
        invisible_time_ms: int,
    ) -> Batch:  # fmt: skip
        """The messages that an ordered pop hands out."""
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
        place = self._places.get(key)
        return None if place is None else place.flying.get(queue_offset)

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
        """Messages that have become visible, earliest first.

        They stay in flight until a change drops them, but are not named again unless given back.
        """
        due: list[tuple[Key, InFlight]] = []
        while self._times and self._times[0][0] <= now_ms and len(due) < count_max:
            entry = heapq.heappop(self._times)
            _, key, row = entry
            if self._entry(key, row.queue_offset) == entry:
                due.append((key, row))
        return due

    def requeue(self, rows: Iterable[tuple[Key, InFlight]]) -> None:
        """These could not be dealt with; they are due as before."""
        for key, row in rows:
            entry = self._entry(key, row.queue_offset)
            if entry is not None and entry.row == row:
                heapq.heappush(self._times, entry)

    def dropped(self, rows: Iterable[tuple[Key, InFlight]]) -> list[Change]:
        """What is to be dropped now that these rows have been revived, by place."""
        by_key: dict[Key, list[int]] = {}
        for key, row in rows:
            # An acknowledgement or another time may have come in between.
            if self._row(key, row.queue_offset) == row:
                by_key.setdefault(key, []).append(row.queue_offset)
        return [
            Change(key, self._places[key].next_offset, drop=tuple(queue_offsets))
            for key, queue_offsets in by_key.items()
        ]

    def take_freed(self, now_ms: int) -> list[Key]:
        """Ordered queues that have become free because time went by."""
        freed: list[Key] = []
        while self._frees and self._frees[0][0] <= now_ms:
            _, key = heapq.heappop(self._frees)
            if self.batch(key) is not None and not self.is_blocked(key, None, now_ms):
                freed.append(key)
        return freed

    # -- changing ----------------------------------------------------------------------------------

    def apply(self, change: Change, at: Moment) -> None:
        """Have a change count that is durable already."""
        key = change.key
        place = self._places.get(key)
        if place is not None and (change.clear or change.gone):
            self.in_flight_count -= len(place.flying)
            del self._places[key]
            # Messages that are popped anew must not be taken for what they were.
            self._clear_stale()
            place = None
        if change.gone:
            return
        if place is None:
            place = self._places[key] = _Place(change.next_offset)
        place.next_offset = change.next_offset
        flying = place.flying
        before, last, is_sorted = len(flying), next(reversed(flying), -1), True
        for row in change.put:
            known = flying.get(row.queue_offset)
            if known is None or known.row != row:
                is_sorted = is_sorted and (known is not None or row.queue_offset > last)
                due_ms = at.end_ms(row.pop_time_ms, row.invisible_time_ms)
                entry = flying[row.queue_offset] = _Due(due_ms, key, row)
                heapq.heappush(self._times, entry)
        if not is_sorted:
            # Messages that RocketMQ handed out may lie before what was popped here.
            place.flying = flying = OrderedDict(sorted(flying.items()))
        for queue_offset in change.drop:
            flying.pop(queue_offset, None)
        self.in_flight_count += len(flying) - before
        if change.batch is not None:
            place.set_batch(change.batch, at)
            if (free_ms := place.free_ms) is not None:
                heapq.heappush(self._frees, (free_ms, key))
                if len(self._frees) > 2 * len(self._places) + _STALE_MAX:
                    self._frees = sorted(
                        (free_ms, key)
                        for key, place in self._places.items()
                        if (free_ms := place.free_ms) is not None
                    )
        if len(self._times) > 2 * self.in_flight_count + _STALE_MAX:
            self._clear_stale()

    def _clear_stale(self) -> None:
        # Rows that are being dealt with are not in the heap and must not come back into it.
        self._times = sorted(
            {entry for entry in self._times if self._entry(entry.key, entry.row[0]) == entry}
        )
