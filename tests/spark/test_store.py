"""`format("rocketmq-store")`: a directory has the same messages as its broker."""

import random
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tianzhou.client.sync import Producer
from tianzhou.testing import Cluster


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(
        (row.topic, row.queueId, row.queueOffset, row.physicalOffset, row.msgId, row.tags,
         bytes(row.body), row.storeTimestamp)
        for row in frame.collect()
    )  # fmt: skip


@pytest.fixture(scope="module")
def letters(cluster: Cluster, producer: Producer) -> str:
    cluster.create_topic("letters", 3)
    cluster.create_topic("noise", 1)
    for number in range(300):
        producer.send("letters", b"%d" % number * 50, tags="red" if number % 7 == 0 else "blue")
        producer.send("noise", b"!")
    return "letters"


def test_the_directory_of_a_running_broker_has_the_same_messages(
    spark: SparkSession, cluster: Cluster, store_folder: Path, letters: str
) -> None:
    online = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_address)
    expected = rows_of(online.option("subscribe", letters).load())
    assert len(expected) == 300
    root = str(store_folder / "broker-0")
    offline = spark.read.format("rocketmq-store").option("subscribe", letters)
    offline = offline.option("brokerName", "broker-0")
    assert rows_of(offline.load(root)) == expected
    by_log = offline.option("splitBy", "log").option("pushDown", "true").load(root)
    assert rows_of(by_log.where("tags = 'red' AND queueId <= 1 AND queueOffset >= 5")) == [
        row
        for row in expected
        if row[5] == "red" and row[1] in (0, 1) and row[2] >= 5  # type: ignore[operator]  # an offset
    ]


def test_filters_and_options_select_messages_that_only_the_log_has(
    spark: SparkSession, cluster: Cluster, producer: Producer, store_folder: Path
) -> None:
    """A new topic of a running broker, whose queues have no files for up to a minute."""
    cluster.create_topic("fresh", 2)
    for number in range(20):
        producer.send("fresh", b"%d" % number, tags="red" if number % 3 else "blue")
    store = spark.read.format("rocketmq-store").option("brokerName", "broker-0")
    root = str(store_folder / "broker-0")
    whole = rows_of(store.option("subscribe", "fresh").load(root))
    assert len(whole) == 20
    half = [row for row in whole if row[1] == 1]
    pushed = store.option("subscribe", "fresh").option("pushDown", "true").load(root)
    assert rows_of(pushed.where("queueId = 1")) == half
    store = spark.read.format("rocketmq-store").option("brokerName", "broker-0")
    for options, expected in (
        ({"assign": '{"fresh": {"broker-0": [1]}}'}, half),
        ({"assign": '{"fresh": {"elsewhere": [1]}}'}, []),
        ({"subscribePattern": "fres."}, whole),
        ({"subscribe": "fresh", "endingTimestamp": "1000"}, []),
        ({"subscribe": "fresh", "startingTimestamp": "1000", "tags": "blue"},
         [row for row in whole if row[5] == "blue"]),
    ):  # fmt: skip
        assert rows_of(store.options(**options).load(root)) == expected, options
        store = spark.read.format("rocketmq-store").option("brokerName", "broker-0")


def test_the_directory_of_a_stopped_broker_is_read_and_losses_are_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    small: dict[str, Any] = {"mappedFileSizeCommitLog": 256 * 1024, "maxMessageSize": 64 * 1024}
    with (
        Cluster(topics={"old": 2}, folder=tmp_path, **small) as own,
        Producer("p", namesrv=own.namesrv_address) as sender,
    ):
        # Random bytes: others would be compressed, and fit one file.
        bodies = random.Random(5)
        for number in range(60):
            sender.send("old", bodies.randbytes(10_000), tags="even" if number % 2 == 0 else "odd")
    store = spark.read.format("rocketmq-store").option("subscribe", "old")
    root = tmp_path / "broker-0"
    whole = store.load(str(root))
    assert whole.count() == 60
    assert store.option("tags", "even").load(str(root)).count() == 30
    store = spark.read.format("rocketmq-store").option("subscribe", "old")
    files = sorted((root / "commitlog").iterdir())
    assert len(files) > 2
    # Retention removes the oldest file; its messages are no longer in the queues.
    files[0].unlink()
    left = rows_of(store.load(str(root)))
    assert 0 < len(left) < 60
    # A message in the middle is damaged: reported, or omitted.
    log_offset = int(left[3][3])  # type: ignore[call-overload]  # a physical offset
    for file in files[1:]:
        if int(file.name) <= log_offset < int(file.name) + 256 * 1024:
            data = bytearray(file.read_bytes())
            data[log_offset - int(file.name) + 100] ^= 1
            file.write_bytes(data)
    with pytest.raises(Exception, match="the body does not match its CRC"):
        store.load(str(root)).count()
    tolerant = store.option("failOnDataLoss", "false")
    assert rows_of(tolerant.load(str(root))) == [row for row in left if row[3] != log_offset]
    assert tolerant.option("splitBy", "log").load(str(root)).count() == len(left) - 1


def test_parquet_writes_no_statistics_of_columns_without_filters(
    spark: SparkSession, store_folder: Path, letters: str, tmp_path: Path
) -> None:
    reader = spark.read.format("rocketmq-store").option("subscribe", letters)
    frame = reader.load(str(store_folder / "broker-0"))
    frame.coalesce(1).write.parquet(str(tmp_path / "letters"))
    (file,) = (tmp_path / "letters").glob("*.parquet")
    parquet: Any = import_module("pyarrow.parquet")  # it has no types
    group = parquet.ParquetFile(file).metadata.row_group(0)
    columns: dict[str, Any] = {}
    for number in range(group.num_columns):
        columns[group.column(number).path_in_schema] = group.column(number)
    assert columns["tags"].has_dictionary_page
    assert columns["tags"].statistics.max == "red"
    for path in ("body", "properties.key_value.value"):
        assert not columns[path].has_dictionary_page, path
        assert not columns[path].is_stats_set, path
    assert columns["storeTimestamp"].is_stats_set, "jobs look for times"
    assert rows_of(spark.read.parquet(str(file.parent))) == rows_of(frame)
