"""Streams that tests run to their end, batch by batch."""

from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

Batches = dict[int, list[str]]
TOO_BUSY = "Python worker failed to connect back"
"""Spark's error when a Python process did not start within ten seconds."""


def stream(
    spark: SparkSession,
    namesrv: str,
    checkpoint: Path,
    into: Batches,
    meanwhile: Callable[[int], None] = lambda _: None,
    **options: object,
) -> "DataStreamWriter":
    """A query that puts the sorted bodies of each batch into `into`, as far as there are any now.

    `meanwhile` is called at the end of each batch, with its number.
    """
    made = spark.readStream.format("rocketmq").option("nameServer", namesrv)
    for name, value in options.items():
        made = made.option(name, str(value))
    frame = made.schema("value STRING").option("valueFormat", "text").load()

    def take(batch: DataFrame, number: int) -> None:
        into[number] = sorted(row.value for row in batch.collect())
        meanwhile(number)

    return (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )


def run(writer: "DataStreamWriter") -> None:
    """Run a query to its end; once more if the machine was too busy for Spark to start it."""
    for is_last in (False, False, True):
        query = writer.start()
        try:
            assert query.awaitTermination(600), f"the query still runs: {query.lastProgress}"
        except StreamingQueryException as error:
            if is_last or TOO_BUSY not in str(error):
                raise
        else:
            return
        finally:
            query.stop()
