"""Lag and rates over time: a sample a minute for 48 hours, then one an hour for 400 days.

    series     what is measured: a group's lag and consumption, a topic's production ...
    samples    (series, minute): the lag then, and the messages since the sample before
    hours      (series, hour): largest and mean lag, messages

A sample of zeros is not written. Each round writes a sample of the series
`ROUND` with the seconds since the round before, so that a minute without a sample is known to be
zero where there was a round, and unknown where there was none. A figure that is not known is
written as null; so is what was counted in the first round after a start, whose time is not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, Engine, delete, func, select, text

from tianzhou.console.collect import tables
from tianzhou.console.collect.counting import Ledger, SeriesKey
from tianzhou.console.collect.snapshot import Snapshot
from tianzhou.monitor.database import reading, upsert_where

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MINUTES_KEPT = 48 * 60
HOURS_KEPT = 400 * 24
DELETED_MAX = 50_000
"""Samples deleted at a time, so that no transaction is long."""

ROUND = "round"
GROUP, GROUP_TOPIC, TOPIC = "group", "group-topic", "topic"
BROKER_IN, BROKER_OUT, CLUSTER = "broker-in", "broker-out", "cluster"
"""Values of `SeriesName.kind`."""


class SeriesName(NamedTuple):
    """What is measured.

    group         name: lag and consumed messages over all topics
    group-topic   name, topic: the same on one topic
    topic         name: produced messages
    broker-in     label of a broker: stored messages; broker-out: delivered ones
    cluster       empty name: lag of all groups, produced messages
    """

    kind: str
    name: str = ""
    topic: str = ""


class Sample(NamedTuple):
    """One series at one minute; None: not known."""

    lag: int | None
    done: int | None


ZERO = Sample(0, 0)


# -- from a snapshot to samples --------------------------------------------------------------------


class Sampler:
    """Remembers the counts of the sample before. No I/O."""

    def __init__(self) -> None:
        self._steady_ms: int | None = None
        self._totals: dict[SeriesKey, int] = {}
        self._brokers: dict[tuple[str, str], int] = {}

    def samples(
        self, snapshot: Snapshot, ledger: Ledger, steady_ms: int
    ) -> dict[SeriesName, Sample]:
        """The samples of a round, which began at a steady time."""
        before_ms, self._steady_ms = self._steady_ms, steady_ms
        found = self._samples(snapshot, ledger)
        if before_ms is None:
            found = {name: Sample(each.lag, None) for name, each in found.items()}
        seconds = None if before_ms is None else max(round((steady_ms - before_ms) / 1000), 1)
        return found | {SeriesName(ROUND): Sample(None, seconds)}

    def _samples(self, snapshot: Snapshot, ledger: Ledger) -> dict[SeriesName, Sample]:
        found: dict[SeriesName, Sample] = {}
        produced = 0
        for topic in snapshot.topics:
            done = self._grown(SeriesKey(topic.name), ledger)
            produced += done or 0
            is_known = topic.as_of_ms is not None and not (topic.missing and not done)
            found[SeriesName(TOPIC, topic.name)] = Sample(0, done if is_known else None)
        for group in snapshot.groups:
            consumed = 0
            for each in group.topics:
                done = self._grown(SeriesKey(each.topic, group.name), ledger) or 0
                consumed += done
                if len(group.topics) > 1:
                    name = SeriesName(GROUP_TOPIC, group.name, each.topic)
                    found[name] = Sample(each.lag, None if each.missing and not done else done)
            is_unknown = bool(group.missing) and not consumed
            lag = 0 if group.lag is None and not group.missing and not group.topics else group.lag
            found[SeriesName(GROUP, group.name)] = Sample(lag, None if is_unknown else consumed)
        for broker in snapshot.brokers:
            if broker.is_master:
                for kind, total in ((BROKER_IN, broker.in_today), (BROKER_OUT, broker.out_today)):
                    name = SeriesName(kind, broker.label)
                    found[name] = Sample(0, self._since(kind, broker.label, total))
        is_partial = bool(snapshot.totals.masters_missing)
        found[SeriesName(CLUSTER)] = Sample(
            snapshot.totals.lag, None if is_partial and not produced else produced
        )
        return found

    def _grown(self, key: SeriesKey, ledger: Ledger) -> int | None:
        series = ledger.series.get(key)
        if series is None:
            return None
        before = self._totals.get(key, 0)
        self._totals[key] = series.total
        return series.total - before

    def _since(self, kind: str, label: str, total: int | None) -> int | None:
        """The growth of a figure of a broker that begins at 0 each midnight."""
        if total is None:
            self._brokers.pop((kind, label), None)
            return None
        before = self._brokers.get((kind, label))
        self._brokers[kind, label] = total
        if before is None:
            return None
        return total - before if total >= before else total


# -- writing ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """Writes the samples of one cluster. Use it from one thread at a time."""

    cluster: str
    minutes_kept: int = MINUTES_KEPT
    hours_kept: int = HOURS_KEPT
    _ids: dict[SeriesName, int] = field(default_factory=dict[SeriesName, int])
    _hour: int | None = None
    """The last hour that was rolled up."""

    def write(
        self, connection: Connection, minute: int, found: Mapping[SeriesName, Sample]
    ) -> None:
        """Write the samples of a minute."""
        due = {name: sample for name, sample in found.items() if sample != ZERO}
        ids = self._ids_of(connection, due)
        rows = [
            {"series": ids[name], "minute": minute, "lag": sample.lag, "done": sample.done}
            for name, sample in due.items()
        ]
        # Two rounds in one minute, after a change that a page made, count together.
        upsert_where(connection, tables.samples, rows, added=("done",))

    def reset(self) -> None:
        """Forget what a transaction that failed may have changed."""
        self._ids.clear()
        self._hour = None

    def _ids_of(self, connection: Connection, names: Iterable[SeriesName]) -> dict[SeriesName, int]:
        table = tables.series
        if not self._ids:
            self._ids = {
                SeriesName(row.kind, row.name, row.topic): row.id
                for row in connection.execute(select(table).where(table.c.cluster == self.cluster))
            }
        new = [name for name in names if name not in self._ids]
        if new:
            connection.execute(
                table.insert(),
                [
                    {"cluster": self.cluster, "kind": kind, "name": name, "topic": topic}
                    for kind, name, topic in new
                ],
            )
            for row in connection.execute(select(table).where(table.c.cluster == self.cluster)):
                self._ids[SeriesName(row.kind, row.name, row.topic)] = row.id
        return self._ids

    def roll_up(self, connection: Connection, now_ms: int) -> bool:
        """Add the hours that are over to `console_hours`, once; returns whether one was added.

        The first call also adds the hours before, which a restart may have left out.
        """
        this_hour = now_ms // HOUR_MS
        if self._hour is not None and self._hour >= this_hour - 1:
            return False
        ids = tuple(self._ids_of(connection, ()).values())
        if not ids:
            return False
        first = self._first_hour(connection, this_hour)
        for hour in range(first, this_hour):
            connection.execute(
                _ROLL_UP,
                {
                    "hour": hour, "first": hour * 60, "last": hour * 60 + 59,
                    "cluster": self.cluster, "kind": ROUND,
                },
            )  # fmt: skip
        self._hour = this_hour - 1
        return True

    def _first_hour(self, connection: Connection, this_hour: int) -> int:
        if self._hour is not None:
            return max(self._hour + 1, this_hour - self.minutes_kept // 60)
        table, names = tables.hours, tables.series
        newest = connection.execute(
            select(func.max(table.c.hour)).where(
                table.c.series.in_(select(names.c.id).where(names.c.cluster == self.cluster))
            )
        ).scalar_one()
        oldest = this_hour - self.minutes_kept // 60
        # The newest one may have been written before it was over by a clock that was ahead.
        return oldest if newest is None else max(int(newest), oldest)

    def expire(self, connection: Connection, now_ms: int) -> int:
        """Delete some of what is too old; returns how many samples were deleted."""
        samples, hours = tables.samples, tables.hours
        before = now_ms // MINUTE_MS - self.minutes_kept
        old = (
            select(samples.c.series, samples.c.minute)
            .where(samples.c.minute < before)
            .limit(DELETED_MAX)
            .subquery()
        )
        chosen = (samples.c.series == old.c.series) & (samples.c.minute == old.c.minute)
        deleted = connection.execute(
            delete(samples).where(select(old.c.series).where(chosen).exists())
        )
        connection.execute(delete(hours).where(hours.c.hour < now_ms // HOUR_MS - self.hours_kept))
        return int(deleted.rowcount)


_ROLL_UP = text("""
    INSERT INTO console_hours (series, hour, lag_max, lag_mean, done)
    SELECT s.series, :hour, MAX(s.lag),
        SUM(s.lag) * 1.0 / (
            SELECT COUNT(*) FROM console_samples r JOIN console_series n ON n.id = r.series
            WHERE n.cluster = :cluster AND n.kind = :kind AND r.minute BETWEEN :first AND :last
        ),
        SUM(s.done)
    FROM console_samples s JOIN console_series c ON c.id = s.series
    WHERE c.cluster = :cluster AND s.minute BETWEEN :first AND :last
    GROUP BY s.series
    ON CONFLICT (series, hour) DO UPDATE SET
        lag_max = excluded.lag_max, lag_mean = excluded.lag_mean, done = excluded.done
""")


# -- charts ----------------------------------------------------------------------------------------


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a chart. None: not known, which a chart shows as a gap."""

    at_ms: int
    """When its minute or hour begins."""
    lag: float | None = None
    """Mean of an hour."""
    lag_max: int | None = None
    done_per_s: float | None = None


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One series over a time."""

    kind: str
    name: str
    topic: str
    step_ms: int
    """Distance of the points: a minute, or an hour where minutes are not kept any more."""
    points: tuple[Point, ...]


POINTS_MAX = 3_000


def chart(
    engine: Engine,
    cluster: str,
    series: SeriesName,
    from_ms: int,
    to_ms: int,
    *,
    now_ms: int,
    minutes_kept: int = MINUTES_KEPT,
) -> Chart:
    """A chart of a series: by minutes if they are kept and not too many, else by hours."""
    is_kept = from_ms >= now_ms - minutes_kept * MINUTE_MS
    step_ms = MINUTE_MS if is_kept and to_ms - from_ms <= POINTS_MAX * MINUTE_MS else HOUR_MS
    first, last = from_ms // step_ms, min(to_ms, from_ms + POINTS_MAX * step_ms) // step_ms
    with reading(engine) as connection:
        ids = _ids(connection, cluster, [series, SeriesName(ROUND)])
        rounds = _rows(connection, ids.get(SeriesName(ROUND)), first, last, step_ms)
        rows = _rows(connection, ids.get(series), first, last, step_ms)
    points = tuple(_point(step, step_ms, rows.get(step), rounds) for step in range(first, last + 1))
    return Chart(
        kind=series.kind, name=series.name, topic=series.topic, step_ms=step_ms, points=points
    )


class _Row(NamedTuple):
    lag: float | None
    lag_max: int | None
    done: int | None


def _point(step: int, step_ms: int, row: _Row | None, rounds: Mapping[int, _Row]) -> Point:
    at_ms, covered = step * step_ms, rounds.get(step)
    if covered is None:
        return Point(at_ms=at_ms)
    if row is None:
        return Point(at_ms=at_ms, lag=0, lag_max=0, done_per_s=0)
    is_known = row.done is not None and covered.done
    return Point(
        at_ms=at_ms,
        lag=row.lag,
        lag_max=row.lag_max,
        done_per_s=(row.done or 0) / (covered.done or 1) if is_known else None,
    )


def _ids(
    connection: Connection, cluster: str, names: Iterable[SeriesName]
) -> dict[SeriesName, int]:
    table = tables.series
    found: dict[SeriesName, int] = {}
    for name in names:
        wanted = (
            (table.c.cluster == cluster)
            & (table.c.kind == name.kind)
            & (table.c.name == name.name)
            & (table.c.topic == name.topic)
        )
        row = connection.execute(select(table.c.id).where(wanted)).first()
        if row is not None:
            found[name] = row.id
    return found


def _rows(
    connection: Connection, series: int | None, first: int, last: int, step_ms: int
) -> dict[int, _Row]:
    if series is None:
        return {}
    if step_ms == MINUTE_MS:
        table = tables.samples
        wanted = (table.c.series == series) & table.c.minute.between(first, last)
        return {
            row.minute: _Row(row.lag, row.lag, row.done)
            for row in connection.execute(select(table).where(wanted))
        }
    hours = tables.hours
    wanted = (hours.c.series == series) & hours.c.hour.between(first, last)
    return {
        row.hour: _Row(row.lag_mean, row.lag_max, row.done)
        for row in connection.execute(select(hours).where(wanted))
    }


SPARKS_MAX = 200


def recent(
    engine: Engine,
    cluster: str,
    kind: str,
    names: Sequence[str],
    *,
    now_ms: int,
    minutes: int = 60,
    topic: str = "",
) -> dict[str, tuple[Point, ...]]:
    """The last minutes of several series, for the sparklines of a page; oldest point first.

    `topic` is that of series of kind GROUP_TOPIC.
    """
    wanted = list(names)[:SPARKS_MAX]
    last = now_ms // MINUTE_MS
    first = last - minutes + 1
    table, samples = tables.series, tables.samples
    with reading(engine) as connection:
        chosen = (
            (table.c.cluster == cluster)
            & (table.c.kind == kind)
            & (table.c.topic == topic)
            & table.c.name.in_(wanted)
        )
        ids = {row.id: row.name for row in connection.execute(select(table).where(chosen))}
        rounds_id = _ids(connection, cluster, [SeriesName(ROUND)]).get(SeriesName(ROUND))
        rounds = _rows(connection, rounds_id, first, last, MINUTE_MS)
        rows: dict[str, dict[int, _Row]] = {name: {} for name in wanted}
        found = samples.c.series.in_(list(ids)) & samples.c.minute.between(first, last)
        for row in connection.execute(select(samples).where(found)):
            rows[ids[row.series]][row.minute] = _Row(row.lag, row.lag, row.done)
    return {
        name: tuple(
            _point(step, MINUTE_MS, by_minute.get(step), rounds) for step in range(first, last + 1)
        )
        for name, by_minute in rows.items()
    }
