"""`backlog-alarm`: alarms for groups that fall behind.

A look every minute: the backlog of a group on a topic is what all queues of the topic hold beyond
the offsets that the group has committed. A queue in which it has committed nothing counts from its
oldest message: a group that is stuck on its first message, or on a new queue, is behind as well.

    who reads what    topics in which a group has committed something, and those that its consumers
                      subscribe to now; of a group with consumers online only the latter, as what
                      it has left behind is nobody's backlog
    left out          broadcasting groups: their consumers keep for themselves how far they are

Thresholds are those of the table of rules, else of the options.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tianzhou.spark.pipelines import cluster
from tianzhou.spark.pipelines.alarm_rounds import AlarmOptions, Observation, run_rounds
from tianzhou.spark.pipelines.alarms import Rule
from tianzhou.spark.pipelines.cluster import Committed, Extent, Members
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
        committed = cluster.committed_offsets(options)
        readers = readers_of(committed, cluster.members_online(options))
        wanted = [each for each in readers if each.topic in known]
        held = cluster.extents_of(options, sorted({each.topic for each in wanted}))
        return [
            Observation(row.consumerGroup, row.topic, row.backlog)
            for row in backlogs(spark, wanted, committed, held).collect()
        ]

    return run_rounds(spark, options, KIND, observe, stop=stop)


class Reader(NamedTuple):
    """A group that is to read a topic."""

    group: str
    topic: str


def readers_of(committed: Iterable[Committed], online: Mapping[str, Members]) -> list[Reader]:
    """Which groups are to read which topics."""
    # Consumers that were given their queues by hand tell of no topic.
    telling = {group for group, members in online.items() if members.topics}
    before = {Reader(each.group, each.topic) for each in committed if each.group not in telling}
    now = {
        Reader(group, topic)
        for group, members in online.items()
        if not members.is_broadcast
        for topic in members.topics
    }
    return sorted(before | now)


def backlogs(
    spark: "SparkSession",
    readers: Iterable[Reader],
    committed: Iterable[Committed],
    held: Iterable[Extent],
) -> "DataFrame":
    """The backlog by group and topic, over all queues of the topic."""
    from pyspark.sql import functions as f

    queue = "topic string, brokerName string, queueId int"
    due = frame_of(spark, readers, "consumerGroup string, topic string").join(
        frame_of(spark, held, f"{queue}, begin long, end long"), "topic"
    )
    done = frame_of(spark, committed, f"{queue}, consumerGroup string, committed long")
    place = f.coalesce("committed", "begin")
    return (
        due.join(done, ["topic", "brokerName", "queueId", "consumerGroup"], "left")
        .groupBy("consumerGroup", "topic")
        .agg(f.sum(f.greatest(f.col("end") - place, f.lit(0))).alias("backlog"))
    )
