"""`format("rocketmq")` as a table: every message once, push-down, starts and ends, losses."""

import re
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from tianzhou.client.sync import Producer
from tianzhou.testing import Cluster

COUNT = 600


@pytest.fixture(scope="module")
def orders(cluster: Cluster, producer: Producer) -> str:
    """A topic with messages of all kinds: tags, keys, properties, large and compressed bodies."""
    cluster.create_topic("orders", 4)
    for number in range(COUNT):
        producer.send(
            "orders",
            f'{{"id": {number}, "city": "Köln"}}'.encode()
            + b" " * (8000 if number % 100 == 0 else 0),
            tags=f"t{number % 10}",
            keys=[f"k{number}", "all"],
            properties={"amount": str(number)},
        )
    return "orders"


def reader(spark: SparkSession, cluster: Cluster, **options: object) -> DataFrameReader:
    made = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_address)
    for name, value in options.items():
        made = made.option(name, str(value))
    return made


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    chosen = frame.select(*columns) if columns else frame
    return sorted(tuple(row.asDict().values()) for row in chosen.collect())


def test_every_message_is_read_once_with_all_columns(
    spark: SparkSession, cluster: Cluster, orders: str
) -> None:
    frame = reader(spark, cluster, subscribe=orders, minPartitions=7, valueFormat="text").load()
    assert frame.rdd.getNumPartitions() >= 7
    rows = frame.collect()
    assert len(rows) == COUNT
    assert len({(row.queueId, row.queueOffset) for row in rows}) == COUNT
    by_key = {row["keys"][0]: row for row in rows}
    for number in range(COUNT):
        row = by_key[f"k{number}"]
        assert row.topic == orders
        assert row.brokerName == "broker-0"
        assert row.tags == f"t{number % 10}"
        assert row["keys"] == [f"k{number}", "all"]
        assert row.properties["amount"] == str(number)
        assert row.properties["UNIQ_KEY"] == row.msgId
        body = f'{{"id": {number}, "city": "Köln"}}' + " " * (8000 if number % 100 == 0 else 0)
        assert bytes(row.body) == body.encode()
        assert row.value == body
        assert row.offsetMsgId.endswith(f"{row.physicalOffset:016X}")
        assert row.bornTimestamp <= row.storeTimestamp
        assert row.storeHost == cluster.broker_addresses["broker-0"]
        assert (row.reconsumeTimes, row.delayLevel, row.transactionState) == (0, None, None)


def test_push_down_is_in_the_plan_and_changes_no_result(
    spark: SparkSession, cluster: Cluster, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "topic STRING, queueId INT, queueOffset BIGINT, tags STRING, storeTimestamp TIMESTAMP"
    options = {"subscribePattern": "ord.*", "maxRecordsPerPartition": 50}
    pushed = reader(spark, cluster, pushDown=True, **options).schema(columns).load()
    plain = reader(spark, cluster, **options).schema(columns).load()
    middle = plain.selectExpr("sort_array(collect_list(storeTimestamp))[300] AS t").first()
    assert middle is not None
    condition = (
        f"topic = 'orders' AND queueId IN (1, 2) AND queueOffset >= 10 AND queueOffset < 140 "
        f"AND tags IN ('t3', 't5', 'none') AND storeTimestamp <= timestamp_micros("
        f"{round(middle.t.timestamp() * 1_000_000)})"
    )
    found = pushed.where(condition)
    found.explain("formatted")
    plan = capsys.readouterr().out
    (line,) = re.findall(r"PushedFilters: \[.*", plan)
    for part in (
        "EqualTo(topic,orders)", "In(queueId, [1,2])", "GreaterThanOrEqual(queueOffset,10)",
        "LessThan(queueOffset,140)", "In(tags, [", "LessThanOrEqual(storeTimestamp,",
    ):  # fmt: skip
        assert part in line, plan
    rows = rows_of(found)
    assert rows == rows_of(plain.where(condition))
    assert rows
    assert {row[3] for row in rows} == {"t3", "t5"}
    # Three queues have nothing to read; four partitions of 50 would be needed for one whole queue.
    assert pushed.where("queueId = 1 AND queueOffset < 60").rdd.getNumPartitions() == 2
    assert pushed.where("topic = 'other'").collect() == []


def test_a_filter_in_the_broker_selects_the_same_rows_as_spark(
    spark: SparkSession, cluster: Cluster, orders: str
) -> None:
    columns = "queueId INT, queueOffset BIGINT, tags STRING, properties MAP<STRING, STRING>"
    by_broker = reader(spark, cluster, subscribe=orders, sql="amount > 300 AND amount < 500")
    everything = reader(spark, cluster, subscribe=orders).schema(columns).load()
    amount = "INT(properties['amount'])"
    by_spark = everything.where(f"{amount} > 300 AND {amount} < 500")
    found = by_broker.schema(columns).load()
    assert rows_of(found, "queueId", "queueOffset") == rows_of(by_spark, "queueId", "queueOffset")
    assert sorted(int(row.properties["amount"]) for row in found.collect()) == list(range(301, 500))
    # Spark still filters the result: the broker evaluates one expression only.
    assert rows_of(found.where("tags = 't3' AND queueId < 2"), "queueOffset", "tags") == rows_of(
        by_spark.where("tags = 't3' AND queueId < 2"), "queueOffset", "tags"
    )


def test_starting_and_ending_offsets_select_the_messages(
    spark: SparkSession, cluster: Cluster, orders: str
) -> None:
    columns = "queueId INT, queueOffset BIGINT, storeTimestamp TIMESTAMP, value STRUCT<id: BIGINT>"
    rows = (
        reader(
            spark, cluster, valueFormat="json",
            assign='{"orders": {"broker-0": [0, 1]}}',
            startingOffsets='{"orders": {"broker-0": {"0": 40, "1": -2}}}',
            endingOffsets='{"orders": {"broker-0": {"0": 45, "1": 3}}}',
        ).schema(columns).load().collect()
    )  # fmt: skip
    assert sorted((row.queueId, row.queueOffset) for row in rows) == [
        *((0, offset) for offset in range(40, 45)),
        *((1, offset) for offset in range(3)),
    ]
    assert all(row.value.id is not None for row in rows)
    moment = round(rows[-1].storeTimestamp.timestamp() * 1000)
    at = reader(spark, cluster, subscribe=orders, startingTimestamp=moment)
    later = at.schema(columns.partition(", value")[0]).load()
    everything = reader(spark, cluster, subscribe=orders).load()
    wanted = everything.where(f"storeTimestamp >= timestamp_millis({moment})").count()
    assert later.count() == wanted


def test_missing_messages_are_data_loss_or_skipped(
    spark: SparkSession, cluster: Cluster, orders: str
) -> None:
    options = {
        "assign": '{"orders": {"broker-0": [3]}}',
        "endingOffsets": '{"orders": {"broker-0": {"3": 1000}}}',
    }
    with pytest.raises(
        PySparkException, match=r"orders@broker-0:3: 850 messages from 150 to before"
    ):
        reader(spark, cluster, **options).load().count()
    assert reader(spark, cluster, failOnDataLoss=False, **options).load().count() == 150


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "orders", "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({}, "one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": "nobody-knows-it"}, "nobody-knows-it"),
        (
            {"subscribe": "orders", "startingOffsets": '{"order": {"broker-0": {"0": 1}}}'},
            "option startingOffsets: queue order@broker-0:0 is none of those that are read",
        ),
        (
            {"subscribe": "orders", "endingOffsets": '{"orders": {"broker-7": {"0": 1}}}'},
            "option endingOffsets: queue orders@broker-7:0 is none of those that are read",
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders": {"broker-0": {"3": 152}}}'},
            "orders@broker-0:3: 2 messages from 150 to before 152 are not there yet",
        ),
    ],
)
def test_invalid_options_are_rejected_with_a_reason(
    spark: SparkSession, cluster: Cluster, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=re.escape(text)):
        reader(spark, cluster, **options).load().count()
