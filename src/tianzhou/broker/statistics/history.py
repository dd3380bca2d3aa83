"""Statistics over time, as RocketMQ counts them: what the counters in `stats.py` did, and when.

    rates       of the whole broker over the last 10 s, 60 s and 10 min; a sample every second
    series      by topic, queue and group: sums of the last minute (in steps of 10 s), hour (10 min)
                and day (1 h); only steps in which something happened are kept, and a series that
                had nothing for a day goes, so that memory follows activity
    totals      messages since the broker exists, now and as they were at the last two midnights,
                without those of system topics; kept over restarts in `config/statistics.json`

Nothing here reads a clock or writes: counters and `now_ms` in, values out. A program of less age
than a window counts since its start, instead of telling nothing as RocketMQ does.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec

from tianzhou.broker.statistics.counters import Counts, Stats
from tianzhou.broker.tables.groups import is_system_group
from tianzhou.errors import BodyError
from tianzhou.names import is_system_topic

K = TypeVar("K", bound=Hashable)

SEPARATOR = "@"
RATE_WINDOWS_S = (10, 60, 600)
_SAMPLE_MS = 1000
_TICKS_A_ROUND = 10
_SAVE_MS = 60_000
_GROWTHS_A_TICK = 2000
_FEW_COUNTERS = 1000
"""So many are looked at whenever somebody asks, and with every tick."""


# -- one series ------------------------------------------------------------------------------------


class Window(NamedTuple):
    """A stretch of time that ends now, in steps."""

    step_ms: int
    step_count: int


MINUTE = Window(10_000, 6)
HOUR = Window(600_000, 6)
DAY = Window(3_600_000, 24)
WINDOWS = (MINUTE, HOUR, DAY)

Steps = tuple[int, ...]
"""The number of the present step of each window."""


def steps_at(now_ms: int) -> Steps:
    return tuple(now_ms // window.step_ms for window in WINDOWS)


class Amount(NamedTuple):
    """How much happened."""

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0
    took_ms: int = 0


class Figures(NamedTuple):
    """One statistic over one window."""

    sum: int
    per_second: float
    per_call: float


class Series:
    """What happened to one thing: the total, and what it was before each step that added to it."""

    __slots__ = ("_began_ms", "_marks", "_total")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._total = Amount()
        self._marks: tuple[list[tuple[int, Amount]], ...] = tuple([] for _ in WINDOWS)

    def add(self, amount: Amount, steps: Steps) -> None:
        before = self._total
        for number, marks in enumerate(self._marks):
            step = steps[number]
            # A clock that is set back adds to the newest step.
            if not marks or marks[-1][0] < step:
                oldest = step - WINDOWS[number].step_count
                while marks and marks[0][0] <= oldest:
                    del marks[0]
                marks.append((step, before))
        self._total = Amount(
            before[0] + amount[0], before[1] + amount[1],
            before[2] + amount[2], before[3] + amount[3],
        )  # fmt: skip

    def is_over(self, steps: Steps) -> bool:
        """Nothing has happened for a day."""
        marks = self._marks[-1]
        return not marks or marks[-1][0] <= steps[-1] - DAY.step_count

    def over(self, window: Window, field: int, now_ms: int) -> Figures:
        """The sum of one field of the amounts, its rate, and its mean for each call."""
        first_step = now_ms // window.step_ms - window.step_count + 1
        marks = self._marks[WINDOWS.index(window)]
        before = next((total for step, total in marks if step >= first_step), self._total)
        value = self._total[field] - before[field]
        calls = self._total.calls - before.calls
        # As in RocketMQ, a young series is taken to have begun one step before it was first seen.
        began_ms = max(first_step * window.step_ms, self._began_ms - MINUTE.step_ms)
        span_ms = max(now_ms - began_ms, _SAMPLE_MS)
        return Figures(value, value * 1000 / span_ms, value / calls if calls else 0.0)


class Tracked(Generic[K]):
    """A counter, what it had when it was looked at last, and the series that it adds to."""

    __slots__ = ("counts", "is_counted", "key", "seen", "series")

    def __init__(self, key: K, counts: Counts, *, is_counted: bool) -> None:
        self.key = key
        self.counts = counts
        self.is_counted = is_counted
        self.seen = Amount()
        self.series: tuple[Series, ...] | None = None
        """None until it counts something, and after a day without that."""

    def growth(self) -> Amount:
        """What it counted since the last look."""
        counts, seen = self.counts, self.seen
        self.seen = now = Amount(counts.messages, counts.size_bytes, counts.calls, counts.took_ms)
        return Amount(now[0] - seen[0], now[1] - seen[1], now[2] - seen[2], now[3] - seen[3])


# -- totals ----------------------------------------------------------------------------------------


class DayStart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Totals as they were at the beginning of a day."""

    put: int = 0
    got: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Messages since the broker exists; what `config/statistics.json` holds."""

    put: int = 0
    got: int = 0
    day: int = 0
    """The local day that `today` means, as a number; 0 if none was ever noted."""
    today: DayStart = DayStart()
    yesterday: DayStart = DayStart()

    def on(self, day: int) -> "Totals":
        """The same totals seen on a day; a later one than before begins with what there is."""
        if day <= self.day:
            return self
        now = DayStart(put=self.put, got=self.got)
        if self.day == 0:
            now = self.today
        yesterday = self.today if day == self.day + 1 or self.day == 0 else now
        return msgspec.structs.replace(self, day=day, today=now, yesterday=yesterday)


def day_of(now_ms: int) -> int:
    """The number of the local day."""
    return _local(now_ms).toordinal()


def next_midnight_ms(now_ms: int) -> int:
    """When the next local day begins."""
    tomorrow = _local(now_ms).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((tomorrow + timedelta(days=1)).timestamp() * 1000)


def _local(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - a day is local by meaning


# -- all of it -------------------------------------------------------------------------------------


class _Sample(NamedTuple):
    """The counters of the whole broker at a moment."""

    now_ms: int
    put: int
    found: int
    missed: int
    transferred: int


class Rates(NamedTuple):
    """Per second, each over the last 10 s, 60 s and 10 min."""

    put: tuple[float, ...]
    found: tuple[float, ...]
    missed: tuple[float, ...]
    transferred: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Statistic:
    """Where a statistic of RocketMQ is kept: the table of series, and the field of its amounts."""

    table: str
    field: int


_MESSAGES, _SIZE, _TOOK = 0, 1, 3

STATISTICS: Mapping[str, _Statistic] = {
    "TOPIC_PUT_NUMS": _Statistic("topic", _MESSAGES),
    "TOPIC_PUT_SIZE": _Statistic("topic", _SIZE),
    "GROUP_GET_NUMS": _Statistic("group", _MESSAGES),
    "GROUP_GET_SIZE": _Statistic("group", _SIZE),
    "QUEUE_PUT_NUMS": _Statistic("queue", _MESSAGES),
    "QUEUE_PUT_SIZE": _Statistic("queue", _SIZE),
    "QUEUE_GET_NUMS": _Statistic("group_queue", _MESSAGES),
    "QUEUE_GET_SIZE": _Statistic("group_queue", _SIZE),
    "TOPIC_PUT_LATENCY": _Statistic("topic", _TOOK),
    "GROUP_GET_LATENCY": _Statistic("group", _TOOK),
    "SNDBCK_PUT_NUMS": _Statistic("sent_back", _MESSAGES),
    "SNDBCK2DLQ_TIMES": _Statistic("dead", _MESSAGES),
    "GROUP_CK_NUMS": _Statistic("popped", _MESSAGES),
    "GROUP_ACK_NUMS": _Statistic("acked", _MESSAGES),
    "BROKER_PUT_NUMS": _Statistic("broker_put", _MESSAGES),
    "BROKER_GET_NUMS": _Statistic("broker_get", _MESSAGES),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": _Statistic("broker_put_counted", _MESSAGES),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": _Statistic("broker_get_counted", _MESSAGES),
    "BROKER_CK_NUMS": _Statistic("broker_popped", _MESSAGES),
    "BROKER_ACK_NUMS": _Statistic("broker_acked", _MESSAGES),
    "CHANNEL_ACTIVITY": _Statistic("channel", _MESSAGES),
}
"""By name. Keys are "topic", "topic@group", "topic@queue", "topic@queue@group", or the cluster."""

_BY_QUEUE = {"topic": "queue", "group": "group_queue"}
"""Where the queues of a table have their own series."""
_TABLES_OF_GROUPS = ("group", "group_queue", "sent_back", "dead", "popped", "acked")
_QUEUE_FIRST = re.compile(r"(\d+)@([^@]+)(@.+)?")
_OWNED = re.compile(r"[^@]*@([^@]+@[^@]+)@[^@]*")


def _place_of(name: str, key: str) -> tuple[str, int, str] | None:
    """Table, field and key of a statistic as RocketMQ names it; None if there is no such one.

    Latencies are asked for with the queue first ("0@topic", "0@topic@group"), and dead letters with
    their owner and kind around them ("null@topic@group@SEND_BACK_TO_DLQ").
    """
    statistic = STATISTICS.get(name)
    if statistic is None:
        return None
    table = statistic.table
    if statistic.field == _TOOK and (found := _QUEUE_FIRST.fullmatch(key)) is not None:
        queue_id, topic, group = found.groups()
        return _BY_QUEUE[table], _TOOK, f"{topic}{SEPARATOR}{queue_id}{group or ''}"
    if table == "dead" and (found := _OWNED.fullmatch(key)) is not None:
        key = found[1]
    return table, statistic.field, key


class History:
    """The past of one broker's counters. `tick` it every second."""

    def __init__(
        self,
        stats: Stats,
        now_ms: int,
        *,
        cluster: str,
        is_detailed: Callable[[], bool] = lambda: True,
        on_totals: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_detailed` tells whether queues have series; `on_totals` that `as_file` has news."""
        self._stats = stats
        self._cluster = cluster
        self._is_detailed = is_detailed
        self._on_totals = on_totals
        self.totals = Totals().on(day_of(now_ms))
        self._samples: deque[_Sample] = deque(maxlen=RATE_WINDOWS_S[-1] + 1)
        self._tables: dict[str, dict[str, Series]] = {
            table: {}
            for statistic in STATISTICS.values()
            for table in (statistic.table, _BY_QUEUE.get(statistic.table, statistic.table))
        }
        self._put: list[Tracked[tuple[str, int]]] = []
        """In the order of `stats.by_queue`, to which new ones are added at the end."""
        self._got: list[Tracked[tuple[str, int, str]]] = []
        self._seen_events: dict[tuple[str, str, str], int] = {}
        self._seen_channels: dict[str, int] = {}
        self._detailed = is_detailed()
        self._put_at = self._got_at = 0
        """Where the next tick goes on looking."""
        self._collected_ms = now_ms
        self._told_ms = now_ms
        self._pruned_ms = now_ms
        self._midnight_ms = next_midnight_ms(now_ms)
        self._sample(now_ms)

    # -- taking down -------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Take down what has happened; to be called every second or so.

        A call looks at a tenth of the counters and takes down some of them, so that a hundred
        thousand hold up nobody; if very many are busy, a round takes longer than ten seconds.
        """
        if now_ms >= self._samples[-1].now_ms + _SAMPLE_MS or now_ms < self._samples[-1].now_ms:
            self._sample(now_ms)
        if now_ms >= self._midnight_ms:
            self.collect(now_ms)
            self._look_at_day(now_ms)
        else:
            self._track()
            self._put_at, self._got_at = self._add_growth(
                _some(len(self._put), self._put_at),
                _some(len(self._got), self._got_at),
                _GROWTHS_A_TICK,
                now_ms,
            )
        if not 0 <= now_ms - self._pruned_ms < DAY.step_ms:
            self._prune(now_ms)

    def _sample(self, now_ms: int) -> None:
        if self._samples and now_ms < self._samples[-1].now_ms:
            # The clock was set back: the samples from before cannot be compared with.
            self._samples.clear()
        self._samples.append(self._present(now_ms))

    def _present(self, now_ms: int) -> _Sample:
        stats = self._stats
        return _Sample(
            now_ms, stats.put.messages, stats.pulls_found, stats.pulls_missed, stats.got.messages
        )

    def _look_at_day(self, now_ms: int) -> None:
        before = self.totals
        self.totals = before.on(day_of(now_ms))
        self._midnight_ms = next_midnight_ms(now_ms)
        if self.totals is not before:
            self._told_ms = now_ms
            self._on_totals()

    def refresh(self, now_ms: int) -> None:
        """Be up to date for a reader, unless that was a moment ago and is much work."""
        is_old = not 0 <= now_ms - self._collected_ms < _SAMPLE_MS
        if is_old or len(self._put) + len(self._got) < _FEW_COUNTERS:
            self.collect(now_ms)

    def collect(self, now_ms: int) -> None:
        """Add to the series and totals what all counters have counted since they were looked at."""
        self._collected_ms = now_ms
        self._track()
        put_count, got_count = len(self._put), len(self._got)
        self._add_growth(range(put_count), range(got_count), put_count + got_count, now_ms)

    def _add_growth(
        self, put_places: range, got_places: range, limit: int, now_ms: int
    ) -> tuple[int, int]:
        """Look at some counters, and take down at most so many; returns where to go on."""
        steps = steps_at(now_ms)
        new_put, put_at = self._grow(
            "broker_put", self._put, put_places, limit, self._put_series, steps, now_ms
        )
        new_got, got_at = self._grow(
            "broker_get", self._got, got_places, limit, self._got_series, steps, now_ms
        )
        for table, counter in self._stats.events.items():
            self._grow_events(table, counter, steps, now_ms)
        self._grow_channels(steps, now_ms)
        if new_put or new_got:
            totals = self.totals
            self.totals = msgspec.structs.replace(
                totals, put=totals.put + new_put, got=totals.got + new_got
            )
            if not 0 <= now_ms - self._told_ms < _SAVE_MS:
                self._told_ms = now_ms
                self._on_totals()
        return put_at, got_at

    def _grow(
        self,
        table: str,
        counters: list[Tracked[K]],
        places: range,
        limit: int,
        find_series: Callable[[K, int], tuple[Series, ...]],
        steps: Steps,
        now_ms: int,
    ) -> tuple[int, int]:
        """Take the growth of counters to their series.

        Returns what counts for the totals, and the place of the next counter to look at.
        """
        grown = [
            place for place in places if counters[place].counts.calls != counters[place].seen.calls
        ]
        messages = size_bytes = calls = took_ms = counted = 0
        for place in grown[:limit]:
            tracked = counters[place]
            growth = tracked.growth()
            if tracked.series is None:
                tracked.series = find_series(tracked.key, now_ms)
            for series in tracked.series:
                series.add(growth, steps)
            messages += growth[0]
            size_bytes += growth[1]
            calls += growth[2]
            took_ms += growth[3]
            if tracked.is_counted:
                counted += growth[0]
        if calls:
            whole = self._series(table, self._cluster, now_ms)
            whole.add(Amount(messages, size_bytes, calls, took_ms), steps)
        if counted:
            self._series(f"{table}_counted", self._cluster, now_ms).add(
                Amount(counted, 0, counted), steps
            )
        next_place = places.stop if len(grown) <= limit else grown[limit]
        return counted, next_place if next_place < len(counters) else 0

    def _grow_events(
        self, table: str, counter: Mapping[tuple[str, str], int], steps: Steps, now_ms: int
    ) -> None:
        total = 0
        for (topic, group), count in counter.items():
            grown = count - self._seen_events.get((table, topic, group), 0)
            if grown:
                total += grown
                self._seen_events[table, topic, group] = count
                series = self._series(table, f"{topic}{SEPARATOR}{group}", now_ms)
                series.add(Amount(grown, 0, grown), steps)
        if total and (of_broker := f"broker_{table}") in self._tables:
            whole = self._series(of_broker, self._cluster, now_ms)
            whole.add(Amount(total, 0, total), steps)

    def _grow_channels(self, steps: Steps, now_ms: int) -> None:
        for name, count in self._stats.channels().items():
            grown = count - self._seen_channels.get(name, 0)
            if grown > 0:
                self._seen_channels[name] = count
                self._series("channel", name, now_ms).add(Amount(grown, 0, grown), steps)

    # -- which counters there are ------------------------------------------------------------------

    def _track(self) -> None:
        """Begin to look at counters that are new."""
        if self._detailed != self._is_detailed():
            self._detailed = not self._detailed
            self._let_go()
        by_queue, by_group = self._stats.by_queue, self._stats.by_group
        for put_key, counts in islice(by_queue.items(), len(self._put), None):
            is_counted = not is_system_topic(put_key[0])
            self._put.append(Tracked(put_key, counts, is_counted=is_counted))
        for got_key, counts in islice(by_group.items(), len(self._got), None):
            is_counted = not (is_system_topic(got_key[0]) or is_system_group(got_key[2]))
            self._got.append(Tracked(got_key, counts, is_counted=is_counted))

    def _put_series(self, key: tuple[str, int], now_ms: int) -> tuple[Series, ...]:
        topic, queue_id = key
        of_topic = self._series("topic", topic, now_ms)
        if not self._detailed:
            return (of_topic,)
        return of_topic, self._series("queue", f"{topic}{SEPARATOR}{queue_id}", now_ms)

    def _got_series(self, key: tuple[str, int, str], now_ms: int) -> tuple[Series, ...]:
        topic, queue_id, group = key
        of_group = self._series("group", f"{topic}{SEPARATOR}{group}", now_ms)
        if not self._detailed:
            return (of_group,)
        name = f"{topic}{SEPARATOR}{queue_id}{SEPARATOR}{group}"
        return of_group, self._series("group_queue", name, now_ms)

    def _series(self, table: str, key: str, now_ms: int) -> Series:
        series = self._tables[table].get(key)
        if series is None:
            series = self._tables[table][key] = Series(now_ms)
        return series

    def _let_go(self) -> None:
        """Have all counters look up their series anew: some are gone, or others are wanted."""
        for put in self._put:
            put.series = None
        for got in self._got:
            got.series = None

    def _prune(self, now_ms: int) -> None:
        """Forget series in which nothing has happened for a day."""
        self._pruned_ms = now_ms
        steps = steps_at(now_ms)
        for table in self._tables.values():
            for key in [key for key, series in table.items() if series.is_over(steps)]:
                del table[key]
        self._let_go()

    def forget_topic(self, topic: str, now_ms: int) -> None:
        """A topic is deleted: its counters go, and its past; the totals keep what it had."""
        self.collect(now_ms)
        self._stats.forget_topic(topic)
        prefix = topic + SEPARATOR
        self._forget(
            ("topic", "queue", *_TABLES_OF_GROUPS),
            lambda key: key == topic or key.startswith(prefix),
        )

    def forget_group(self, group: str, now_ms: int) -> None:
        """A group is deleted."""
        self.collect(now_ms)
        self._stats.forget_group(group)
        self._forget(_TABLES_OF_GROUPS, lambda key: key.endswith(SEPARATOR + group))

    def _forget(self, tables: Iterable[str], unwanted: Callable[[str], bool]) -> None:
        for name in tables:
            for key in [key for key in self._tables[name] if unwanted(key)]:
                del self._tables[name][key]
        stats = self._stats
        by_queue, by_group = stats.by_queue, stats.by_group
        self._put = [tracked for tracked in self._put if tracked.key in by_queue]
        self._got = [tracked for tracked in self._got if tracked.key in by_group]
        self._put_at = self._got_at = 0
        events = stats.events
        for table, topic, group in list(self._seen_events):
            if (topic, group) not in events[table]:
                del self._seen_events[table, topic, group]
        self._let_go()

    # -- looking up --------------------------------------------------------------------------------

    def rates(self, now_ms: int) -> Rates:
        """Of the whole broker."""
        present = self._present(now_ms)
        befores = [self._before(now_ms - window_s * 1000) for window_s in RATE_WINDOWS_S]

        def of(field: int) -> tuple[float, ...]:
            return tuple(
                (present[field] - then[field]) * 1000 / max(now_ms - then.now_ms, _SAMPLE_MS)
                for then in befores
            )

        return Rates(of(1), of(2), of(3), of(4))

    def _before(self, then_ms: int) -> _Sample:
        """The newest sample that is not younger, or else the oldest there is."""
        place = bisect_right(self._samples, then_ms, key=lambda sample: sample.now_ms)
        return self._samples[max(place - 1, 0)]

    def look_up(self, name: str, key: str, now_ms: int) -> dict[Window, Figures] | None:
        """A statistic of RocketMQ by its name and key; None if nothing was ever counted there."""
        place = _place_of(name, key)
        if place is None:
            return None
        self.refresh(now_ms)
        table, field, own_key = place
        series = self._tables[table].get(own_key)
        if series is None:
            return None
        return {window: series.over(window, field, now_ms) for window in WINDOWS}

    def over_window(self, name: str, window: Window, now_ms: int) -> Iterator[tuple[str, Figures]]:
        """A statistic over one window for all keys there are; `refresh` first."""
        statistic = STATISTICS[name]
        for key, series in self._tables[statistic.table].items():
            yield key, series.over(window, statistic.field, now_ms)

    def per_second(self, name: str, key: str, now_ms: int) -> float:
        """The rate of the last minute; 0 if nothing was ever counted there."""
        found = self.look_up(name, key, now_ms)
        return 0.0 if found is None else found[MINUTE].per_second

    # -- on disk -----------------------------------------------------------------------------------

    def as_file(self) -> Totals:
        return self.totals

    def load(self, found: dict[str, object], now_ms: int) -> None:
        """Go on from the totals of the last run. Raises BodyError and changes nothing."""
        try:
            totals = msgspec.convert(found, Totals)
        except msgspec.ValidationError as e:
            raise BodyError(f"the totals cannot be read: {e}") from e
        self.totals = totals.on(day_of(now_ms))


def _some(count: int, place: int) -> range:
    """The counters of one tick, from a place on."""
    return range(place, min(place + max(count // _TICKS_A_ROUND, _FEW_COUNTERS), count))
