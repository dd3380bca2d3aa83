"""Shared by pipelines: options, days in a time zone, reading topics with Spark."""

import re
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from py4j.protocol import (  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs] - it has no types
    Py4JError,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from tianzhou.errors import PipelineError
from tianzhou.spark.options import ClusterOptions, distinct, option_name, option_text, parsed
from tianzhou.spark.schema import BY_NAME

DATABASE = "sqlite:///tianzhou-pipelines.db"
TODAY, YESTERDAY = "today", "yesterday"
NEVER = threading.Event()
"""The default stop event, never set."""

_OWN_ERROR = re.compile(r"^tianzhou\.errors\.\w+: (.+)$", re.MULTILINE)
_CALLED = re.compile(r"^An error occurred while calling \S+\n")
_REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(ClusterOptions):
    """Options of every pipeline."""

    database: str = DATABASE  # SQLAlchemy URL of the result database
    cluster: str = ""  # name of the cluster in the rows; with the console: as it is named there

    def for_spark(self) -> dict[str, str]:
        """The options of the cluster, as options of a source or a sink."""
        given: dict[str, str] = {}
        defaults = ClusterOptions()
        for field in fields(ClusterOptions):
            value: object = getattr(self, field.name)
            if value != getattr(defaults, field.name):
                given[option_name(field.name)] = option_text(value)
        return given


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    row_count: int
    note: str = ""
    is_complete: bool = True
    """Whether all work was done; False if the run was stopped before its end."""


# -- failures --------------------------------------------------------------------------------------


@contextmanager
def short_errors() -> Generator[None]:
    """Convert errors of Spark, with pages of stack traces, to a PipelineError of one line."""
    try:
        yield
    except (Py4JError, PySparkException) as e:
        raise PipelineError(reason(str(e))) from e


def reason(text: str) -> str:
    """The line with the reason: Tianzhou's own error if Spark's contains one."""
    own = _OWN_ERROR.findall(text)
    # Py4J's first line names an internal object, which is no help.
    lines = [line.strip(": ") for line in _CALLED.sub("", text).splitlines() if line.strip(": ")]
    return (own[-1] if own else lines[0] if lines else "no reason given")[:_REASON_CHARACTERS]


# -- days ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Day:
    """A day in a time zone; it may have 23 or 25 hours."""

    name: str
    begin_ms: int
    end_ms: int


def moment(time_ms: int) -> datetime:
    """A time in UTC, for functions of Spark."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def parse_zone(text: str) -> str:
    """The name of a time zone. Raises ValueError."""
    try:
        ZoneInfo(text)
    except (KeyError, OSError, ValueError) as e:
        raise ValueError("a time zone such as UTC or Asia/Shanghai is expected") from e
    return text


def parse_days(text: str) -> tuple[str, ...]:
    """Comma-separated days: today, yesterday, 2024-02-29. Raises ValueError."""
    days = distinct((part.strip().lower() for part in text.split(",")), "day")
    for each in days:
        if each not in (TODAY, YESTERDAY):
            try:
                date.fromisoformat(each)
            except ValueError as e:
                raise ValueError("today, yesterday or 2024-02-29 is expected") from e
    return days


def day_of(name: str, zone: str, now_ms: int) -> Day:
    """The day of `today`, `yesterday` or a date."""
    info, one_day = ZoneInfo(zone), timedelta(days=1)
    today = datetime.fromtimestamp(now_ms / 1000, info).date()
    named = {TODAY: today, YESTERDAY: today - one_day}
    chosen = named[name] if name in named else date.fromisoformat(name)
    return Day(chosen.isoformat(), _midnight_ms(chosen, info), _midnight_ms(chosen + one_day, info))


def next_midnight_ms(zone: str, now_ms: int) -> int:
    """When the current day ends in a time zone."""
    return day_of(TODAY, zone, now_ms).end_ms


def _midnight_ms(day: date, zone: ZoneInfo) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOptions(PipelineOptions):
    """Options of pipelines that process whole days."""

    days: tuple[str, ...] = parsed((YESTERDAY, TODAY), parse_days)  # or dates: 2024-02-29
    zone: str = parsed("UTC", parse_zone)  # time zone of the days

    def spans(self, now_ms: int) -> list[Day]:
        """The days of the options, relative to a time."""
        return [day_of(each, self.zone, now_ms) for each in self.days]


# -- reading ---------------------------------------------------------------------------------------


def messages(
    spark: SparkSession,
    options: PipelineOptions,
    topics: Iterable[str],
    columns: str,
    *,
    day: Day | None = None,
    since_ms: int | None = None,
) -> DataFrame:
    """The messages of topics, with the named columns; optionally of one day.

    Times are options of the source, to read no other messages, and also a condition, since messages
    stored while a broker's clock was set back lie between others.
    """
    names = [name.strip() for name in columns.split(",")]
    schema = StructType([StructField(name, BY_NAME[name].spark_type) for name in names])
    reader = spark.read.format("rocketmq").options(**options.for_spark())
    if day is not None:
        since_ms = day.begin_ms
        reader = reader.option("endingTimestamp", day.end_ms)
    if since_ms is not None:
        reader = reader.option("startingTimestamp", since_ms)
    found = reader.option("subscribe", ",".join(topics)).schema(schema).load()
    at = f.col("storeTimestamp")
    if since_ms is not None:
        found = found.where(at >= f.lit(moment(since_ms)))
    return found if day is None else found.where(at < f.lit(moment(day.end_ms)))


def frame_of(spark: SparkSession, rows: Iterable[tuple[object, ...]], schema: str) -> DataFrame:
    """A small data frame from rows of the driver."""
    made: DataFrame = spark.createDataFrame(list(rows), schema)  # pyright: ignore[reportUnknownMemberType] - its overloads name pandas
    return made
