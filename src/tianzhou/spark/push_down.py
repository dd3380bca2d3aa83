"""Filter push-down: which conditions of a query the source evaluates, and which remain for Spark.

The source evaluates conditions on topic, broker, queue, queue offset, store time and tag exactly:
they select the ranges to read, and rows are filtered again by tag and time, because brokers compare
only hashes of tags and their clocks may have been set back.

Spark 4.2 and 4.3 keep the planned read, with its filters and partitions, on an object that all
scans of a data frame share (`PythonDataSourceV2.setReadInfo`). A pushed filter therefore stays in
the frame: every later use of the frame, and every other use in the same query, reads the filtered
rows. Push-down is on by default only where Spark's classes show that they no longer share it
(`is_safe_in`, called on the driver by `register`); elsewhere the option `pushDown` turns it on.
"""

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from py4j.protocol import (  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs] - it has no types
    Py4JError,
)
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.version import __version__ as spark_version

from tianzhou.client.queues import Queue
from tianzhou.protocol.filter.tags import SUBSCRIBE_ALL, parse_tags

log = logging.getLogger(__name__)

SAFE_VARIABLE = "TIANZHOU_SPARK_PUSH_DOWN"
"""Environment variable that informs Spark's Python processes that push-down is safe.

Readers are planned in such a process, which has no access to the JVM.
"""

_PACKAGE = "org.apache.spark.sql.execution.datasources.v2.python"
_SHARED, _PLANNED_READ = "PythonDataSourceV2", "PythonDataSourceReadInfo"
_ACCEPTS_PLANNED_READ = re.compile(rf"\([^)]*{_PLANNED_READ}")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "storeTimestamp")
_OFFSET_MAX = 2**63 - 1
_SETS: dict[str, tuple[str, type]] = {
    "topic": ("topics", str),
    "brokerName": ("brokers", str),
    "queueId": ("queue_ids", int),
    "tags": ("tags", str),
}
"""Columns whose values the source compares: the field of PushedFilters, and the type."""


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The conditions that the source evaluates; None means no condition."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    first_offset: int = 0
    stop_offset: int = _OFFSET_MAX
    first_ms: int | None = None
    """Lower bound of the store time, inclusive."""
    stop_ms: int | None = None
    """Upper bound of the store time, exclusive."""
    tags: frozenset[str] | None = None

    def may_match(self, queue: Queue) -> bool:
        """Whether any message of a queue can pass the filters."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and self.first_offset < self.stop_offset
            and (self.first_ms is None or self.stop_ms is None or self.first_ms < self.stop_ms)
            and self.tags != frozenset()
        )


NO_FILTERS = PushedFilters()


# -- whether push-down is safe ---------------------------------------------------------------------


def is_safe_in(spark: SparkSession) -> bool:
    """Whether this session's Spark keeps a pushed filter with its scan; False if that is unknown.

    It reads the members of Spark's class by reflection, so it needs the JVM of the driver: with
    Spark Connect there is none.
    """
    if not hasattr(spark, "_jsparkSession"):
        return False
    jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage] - PySpark offers no other access
    try:
        class_for = jvm.java.lang.Class.forName
        shared = class_for(f"{_PACKAGE}.{_SHARED}")
        # Without this class Spark has changed too much for the check below.
        class_for(f"{_PACKAGE}.{_PLANNED_READ}")
        fields = [str(each.toGenericString()) for each in shared.getDeclaredFields()]
        methods = [str(each.toGenericString()) for each in shared.getDeclaredMethods()]
    except Py4JError:
        return False
    return keeps_read_with_scan(fields, methods)


def keeps_read_with_scan(fields: Iterable[str], methods: Iterable[str]) -> bool:
    """Whether the class that all scans share cannot keep a planned read.

    That is so if no field holds a planned read and no method accepts one.
    """
    return not (
        any(_PLANNED_READ in each for each in fields)
        or any(_ACCEPTS_PLANNED_READ.search(each) for each in methods)
    )


def is_default() -> bool:
    """Whether filters are pushed where the option pushDown is not given."""
    return os.environ.get(SAFE_VARIABLE) == "true"


def warn_if_unsafe() -> None:
    """Log what push-down does where Spark shares the planned read between scans."""
    if not is_default():
        log.warning(
            "pushDown=true with Spark %s: a pushed filter stays in the data frame, and every other "
            "use of this frame reads the filtered rows. Use the frame once, or select messages by "
            "the options tags, keys, assign, startingTimestamp and so on instead",
            spark_version,
        )


# -- filters ---------------------------------------------------------------------------------------


def push(filters: Iterable[Filter], *, tags: bool) -> tuple[PushedFilters, list[Filter]]:
    """The filters that the source evaluates, and those that remain for Spark.

    `tags` says whether the source can evaluate conditions on tags.
    """
    pushed, remaining = NO_FILTERS, list[Filter]()
    for each in filters:
        extended = _add(pushed, each, tags)
        if extended is None:
            remaining.append(each)
        else:
            pushed = extended
    if pushed.tags is not None:
        remaining = [each for each in remaining if each != IsNotNull(("tags",))]
    return pushed, remaining


def _add(pushed: PushedFilters, each: Filter, tags: bool) -> PushedFilters | None:
    """The conditions with this filter added; None if the source cannot evaluate it."""
    if isinstance(each, IsNotNull):
        return pushed if each.attribute in [(name,) for name in _NEVER_NULL] else None
    values = _values(each)
    if values is not None and len(each.attribute) == 1:  # type: ignore[attr-defined]  # those with values have one
        return _add_values(pushed, each.attribute[0], values, tags)  # type: ignore[attr-defined]  # as above
    if isinstance(each, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return _add_bound(pushed, each)
    return None


def _values(each: Filter) -> list[object] | None:
    if isinstance(each, EqualTo | EqualNullSafe):
        return [each.value] if each.value is not None else None
    if isinstance(each, In):
        return [value for value in each.value if value is not None]
    return None


def _add_values(
    pushed: PushedFilters, name: str, values: list[object], tags: bool
) -> PushedFilters | None:
    if name in _SETS:
        field, kind = _SETS[name]
        accepted = frozenset(value for value in values if type(value) is kind)
        is_pushed = len(accepted) == len(set(values))
        if name == "tags":
            is_pushed &= tags and all(is_plain_tag(str(each)) for each in accepted)
        before = getattr(pushed, field)
        changed: dict[str, Any] = {field: accepted if before is None else before & accepted}
        return replace(pushed, **changed) if is_pushed else None
    if len(values) != 1:
        return None
    (value,) = values
    if name == "queueOffset" and type(value) is int:
        return _narrow(pushed, value, value + 1)
    if name == "storeTimestamp" and (us := _us(value)) is not None:
        return _narrow_time(pushed, -(-us // 1000), us // 1000 + 1)
    return None


def is_plain_tag(tag: str) -> bool:
    """Whether a tag expression can select exactly this tag."""
    return tag != SUBSCRIBE_ALL and parse_tags(tag).tags == (tag,)


def _add_bound(
    pushed: PushedFilters, each: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
) -> PushedFilters | None:
    lower = isinstance(each, GreaterThan | GreaterThanOrEqual)
    # For > and <= the bound lies behind the value.
    behind = isinstance(each, GreaterThan | LessThanOrEqual)
    if each.attribute == ("queueOffset",):
        if not isinstance(each.value, int) or isinstance(each.value, bool):
            return None
        edge = each.value + behind
        return _narrow(pushed, edge, _OFFSET_MAX) if lower else _narrow(pushed, 0, edge)
    if each.attribute == ("storeTimestamp",) and (us := _us(each.value)) is not None:
        edge = us // 1000 + 1 if behind else -(-us // 1000)
        return _narrow_time(pushed, edge, None) if lower else _narrow_time(pushed, None, edge)
    return None


def _narrow(pushed: PushedFilters, first: int, stop: int) -> PushedFilters:
    return replace(
        pushed,
        first_offset=max(pushed.first_offset, first),
        stop_offset=max(min(pushed.stop_offset, stop), 0),
    )


def _narrow_time(pushed: PushedFilters, first_ms: int | None, stop_ms: int | None) -> PushedFilters:
    firsts = [each for each in (pushed.first_ms, first_ms) if each is not None]
    stops = [each for each in (pushed.stop_ms, stop_ms) if each is not None]
    return replace(pushed, first_ms=max(firsts, default=None), stop_ms=min(stops, default=None))


def _us(value: object) -> int | None:
    """Microseconds since 1970 of a time with a time zone, else None."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
