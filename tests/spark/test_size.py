"""Batch reads of many messages in eight queues: each exactly once, in every way of reading."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark import sizes
from tianzhou.testing import Cluster


def test_each_of_many_messages_is_read_once_from_brokers_and_from_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(topics={"many": sizes.QUEUES}, folder=tmp_path) as own:
        sizes.fill(spark, own.namesrv_address, "many")
        online = spark.read.format("rocketmq").option("nameServer", own.namesrv_address)
        online = online.option("subscribe", "many").schema(sizes.COLUMNS)
        stored = sizes.stored_count(own.namesrv_address, "many")
        sizes.check(online.load(), stored)
        by_tag = online.option("tags", "t7").load()
        assert by_tag.select("keys").distinct().count() == sizes.ROWS // 100
    offline = spark.read.format("rocketmq-store").option("subscribe", "many")
    root = str(tmp_path / "broker-0")
    sizes.check(offline.schema(sizes.COLUMNS).load(root), stored)
    sizes.check(offline.option("splitBy", "log").schema(sizes.COLUMNS).load(root), stored)
