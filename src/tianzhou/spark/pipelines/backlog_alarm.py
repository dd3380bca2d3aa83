"""`backlog-alarm`: alarms for groups that fall behind.

A look every minute: the backlog of a group on a topic is what its queues hold beyond the offsets
that the group has committed. Thresholds are those of the table of rules, else of the options.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tianzhou.spark.pipelines import cluster
from tianzhou.spark.pipelines.alarm_rounds import AlarmOptions, Observation, run_rounds
from tianzhou.spark.pipelines.alarms import Rule
from tianzhou.spark.pipelines.cluster import Committed, End
from tianzhou.spark.pipelines.common import NEVER, Outcome, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "backlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(AlarmOptions):
    """Options of `backlog-alarm`."""


def run(spark: "SparkSession", options: Options, *, stop: threading.Event = NEVER) -> Outcome:
    """Watch all groups; see the options for how long."""

    def observe(now_ms: int, rules: list[Rule]) -> list[Observation]:
        known = set(cluster.topics(options, with_retries=True))
        committed = [each for each in cluster.committed_offsets(options) if each.topic in known]
        ends = cluster.end_offsets(options, sorted({each.topic for each in committed}))
        return [
            Observation(row.consumerGroup, row.topic, row.backlog)
            for row in backlogs(spark, committed, ends).collect()
        ]

    return run_rounds(spark, options, KIND, observe, stop=stop)


def backlogs(
    spark: "SparkSession", committed: Iterable[Committed], ends: Iterable[End]
) -> "DataFrame":
    """The backlog by group and topic."""
    from pyspark.sql import functions as f

    queue = "topic string, brokerName string, queueId int"
    done = frame_of(spark, committed, f"{queue}, consumerGroup string, committed long")
    held = frame_of(spark, ends, f"{queue}, end long")
    behind = f.greatest(f.col("end") - f.col("committed"), f.lit(0))
    return (
        done.join(held, ["topic", "brokerName", "queueId"])
        .groupBy("consumerGroup", "topic")
        .agg(f.sum(behind).alias("backlog"))
    )
