"""Spark and Apache RocketMQ 4.9: a stream into a topic, a restart, batches, and the files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache.requests import create_topic
from tests.support.apache.servers import apache_broker, apache_namesrv, wait_until
from tianzhou.client.sync import Producer

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql import DataFrame, SparkSession

from tests.support.spark.reading import stored_at
from tests.support.spark.streams import run

pytestmark = [pytest.mark.full, pytest.mark.apache, pytest.mark.usefixtures("apache")]

VERSION = "4.9.7"
BEFORE, ALL = 30, 50
BATCH = 20
STORED = 7
COLUMNS = (
    "queueId INT, queueOffset BIGINT, physicalOffset BIGINT, msgId STRING, tags STRING, "
    "keys ARRAY<STRING>, body BINARY, storeTimestamp TIMESTAMP, transactionState STRING"
)


def copy(spark: SparkSession, namesrv: str, folder: Path) -> None:
    """Stream all current messages from one topic to the other, exactly once."""
    numbers = spark.readStream.format("rocketmq").options(
        nameServer=namesrv, subscribe="numbers", startingOffsets="earliest",
        maxOffsetsPerTrigger=str(BATCH),
    )  # fmt: skip
    writer = (
        numbers.schema("body BINARY, tags STRING, keys ARRAY<STRING>").load()
        .writeStream.format("rocketmq")
        .options(nameServer=namesrv, topic="copies", exactlyOnce="true")
        .option("ledger", f"sqlite:///{folder / 'ledger.db'}")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )  # fmt: skip
    run(writer)


def forget_last_batch(commits: Path) -> int:
    """The state after a driver was killed between writing a batch and its commit."""
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    return last


def wait_for(namesrv: str, topic: str, count: int) -> None:
    """Apache's broker adds stored messages to its queues a little later."""
    wait_until(
        lambda: len(stored_at(namesrv, topic)) >= count, f"{count} {topic}", timeout_s=120,
        seen=lambda: len(stored_at(namesrv, topic)),
    )  # fmt: skip


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [tuple(row) for row in frame.collect()]
    return sorted(found)


def test_a_stream_is_repeated_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with (
        apache_namesrv(VERSION) as namesrv,
        apache_broker(VERSION, namesrv.address, store_dir=store, graceful=False) as broker,
        Producer("numbers", namesrv=namesrv.address) as producer,
    ):
        for topic in ("numbers", "copies"):
            create_topic(broker.address, topic, 2)
        for number in range(BEFORE):
            producer.send("numbers", f"{number}", tags=f"t{number % 3}", keys=[f"k{number}"])
        wait_for(namesrv.address, "numbers", BEFORE)
        copy(spark, namesrv.address, tmp_path)
        # Batch 0 is empty, so this was batch 2, and is repeated with the recorded offsets.
        assert forget_last_batch(tmp_path / "checkpoint" / "commits") == 2
        for number in range(BEFORE, ALL):
            producer.send("numbers", f"{number}", tags=f"t{number % 3}", keys=[f"k{number}"])
        wait_for(namesrv.address, "numbers", ALL)
        copy(spark, namesrv.address, tmp_path)
        wait_for(namesrv.address, "copies", ALL)
        copies = stored_at(namesrv.address, "copies")
        assert Counter((each.body, each.tags, *each.keys) for each in copies) == Counter(
            (b"%d" % number, f"t{number % 3}", f"k{number}") for number in range(ALL)
        )
        online = spark.read.format("rocketmq").options(
            nameServer=namesrv.address, subscribe="copies"
        )
        rows = rows_of(online.schema(COLUMNS).load())
        assert len(rows) == ALL
        moment_ms = round(rows[ALL // 2][STORED].timestamp() * 1000)
        wanted = f"tags IN ('t1', 't2') AND storeTimestamp >= timestamp_millis({moment_ms})"
        plain = online.schema(COLUMNS).option("pushDown", "false").load().where(wanted)
        pushed = online.schema(COLUMNS).option("pushDown", "true").load().where(wanted)
        assert rows_of(pushed) == rows_of(plain) != []
        offline = spark.read.format("rocketmq-store").option("subscribe", "copies").schema(COLUMNS)
        assert rows_of(offline.load(str(store))) == rows
