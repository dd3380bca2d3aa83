"""`topic-stats`: messages, bytes and keys per topic, consumer group, day and hour.

produced    messages stored in the hour, and the bytes of their records, as the broker counts them
consumed    those of them that a group has consumed by now, by its committed offsets
keys        distinct keys of the messages of the hour

The rows of the hours add up to that of the day (hour -1), except for keys. Running a day again
replaces its rows.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tianzhou.clock import Clock, wall_ms
from tianzhou.monitor import tables
from tianzhou.spark.options import parse_names, parsed
from tianzhou.spark.pipelines import cluster
from tianzhou.spark.pipelines.cluster import Committed
from tianzhou.spark.pipelines.common import (
    NEVER,
    YESTERDAY,
    Day,
    DayOptions,
    Outcome,
    day_of,
    frame_of,
    messages,
    next_midnight_ms,
)

WHOLE_DAY = -1
_COLUMNS = "topic, brokerName, queueId, queueOffset, storeTimestamp, storeSize"
_PAST_MIDNIGHT_S = 60
"""Delay after midnight, so that the last messages of the day are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(DayOptions):
    """Options of `topic-stats`."""

    topics: tuple[str, ...] = parsed((), parse_names)  # default: all but system topics
    keys: bool = True  # count distinct keys, which takes a second scan
    midnight: bool = False  # keep running, and count every day when it is over


def run(
    spark: SparkSession,
    options: Options,
    *,
    stop: threading.Event = NEVER,
    clock: Clock = wall_ms,
) -> Outcome:
    """Count the days of the options; with `midnight` every day from then on, until stopped."""
    row_count = sum(_run_day(spark, options, day) for day in options.spans(clock()))
    while options.midnight and not stop.wait(_until_midnight_s(options, clock())):
        row_count += _run_day(spark, options, day_of(YESTERDAY, options.zone, clock()))
    return Outcome(row_count, f"{', '.join(options.days)} in {options.zone}")


def _until_midnight_s(options: Options, now_ms: int) -> float:
    return (next_midnight_ms(options.zone, now_ms) - now_ms) / 1000 + _PAST_MIDNIGHT_S


def _run_day(spark: SparkSession, options: Options, day: Day) -> int:
    topics = list(options.topics) or cluster.topics(options)
    if not topics:
        return 0
    known = set(topics)
    committed = [each for each in cluster.committed_offsets(options) if each.topic in known]
    columns = _COLUMNS + (", keys" if options.keys else "")
    stored = messages(spark, options, topics, columns, day=day)
    counted = counts(spark, stored, committed, day).collect()
    keys = distinct_keys(stored, day).collect() if options.keys else []
    rows = stat_rows(counted, keys, options.cluster, day.name, wall_ms())
    with tables.transaction(options.database) as connection:
        return tables.upsert(connection, tables.topic_stats, rows)


# -- Spark -----------------------------------------------------------------------------------------


def counts(
    spark: SparkSession, stored: DataFrame, committed: Iterable[Committed], day: Day
) -> DataFrame:
    """Messages and bytes by topic, group and hour; the group "" is the topic itself."""
    progress = (
        frame_of(
            spark,
            committed,
            "topic string, brokerName string, queueId int, consumerGroup string, committed long",
        )
        .groupBy("topic", "brokerName", "queueId")
        .agg(f.collect_list(f.struct("consumerGroup", "committed")).alias("progress"))
    )
    topic = "array(named_struct('consumerGroup', '', 'committed', 9223372036854775807L))"
    each = f"concat({topic}, filter(coalesce(progress, array()), p -> queueOffset < p.committed))"
    groups = f.expr(f"explode(transform({each}, p -> p.consumerGroup))").alias("consumerGroup")
    return (
        stored.join(f.broadcast(progress), ["topic", "brokerName", "queueId"], "left")
        .select("topic", _hour(day), "storeSize", groups)
        .groupingSets(
            [["topic", "consumerGroup", "hour"], ["topic", "consumerGroup"]],
            "topic", "consumerGroup", "hour",
        )
        .agg(f.count(f.lit(1)).alias("messages"), f.sum("storeSize").alias("bytes"))
    )  # fmt: skip


def distinct_keys(stored: DataFrame, day: Day) -> DataFrame:
    """Distinct keys by topic and hour."""
    return (
        stored.select("topic", _hour(day), f.explode("keys").alias("key"))
        .groupingSets([["topic", "hour"], ["topic"]], "topic", "hour")
        .agg(f.count_distinct("key").alias("keys"))
    )


def _hour(day: Day) -> Any:  # noqa: ANN401 - a Column
    begin_us = day.begin_ms * 1000
    return f.expr(f"int((unix_micros(storeTimestamp) - {begin_us}) div 3600000000)").alias("hour")


# -- rows ------------------------------------------------------------------------------------------


def stat_rows(
    counted: Iterable[Any], keys: Iterable[Any], cluster_name: str, day: str, now_ms: int
) -> Iterable[dict[str, object]]:
    """Result rows of Spark as rows of the table; a missing hour is the whole day."""
    by_hour = {(row.topic, _hour_of(row)): row["keys"] for row in keys}
    for row in counted:
        is_topic = not row.consumerGroup
        yield {
            "cluster": cluster_name,
            "topic": row.topic,
            "consumer_group": row.consumerGroup,
            "day": day,
            "hour": _hour_of(row),
            "produced": row.messages if is_topic else 0,
            "produced_bytes": row.bytes if is_topic else 0,
            "consumed": 0 if is_topic else row.messages,
            "consumed_bytes": 0 if is_topic else row.bytes,
            "distinct_keys": by_hour.get((row.topic, _hour_of(row)), 0) if is_topic else 0,
            "resets": 0,
            "source": "log",
            "updated_ms": now_ms,
        }


def _hour_of(row: Any) -> int:  # noqa: ANN401 - a Row
    return WHOLE_DAY if row.hour is None else int(row.hour)
