"""`replay`: sends messages of an archive back to topics, at a limited rate.

Keys, tags, order keys and user properties are preserved. The origin of a message is added as
properties: REPLAY_MSG_ID, REPLAY_TOPIC, REPLAY_BORN_MS, REPLAY_STORE_MS. One task sends the
messages in the order of their store times.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tianzhou.errors import ConfigError
from tianzhou.protocol import properties
from tianzhou.spark.options import parse_names, parse_time_ms, parsed
from tianzhou.spark.pipelines.common import Outcome, PipelineOptions
from tianzhou.spark.schema import DDL


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(PipelineOptions):
    """Options of `replay`."""

    path: str = ""  # of the archive
    topics: tuple[str, ...] = parsed((), parse_names)  # default: all of the archive
    to_topic: str = ""  # default: the original topics
    since: int | None = parsed(None, parse_time_ms)  # stored then or later
    until: int | None = parsed(None, parse_time_ms)  # stored before
    rate: int = 1_000  # messages a second

    def __post_init__(self) -> None:
        """Raises ConfigError for missing options."""
        if not self.path:
            raise ConfigError("the option path is needed: where the archive is")


def run(spark: SparkSession, options: Options) -> Outcome:
    """Send the selected messages."""
    # An explicit schema: an archive of an older release may lack columns.
    archived = spark.read.schema(f"{DDL}, date string").parquet(options.path)
    if options.topics:
        archived = archived.where(f.col("topic").isin(*options.topics))
    for bound_ms, comparison in ((options.since, ">="), (options.until, "<")):
        if bound_ms is not None:
            archived = archived.where(f"unix_millis(storeTimestamp) {comparison} {bound_ms}")
    # A malformed message has no body in the archive and cannot be sent.
    null_count = archived.where("body IS NULL").count()
    ready = as_rows(archived.where("body IS NOT NULL"), options.to_topic).coalesce(1)
    row_count = ready.count()
    (
        ready.write.format("rocketmq")
        .mode("append")
        .options(**options.for_spark())
        .option("maxRowsPerSecond", options.rate)
        .save()
    )
    note = f"; {null_count} malformed messages without a body left out" if null_count else ""
    return Outcome(row_count, f"from {options.path}{note}")


def as_rows(archived: DataFrame, to_topic: str = "") -> DataFrame:
    """Archived messages as rows of the sink."""
    own = f.map_filter("properties", lambda name, _: ~name.isin(*sorted(properties.RESERVED)))
    origin = f.create_map(
        f.lit("REPLAY_MSG_ID"), f.col("msgId"),
        f.lit("REPLAY_TOPIC"), f.col("topic"),
        f.lit("REPLAY_BORN_MS"), f.expr("string(unix_millis(bornTimestamp))"),
        f.lit("REPLAY_STORE_MS"), f.expr("string(unix_millis(storeTimestamp))"),
    )  # fmt: skip
    # A message that is replayed again keeps its first origin.
    added = f.map_filter(origin, lambda name, _: ~f.map_contains_key(own, name))
    return archived.orderBy("storeTimestamp", "brokerName", "queueId", "queueOffset").select(
        (f.lit(to_topic) if to_topic else f.col("topic")).alias("topic"),
        "body", "tags", "keys", "orderKey", f.map_concat(own, added).alias("properties"),
    )  # fmt: skip
