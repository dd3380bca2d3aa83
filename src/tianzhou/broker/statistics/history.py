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
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from tianzhou.broker.statistics.counters import Counts, Stats
from tianzhou.broker.statistics.series import (
    DAY,
    MINUTE,
    SPAN_MS_MIN,
    WINDOWS,
    Amount,
    Series,
    TrackedCounter,
    Window,
    WindowStats,
    steps_at,
)
from tianzhou.broker.statistics.totals import Totals, day_of, next_midnight_ms
from tianzhou.broker.tables.groups import is_system_group
from tianzhou.errors import BodyError
from tianzhou.names import is_system_topic

SEPARATOR = "@"
RATE_WINDOWS_S = (10, 60, 600)
_TICKS_PER_ROUND = 10
_SAVE_MS = 60_000
_NEW_PER_TICK = 5000
_UPDATES_PER_TICK = 1000
_COUNTERS_PER_STEP = 250
"""Counters of each kind that are read between two pauses."""
_FEW_COUNTERS = 1000
"""So many are read by every query and every tick."""


QueueKey = tuple[str, int, *tuple[str, ...]]
"""Topic and queue, and the group of delivered messages."""


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


_MESSAGES, _SIZE, _TOOK = 0, 1, 3

STATISTICS: Mapping[str, tuple[str, int]] = {
    "TOPIC_PUT_NUMS": ("topic", _MESSAGES),
    "TOPIC_PUT_SIZE": ("topic", _SIZE),
    "GROUP_GET_NUMS": ("group", _MESSAGES),
    "GROUP_GET_SIZE": ("group", _SIZE),
    "QUEUE_PUT_NUMS": ("queue", _MESSAGES),
    "QUEUE_PUT_SIZE": ("queue", _SIZE),
    "QUEUE_GET_NUMS": ("group_queue", _MESSAGES),
    "QUEUE_GET_SIZE": ("group_queue", _SIZE),
    "TOPIC_PUT_LATENCY": ("topic", _TOOK),
    "GROUP_GET_LATENCY": ("group", _TOOK),
    "SNDBCK_PUT_NUMS": ("sent_back", _MESSAGES),
    "SNDBCK2DLQ_TIMES": ("dead", _MESSAGES),
    "GROUP_CK_NUMS": ("popped", _MESSAGES),
    "GROUP_ACK_NUMS": ("acked", _MESSAGES),
    "BROKER_PUT_NUMS": ("broker_put", _MESSAGES),
    "BROKER_GET_NUMS": ("broker_get", _MESSAGES),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": ("broker_put_counted", _MESSAGES),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": ("broker_get_counted", _MESSAGES),
    "BROKER_CK_NUMS": ("broker_popped", _MESSAGES),
    "BROKER_ACK_NUMS": ("broker_acked", _MESSAGES),
    "CHANNEL_ACTIVITY": ("channel", _MESSAGES),
}
"""By name: the table of series, and the field of its amounts.

Keys are "topic", "topic@group", "topic@queue", "topic@queue@group", or the cluster.
"""

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
    if name not in STATISTICS:
        return None
    table, field = STATISTICS[name]
    if field == _TOOK and (match := _QUEUE_FIRST.fullmatch(key)) is not None:
        queue_id, topic, group = match.groups()
        return _BY_QUEUE[table], _TOOK, f"{topic}{SEPARATOR}{queue_id}{group or ''}"
    if table == "dead" and (match := _OWNED.fullmatch(key)) is not None:
        key = match[1]
    return table, field, key


class _Kind:
    """The counters of stored or of delivered messages, and the tables of their series."""

    def __init__(
        self, name: str, read: Callable[[], Collection[tuple[QueueKey, Counts]]], tables: list[str]
    ) -> None:
        self.name = name
        self.read = read
        self.tables = tables
        self.counters: list[TrackedCounter[QueueKey]] = []
        """In the order of `read`, which appends new ones."""
        self.at = 0
        """The index of the next counter to read."""

    def track(self, limit: int) -> bool:
        """Track new counters, at most so many; returns whether there are more."""
        counters, first = self.read(), len(self.counters)
        for key, counts in islice(counters, first, first + limit):
            topic, _, *groups = key
            is_counted = not (is_system_topic(topic) or any(map(is_system_group, groups)))
            self.counters.append(TrackedCounter(key, counts, is_counted=is_counted))
        return len(self.counters) < len(counters)

    def some(self, limit: int, first: int | None) -> range:
        """The indexes of the next tenth of the counters, or of `limit` from `first` on."""
        count = len(self.counters)
        if first is None:
            first, limit = self.at, max(count // _TICKS_PER_ROUND, _FEW_COUNTERS)
        return range(first, min(first + limit, count))


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
            for of_statistic, _ in STATISTICS.values()
            for table in (of_statistic, _BY_QUEUE.get(of_statistic, of_statistic))
        }
        self._put = _Kind("broker_put", lambda: stats.by_queue.items(), ["topic", "queue"])
        self._got = _Kind("broker_get", lambda: stats.by_group.items(), ["group", "group_queue"])
        self._seen_events: dict[str, dict[Hashable, int]] = {}
        """The last values of events and channels, by table and key."""
        self._detailed = is_detailed()
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
            self._track(_NEW_PER_TICK)
            self._grow_events(now_ms)
            self._add_growth(_UPDATES_PER_TICK, now_ms)
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
        if self._is_outdated(now_ms):
            yield from self._collect_in_steps(now_ms)

    def _is_outdated(self, now_ms: int) -> bool:
        is_old = not 0 <= now_ms - self._collected_ms < SPAN_MS_MIN
        return is_old or len(self._put.counters) + len(self._got.counters) < _FEW_COUNTERS

    def collect(self, now_ms: int) -> None:
        """Add to the series and totals what all counters counted since they were read."""
        for _ in self._collect_in_steps(now_ms):
            pass

    def _collect_in_steps(self, now_ms: int) -> Iterator[None]:
        self._collected_ms = now_ms
        while self._track(_COUNTERS_PER_STEP):
            yield
        self._grow_events(now_ms)
        start = 0
        # Counters may be removed in a pause.
        while start < max(len(self._put.counters), len(self._got.counters)):
            self._add_growth(_COUNTERS_PER_STEP, now_ms, start)
            start += _COUNTERS_PER_STEP
            yield

    def _add_growth(self, limit: int, now_ms: int, first: int | None = None) -> None:
        """Read some counters of each kind and record at most `limit`; see `_Kind.some`."""
        new_put = self._grow(self._put, self._put.some(limit, first), limit, now_ms)
        new_got = self._grow(self._got, self._got.some(limit, first), limit, now_ms)
        if new_put or new_got:
            totals = self.totals
            self.totals = msgspec.structs.replace(
                totals, put=totals.put + new_put, got=totals.got + new_got
            )
            if not 0 <= now_ms - self._saved_ms < _SAVE_MS:
                self._saved_ms = now_ms
                self._on_totals()

    def _grow(self, kind: _Kind, indexes: range, limit: int, now_ms: int) -> int:
        """Add the growth of counters to their series; returns what counts for the totals."""
        counters, steps = kind.counters, steps_at(now_ms)
        grown = [at for at in indexes if counters[at].counts.calls != counters[at].seen.calls]
        messages = size_bytes = calls = took_ms = counted = 0
        for at in grown[:limit]:
            tracked = counters[at]
            growth = tracked.growth()
            if tracked.series is None:
                tracked.series = self._series_of(kind, tracked.key, now_ms)
            for series in tracked.series:
                series.add(growth, steps)
            messages += growth[0]
            size_bytes += growth[1]
            calls += growth[2]
            took_ms += growth[3]
            if tracked.is_counted:
                counted += growth[0]
        if calls:
            whole = self._series(kind.name, self._cluster, now_ms)
            whole.add(Amount(messages, size_bytes, calls, took_ms), steps)
        if counted:
            self._series(f"{kind.name}_counted", self._cluster, now_ms).add(
                Amount(counted, 0, counted), steps
            )
        following = indexes.stop if len(grown) <= limit else grown[limit]
        kind.at = following if following < len(counters) else 0
        return counted

    def _grow_events(self, now_ms: int) -> None:
        """Add the growth of counters without a size."""
        steps = steps_at(now_ms)
        for table, counter in self._event_counters().items():
            total, seen = 0, self._seen_events.setdefault(table, {})
            for key, count in counter.items():
                grown = count - seen.get(key, 0)
                if grown > 0:
                    total += grown
                    seen[key] = count
                    name = key if isinstance(key, str) else SEPARATOR.join(key)
                    self._series(table, name, now_ms).add(Amount(grown, 0, grown), steps)
            if total and (of_broker := f"broker_{table}") in self._tables:
                whole = self._series(of_broker, self._cluster, now_ms)
                whole.add(Amount(total, 0, total), steps)

    def _event_counters(self) -> dict[str, Mapping[tuple[str, str], int] | Mapping[str, int]]:
        return {**self._stats.events, "channel": self._stats.channels()}

    # -- counters and series -----------------------------------------------------------------------

    def _track(self, limit: int) -> bool:
        """Track new counters, at most so many of each kind; returns whether there are more."""
        if self._detailed != self._is_detailed():
            self._detailed = not self._detailed
            self._detach_series()
        return any([kind.track(limit) for kind in (self._put, self._got)])

    def _series_of(self, kind: _Kind, key: QueueKey, now_ms: int) -> tuple[Series, ...]:
        """The series of a counter: of its topic or group, and of its queue if `is_detailed`."""
        topic, queue_id, *group = key
        names = (SEPARATOR.join((topic, *group)), SEPARATOR.join((topic, str(queue_id), *group)))
        used = kind.tables if self._detailed else kind.tables[:1]
        return tuple(
            self._series(table, name, now_ms) for table, name in zip(used, names, strict=False)
        )

    def _series(self, table: str, key: str, now_ms: int) -> Series:
        series = self._tables[table].get(key)
        if series is None:
            series = self._tables[table][key] = Series(now_ms)
        return series

    def _detach_series(self) -> None:
        """Make all counters find their series again: some were removed, or others are needed."""
        for tracked in (*self._put.counters, *self._got.counters):
            tracked.series = None

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
        for kind in (self._put, self._got):
            known = {key for key, _ in kind.read()}
            kind.counters = [tracked for tracked in kind.counters if tracked.key in known]
            kind.at = 0
        for table, counter in self._event_counters().items():
            seen = self._seen_events.get(table, {})
            self._seen_events[table] = {key: seen[key] for key in seen if key in counter}
        self._detach_series()

    # -- queries -----------------------------------------------------------------------------------

    def rates(self, now_ms: int) -> Rates:
        """The rates of the whole broker."""
        present = self._present(now_ms)
        befores = [self._before(now_ms - window_s * 1000) for window_s in RATE_WINDOWS_S]
        return Rates(
            *(
                tuple(
                    (present[field] - then[field]) * 1000 / max(now_ms - then.now_ms, SPAN_MS_MIN)
                    for then in befores
                )
                for field in range(1, len(present))
            )
        )

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
        table, field = STATISTICS[name]
        for key, series in list(self._tables[table].items()):
            yield key, series.over(window, field, now_ms)

    def per_second(self, name: str, key: str, now_ms: int) -> float:
        """The rate of the last minute; 0 without a series."""
        windows = self.look_up(name, key, now_ms)
        return 0.0 if windows is None else windows[MINUTE].per_second

    # -- on disk -----------------------------------------------------------------------------------

    def load(self, content: dict[str, object], now_ms: int) -> None:
        """Continue the totals of the last run. Raises BodyError; then nothing has changed."""
        try:
            totals = msgspec.convert(content, Totals)
        except msgspec.ValidationError as e:
            raise BodyError(f"the totals cannot be read: {e}") from e
        self.totals = totals.on(day_of(now_ms))
