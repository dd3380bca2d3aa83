"""A driver that tests kill: a stream of numbers into a topic, exactly once.

Arguments: nameserver, folder (checkpoint, ledger, marks), batches, rows of a batch. A task of
every third batch fails once, at its last row. Ends when all batches are committed.
"""

import os
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql.functions import udf

from tianzhou.spark import session

TOPIC = "exact"


def main(namesrv: str, folder: Path, batch_count: int, row_count: int) -> int:
    spark = session(
        "sink driver",
        master="local[2,4]",
        spark_sql_shuffle_partitions=2,
        # Small, so that a task has sent rows when a later one fails it.
        spark_sql_execution_arrow_maxRecordsPerBatch=5,
    )

    @udf("string")
    def fail_sometimes(value: int) -> str:
        number, row = divmod(value, row_count)
        mark = folder / f"failed-{number}"
        context = TaskContext.get()
        is_first = context is not None and context.attemptNumber() == 0
        if number % 3 == 1 and row == row_count - 1 and is_first and not mark.exists():
            mark.touch()
            raise RuntimeError("this task fails once")
        return str(value)

    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", row_count)
        .option("numPartitions", 2)
        .load()
        .where(f"value < {batch_count * row_count}")
        .select(fail_sometimes("value").alias("body"))
    )
    query = (
        numbers.writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", TOPIC)
        .option("exactlyOnce", "true")
        .option("ledger", f"sqlite:///{folder / 'ledger.db'}")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= batch_count:
            query.stop()
            return 0
        time.sleep(0.1)
    sys.stderr.write(f"{query.exception()}\n")
    return 1


if __name__ == "__main__":
    namesrv, folder, batch_count, row_count = sys.argv[1:]
    code = main(namesrv, Path(folder), int(batch_count), int(row_count))
    sys.stderr.flush()
    # Spark's own threads need not be waited for.
    os._exit(code)
