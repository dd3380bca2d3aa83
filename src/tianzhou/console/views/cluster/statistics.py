"""Messages by day, per topic and per group, and the check of the sums against the brokers."""

import asyncio
import re
from datetime import date, timedelta

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.console.collect import daily
from tianzhou.console.collect.daily import LOG, Check, DayTotals
from tianzhou.console.collect.days import days_at, zone_of
from tianzhou.console.collect.snapshot import SYSTEM
from tianzhou.console.text import Text
from tianzhou.console.views.cluster.state import ClusterState, snapshot_of, state_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.console.web.refusals import Unavailable

LENGTHS = {"1": 1, "7": 7, "30": 30}
ROWS_MAX = 200_000
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class StatisticsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, or a group on a topic, over some days."""

    topic: str
    group: str
    """Empty: what was produced."""
    count: int
    """Messages produced or consumed."""
    before: int | None
    """In as many days before; None: not counted."""
    bytes: int | None
    """None: only known with Spark's topic-stats."""
    distinct_keys: int | None
    """Of one day."""
    resets: int
    by_log: bool
    """Whether Spark's topic-stats counted every day of it from the messages."""


class DaySum(msgspec.Struct, frozen=True, kw_only=True):
    """One day over all topics or groups."""

    day: str
    count: int | None
    """None: not counted."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by day."""

    state: ClusterState
    kind: str
    """topics or groups."""
    days: int
    first_day: str
    last_day: str
    today: str
    yesterday: str
    zone: str
    rows: Listing[StatisticsRow]
    total: int
    sums: tuple[DaySum, ...]
    """Each day."""
    check: Check | None
    """Of today; None: the cluster was not read yet."""
    difference: int | None
    """Messages that brokers count and topics do not: those to system topics."""


async def statistics(ask: Ask) -> Statistics:
    """Messages by day: `?kind=topics|groups&day=2026-11-19&days=1|7|30`."""
    snapshot = snapshot_of(ask)
    zone = snapshot.zone
    now = days_at(ask.now_ms, zone_of(zone))
    today = snapshot.day or now.today
    last = _day_of(ask.query.get("day", ""), today)
    count = LENGTHS.get(ask.query.get("days", ""), 1)
    first = last - timedelta(days=count - 1)
    kind = "groups" if ask.query.get("kind") == "groups" else "topics"
    before = first - timedelta(days=count)
    cluster, engine = ask.cluster.name, ask.database.engine

    def read() -> list[DayTotals]:
        return daily.totals_between(
            engine, cluster, before.isoformat(), last.isoformat(), rows_max=ROWS_MAX
        )

    try:
        found = await asyncio.to_thread(read)
    except SQLAlchemyError as e:
        text = Text("The database does not answer: {why}", why=type(e).__name__)
        raise Unavailable(text, retry_s=10) from e
    system = {each.name for each in snapshot.topics if each.kind == SYSTEM}
    chosen = [
        each
        for each in found
        if bool(each.group) == (kind == "groups")
        and ask.scope.sees(each.group or each.topic)
        and each.topic not in system
    ]
    counted_from = min((each.day for each in found), default=today)
    rows = _rows(chosen, first.isoformat(), is_before_known=counted_from <= before.isoformat())
    sums = [
        _day_sum((first + timedelta(days=number)).isoformat(), chosen, counted_from)
        for number in range(count)
    ]
    check = daily.check_of(snapshot) if snapshot.version else None
    return Statistics(
        state=state_of(ask, snapshot),
        kind=kind,
        days=count,
        first_day=first.isoformat(),
        last_day=last.isoformat(),
        today=today,
        yesterday=(date.fromisoformat(today) - timedelta(days=1)).isoformat(),
        zone=zone,
        rows=listing(
            ask,
            rows,
            find=lambda row: (row.topic, row.group),
            sort={
                "topic": lambda row: row.topic,
                "group": lambda row: row.group,
                "count": lambda row: row.count,
                "before": lambda row: row.before,
                "bytes": lambda row: row.bytes,
                "resets": lambda row: row.resets,
            },
            first="-count",
        ),
        total=sum(each.count for each in rows),
        sums=tuple(sums),
        check=check,
        difference=check.difference if check is not None else None,
    )


def _day_of(text: str, today: str) -> date:
    if _DAY.fullmatch(text):
        try:
            return max(date.fromisoformat(text), date(2000, 1, 1))
        except ValueError:
            pass
    return date.fromisoformat(today)


def _count(each: DayTotals) -> int:
    return (each.consumed if each.group else each.produced) or 0


def _day_sum(day: str, found: list[DayTotals], counted_from: str) -> DaySum:
    if day < counted_from:
        return DaySum(day=day, count=None)
    return DaySum(day=day, count=sum(_count(each) for each in found if each.day == day))


def _rows(
    found: list[DayTotals], first_day: str, *, is_before_known: bool
) -> list[StatisticsRow]:  # fmt: skip
    now: dict[tuple[str, str], list[DayTotals]] = {}
    before: dict[tuple[str, str], int] = {}
    for each in found:
        key = (each.topic, each.group)
        if each.day >= first_day:
            now.setdefault(key, []).append(each)
        else:
            before[key] = before.get(key, 0) + _count(each)
    rows: list[StatisticsRow] = []
    for key, days in now.items():
        sizes = [each.consumed_bytes if each.group else each.produced_bytes for each in days]
        rows.append(
            StatisticsRow(
                topic=key[0],
                group=key[1],
                count=sum(map(_count, days)),
                before=before.get(key, 0) if is_before_known else None,
                bytes=None if None in sizes else sum(each or 0 for each in sizes),
                distinct_keys=days[0].distinct_keys if len(days) == 1 else None,
                resets=sum(each.resets for each in days),
                by_log=all(each.source == LOG for each in days),
            )
        )
    return rows
