"""The counts of the days in the database: `tianzhou_topic_stats` and `console_marks`.

    topic_stats    one row for each series and day, written as it grows; source 'offsets'
    marks          for each series the offsets up to which the rows count

Both are written in one transaction, so that counting goes on exactly there after a restart. A row
that Spark's `topic-stats` wrote (source 'log') knows more and is not overwritten.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, delete, select

from tianzhou.console.collect import tables
from tianzhou.console.collect.counting import (
    Day,
    Ledger,
    Position,
    Series,
    SeriesKey,
)
from tianzhou.console.collect.snapshot import SYSTEM, Snapshot
from tianzhou.errors import BodyError
from tianzhou.monitor import tables as shared
from tianzhou.monitor.database import reading, upsert, upsert_where

OFFSETS, LOG = "offsets", "log"
"""Values of `source`."""
WHOLE_DAY = -1
"""As the hour of a row."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, tuple[int, tuple[int, ...]]])


# -- changes of a ledger ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changes:
    """What a ledger counted since it was written last."""

    days: Sequence[tuple[SeriesKey, str, int, int]]
    """Series, day, messages, resets."""
    marks: Sequence[tuple[SeriesKey, str, bytes]]
    """Series, its `since`, packed positions."""
    gone: Sequence[SeriesKey] = ()


def changes_of(ledger: Ledger) -> Changes:
    """What is to be written; the ledger is not changed."""
    days = [
        (key, day, series.days[day].count, series.days[day].resets)
        for key, series in ledger.series.items()
        for day in sorted(series.changed)
    ]
    marks = [
        (key, series.since, pack(series.positions))
        for key, series in ledger.series.items()
        if series.is_moved
    ]
    return Changes(days, marks, sorted(ledger.gone))


def written(ledger: Ledger, changes: Changes) -> None:
    """Note that changes are in the database. Nothing was counted in between."""
    for key, day, _, _ in changes.days:
        if key in ledger.series:
            ledger.series[key].changed.discard(day)
    for key, _, _ in changes.marks:
        if key in ledger.series:
            ledger.series[key].is_moved = False
    ledger.gone.difference_update(changes.gone)


def pack(positions: Mapping[str, Position]) -> bytes:
    """The positions of a series, by broker."""
    return _encoder.encode({name: (at.read_ms, at.offsets) for name, at in positions.items()})


def unpack(data: bytes) -> dict[str, Position]:
    """What `pack` wrote. Raises BodyError."""
    try:
        found = _decoder.decode(data)
    except msgspec.DecodeError as e:
        raise BodyError(f"a row of console_marks cannot be read: {e}") from e
    return {name: Position(offsets, read_ms) for name, (read_ms, offsets) in found.items()}


# -- database --------------------------------------------------------------------------------------


def write(connection: Connection, cluster: str, changes: Changes, now_ms: int) -> None:
    """Write changes in the transaction of a connection."""
    rows = [
        {
            "cluster": cluster, "topic": key.topic, "consumer_group": key.group, "day": day,
            "hour": WHOLE_DAY,
            "produced": 0 if key.group else count, "consumed": count if key.group else 0,
            "resets": resets, "source": OFFSETS, "updated_ms": now_ms,
        }
        for key, day, count, resets in changes.days
    ]  # fmt: skip
    table = shared.topic_stats
    upsert_where(connection, table, rows, table.c.source != LOG)
    marks = [
        {
            "cluster": cluster, "topic": key.topic, "consumer_group": key.group, "since": since,
            "offsets": offsets,
        }
        for key, since, offsets in changes.marks
    ]  # fmt: skip
    upsert(connection, tables.marks, marks)
    for key in changes.gone:
        gone = (
            (tables.marks.c.cluster == cluster)
            & (tables.marks.c.topic == key.topic)
            & (tables.marks.c.consumer_group == key.group)
        )
        connection.execute(delete(tables.marks).where(gone))


def expire(connection: Connection, cluster: str, before: str) -> None:
    """Delete the rows of earlier days."""
    table = shared.topic_stats
    connection.execute(delete(table).where((table.c.cluster == cluster) & (table.c.day < before)))


def load(engine: Engine, cluster: str, from_day: str) -> Ledger:
    """The ledger as it was written last, with the counts from a day on. Raises BodyError."""
    ledger = Ledger()
    with reading(engine) as connection:
        table = tables.marks
        for row in connection.execute(select(table).where(table.c.cluster == cluster)):
            key = SeriesKey(row.topic, row.consumer_group)
            ledger.series[key] = Series(positions=unpack(row.offsets), since=row.since)
        stats = shared.topic_stats
        wanted = (
            (stats.c.cluster == cluster) & (stats.c.day >= from_day) & (stats.c.hour == WHOLE_DAY)
        )
        for row in connection.execute(select(stats).where(wanted)):
            series = ledger.series.get(SeriesKey(row.topic, row.consumer_group))
            if series is not None and row.source == OFFSETS:
                count = row.consumed if row.consumer_group else row.produced
                series.days[row.day] = Day(count, row.resets)
    return ledger


# -- pages -----------------------------------------------------------------------------------------


class DayTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, or a group on a topic, on one day. None: only Spark's `topic-stats` knows it."""

    topic: str
    group: str
    """Empty: what was produced to the topic."""
    day: str
    hour: int = WHOLE_DAY
    """Hours since the day began; -1: the whole day."""
    produced: int | None = None
    consumed: int | None = None
    produced_bytes: int | None = None
    consumed_bytes: int | None = None
    distinct_keys: int | None = None
    resets: int = 0
    source: str = OFFSETS
    """OFFSETS: counted by the console; LOG: by Spark, from the messages."""
    updated_ms: int = 0


def totals_between(
    engine: Engine,
    cluster: str,
    first_day: str,
    last_day: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    hours: bool = False,
    rows_max: int = 100_000,
) -> list[DayTotals]:
    """The rows of some days, by day, topic and group; with `hours` those of the hours, too."""
    table = shared.topic_stats
    wanted = (table.c.cluster == cluster) & table.c.day.between(first_day, last_day)
    if topic is not None:
        wanted &= table.c.topic == topic
    if group is not None:
        wanted &= table.c.consumer_group == group
    if not hours:
        wanted &= table.c.hour == WHOLE_DAY
    order = (table.c.day, table.c.topic, table.c.consumer_group, table.c.hour)
    with reading(engine) as connection:
        rows = connection.execute(select(table).where(wanted).order_by(*order).limit(rows_max))
        return [_totals_of(row) for row in rows]


def _totals_of(row: Any) -> DayTotals:  # noqa: ANN401 - a row of topic_stats
    is_group, is_log = bool(row.consumer_group), row.source == LOG
    return DayTotals(
        topic=row.topic,
        group=row.consumer_group,
        day=row.day,
        hour=row.hour,
        produced=None if is_group else row.produced,
        consumed=row.consumed if is_group else None,
        produced_bytes=row.produced_bytes if is_log and not is_group else None,
        consumed_bytes=row.consumed_bytes if is_log and is_group else None,
        distinct_keys=row.distinct_keys if is_log and not is_group else None,
        resets=row.resets,
        source=row.source,
        updated_ms=row.updated_ms,
    )


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Messages produced today: the sum over topics beside the figure of the brokers (D15)."""

    topics: int | None
    """Sum over the topics that are not the system's; None: not every one is known."""
    brokers: int | None
    """Sum of msgPutTotalTodayNow - msgPutTotalTodayMorning; None: not every one is known."""

    @property
    def difference(self) -> int | None:
        if self.topics is None or self.brokers is None:
            return None
        return self.brokers - self.topics


def check_of(snapshot: Snapshot) -> Check:
    """The check of a snapshot. Brokers count messages to system topics, too."""
    counts = [each.today for each in snapshot.topics if each.kind != SYSTEM]
    figures = [each.in_today for each in snapshot.brokers if each.is_master]
    return Check(topics=_sum(counts), brokers=_sum(figures))


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(each or 0 for each in found)
