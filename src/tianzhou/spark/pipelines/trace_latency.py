"""`trace-latency`: latency of messages by step, from the trace topic and the log.

    send      the producer's call                              per topic
    store     from the producer's clock to the broker's        per topic, from the log
    deliver   from the end of the call to the consumer         per topic and group
    consume   the consumer's handler                           per topic and group

Clients write traces if configured (`trace=True`, in Java `enableMsgTrace`). Clocks of machines
differ; a negative latency counts as 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tianzhou.clock import wall_ms
from tianzhou.monitor import tables
from tianzhou.names import TRACE_TOPIC
from tianzhou.spark.options import parsed
from tianzhou.spark.pipelines.alarm_rounds import parse_whole
from tianzhou.spark.pipelines.common import Day, DayOptions, Outcome, messages

SHARES = (0.5, 0.9, 0.99)
_FIELD, _LINE = "\x01", "\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(DayOptions):
    """Options of `trace-latency`."""

    trace_topic: str = TRACE_TOPIC  # where clients write their traces
    slowest: int = parsed(10, parse_whole)  # slowest messages per topic and group


def run(spark: SparkSession, options: Options) -> Outcome:
    """Compute the latency of the days of the options."""
    return Outcome(sum(_run_day(spark, options, day) for day in options.spans(wall_ms())))


def _run_day(spark: SparkSession, options: Options, day: Day) -> int:
    columns = "body, storeTimestamp"
    traced = events(messages(spark, options, [options.trace_topic], columns, day=day)).cache()
    try:
        steps = latencies(traced).collect()
        topics = sorted({row.topic for row in steps if row.topic})
        if topics:
            steps += _store_steps(spark, options, topics, day).collect()
        slow = slowest(traced, options.slowest).collect()
    finally:
        traced.unpersist()
    latency, slow_messages = tables.trace_latency, tables.slow_messages
    with tables.transaction(options.database) as connection:
        name = options.cluster
        rows = slow_rows(slow, name, day.name)
        before = (slow_messages.c.cluster == name) & (slow_messages.c.day == day.name)
        tables.replace(connection, slow_messages, before, rows)
        rows = latency_rows(steps, name, day.name, wall_ms())
        before = (latency.c.cluster == name) & (latency.c.day == day.name)
        return tables.replace(connection, latency, before, rows)


def events(traces: DataFrame) -> DataFrame:
    """The events of the trace topic, one row each; format: see `tianzhou.admin.trace`.

    An unreadable event has a null time or cost, and is ignored where that is needed.
    """
    lines = f.explode(f.split(f.decode("body", "UTF-8"), _LINE)).alias("line")
    fields = traces.select(lines).select(f.split("line", _FIELD).alias("fields"))
    kind = f.get("fields", f.lit(0))
    # Old clients write a SubAfter without time and group.
    positions = {
        "Pub": {"timeMs": 1, "consumerGroup": 3, "topic": 4, "msgId": 5, "keys": 7, "costMs": 10},
        "SubBefore": {"timeMs": 1, "consumerGroup": 3, "msgId": 5, "keys": 7},
        "SubAfter": {"msgId": 2, "costMs": 3, "keys": 5, "timeMs": 7, "consumerGroup": 8},
    }

    def column(name: str, type_name: str) -> Column:
        found = f.lit(None)
        for each, at in positions.items():
            if name in at:
                found = f.when(kind == each, f.get("fields", f.lit(at[name]))).otherwise(found)
        return found.try_cast(type_name).alias(name)

    return fields.where(kind.isin(*positions)).select(
        kind.alias("kind"),
        column("timeMs", "long"),
        f.coalesce(column("consumerGroup", "string"), f.lit("")).alias("consumerGroup"),
        column("msgId", "string"),
        column("topic", "string"),
        column("keys", "string"),
        column("costMs", "long"),
    )


def latencies(traced: DataFrame) -> DataFrame:
    """Percentiles of send, deliver and consume."""
    sent = _sent(traced)
    none = f.lit("").alias("consumerGroup")
    send = sent.select("topic", none, f.lit("send").alias("step"), f.col("costMs").alias("tookMs"))
    deliver = _delivered(traced).select(
        "topic", "consumerGroup", f.lit("deliver").alias("step"), "tookMs"
    )
    consume = (
        traced.where("kind = 'SubAfter' AND consumerGroup <> ''")
        .select("msgId", "consumerGroup", f.col("costMs").alias("tookMs"))
        .join(sent.select("msgId", "topic"), "msgId")
        .select("topic", "consumerGroup", f.lit("consume").alias("step"), "tookMs")
    )
    return _percentiles(send.unionByName(deliver).unionByName(consume))


def slowest(traced: DataFrame, count: int) -> DataFrame:
    """The messages with the longest time from the producer to a consumer."""
    order = Window.partitionBy("topic", "consumerGroup").orderBy(f.desc("wholeMs"), "msgId")
    return (
        _delivered(traced)
        .withColumn("place", f.row_number().over(order))
        .where(f.col("place") <= count)
    )


def _sent(traced: DataFrame) -> DataFrame:
    return (
        traced.where("kind = 'Pub'")
        .select("msgId", "topic", "keys", "costMs", "timeMs")
        .dropDuplicates(["msgId"])
    )


def _delivered(traced: DataFrame) -> DataFrame:
    """First deliveries, with the time since the send began and since it ended."""
    first = (
        traced.where("kind = 'SubBefore'")
        .groupBy("msgId", "consumerGroup")
        .agg(f.min("timeMs").alias("gotMs"))
    )
    whole = f.greatest(f.col("gotMs") - f.col("timeMs"), f.lit(0))
    return first.join(_sent(traced), "msgId").select(
        "topic", "consumerGroup", "msgId", "keys", whole.alias("wholeMs"),
        f.greatest(whole - f.col("costMs"), f.lit(0)).alias("tookMs"),
    )  # fmt: skip


def _store_steps(spark: SparkSession, options: Options, topics: list[str], day: Day) -> DataFrame:
    stored = messages(spark, options, topics, "topic, bornTimestamp, storeTimestamp", day=day)
    took = f.expr("greatest(unix_millis(storeTimestamp) - unix_millis(bornTimestamp), 0L)")
    return _percentiles(
        stored.select(
            "topic",
            f.lit("").alias("consumerGroup"),
            f.lit("store").alias("step"),
            took.alias("tookMs"),
        )
    )


def _percentiles(steps: DataFrame) -> DataFrame:
    return steps.groupBy("topic", "consumerGroup", "step").agg(
        f.count("tookMs").alias("messageCount"),
        f.percentile("tookMs", list(SHARES)).alias("shares"),
        f.max("tookMs").alias("maxMs"),
    )


# -- rows ------------------------------------------------------------------------------------------


def latency_rows(
    found: Iterable[Any], cluster_name: str, day: str, now_ms: int
) -> list[dict[str, object]]:
    """Result rows of Spark as rows of the table; steps without values are skipped."""
    return [
        {
            "cluster": cluster_name, "day": day, "topic": row.topic,
            "consumer_group": row.consumerGroup, "step": row.step,
            "message_count": row.messageCount, "p50_ms": row.shares[0], "p90_ms": row.shares[1],
            "p99_ms": row.shares[2], "max_ms": row.maxMs, "updated_ms": now_ms,
        }
        for row in found
        if row.messageCount
    ]  # fmt: skip


def slow_rows(found: Iterable[Any], cluster_name: str, day: str) -> list[dict[str, object]]:
    """The rows of the table of slow messages."""
    return [
        {
            "cluster": cluster_name, "day": day, "topic": row.topic,
            "consumer_group": row.consumerGroup, "place": row.place, "msg_id": row.msgId,
            "keys": row["keys"], "took_ms": row.wholeMs,
        }
        for row in found
    ]  # fmt: skip
