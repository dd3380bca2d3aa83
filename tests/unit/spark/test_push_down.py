"""Push-down: which filters the source evaluates, and which remain for Spark."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

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
    Not,
    StringStartsWith,
)

from tianzhou.client.queues import Queue
from tianzhou.spark.push_down import PushedFilters, keeps_read_with_scan, push

MOMENT = datetime(2024, 2, 29, 12, 0, 0, 1500, tzinfo=UTC)  # 1.5 ms after the second
SECOND_MS = 1_709_208_000_000


READ = "a.b.PythonDataSourceReadInfo"
CREATE = f"private {READ} a.b.PythonDataSourceV2.createReadInfoInPython(a.b.Result,boolean)"
NAME = "private java.lang.String a.b.PythonDataSourceV2.shortName"


@pytest.mark.parametrize(
    ("fields", "methods", "is_safe"),
    [
        # Spark 4.2 and 4.3.
        (
            [NAME, f"private {READ} a.b.PythonDataSourceV2.readInfo"],
            [CREATE, f"public void a.b.PythonDataSourceV2.setReadInfo({READ})"],
            False,
        ),
        ([NAME], [CREATE, f"public void a.b.PythonDataSourceV2.setReadInfo({READ})"], False),
        ([NAME], [CREATE, f"public void a.b.PythonDataSourceV2.keep(int,{READ})"], False),
        ([f"private scala.Option<{READ}> a.b.PythonDataSourceV2.cached"], [CREATE], False),
        # The planned read is created for a scan and stored nowhere else.
        ([NAME], ["public java.lang.String a.b.PythonDataSourceV2.shortName()"], True),
        ([NAME], [CREATE, "public java.lang.String a.b.PythonDataSourceV2.shortName()"], True),
    ],
)  # fmt: skip
def test_push_down_is_safe_only_if_the_shared_class_cannot_store_a_planned_read(
    fields: list[str], methods: list[str], is_safe: bool
) -> None:
    assert keeps_read_with_scan(fields, methods) is is_safe


def test_conditions_on_positions_are_pushed_completely() -> None:
    filters: list[Filter] = [
        IsNotNull(("topic",)), EqualTo(("topic",), "a"), In(("queueId",), (1, 2, None)),
        EqualNullSafe(("brokerName",), "b"), GreaterThan(("queueOffset",), 10),
        LessThanOrEqual(("queueOffset",), 20), IsNotNull(("tags",)), In(("tags",), ("x", "y")),
    ]  # fmt: skip
    pushed, remaining = push(filters, tags=True)
    assert remaining == []
    assert pushed == PushedFilters(
        topics=frozenset("a"), brokers=frozenset("b"), queue_ids=frozenset((1, 2)),
        first_offset=11, stop_offset=21, tags=frozenset("xy"),
    )  # fmt: skip
    assert pushed.may_match(Queue("a", "b", 1))
    assert not pushed.may_match(Queue("a", "b", 3))
    assert not pushed.may_match(Queue("c", "b", 1))


@pytest.mark.parametrize(
    ("each", "first_ms", "stop_ms"),
    [
        (GreaterThan(("storeTimestamp",), MOMENT), SECOND_MS + 2, None),
        (GreaterThanOrEqual(("storeTimestamp",), MOMENT), SECOND_MS + 2, None),
        (LessThan(("storeTimestamp",), MOMENT), None, SECOND_MS + 2),
        (LessThanOrEqual(("storeTimestamp",), MOMENT), None, SECOND_MS + 2),
        (
            GreaterThan(("storeTimestamp",), MOMENT.replace(microsecond=1000)), SECOND_MS + 2, None,
        ),
        (
            GreaterThanOrEqual(("storeTimestamp",), MOMENT.replace(microsecond=1000)),
            SECOND_MS + 1, None,
        ),
        (LessThan(("storeTimestamp",), MOMENT.replace(microsecond=1000)), None, SECOND_MS + 1),
        (
            EqualTo(("storeTimestamp",), MOMENT.replace(microsecond=1000)),
            SECOND_MS + 1, SECOND_MS + 2,
        ),
        # Brokers store milliseconds, so no message has half of one.
        (EqualTo(("storeTimestamp",), MOMENT), SECOND_MS + 2, SECOND_MS + 2),
        (
            LessThanOrEqual(("storeTimestamp",), MOMENT.replace(microsecond=1000)),
            None, SECOND_MS + 2,
        ),
    ],
)  # fmt: skip
def test_times_are_pushed_to_the_millisecond(
    each: Filter, first_ms: int | None, stop_ms: int | None
) -> None:
    pushed, remaining = push([each], tags=True)
    assert (pushed.first_ms, pushed.stop_ms) == (first_ms, stop_ms)
    assert remaining == []


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("topic",), "a")),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "a"), "x"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("tags",), "a || b"),
        EqualTo(("tags",), "*"),
        EqualTo(("tags",), " a"),
        EqualTo(("tags",), ""),
        GreaterThan(("queueOffset",), 1.5),
        GreaterThan(("storeTimestamp",), MOMENT.replace(tzinfo=None)),
        EqualNullSafe(("tags",), None),
        IsNotNull(("tags",)),
    ],
)
def test_filters_that_the_source_cannot_evaluate_remain_for_spark(each: Filter) -> None:
    pushed, remaining = push([each], tags=True)
    assert pushed == PushedFilters()
    assert remaining == [each]


def test_conditions_on_tags_remain_for_spark_beside_a_filter_of_the_options() -> None:
    pushed, remaining = push([EqualTo(("tags",), "a")], tags=False)
    assert pushed == PushedFilters()
    assert remaining == [EqualTo(("tags",), "a")]


def test_contradictory_filters_read_nothing() -> None:
    pushed, _ = push([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], tags=True)
    assert not pushed.may_match(Queue("a", "x", 0))
    pushed, _ = push([EqualTo(("storeTimestamp",), MOMENT)], tags=True)
    assert not pushed.may_match(Queue("a", "x", 0))
    pushed, _ = push([EqualTo(("queueOffset",), 3), LessThan(("queueOffset",), 3)], tags=True)
    assert not pushed.may_match(Queue("a", "x", 0))
