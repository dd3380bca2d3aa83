"""How many messages were produced and consumed on which day, from offsets. No I/O, no clock.

A series is a topic (what was produced: the growth of its end offsets) or a group on a topic (what
was consumed: the growth of its committed offsets). A position is the offsets of a series on one
broker at one reading. The growth between two readings counts for the day of the later one, unless
midnight lies between: then the caller asks the broker for the offsets at midnight, and the growth
is split there. Counts are kept with the positions up to which they count (`Kept`), so that nothing
is lost or counted twice over a restart.

    reset     A committed offset that falls, or that jumps past the end of its queue, was moved and
              not consumed; an end offset that falls belongs to a topic that was created again, or
              to a log that was cut. The move is counted as a reset, and counting goes on from the
              new offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Offsets = tuple[int, ...]
"""By queue id; NO_OFFSET where there is none."""

NO_OFFSET = -1
PRODUCED = ""
"""As the group of a series: what was produced."""


class Growth(NamedTuple):
    """The difference of two positions."""

    added: int
    """Messages."""
    resets: int


NONE = Growth(0, 0)


def growth(before: Offsets, now: Offsets, ends: Offsets | None = None) -> Growth:
    """What was added between two positions of a series on one broker.

    `ends` are the end offsets at the later reading, for a group. A queue without an offset before
    counts from 0 in a topic (`ends` is None): it is new; in a group it begins to count.
    """
    if before == now:
        return NONE
    count = resets = 0
    for queue_id, offset in enumerate(now):
        if offset == NO_OFFSET:
            continue
        earlier = before[queue_id] if queue_id < len(before) else NO_OFFSET
        if earlier == NO_OFFSET:
            count += offset if ends is None else 0
        elif offset < earlier or _is_past_end(queue_id, offset, earlier, ends):
            resets += 1
        else:
            count += offset - earlier
    return Growth(count, resets)


def _is_past_end(queue_id: int, offset: int, earlier: int, ends: Offsets | None) -> bool:
    if ends is None or queue_id >= len(ends):
        return False
    return earlier < offset and offset > ends[queue_id]


def split(before: Offsets, cuts: Sequence[Offsets], now: Offsets) -> list[Growth]:
    """The growth of a topic before, between and after `cuts`, its end offsets at some times.

    The parts add up to the growth without cuts.
    """
    parts: list[Growth] = []
    for cut in cuts:
        bounded = _between(before, cut, now)
        parts.append(growth(before, bounded))
        before = bounded
    parts.append(growth(before, now))
    return parts


def _between(before: Offsets, cut: Offsets, now: Offsets) -> Offsets:
    """A position at an earlier time can be neither before the last one nor after this one."""
    found: list[int] = []
    for queue_id, offset in enumerate(now):
        earlier = before[queue_id] if queue_id < len(before) else NO_OFFSET
        if offset < earlier:
            found.append(earlier)  # it was reset: all of that is later
        else:
            asked = cut[queue_id] if queue_id < len(cut) else offset
            found.append(min(max(asked, earlier, 0), offset))
    return tuple(found)


# -- the counts of the days ------------------------------------------------------------------------


class SeriesKey(NamedTuple):
    """What is counted."""

    topic: str
    group: str = PRODUCED


@dataclass(slots=True)
class Day:
    """What a series counted on one day."""

    count: int = 0
    resets: int = 0

    def add(self, grown: Growth) -> None:
        self.count += grown.added
        self.resets += grown.resets


@dataclass(slots=True)
class Position:
    """The offsets of a series on one broker, up to which it is counted."""

    offsets: Offsets
    read_ms: int
    """Time of day of the reading."""


@dataclass(slots=True)
class Series:
    """One series on all brokers."""

    positions: dict[str, Position] = field(default_factory=dict[str, Position])
    """By broker name."""
    days: dict[str, Day] = field(default_factory=dict[str, Day])
    changed: set[str] = field(default_factory=set[str])
    """Days that were not written since they changed."""
    is_moved: bool = False
    """Whether positions were not written since they changed."""
    since: str = ""
    """The first day that is counted completely, on every broker."""
    total: int = 0
    """Messages counted by this process, over all days."""


_EMPTY = Day()


class Counted(NamedTuple):
    """A figure of a day, None if it is not known for the whole day."""

    today: int | None
    yesterday: int | None
    resets_today: int | None


UNKNOWN = Counted(None, None, None)


class Ledger:
    """The counts of all series of one cluster."""

    def __init__(self) -> None:
        self.series: dict[SeriesKey, Series] = {}
        self.gone: set[SeriesKey] = set()
        """Series that were forgotten and are still in the database."""

    def position(self, key: SeriesKey, broker: str) -> Position | None:
        """Up to where a series is counted on a broker; None: it was never read."""
        found = self.series.get(key)
        return None if found is None else found.positions.get(broker)

    def begin(self, key: SeriesKey, broker: str, at: Position, since: str) -> None:
        """Start counting on a broker; `since` is the first day of which nothing is missed."""
        series = self.series.setdefault(key, Series())
        self.gone.discard(key)
        series.positions[broker] = at
        series.is_moved = True
        series.since = max(series.since, since)

    def add(
        self,
        key: SeriesKey,
        broker: str,
        offsets: Offsets,
        read_ms: int,
        day: str,
        ends: Offsets | None = None,
    ) -> Growth:
        """Count a reading for its day. The series must have begun on the broker."""
        series = self.series[key]
        position = series.positions[broker]
        grown = growth(position.offsets, offsets, ends)
        position.read_ms = read_ms
        if offsets is not position.offsets and offsets != position.offsets:
            position.offsets = _onward(position.offsets, offsets)
            series.is_moved = True
        self._count(series, day, grown)
        return grown

    def add_split(
        self,
        key: SeriesKey,
        broker: str,
        offsets: Offsets,
        read_ms: int,
        day: str,
        cuts: Sequence[tuple[str, Offsets]],
    ) -> Growth:
        """Count a reading of a topic, the growth before each cut for the day named with it."""
        series = self.series[key]
        position = series.positions[broker]
        parts = split(position.offsets, [each for _, each in cuts], offsets)
        for name, part in zip([*(each for each, _ in cuts), day], parts, strict=True):
            self._count(series, name, part)
        position.offsets, position.read_ms = _onward(position.offsets, offsets), read_ms
        series.is_moved = True
        return Growth(sum(each.added for each in parts), sum(each.resets for each in parts))

    def _count(self, series: Series, day: str, grown: Growth) -> None:
        if grown.added or grown.resets:
            self._day(series, day).add(grown)
            series.changed.add(day)
            series.total += grown.added

    def _day(self, series: Series, day: str) -> Day:
        found = series.days.get(day)
        if found is None:
            found = series.days[day] = Day()
        return found

    def counted(self, key: SeriesKey, today: str, yesterday: str) -> Counted:
        """The figures of a series for a page."""
        series = self.series.get(key)
        if series is None:
            return UNKNOWN
        now, before = series.days.get(today, _EMPTY), series.days.get(yesterday, _EMPTY)
        return Counted(
            now.count if today >= series.since else None,
            before.count if yesterday >= series.since else None,
            now.resets,
        )

    def forget(self, key: SeriesKey) -> None:
        """Drop a series whose topic or group is gone."""
        if self.series.pop(key, None) is not None:
            self.gone.add(key)

    def forget_days(self, before: str) -> None:
        """Drop the counts of earlier days that are written."""
        for series in self.series.values():
            for day in [each for each in series.days if each < before]:
                if day not in series.changed:
                    del series.days[day]


def _onward(before: Offsets, now: Offsets) -> Offsets:
    """Up to where is counted after a reading: a queue without an offset stays where it was."""
    if NO_OFFSET not in now and len(now) >= len(before):
        return now
    width = max(len(before), len(now))
    padded = now + (NO_OFFSET,) * (width - len(now))
    earlier = before + (NO_OFFSET,) * (width - len(before))
    return tuple(b if n == NO_OFFSET else n for n, b in zip(padded, earlier, strict=True))
