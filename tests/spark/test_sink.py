"""Rows of data frames in topics: all columns, order, streams, exactly once through real Spark."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.reading import stored, until
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.protocol import properties
from tianzhou.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 900.0


@pytest.fixture(scope="module")
def small() -> Generator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    writer = frame.write.format("rocketmq").mode("append")
    writer.option("nameServer", cluster.namesrv_address).options(**options).save()


def test_every_column_becomes_a_part_of_the_message(spark: SparkSession, small: Cluster) -> None:
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
    places: dict[str, set[tuple[object, int]]] = {}
    for message in stored(small, "ordered"):
        by_key.setdefault(message.keys[0], []).append(int(message.body))
        places.setdefault(message.keys[0], set()).add((message.store_host, message.queue_id))
    assert sum(map(len, by_key.values())) == 3_000
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert all(len(found) == 1 for found in places.values())


def test_delayed_rows_wait_for_their_time(spark: SparkSession, small: Cluster) -> None:
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


def test_what_cannot_be_written_is_refused_before_a_task_runs(
    spark: SparkSession, small: Cluster
) -> None:
    with pytest.raises(PySparkException, match="did you mean body"):
        write(spark.sql("SELECT 'x' bodi"), small, topic="one")
    with pytest.raises(PySparkException, match="did you mean topic"):
        write(spark.sql("SELECT 'x' body"), small, topics="one")


def test_a_row_that_is_no_message_fails_the_write(spark: SparkSession, small: Cluster) -> None:
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


def test_exactly_once_with_failing_tasks_killed_drivers_and_a_restarted_broker(
    tmp_path: Path,
) -> None:
    """Nothing is lost, nothing is seen twice, in the topic and in the table.

    The source is a topic, too, so this is also about where its streams go on after a crash.
    """
    count = int(os.environ.get("TIANZHOU_SPARK_STREAM_ROWS", "2800"))
    row_count = count // 7
    seed = random.SystemRandom().randrange(1 << 32)
    moments = random.Random(seed)  # the kills come at another moment in every run
    with Cluster(topics={"exact": 4, "numbers": 4}) as cluster:
        with Producer("numbers", namesrv=cluster.namesrv_address) as sender:
            sender.send_many(Message("numbers", f"{number}") for number in range(count))
        for kill_after in (2, 5, None):
            driver = _start_driver(cluster, tmp_path, count, row_count)
            if kill_after is None:
                assert driver.wait(_DEADLINE_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
            else:
                _await_batches(driver, tmp_path, kill_after)
                time.sleep(moments.random())
                if kill_after == 5:
                    cluster.stop_broker()
                    cluster.start_broker()
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(60)
        found = Counter(int(message.body) for message in stored(cluster, "exact"))
    assert found == Counter(range(count)), f"seed {seed}"
    assert list(tmp_path.glob("failed-*")), "no task has failed, so nothing was shown"
    connection = sqlite3.connect(tmp_path / "table.db")
    taken = connection.execute("SELECT number, queue_id, queue_offset FROM taken").fetchall()
    connection.close()
    assert sorted(row[0] for row in taken) == list(range(count)), f"seed {seed}"
    assert len({row[1:] for row in taken}) == count


def _start_driver(
    cluster: Cluster, folder: Path, count: int, row_count: int
) -> subprocess.Popen[bytes]:
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", cluster.namesrv_address,
             str(folder), str(count), str(row_count)],
            stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
        )  # fmt: skip


def _await_batches(driver: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    """Until so many batches are decided."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while (decided := _decided(folder / "ledger.db")) < count:
        text = (folder / "driver.log").read_text()[-3000:]
        assert driver.poll() is None, f"the driver has ended with {decided} batches:\n{text}"
        assert time.monotonic() < deadline_s, f"{decided} of {count} batches:\n{text}"
        time.sleep(0.02)


def _decided(path: Path) -> int:
    if not path.exists():
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        row = connection.execute("SELECT count(*) FROM tianzhou_sink_batches").fetchone()
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()
    return int(row[0])
