"""`backlog-alarm`: alarms for consumer groups with a large backlog.

A check every minute: the backlog of a group on a topic is the number of messages in all queues of
the topic beyond its committed offsets. A queue without a committed offset counts from its oldest
message, so that a group that is stuck on its first message, or on a new queue, is detected.

    topics of a group   with consumers online: their subscriptions, since topics that were
                        unsubscribed have no backlog; else the topics with committed offsets
    skipped             broadcasting groups: their consumers store their offsets locally

Thresholds come from the table of rules, else from the options.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tianzhou.monitor.rounds import Observation
from tianzhou.monitor.rules import Rule
from tianzhou.spark.pipelines import cluster
from tianzhou.spark.pipelines.alarm_rounds import AlarmOptions, run_rounds
from tianzhou.spark.pipelines.cluster import Committed, Extent, Members
from tianzhou.spark.pipelines.common import NEVER, Outcome, frame_of

KIND = "backlog"


Options = AlarmOptions


def run(spark: SparkSession, options: Options, *, stop: threading.Event = NEVER) -> Outcome:
    """Check all groups, once or until stopped."""

    def observe(now_ms: int, rules: list[Rule]) -> list[Observation]:
        known = set(cluster.topics(options, with_retries=True))
        committed = cluster.committed_offsets(options)
        subscriptions = subscriptions_of(committed, cluster.members_online(options))
        wanted = [each for each in subscriptions if each.topic in known]
        held = cluster.extents_of(options, sorted({each.topic for each in wanted}))
        return [
            Observation(row.consumerGroup, row.topic, row.backlog)
            for row in backlogs(spark, wanted, committed, held).collect()
        ]

    return run_rounds(spark, options, KIND, observe, stop=stop)


class Subscription(NamedTuple):
    """A group and a topic that it consumes."""

    group: str
    topic: str


def subscriptions_of(
    committed: Iterable[Committed], online: Mapping[str, Members]
) -> list[Subscription]:
    """Which groups consume which topics."""
    # Consumers with manually assigned queues report no subscription.
    subscribed = {group for group, members in online.items() if members.topics}
    before = {
        Subscription(each.group, each.topic) for each in committed if each.group not in subscribed
    }
    now = {
        Subscription(group, topic)
        for group, members in online.items()
        if not members.is_broadcast
        for topic in members.topics
    }
    return sorted(before | now)


def backlogs(
    spark: SparkSession,
    subscriptions: Iterable[Subscription],
    committed: Iterable[Committed],
    held: Iterable[Extent],
) -> DataFrame:
    """The backlog by group and topic, over all queues of the topic."""
    queue = "topic string, brokerName string, queueId int"
    due = frame_of(spark, subscriptions, "consumerGroup string, topic string").join(
        frame_of(spark, held, f"{queue}, begin long, end long"), "topic"
    )
    done = frame_of(spark, committed, f"{queue}, consumerGroup string, committed long")
    position = f.coalesce("committed", "begin")
    return (
        due.join(done, ["topic", "brokerName", "queueId", "consumerGroup"], "left")
        .groupBy("consumerGroup", "topic")
        .agg(f.sum(f.greatest(f.col("end") - position, f.lit(0))).alias("backlog"))
    )
