"""`duplicates`: duplicate messages by key or message id, with the position of each copy.

A key that identifies a business event should occur once; a message id is unique, so a second copy
comes from a retried send. Running a day again replaces its results.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tianzhou.clock import wall_ms
from tianzhou.monitor import tables
from tianzhou.spark.options import parse_names, parsed
from tianzhou.spark.pipelines import cluster
from tianzhou.spark.pipelines.common import Day, DayOptions, Outcome, messages

COPIES_MAX = 100


class By(StrEnum):
    """What two copies have in common."""

    KEY = "key"
    MSG_ID = "msgId"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(DayOptions):
    """Options of `duplicates`."""

    topics: tuple[str, ...] = parsed((), parse_names)  # default: all but system topics
    by: By = By.KEY  # key or msgId


def run(spark: SparkSession, options: Options) -> Outcome:
    """Find duplicates of the days of the options."""
    topics = list(options.topics) or cluster.topics(options)
    days = options.spans(wall_ms()) if topics else []
    row_count = sum(_run_day(spark, options, topics, day) for day in days)
    return Outcome(row_count, f"by {options.by}")


def _run_day(spark: SparkSession, options: Options, topics: list[str], day: Day) -> int:
    token = "keys" if options.by is By.KEY else "msgId"
    columns = f"topic, brokerName, queueId, queueOffset, storeTimestamp, {token}"
    stored = messages(spark, options, topics, columns, day=day)
    found = copies(stored, options.by).collect()
    table, by = tables.duplicates, options.by
    before = (
        (table.c.cluster == options.cluster)
        & (table.c.day == day.name)
        & (table.c.by == by.value)
        & table.c.topic.in_(topics)
    )
    with tables.transaction(options.database) as connection:
        rows = duplicate_rows(found, by, options.cluster, day.name, wall_ms())
        return tables.replace(connection, table, before, rows)


def copies(stored: DataFrame, by: By) -> DataFrame:
    """Tokens that occur more than once, with the positions of the first copies."""
    # A message with the same key twice is one copy.
    token = f.explode(f.array_distinct("keys")) if by is By.KEY else f.col("msgId")
    order = ["brokerName", "queueId", "queueOffset"]
    window = Window.partitionBy("topic", "token").orderBy(*order)
    kept = f.when(f.row_number().over(window) <= COPIES_MAX, f.struct(*order))
    return (
        stored.select("topic", token.alias("token"), *order)
        .withColumn("copy", kept)
        .groupBy("topic", "token")
        .agg(f.count(f.lit(1)).alias("copyCount"), f.collect_list("copy").alias("copies"))
        .where("copyCount > 1")
    )


def duplicate_rows(
    found: Iterable[Any], by: By, cluster_name: str, day: str, now_ms: int
) -> list[dict[str, object]]:
    """Result rows of Spark as rows of the table."""
    return [
        {
            "cluster": cluster_name,
            "day": day,
            "topic": row.topic,
            "by": by.value,
            "token": tables.token(row.token),
            "copy_count": row.copyCount,
            "copies": json.dumps(sorted(list(each) for each in row.copies)),
            "updated_ms": now_ms,
        }
        for row in found
    ]
