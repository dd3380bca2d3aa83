"""Charts and sparklines: series of the history, cut to as many points as a page can show."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.console.collect import history
from tianzhou.console.collect.history import Point, SeriesName
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask

T = TypeVar("T")

HOUR_MS = 3_600_000
SPANS = {"1h": HOUR_MS, "24h": 24 * HOUR_MS, "30d": 30 * 24 * HOUR_MS}
FIRST_SPAN = "1h"
POINTS_MAX = 180
SPARK_MINUTES, SPARK_POINTS = 60, 20

Pick = Callable[[Point], float | None]
Spark = tuple[float | None, ...]


def lag(point: Point) -> float | None:
    """The highest lag of a minute or hour."""
    return point.lag_max if point.lag_max is not None else point.lag


def per_s(point: Point) -> float | None:
    """Messages per second."""
    return point.done_per_s


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart."""

    name: Text
    values: tuple[float | None, ...]


class ChartData(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over time. None in a line: not known, a gap."""

    times: tuple[int, ...]
    """Seconds since 1970."""
    series: tuple[Line, ...]
    unit: str = ""
    problem: str = ""
    """Why there are no lines."""


def span_of(ask: Ask) -> str:
    """The span that the query names: 1h, 24h or 30d."""
    chosen = ask.query.get("span", FIRST_SPAN)
    return chosen if chosen in SPANS else FIRST_SPAN


async def chart(
    ask: Ask, span: str, lines: Sequence[tuple[Text, SeriesName, Pick]], unit: str = ""
) -> ChartData:
    """A chart of some series; lines of the same name are added up."""
    now_ms, cluster = ask.now_ms, ask.cluster.name

    def read(engine: Engine) -> list[tuple[Point, ...]]:
        return [
            history.chart(
                engine, cluster, series, now_ms - SPANS[span], now_ms, now_ms=now_ms
            ).points
            for _, series, _ in lines
        ]

    found, problem = await _from_database(ask, read)
    if not found:
        return ChartData(times=(), series=(), unit=unit, problem=problem)
    step = -(-len(found[0]) // POINTS_MAX)
    summed: dict[Text, tuple[float | None, ...]] = {}
    for (name, _, pick), points in zip(lines, found, strict=True):
        values = thinned([pick(each) for each in points], step, highest=pick is lag)
        before = summed.get(name)
        summed[name] = values if before is None else tuple(map(_sum, before, values))
    return ChartData(
        times=tuple(each.at_ms // 1000 for each in found[0][::step]),
        series=tuple(Line(name=name, values=values) for name, values in summed.items()),
        unit=unit,
    )


async def sparks(
    ask: Ask, kind: str, names: Iterable[str], pick: Pick, *, cluster: str = "", topic: str = ""
) -> dict[str, Spark]:
    """The last hour of series of one kind, by name; empty if the database does not answer."""
    wanted, now_ms, cluster = list(names), ask.now_ms, cluster or ask.cluster.name

    def read(engine: Engine) -> dict[str, tuple[Point, ...]]:
        return history.recent(
            engine, cluster, kind, wanted, now_ms=now_ms, minutes=SPARK_MINUTES, topic=topic
        )

    found, _ = await _from_database(ask, read)
    # The minute that is not over has no sample yet.
    return {
        name: thinned([pick(each) for each in points[:-1]], -(-len(points) // SPARK_POINTS))
        for name, points in (found or {}).items()
    }


def added(several: Iterable[Spark]) -> Spark:
    """The sum of sparklines of equal length; unknown where one is."""
    total: Spark = ()
    for each in several:
        total = tuple(map(_sum, total, each)) if total else each
    return total


def thinned(
    values: Sequence[float | None], step: int, *, highest: bool = False
) -> tuple[float | None, ...]:
    """The mean, or the highest, of each `step` values; unknown if none of them is known."""
    found: list[float | None] = []
    for at in range(0, len(values), step):
        known = [each for each in values[at : at + step] if each is not None]
        if not known:
            found.append(None)
        else:
            value = max(known) if highest else sum(known) / len(known)
            found.append(round(value, 2) if value < _EXACT_BELOW else round(value))
    return tuple(found)


_EXACT_BELOW = 100


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else round(one + other, 2)


async def _from_database(ask: Ask, read: Callable[[Engine], T]) -> tuple[T | None, str]:
    try:
        return await asyncio.to_thread(read, ask.database.engine), ""
    except SQLAlchemyError as e:
        return None, f"the database does not answer: {type(e).__name__}"
