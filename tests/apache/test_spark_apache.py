"""The source on Apache RocketMQ 5.x: the broker over sockets, and the files that it writes."""

import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache.requests import create_topic
from tests.support.apache.servers import (
    Server,
    apache_broker,
    ask_server,
    tianzhou_namesrv,
    wait_until,
)
from tianzhou.client.sync import Producer
from tianzhou.names import MASTER_ID
from tianzhou.protocol.codes import RequestCode

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql import DataFrame, SparkSession

from tests.support.spark import sizes

pytestmark = [pytest.mark.apache, pytest.mark.usefixtures("apache")]

VERSION = "5.5.0"
COUNT = 400
COLUMNS = (
    "topic STRING, queueId INT, queueOffset BIGINT, physicalOffset BIGINT, msgId STRING, "
    "tags STRING, keys ARRAY<STRING>, body BINARY, storeTimestamp TIMESTAMP, storeHost STRING"
)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        (row.queueId, row.queueOffset, bytes(row.body), row.physicalOffset, row.msgId, row.tags,
         row["keys"], row.storeTimestamp, row.storeHost)
        for row in frame.collect()
    )  # fmt: skip


def test_batches_from_the_broker_and_from_its_files_agree(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with (
        tianzhou_namesrv() as namesrv,
        apache_broker(
            VERSION, namesrv.address, store_dir=store, graceful=False,
            # Large files, for runs with a million messages.
            mappedFileSizeCommitLog=256 * 1024 * 1024, mappedFileSizeConsumeQueue=20 * 300_000,
            enablePropertyFilter="true",
        ) as broker,
        Producer("spark", namesrv=namesrv.address) as producer,
    ):  # fmt: skip
        for number in range(COUNT):
            producer.send(
                "orders", b"%d" % number, tags=f"t{number % 4}", keys=[f"k{number}"],
                properties={"amount": f"{number}"},
            )  # fmt: skip
        wait_for_queues(broker)
        online = spark.read.format("rocketmq").option("nameServer", namesrv.address)
        online = online.option("subscribe", "orders").schema(COLUMNS)
        rows = rows_of(online.load())
        assert sorted(int(row[2]) for row in rows) == list(range(COUNT))
        middle = online.load().selectExpr("sort_array(collect_list(storeTimestamp))[200]")
        moment_ms = round(middle.collect()[0][0].timestamp() * 1000)
        time_range = f"storeTimestamp >= timestamp_millis({moment_ms})"
        condition = f"tags IN ('t1', 't2') AND {time_range}"
        plain = online.option("pushDown", "false").load().where(condition)
        pushed = online.option("pushDown", "true").load().where(condition)
        assert rows_of(pushed) == rows_of(plain) != []
        by_broker = online.option("sql", "amount > 100 AND amount < 300").load()
        assert rows_of(by_broker) == [row for row in rows if 100 < int(row[2]) < 300]
        offline = spark.read.format("rocketmq-store").option("subscribe", "orders")
        assert rows_of(offline.schema(COLUMNS).load(str(store))) == rows
        by_log = offline.option("splitBy", "log").schema(COLUMNS).load(str(store))
        assert rows_of(by_log) == rows
        # Many messages in eight queues, written by the sink: each of them once.
        create_topic(broker.address, "many", sizes.QUEUES)
        sizes.fill(spark, namesrv.address, "many")
        online = spark.read.format("rocketmq").option("nameServer", namesrv.address)
        wait_for_queues(broker)
        stored = sizes.stored_count(namesrv.address, "many")
        sizes.check(online.option("subscribe", "many").schema(sizes.COLUMNS).load(), stored)
        offline = spark.read.format("rocketmq-store").option("subscribe", "many")
        sizes.check(offline.schema(sizes.COLUMNS).load(str(store)), stored)


def wait_for_queues(broker: Server) -> None:
    """Apache's broker adds stored messages to its queues a little later."""
    wait_until(
        lambda: behind_bytes(broker.address) == 0,
        "the queues to have what the log has",
        timeout_s=120,
        seen=lambda: f"{behind_bytes(broker.address)} bytes behind",
    )


def runtime_info(address: str) -> dict[str, str]:
    """Runtime info; empty in the first second of a 5.x broker, which fails the request."""
    answer = ask_server(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    found: dict[str, str] = json.loads(answer.body)["table"] if answer.code == 0 else {}
    return found


def behind_bytes(address: str) -> int:
    """Bytes of the log that a broker has not added to its queues, -1 if it does not report them."""
    return int(runtime_info(address).get("dispatchBehindBytes", -1))


@pytest.mark.full
def test_a_replica_serves_batches_and_streams(spark: SparkSession, tmp_path: Path) -> None:
    with ExitStack() as master_life, tianzhou_namesrv() as namesrv:
        master = master_life.enter_context(broker_of(namesrv.address, "ASYNC_MASTER", 0))
        with broker_of(namesrv.address, "SLAVE", 1) as replica:
            create_topic(master.address, "copied", 2)
            with Producer("spark", namesrv=namesrv.address) as producer:
                for number in range(COUNT):
                    producer.send("copied", b"%d" % number, tags=f"t{number % 4}")
            wait_until(
                lambda: copied_count(replica.address) == COUNT and knows_topic(replica.address),
                "copies on the replica",
                timeout_s=120,
                seen=lambda: f"{copied_count(replica.address)} of {COUNT}",
            )
            given = {
                "nameServer": namesrv.address, "subscribe": "copied", "requestTimeout": "30s",
                "valueFormat": "text", "readFrom": "replica",
            }  # fmt: skip
            numbers = list(range(COUNT))
            batch = spark.read.format("rocketmq").options(**given).schema("value STRING").load()
            assert sorted(int(row.value) for row in batch.collect()) == numbers
            assert served_counts(master, replica) == (0, COUNT)
            assert streamed(spark, given, tmp_path) == numbers
            assert served_counts(master, replica) == (0, 2 * COUNT)
            by_tag = spark.read.format("rocketmq").options(**given).load().where("tags = 't3'")
            assert sorted(int(row.value) for row in by_tag.collect()) == numbers[3::4]
            assert served_counts(master, replica)[0] == 0
            # The master plans, the replica serves: planned ranges can be read without the master.
            planned = batch.rdd
            assert planned.getNumPartitions() == 2
            master_life.close()
            assert sorted(int(row.value) for row in planned.collect()) == numbers


def streamed(spark: SparkSession, given: dict[str, str], folder: Path) -> list[int]:
    """All messages that a stream reads up to the current end."""
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(int(row.value) for row in batch.collect())

    source = spark.readStream.format("rocketmq").options(**given, startingOffsets="earliest")
    query = (
        source.schema("value STRING").load().writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(300), f"the query still runs: {query.lastProgress}"
    return sorted(found)


def served_counts(*brokers: Server) -> tuple[int, ...]:
    """How many messages each broker has returned to readers."""
    return tuple(int(runtime_info(each.address)["msgGetTotalTodayNow"]) for each in brokers)


def broker_of(namesrv: str, role: str, broker_id: int) -> AbstractContextManager[Server]:
    assert (role == "SLAVE") == (broker_id != MASTER_ID)
    return apache_broker(
        VERSION, namesrv, graceful=False, brokerRole=role, brokerId=broker_id,
        slaveReadEnable="true",
    )  # fmt: skip


def knows_topic(address: str) -> bool:
    """Replicas copy topics from their master periodically."""
    return b'"copied"' in ask_server(address, RequestCode.GET_ALL_TOPIC_CONFIG).body


def copied_count(address: str) -> int:
    """Messages of the topic that a broker has."""
    total = 0
    for queue_id in range(2):
        fields = {"topic": "copied", "queueId": f"{queue_id}"}
        answer = ask_server(address, RequestCode.GET_MAX_OFFSET, fields)
        total += int(answer.fields.get("offset", 0))
    return total
