"""The source on Apache RocketMQ 5.x: the broker over sockets, and the files that it writes."""

from pathlib import Path
from typing import Any

import pytest

from tests.apache.kit import apache_broker, tianzhou_namesrv
from tianzhou.client.sync import Producer

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql import DataFrame

from tianzhou.spark import session

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


def test_batches_from_the_broker_and_from_its_files_agree(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with (
        tianzhou_namesrv() as namesrv,
        apache_broker(VERSION, namesrv.address, store_dir=store, graceful=False),
        Producer("spark", namesrv=namesrv.address) as producer,
    ):
        for number in range(COUNT):
            producer.send("orders", b"%d" % number, tags=f"t{number % 4}", keys=[f"k{number}"])
        spark = session("apache", master="local[2]")
        try:
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
            offline = spark.read.format("rocketmq-store").option("subscribe", "orders")
            assert rows_of(offline.schema(COLUMNS).load(str(store))) == rows
            by_log = offline.option("splitBy", "log").schema(COLUMNS).load(str(store))
            assert rows_of(by_log) == rows
        finally:
            spark.stop()
