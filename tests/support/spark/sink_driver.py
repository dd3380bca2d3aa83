"""A driver that tests kill: numbers of a topic into another topic and into a table, exactly once.

Arguments: nameserver, folder (checkpoints, ledgers, marks), rows in all, rows of a batch. Two
queries read the topic `numbers`: one writes to the topic `exact` with exactlyOnce, the other to a
table beside a ledger of its batches. A task of some batches fails once. Ends when all is done.

A test can pause batch N of the topic within its rows: while there is a file `hold-N`, tasks create
`held-N` after some rows and wait; a task that resumes creates `passed-N`.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    func,
    insert,
    select,
)

from tests.support.spark.fast_session import QUICK
from tianzhou.monitor import tables
from tianzhou.spark import offsets, session

SOURCE, TOPIC = "numbers", "exact"
QUERY = "numbers"
RESTARTS_MAX = 5
HELD_AT = 40
"""A task can be paused once per this many numbers; the rows before are in flight then."""
BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of the batch."""
OF_PYTHON = "Traceback (most recent call last)"
"""In errors of Spark if Python code failed, ours or this driver's: a restart does not help.
Without it Spark itself failed, as it does on a machine so busy that a worker does not start in
time; then the query is restarted, as an operator would do, and exactly once must still hold."""

# No key: a row that is written twice would be seen.
taken = Table(
    "taken",
    MetaData(),
    Column("queue_id", Integer),
    Column("queue_offset", BigInteger),
    Column("number", BigInteger),
)


def written_count(query: StreamingQuery) -> int:
    """The count of numbers in the finished batches of a query."""
    progress = query.lastProgress
    if progress is None:
        return 0
    end = json.loads(progress.sources[0].endOffset)
    return 0 if offsets.is_start(end) else sum(offsets.positions_of(end).values())


def main(namesrv: str, folder: Path, count: int, row_count: int) -> int:
    spark = session(
        "sink driver",
        master="local[2,4]",
        configuration=QUICK,
        # Small, so that a task has sent rows when a later one fails or holds it: rows pass in
        # batches and through buffers, from the function to the sink and in front of both.
        spark_sql_execution_arrow_maxRecordsPerBatch=5,
        spark_sql_execution_python_udf_maxRecordsPerBatch=5,
        spark_sql_execution_python_udf_buffer_size=64,
        spark_sql_execution_pandas_udf_buffer_size=64,
    )

    def wait_while_held(batch: str | None) -> None:
        hold = folder / f"hold-{batch}"
        if hold.exists():
            (folder / f"held-{batch}").touch()
            while hold.exists():
                time.sleep(0.02)
            (folder / f"passed-{batch}").touch()

    @udf("string")
    def fail_sometimes(value: int) -> str:
        number, row = divmod(value, row_count)
        mark = folder / f"failed-{number}"
        context = TaskContext.get()
        assert context is not None
        if row % HELD_AT == HELD_AT - 1:
            wait_while_held(context.getLocalProperty(BATCH_ID))
        is_first = context.attemptNumber() == 0
        if number % 3 == 1 and row == row_count - 1 and is_first and not mark.exists():
            mark.touch()
            raise RuntimeError("this task fails once")
        return str(value)

    numbers = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", row_count)
        .option("valueFormat", "text")
        .schema("queueId INT, queueOffset BIGINT, value STRING")
        .load()
        .selectExpr("queueId", "queueOffset", "bigint(value) number")
    )
    to_topic = (
        numbers.select(fail_sometimes("number").alias("body"))
        .writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", TOPIC)
        .option("exactlyOnce", "true")
        .option("ledger", f"sqlite:///{folder / 'ledger.db'}")
        .option("checkpointLocation", str(folder / "checkpoint-topic"))
        .trigger(processingTime="0 seconds")
    )
    engine = tables.open_database(f"sqlite:///{folder / 'table.db'}")
    taken.metadata.create_all(engine)

    def take(batch: DataFrame, number: int) -> None:
        rows: list[dict[str, object]] = [
            {"queue_id": row.queueId, "queue_offset": row.queueOffset, "number": row.number}
            for row in batch.collect()
        ]

        def put(connection: Connection) -> None:
            if rows:
                connection.execute(insert(taken), rows)

        tables.apply_once(engine, QUERY, number, put)

    to_table = (
        numbers.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint-table"))
        .trigger(processingTime="0 seconds")
    )
    queries = [to_topic.start(), to_table.start()]
    restart_count = 0
    while True:
        for at, writer in enumerate((to_topic, to_table)):
            if not queries[at].isActive:
                error = str(queries[at].exception())
                sys.stderr.write(f"{error}\n")
                restart_count += 1
                if OF_PYTHON in error or restart_count > RESTARTS_MAX:
                    sys.stderr.write(f"given up: {error[:2000]}\n")
                    return 1
                queries[at] = writer.start()
        with engine.connect() as connection:
            in_table = connection.execute(select(func.count()).select_from(taken)).scalar_one()
        if written_count(queries[0]) >= count and in_table >= count:
            # Stopping lets a batch end, so that duplicates would show.
            for query in queries:
                query.stop()
            return 0
        time.sleep(0.1)


if __name__ == "__main__":
    namesrv, folder, count, row_count = sys.argv[1:]
    code = main(namesrv, Path(folder), int(count), int(row_count))
    sys.stderr.flush()
    # Spark's own threads need not be waited for.
    os._exit(code)
