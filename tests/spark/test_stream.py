"""`format("rocketmq")` as a stream: pinned starts, restarts, limits, growth."""

import json
from itertools import chain
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tianzhou.client.sync import Producer
from tianzhou.testing import Cluster

Batches = dict[int, list[str]]


def stream(
    spark: SparkSession, cluster: Cluster, checkpoint: Path, into: Batches, **options: object
) -> "DataStreamWriter":
    made = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv_address)
    for name, value in options.items():
        made = made.option(name, str(value))
    frame = made.schema("value STRING").option("valueFormat", "text").load()

    def take(batch: DataFrame, number: int) -> None:
        into[number] = sorted(row.value for row in batch.collect())

    return (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )


def run(writer: "DataStreamWriter") -> None:
    query = writer.start()
    try:
        assert query.awaitTermination(60), f"the query still runs: {query.lastProgress}"
    finally:
        query.stop()


def send(producer: Producer, topic: str, *bodies: str) -> None:
    for body in bodies:
        producer.send(topic, body.encode())


def offsets_in(checkpoint: Path, batch: int) -> dict[str, object]:
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    found: dict[str, object] = json.loads(lines[-1])
    return found


def test_latest_is_pinned_by_an_empty_batch_that_may_be_replayed(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("pinned", 2)
    send(producer, "pinned", "before")
    into: Batches = {}
    writer = stream(spark, cluster, tmp_path, into, subscribe="pinned")
    run(writer)
    assert into == {0: []}
    pinned = offsets_in(tmp_path, 0)
    # The driver died before batch 0 was done, and messages came before it was started again.
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    send(producer, "pinned", "while it was away", "and another")
    run(writer)
    assert into == {0: [], 1: ["and another", "while it was away"]}
    assert offsets_in(tmp_path, 0) == pinned


def test_limits_restarts_and_growth_lose_and_repeat_nothing(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("grow-a", 1)
    first = [f"a{number:02d}" for number in range(25)]
    send(producer, "grow-a", *first)
    into: Batches = {}
    writer = stream(
        spark, cluster, tmp_path, into, subscribePattern="grow-.*", startingOffsets="earliest",
        maxOffsetsPerTrigger=10,
    )  # fmt: skip
    run(writer)
    assert [len(rows) for rows in into.values()] == [0, 10, 10, 5]
    assert [*chain(*into.values())] == first
    # More queues, and a topic that was not there.
    cluster.create_topic("grow-a", 3)
    cluster.create_topic("grow-b", 1)
    second = [f"b{number}" for number in range(6)]
    send(producer, "grow-a", *second)
    send(producer, "grow-b", "new")
    into.clear()
    run(writer)
    assert sorted(chain(*into.values())) == sorted([*second, "new"])
    into.clear()
    run(writer)
    assert into == {}
