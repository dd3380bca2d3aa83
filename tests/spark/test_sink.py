"""Rows of data frames in topics: all columns, order, streams, exactly once through real Spark."""

import os
import random
import time
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.apache.servers import Restartable, free_port, tianzhou_broker, tianzhou_namesrv
from tests.support.spark.reading import stored, stored_at, until
from tests.support.spark.sink_runs import SOURCE, TOPIC, SinkRun
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.protocol import properties
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def small() -> Generator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    writer = frame.write.format("rocketmq").mode("append")
    writer.option("nameServer", cluster.namesrv_address).options(**options).save()


def test_every_column_is_part_of_the_message(spark: SparkSession, small: Cluster) -> None:
    for topic in ("one", "two"):
        small.create_topic(topic, 2)
    frame = spark.sql(
        "SELECT * FROM VALUES "
        "('one', X'00FF', 'red', array('a', 'b'), map('p', 'v'), 'shard'), "
        "('two', X'31', null, array(), null, null) "
        "AS t(topic, body, tags, keys, properties, orderKey)"
    )
    write(frame, small)
    (one,) = stored(small, "one")
    assert (one.body, one.tags, one.keys) == (b"\x00\xff", "red", ["a", "b"])
    assert one.properties["p"] == "v"
    assert one.properties[properties.SHARDING_KEY] == "shard"
    (two,) = stored(small, "two")
    assert (two.body, two.tags, two.keys) == (b"1", None, [])


def test_all_rows_arrive_and_rows_of_a_key_keep_their_order(
    spark: SparkSession, small: Cluster
) -> None:
    small.create_topic("ordered", 4)
    frame = spark.range(0, 3_000, 1, 1).selectExpr(
        "string(id) body", "concat('k', id % 13) orderKey", "concat('k', id % 13) keys"
    )
    write(frame, small, topic="ordered", batchCount="50")
    by_key: dict[str, list[int]] = {}
    queues_of_key: dict[str, set[tuple[object, int]]] = {}
    for message in stored(small, "ordered"):
        by_key.setdefault(message.keys[0], []).append(int(message.body))
        queues_of_key.setdefault(message.keys[0], set()).add((message.store_host, message.queue_id))
    assert sum(map(len, by_key.values())) == 3_000
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert all(len(found) == 1 for found in queues_of_key.values())


def test_delayed_rows_are_delivered_at_their_time(spark: SparkSession, small: Cluster) -> None:
    small.create_topic("later", 1)
    small.create_topic("at", 1)
    write(spark.sql("SELECT 'x' body, 3600000L delayMs"), small, topic="later")
    due = datetime.fromtimestamp(small.clock() / 1000, UTC) + timedelta(hours=2)
    write(spark.sql(f"SELECT 'y' body, timestamp'{due.isoformat()}' deliverAt"), small, topic="at")
    assert stored(small, "later") == []
    small.advance(seconds=3_700)
    until(lambda: len(stored(small, "later")) == 1, lambda: "not delivered")
    assert stored(small, "at") == []
    small.advance(seconds=3_600)
    until(lambda: len(stored(small, "at")) == 1, lambda: "not delivered")


def test_unwritable_rows_are_rejected_before_a_task_runs(
    spark: SparkSession, small: Cluster
) -> None:
    with pytest.raises(PySparkException, match="did you mean body"):
        write(spark.sql("SELECT 'x' bodi"), small, topic="one")
    with pytest.raises(PySparkException, match="did you mean topic"):
        write(spark.sql("SELECT 'x' body"), small, topics="one")


def test_an_invalid_row_fails_the_write(spark: SparkSession, small: Cluster) -> None:
    small.create_topic("refused", 1)
    with pytest.raises(PySparkException, match="the body of a row is null"):
        write(spark.sql("SELECT cast(null AS string) body"), small, topic="refused")


def test_a_batch_with_an_id_is_written_once(
    spark: SparkSession, small: Cluster, tmp_path: Path
) -> None:
    small.create_topic("once", 2)
    frame = spark.range(40).selectExpr("string(id) body")
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    for _ in range(2):
        write(
            frame, small, topic="once", exactlyOnce="true", ledger=ledger,
            transactionId="import-2024-02-29",
        )  # fmt: skip
    found = Counter(int(message.body) for message in stored(small, "once"))
    assert found == Counter(range(40))


@pytest.mark.full
def test_exactly_once_with_failing_tasks_killed_drivers_and_a_restarted_broker(
    tmp_path: Path,
) -> None:
    """No row is lost or duplicated, in the topic and in the table.

    The source is a topic, too, so this also tests where its streams resume after a crash. The
    broker is stopped while a task sends to it, and comes back at another address; the driver
    survives that.
    """
    count = int(os.environ.get("TIANZHOU_SPARK_STREAM_ROWS", "2800"))
    seed = random.SystemRandom().randrange(1 << 32)
    moments = random.Random(seed)  # the kills come at another moment in every run
    with Cluster(topics={SOURCE: 4, TOPIC: 4}) as cluster:
        send_numbers(cluster.namesrv_address, count)
        run = SinkRun(cluster.namesrv_address, tmp_path, count, count // 7)
        run.hold(1)
        with run:
            run.await_held(1, cluster.broker_addresses["broker-0"])
            cluster.stop_broker()
            run.release(1)
            cluster.start_broker()
            for batch in (2, 5):
                run.await_batch(batch)
                time.sleep(moments.random())
                run.kill()
                run.start()
            run.finish()
        run.check(stored(cluster, TOPIC), f"seed {seed}")


@pytest.mark.full
def test_exactly_once_while_the_broker_is_killed_within_a_batch_and_within_its_commit(
    tmp_path: Path,
) -> None:
    """The driver keeps running; the broker is a process that gets SIGKILL, twice."""
    with tianzhou_namesrv() as namesrv:
        begin = partial(
            tianzhou_broker, namesrv, listenPort=free_port(-2, 1),
            storePathRootDir=tmp_path / "store",
        )  # fmt: skip
        with Restartable(begin) as broker:
            send_numbers(namesrv.address, 1_600)
            run = SinkRun(namesrv.address, tmp_path, 1_600, 400)
            run.hold(1)
            with run:
                run.await_held(1, broker.server.address)
                broker.kill()
                run.release(1)
                broker.start()
                run.await_undone(1)
                broker.kill()
                broker.start()
                run.finish()
            run.check(stored_at(namesrv.address, TOPIC))


def send_numbers(namesrv: str, count: int) -> None:
    """The topic that the driver reads."""
    with Producer("numbers", namesrv=namesrv) as sender:
        sender.send_many(Message(SOURCE, f"{number}") for number in range(count))
