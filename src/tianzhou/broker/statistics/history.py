"""Statistics over time, as RocketMQ reports them, from the counters in `counters`.

    rates       of the whole broker over the last 10 s, 60 s and 10 min; a sample every second
    series      by topic, queue and group: sums of the last minute (in steps of 10 s), hour (10 min)
                and day (1 h); a series that was idle for a day is removed
    totals      messages since the broker exists, without system topics

No clock is read and nothing is written: counters and `now_ms` in, values out. A broker that runs
for less time than a window counts since its start, where RocketMQ reports nothing.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.statistics.series import (
    DAY,
    MINUTE,
    SPAN_MS_MIN,
    WINDOWS,
    Amount,
    Series,
    Steps,
    TrackedCounter,
    Window,
    WindowStats,
    steps_at,
)
from tianzhou.broker.statistics.totals import Totals, day_of, next_midnight_ms
from tianzhou.broker.tables.groups import is_system_group
from tianzhou.errors import BodyError
from tianzhou.names import is_system_topic

K = TypeVar("K", bound=Hashable)

SEPARATOR = "@"
RATE_WINDOWS_S = (10, 60, 600)
_TICKS_PER_ROUND = 10
_SAVE_MS = 60_000
_UPDATES_PER_TICK = 2000
_COUNTERS_PER_STEP = 1000
"""Counters of each kind that `refresh_in_steps` reads between two pauses."""
_FEW_COUNTERS = 1000
"""So many are read by every query and every tick."""


class _Sample(NamedTuple):
    """The counters of the whole broker at one time."""

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
    """The table of series of a RocketMQ statistic, and the field of its amounts."""

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
"""The tables with a series for each queue."""
_TABLES_OF_GROUPS = ("group", "group_queue", "sent_back", "dead", "popped", "acked")
_QUEUE_FIRST = re.compile(r"(\d+)@([^@]+)(@.+)?")
_OWNED = re.compile(r"[^@]*@([^@]+@[^@]+)@[^@]*")


def _resolve(name: str, key: str) -> tuple[str, int, str] | None:
    """Table, field and key of a statistic of RocketMQ; None if the name is unknown.

    Keys of latencies have the queue first ("0@topic", "0@topic@group"), those of dead
    letters the owner and kind around them ("null@topic@group@SEND_BACK_TO_DLQ").
    """
    statistic = STATISTICS.get(name)
    if statistic is None:
        return None
    table = statistic.table
    if statistic.field == _TOOK and (match := _QUEUE_FIRST.fullmatch(key)) is not None:
        queue_id, topic, group = match.groups()
        return _BY_QUEUE[table], _TOOK, f"{topic}{SEPARATOR}{queue_id}{group or ''}"
    if table == "dead" and (match := _OWNED.fullmatch(key)) is not None:
        key = match[1]
    return table, statistic.field, key


class History:
    """The history of a broker's counters. Call `tick` every second."""

    def __init__(
        self,
        stats: Stats,
        now_ms: int,
        *,
        cluster: str,
        is_detailed: Callable[[], bool] = lambda: True,
        on_totals: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_detailed`: whether queues have series; `on_totals`: called when `totals` changed."""
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
        self._put: list[TrackedCounter[tuple[str, int]]] = []
        """In the order of `stats.by_queue`, which appends new ones."""
        self._got: list[TrackedCounter[tuple[str, int, str]]] = []
        self._seen_events: dict[tuple[str, str, str], int] = {}
        self._seen_channels: dict[str, int] = {}
        self._detailed = is_detailed()
        self._put_at = self._got_at = 0
        """The index of the next counter to read."""
        self._collected_ms = now_ms
        self._saved_ms = now_ms
        self._pruned_ms = now_ms
        self._midnight_ms = next_midnight_ms(now_ms)
        self._sample(now_ms)

    # -- recording ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Record what was counted; to be called about every second.

        A call reads a tenth of the counters and records a limited number, so that a hundred
        thousand counters do not block the event loop; if very many are active, a round takes longer
        than ten seconds.
        """
        if now_ms >= self._samples[-1].now_ms + SPAN_MS_MIN or now_ms < self._samples[-1].now_ms:
            self._sample(now_ms)
        if now_ms >= self._midnight_ms:
            self.collect(now_ms)
            self._begin_day(now_ms)
        else:
            self._track()
            self._put_at, self._got_at = self._add_growth(
                _some(len(self._put), self._put_at),
                _some(len(self._got), self._got_at),
                _UPDATES_PER_TICK,
                now_ms,
            )
        if not 0 <= now_ms - self._pruned_ms < DAY.step_ms:
            self._prune(now_ms)

    def _sample(self, now_ms: int) -> None:
        if self._samples and now_ms < self._samples[-1].now_ms:
            # The clock was set back: older samples cannot be compared.
            self._samples.clear()
        self._samples.append(self._present(now_ms))

    def _present(self, now_ms: int) -> _Sample:
        stats = self._stats
        return _Sample(
            now_ms, stats.put.messages, stats.pulls_found, stats.pulls_missed, stats.got.messages
        )

    def _begin_day(self, now_ms: int) -> None:
        before = self.totals
        self.totals = before.on(day_of(now_ms))
        self._midnight_ms = next_midnight_ms(now_ms)
        if self.totals is not before:
            self._saved_ms = now_ms
            self._on_totals()

    def refresh(self, now_ms: int) -> None:
        """Be up to date for a reader, unless that was a moment ago and is much work."""
        if self._is_outdated(now_ms):
            self.collect(now_ms)

    def refresh_in_steps(self, now_ms: int) -> Iterator[None]:
        """`refresh` with pauses: tens of thousands of counters take more than 50 ms."""
        if not self._is_outdated(now_ms):
            return
        self._collected_ms = now_ms
        while self._track(_COUNTERS_PER_STEP):
            yield
        start = 0
        # Counters may be removed in a pause.
        while start < max(len(self._put), len(self._got)):
            some = slice(start, start + _COUNTERS_PER_STEP)
            put_indexes = range(len(self._put))[some]
            got_indexes = range(len(self._got))[some]
            self._add_growth(put_indexes, got_indexes, 2 * _COUNTERS_PER_STEP, now_ms)
            start += _COUNTERS_PER_STEP
            yield

    def _is_outdated(self, now_ms: int) -> bool:
        is_old = not 0 <= now_ms - self._collected_ms < SPAN_MS_MIN
        return is_old or len(self._put) + len(self._got) < _FEW_COUNTERS

    def collect(self, now_ms: int) -> None:
        """Add to the series and totals what all counters counted since they were read."""
        self._collected_ms = now_ms
        self._track()
        put_count, got_count = len(self._put), len(self._got)
        self._add_growth(range(put_count), range(got_count), put_count + got_count, now_ms)

    def _add_growth(
        self, put_range: range, got_range: range, limit: int, now_ms: int
    ) -> tuple[int, int]:
        """Read some counters and record at most `limit`; returns the next index of each kind."""
        steps = steps_at(now_ms)
        new_put, put_at = self._grow(
            "broker_put", self._put, put_range, limit, self._put_series, steps, now_ms
        )
        new_got, got_at = self._grow(
            "broker_get", self._got, got_range, limit, self._got_series, steps, now_ms
        )
        for table, counter in self._stats.events.items():
            self._grow_events(table, counter, steps, now_ms)
        self._grow_channels(steps, now_ms)
        if new_put or new_got:
            totals = self.totals
            self.totals = msgspec.structs.replace(
                totals, put=totals.put + new_put, got=totals.got + new_got
            )
            if not 0 <= now_ms - self._saved_ms < _SAVE_MS:
                self._saved_ms = now_ms
                self._on_totals()
        return put_at, got_at

    def _grow(
        self,
        table: str,
        counters: list[TrackedCounter[K]],
        indexes: range,
        limit: int,
        find_series: Callable[[K, int], tuple[Series, ...]],
        steps: Steps,
        now_ms: int,
    ) -> tuple[int, int]:
        """Add the growth of counters to their series.

        Returns what counts for the totals, and the index of the next counter to read.
        """
        grown = [at for at in indexes if counters[at].counts.calls != counters[at].seen.calls]
        messages = size_bytes = calls = took_ms = counted = 0
        for at in grown[:limit]:
            tracked = counters[at]
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
        following = indexes.stop if len(grown) <= limit else grown[limit]
        return counted, following if following < len(counters) else 0

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

    # -- counters and series -----------------------------------------------------------------------

    def _track(self, limit: int | None = None) -> bool:
        """Track new counters, at most so many of each kind; whether there are more."""
        if self._detailed != self._is_detailed():
            self._detailed = not self._detailed
            self._detach_series()
        by_queue, by_group = self._stats.by_queue, self._stats.by_group
        for put_key, counts in islice(
            by_queue.items(), len(self._put), _stop(len(self._put), limit)
        ):
            is_counted = not is_system_topic(put_key[0])
            self._put.append(TrackedCounter(put_key, counts, is_counted=is_counted))
        for got_key, counts in islice(
            by_group.items(), len(self._got), _stop(len(self._got), limit)
        ):
            is_counted = not (is_system_topic(got_key[0]) or is_system_group(got_key[2]))
            self._got.append(TrackedCounter(got_key, counts, is_counted=is_counted))
        return len(self._put) < len(by_queue) or len(self._got) < len(by_group)

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

    def _detach_series(self) -> None:
        """Make all counters find their series again: some were removed, or others are needed."""
        for put in self._put:
            put.series = None
        for got in self._got:
            got.series = None

    def _prune(self, now_ms: int) -> None:
        """Remove series that were idle for a day."""
        self._pruned_ms = now_ms
        steps = steps_at(now_ms)
        for table in self._tables.values():
            for key in [key for key, series in table.items() if series.is_idle(steps)]:
                del table[key]
        self._detach_series()

    def forget_topic(self, topic: str, now_ms: int) -> None:
        """A topic is deleted: remove its counters and series; the totals stay."""
        self.collect(now_ms)
        self._stats.forget_topic(topic)
        prefix = topic + SEPARATOR
        self._forget(
            ("topic", "queue", *_TABLES_OF_GROUPS),
            lambda key: key == topic or key.startswith(prefix),
        )

    def forget_group(self, group: str, now_ms: int) -> None:
        """A group is deleted: remove its counters and series."""
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
        self._detach_series()

    # -- queries -----------------------------------------------------------------------------------

    def rates(self, now_ms: int) -> Rates:
        """The rates of the whole broker."""
        present = self._present(now_ms)
        befores = [self._before(now_ms - window_s * 1000) for window_s in RATE_WINDOWS_S]

        def of(field: int) -> tuple[float, ...]:
            return tuple(
                (present[field] - then[field]) * 1000 / max(now_ms - then.now_ms, SPAN_MS_MIN)
                for then in befores
            )

        return Rates(of(1), of(2), of(3), of(4))

    def _before(self, then_ms: int) -> _Sample:
        """The newest sample at or before this time, or else the oldest sample."""
        index = bisect_right(self._samples, then_ms, key=lambda sample: sample.now_ms)
        return self._samples[max(index - 1, 0)]

    def look_up(self, name: str, key: str, now_ms: int) -> dict[Window, WindowStats] | None:
        """A statistic of RocketMQ by its name and key; None if it has no series."""
        resolved = _resolve(name, key)
        if resolved is None:
            return None
        self.refresh(now_ms)
        table, field, own_key = resolved
        series = self._tables[table].get(own_key)
        if series is None:
            return None
        return {window: series.over(window, field, now_ms) for window in WINDOWS}

    def over_window(
        self, name: str, window: Window, now_ms: int
    ) -> Iterator[tuple[str, WindowStats]]:
        """A statistic over one window for all keys; call `refresh` first."""
        statistic = STATISTICS[name]
        for key, series in list(self._tables[statistic.table].items()):
            yield key, series.over(window, statistic.field, now_ms)

    def per_second(self, name: str, key: str, now_ms: int) -> float:
        """The rate of the last minute; 0 without a series."""
        windows = self.look_up(name, key, now_ms)
        return 0.0 if windows is None else windows[MINUTE].per_second

    # -- on disk -----------------------------------------------------------------------------------

    def as_file(self) -> Totals:
        return self.totals

    def load(self, content: dict[str, object], now_ms: int) -> None:
        """Continue the totals of the last run. Raises BodyError; then nothing has changed."""
        try:
            totals = msgspec.convert(content, Totals)
        except msgspec.ValidationError as e:
            raise BodyError(f"the totals cannot be read: {e}") from e
        self.totals = totals.on(day_of(now_ms))


def _some(count: int, first: int) -> range:
    """The indexes of the counters of one tick."""
    return range(first, min(first + max(count // _TICKS_PER_ROUND, _FEW_COUNTERS), count))


def _stop(start: int, limit: int | None) -> int | None:
    return None if limit is None else start + limit
