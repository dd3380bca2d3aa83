"""Filters of a query that the source can answer, and what remains for Spark.

Pure. Conditions on topic, broker, queue, queue offset, store time and tag are kept exactly by the
source: they choose where to read, and what is read by tag and time is looked at once more, since
brokers compare hashes of tags only, and their clocks may have been put back.

Spark 4.2 and 4.3 keep the planned read, with its filters and partitions, on an object that all
scans of a data frame share (`PythonDataSourceV2.setReadInfo`). A pushed filter therefore stays in
the frame: whatever uses the frame afterwards, or in the same query, reads the filtered rows. So
filters are pushed only if the option `pushDown` asks for it, until a release of Spark keeps the
planned read with the scan. `RIGHT_FROM` is the one place that says from which release on.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

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

T = TypeVar("T")

RIGHT_FROM: tuple[int, int, int] | None = None
"""The first release of Spark whose pushed filters do not stay in the frame; None: no release yet.

`tests/spark/test_frame_twice.py` fails where the installed Spark behaves otherwise than this says.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "storeTimestamp")
_OFFSET_MAX = 2**63 - 1
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """What the source keeps by itself; None means no condition."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    first_offset: int = 0
    stop_offset: int = _OFFSET_MAX
    first_ms: int | None = None
    """Messages stored before this do not pass."""
    stop_ms: int | None = None
    """Nor do those stored at this time or later."""
    tags: frozenset[str] | None = None

    def wants(self, queue: Queue) -> bool:
        """Whether anything in a queue can pass."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and self.first_offset < self.stop_offset
            and (self.first_ms is None or self.stop_ms is None or self.first_ms < self.stop_ms)
            and self.tags != frozenset()
        )


NO_FILTERS = PushedFilters()


def is_right_in(version: str, right_from: tuple[int, int, int] | None = RIGHT_FROM) -> bool:
    """Whether a version of Spark keeps a pushed filter with the scan that it belongs to.

    Versions before a release (4.4.0.dev0, 4.4.0-preview1) count as older than the release.
    """
    match = _RELEASE.match(version)
    if right_from is None or match is None:
        return False
    release = (int(match[1]), int(match[2]), int(match[3]))
    return release >= right_from if match.end() == len(version) else release > right_from


def is_default() -> bool:
    """Whether filters are pushed where the option pushDown is not given."""
    return is_right_in(spark_version)


def warn_if_unsafe() -> None:
    """Log what a forced push-down does in a version of Spark that does not keep it apart."""
    if not is_right_in(spark_version):
        log.warning(
            "pushDown=true with Spark %s: a pushed filter stays in the data frame, and everything "
            "else that uses this frame reads the filtered rows. Use the frame once, or choose by "
            "the options tags, keys, assign, startingTimestamp and so on instead",
            spark_version,
        )


def push(filters: Iterable[Filter], *, tags: bool) -> tuple[PushedFilters, list[Filter]]:
    """What the source takes over, and the filters that Spark has to evaluate all the same.

    `tags` tells whether conditions on tags can be kept.
    """
    pushed, remaining = NO_FILTERS, list[Filter]()
    for each in filters:
        taken = _take(pushed, each, tags)
        if taken is None:
            remaining.append(each)
        else:
            pushed = taken
    if pushed.tags is not None:
        remaining = [each for each in remaining if each != IsNotNull(("tags",))]
    return pushed, remaining


def _take(pushed: PushedFilters, each: Filter, tags: bool) -> PushedFilters | None:
    """What is kept with this filter too, None if it cannot be."""
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
    texts = frozenset(value for value in values if isinstance(value, str))
    numbers = frozenset(
        value for value in values if isinstance(value, int) and not isinstance(value, bool)
    )
    if name == "queueId" and len(numbers) == len(set(values)):
        return replace(pushed, queue_ids=_intersect(pushed.queue_ids, numbers))
    if name == "queueOffset" and len(values) == 1 and len(numbers) == 1:
        (number,) = numbers
        return _narrow(pushed, number, number + 1)
    if name == "storeTimestamp" and len(values) == 1 and (us := _us(values[0])) is not None:
        return _narrow_time(pushed, -(-us // 1000), us // 1000 + 1)
    if len(texts) != len(set(values)):
        return None
    if name == "topic":
        return replace(pushed, topics=_intersect(pushed.topics, texts))
    if name == "brokerName":
        return replace(pushed, brokers=_intersect(pushed.brokers, texts))
    if name == "tags" and tags and all(map(is_plain_tag, texts)):
        return replace(pushed, tags=_intersect(pushed.tags, texts))
    return None


def _intersect(one: frozenset[T] | None, other: frozenset[T]) -> frozenset[T]:
    return other if one is None else one & other


def is_plain_tag(tag: str) -> bool:
    """Whether a tag expression can say exactly this tag."""
    return tag != SUBSCRIBE_ALL and parse_tags(tag).tags == (tag,)


def _add_bound(
    pushed: PushedFilters, each: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
) -> PushedFilters | None:
    lower = isinstance(each, GreaterThan | GreaterThanOrEqual)
    # Behind the value: after it for > and for <=.
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
    """Microseconds since 1970 of a time that has a zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
