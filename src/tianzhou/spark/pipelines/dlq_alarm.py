"""`dlq-alarm`: alarms for dead letters, with samples.

A check every minute: the number of dead letters of a group within the window, by original topic.
The notice shows the last ones: key or id, number of deliveries, beginning of the body.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tianzhou.monitor.rounds import Observation
from tianzhou.monitor.rules import Rule
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.spark.options import parsed
from tianzhou.spark.pipelines import cluster
from tianzhou.spark.pipelines.alarm_rounds import (
    AlarmOptions,
    parse_whole,
    run_rounds,
)
from tianzhou.spark.pipelines.common import NEVER, Outcome, messages, moment

KIND = "dlq"
_BODY_CHARACTERS = 120
_COLUMNS = (
    "topic, storeTimestamp, msgId, keys, body, reconsumeTimes, dlqOriginTopic, retryTopic, "
    "dlqOriginMsgId"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(AlarmOptions):
    """Options of `dlq-alarm`."""

    threshold: int = parsed(5, parse_whole)  # without a matching rule in the database
    samples: int = parsed(3, parse_whole)  # dead letters shown in a notice


def run(spark: SparkSession, options: Options, *, stop: threading.Event = NEVER) -> Outcome:
    """Check the dead letters of all groups, once or until stopped."""

    def observe(now_ms: int, rules: list[Rule]) -> list[Observation]:
        topics = cluster.dead_letter_topics(options)
        if not topics:
            return []
        windows_s = {options.fallback.window_s, *(rule.window_s for rule in rules)}
        since_ms = now_ms - max(windows_s) * 1000
        letters = messages(spark, options, topics, _COLUMNS, since_ms=since_ms)
        found = counts(letters, windows_s, now_ms, options.samples).collect()
        return [observation(row, windows_s) for row in found]

    return run_rounds(spark, options, KIND, observe, stop=stop)


def counts(letters: DataFrame, windows_s: Iterable[int], now_ms: int, sample_max: int) -> DataFrame:
    """Numbers of dead letters by dead-letter topic and original topic, for each window length."""
    since = {window_s: moment(now_ms - window_s * 1000) for window_s in sorted(windows_s)}
    at = f.col("storeTimestamp")
    sample = f.struct(
        "storeTimestamp", "msgId", "keys", "reconsumeTimes",
        f.substring("body", 1, 4 * _BODY_CHARACTERS).alias("body"),
    )  # fmt: skip
    window = Window.partitionBy("topic", "origin").orderBy(f.desc("storeTimestamp"))
    is_sample = f.row_number().over(window) <= sample_max
    return (
        letters.where((at >= f.lit(min(since.values()))) & (at <= f.lit(moment(now_ms))))
        .withColumn("origin", f.coalesce("dlqOriginTopic", "retryTopic", f.lit("")))
        .withColumn("sample", f.when(is_sample, sample))
        .groupBy("topic", "origin")
        .agg(
            *(
                f.count_if(at >= f.lit(begin)).alias(f"w{window_s}")
                for window_s, begin in since.items()
            ),
            f.collect_list("sample").alias("samples"),
        )
    )


def observation(row: Any, windows_s: Iterable[int]) -> Observation:  # noqa: ANN401 - a Row
    """A result row of Spark as an observation."""
    return Observation(
        row.topic.removeprefix(DLQ_TOPIC_PREFIX),
        row.origin,
        by_window={window: row[f"w{window}"] for window in windows_s},
        detail="\n".join(sample_line(each) for each in row.samples),
    )


def sample_line(sample: Any) -> str:  # noqa: ANN401 - a Row
    """A dead letter in one line."""
    name = " ".join(sample["keys"] or ()) or sample.msgId
    text = bytes(sample.body or b"").decode(errors="replace")[:_BODY_CHARACTERS]
    printable = "".join(each if each.isprintable() else "." for each in text)
    return f"{name}: given up after {sample.reconsumeTimes} tries: {printable}"
