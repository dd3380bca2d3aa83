"""Many rows: written by the sink, read back, and each of them counted.

There are few in an ordinary run; `make spark-full` has the full size by `TIANZHOU_SPARK_ROWS`.
"""

import os

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from tianzhou.client.sync import QueueReader

ROWS = int(os.environ.get("TIANZHOU_SPARK_ROWS", "20000"))
QUEUES = 8
BODY_BYTES = 1024
COLUMNS = "queueId INT, queueOffset BIGINT, body BINARY, tags STRING, keys ARRAY<STRING>"


def stored_count(namesrv: str, topic: str) -> int:
    """The number of messages in the queues of a topic, by the brokers' offsets."""
    with QueueReader("sizes", namesrv=namesrv) as reader:
        return sum(reader.max_offset(queue) for queue in reader.queues(topic))


def fill(spark: SparkSession, namesrv: str, topic: str) -> None:
    """Write the numbers from 0 on, padded to the size of usual messages."""
    frame = spark.range(0, ROWS, 1, 4).selectExpr(
        f"rpad(concat(id, ' '), {BODY_BYTES}, 'x') body",
        "concat('t', id % 100) tags",
        "array(concat('k', id)) keys",
    )
    writer = frame.write.format("rocketmq").mode("append")
    writer.option("nameServer", namesrv).option("topic", topic).save()


def check(frame: DataFrame, expected_count: int) -> None:
    """Every queue offset was read once, and every number, with its tag and key.

    The sink writes at least once: a broker that answers late may store a batch again. So there may
    be more messages than numbers, and as many as the broker stores must be read.
    """
    found = frame.selectExpr(
        "queueId",
        "queueOffset",
        "bigint(substring_index(string(body), ' ', 1)) AS number",
        "length(body) AS size",
        "bigint(substring(tags, 2)) AS tag",
        "bigint(substring(keys[0], 2)) AS key",
    ).toArrow()
    columns = {name: found.column(name).to_numpy() for name in found.schema.names}
    numbers = columns["number"]
    assert len(numbers) == expected_count, f"{len(numbers)} of {expected_count} are read"
    assert np.array_equal(np.unique(numbers), np.arange(ROWS)), "not every number is there"
    assert np.array_equal(columns["tag"], numbers % 100)
    assert np.array_equal(columns["key"], numbers)
    assert (columns["size"] == BODY_BYTES).all()
    queue_ids = columns["queueId"]
    assert set(queue_ids.tolist()) == set(range(QUEUES))
    for queue_id in range(QUEUES):
        offsets = np.sort(columns["queueOffset"][queue_ids == queue_id])
        assert np.array_equal(offsets, np.arange(len(offsets)))
