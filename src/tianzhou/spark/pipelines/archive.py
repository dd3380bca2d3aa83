"""`archive`: archives topics to Parquet by topic and day, each message exactly once.

    path/topic=orders/date=2024-02-29/part-....parquet       path/_checkpoint

A stream that ends when it has caught up; the next run continues there. A stop or a crash drops the
current batch and may leave files that the log of the sink (`path/_spark_metadata`) does not list:
Spark does not read them, and the next run writes their messages again.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tianzhou.errors import ConfigError
from tianzhou.spark.options import parse_names, parse_pattern, parsed
from tianzhou.spark.parquet_options import PARQUET
from tianzhou.spark.pipelines.common import NEVER, Outcome, PipelineOptions

CHECKPOINT = "_checkpoint"
_BATCHES_REMEMBERED = 100_000
_MALFORMED = "malformed"
_WAIT_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(PipelineOptions):
    """Options of `archive`."""

    path: str = ""  # a folder, or a URL that Spark can write to
    topics: tuple[str, ...] = parsed((), parse_names)  # comma-separated
    pattern: str = parsed("", parse_pattern)  # instead: topics that match, including later ones
    checkpoint: Path | None = None  # default: path/_checkpoint
    fail_on_data_loss: bool = True  # False: skip messages that were deleted before
    fail_on_malformed: bool = False  # False: a body that cannot be decompressed is null
    max_offsets_per_trigger: int = 100_000  # messages per batch, hence about per file

    def __post_init__(self) -> None:
        """Raises ConfigError for missing options."""
        if not self.path:
            raise ConfigError("the option path is needed: where the archive is")
        if bool(self.topics) == bool(self.pattern):
            raise ConfigError("one of the options topics and pattern is needed")


def run(spark: SparkSession, options: Options, *, stop: threading.Event = NEVER) -> Outcome:
    """Archive the messages not archived yet, until caught up or stopped."""
    chosen = (
        {"subscribe": ",".join(options.topics)}
        if options.topics
        else {"subscribePattern": options.pattern}
    )
    stored = (
        spark.readStream.format("rocketmq")
        .options(**options.for_spark(), **chosen)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", options.fail_on_data_loss)
        .option("failOnMalformed", options.fail_on_malformed)
        .option("maxOffsetsPerTrigger", options.max_offsets_per_trigger)
        .load()
    )
    day = f.date_format("storeTimestamp", "yyyy-MM-dd").alias("date")
    # All batches are counted; by default Spark remembers the last hundred.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", _BATCHES_REMEMBERED)
    query = (
        stored.select("*", day)
        .observe(_MALFORMED, f.count_if(f.col("body").isNull()).alias("bodies"))
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .options(**PARQUET)
        .option("path", options.path)
        .option("checkpointLocation", str(options.checkpoint or f"{options.path}/{CHECKPOINT}"))
        .trigger(availableNow=True)
        .start()
    )
    is_complete = False
    try:
        while not (is_complete or stop.is_set()):
            is_complete = bool(query.awaitTermination(_WAIT_S))
    except PySparkException:
        # A stop cancels the jobs of the current batch, which the query reports as a failure.
        if not stop.is_set():
            raise
    finally:
        query.stop()
    row_count = sum(progress["numInputRows"] for progress in query.recentProgress)
    note = f"into {options.path}"
    seen = [progress["observedMetrics"].get(_MALFORMED) for progress in query.recentProgress]
    if null_count := sum(each["bodies"] for each in seen if each is not None):
        note += f"; {null_count} malformed messages without a body"
    if not is_complete:
        note += "; stopped before its end, the next run continues"
    return Outcome(row_count, note, is_complete)
