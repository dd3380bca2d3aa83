"""Duplicates, traces, reconciliation, archive and replay, each on a real cluster."""

import json
import sqlite3
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.support.command_line import run_words
from tests.support.spark.reading import rows, stored, until
from tianzhou.client import Message
from tianzhou.client.database.idempotence import TokenTable
from tianzhou.client.database.outbox import OUTBOX_ID, Outbox
from tianzhou.client.sync import Producer, PushConsumer
from tianzhou.clock import wall_ms
from tianzhou.errors import ConfigError, PipelineError
from tianzhou.monitor import tables
from tianzhou.names import TRACE_TOPIC
from tianzhou.spark.pipelines import runner
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def small() -> Generator[Cluster]:
    with Cluster(traceTopicEnable="true") as cluster:
        yield cluster


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


def test_duplicates_are_found_with_the_position_of_each_copy(
    spark: SparkSession, small: Cluster, url: str
) -> None:
    small.create_topic("copies", 2)
    with Producer("more", namesrv=small.namesrv_address) as producer:
        copies = [producer.send("copies", b"x", keys=("twice", "shared")) for _ in range(2)]
        producer.send("copies", b"x", keys=("single", "shared", "shared"))
        producer.send("copies", b"x")
    given = {"nameServer": small.namesrv_address, "database": url, "topics": "copies"}
    for _ in range(2):
        runner.run("duplicates", given | {"days": "today"}, spark=spark)
    found = {row.token: row for row in rows(url, tables.duplicates)}
    assert {token: row.copy_count for token, row in found.items()} == {"twice": 2, "shared": 3}
    assert json.loads(found["twice"].copies) == sorted(
        [result.queue.broker_name, result.queue.queue_id, result.queue_offset] for result in copies
    )
    # The same by the command line, which uses the session of this process.
    ran = run_words((
        "pipeline", "run", "duplicates", "--namesrv", small.namesrv_address, "--database", url,
        "--set", "topics=copies", "--set", "days=today", "--set", "by=msgId",
    ))  # fmt: skip
    assert ran.code == 0, ran.err
    assert "duplicates: 0 rows" in ran.out
    assert SparkSession.getActiveSession() is not None
    assert not [row for row in rows(url, tables.duplicates) if row.by == "msgId"]


def test_latencies_are_computed_from_traces(spark: SparkSession, small: Cluster, url: str) -> None:
    small.create_topic("traced", 2)
    seen: list[str] = []
    consumer = PushConsumer("tracers", namesrv=small.namesrv_address, start="first", trace=True)
    consumer.subscribe("traced", handler=lambda message: seen.append(message.msg_id))
    with Producer("more", namesrv=small.namesrv_address, trace=True) as producer:
        sent = {producer.send("traced", f"{n}", keys=f"t{n}").msg_id for n in range(20)}
        with consumer:
            until(lambda: len(seen) >= 20, lambda: f"{len(seen)} consumed")
    until(
        lambda: b"".join(each.body for each in stored(small, TRACE_TOPIC)).count(b"SubAfter") > 0,
        lambda: "no trace",
    )
    given = {"nameServer": small.namesrv_address, "database": url, "days": "today", "slowest": "3"}
    runner.run("trace-latency", given, spark=spark)
    steps = {(row.consumer_group, row.step): row for row in rows(url, tables.trace_latency)}
    assert {("", "send"), ("", "store"), ("tracers", "deliver")} <= set(steps)
    assert steps["", "send"].message_count == 20
    assert steps["tracers", "deliver"].message_count == 20
    assert all(row.p50_ms <= row.p99_ms <= row.max_ms for row in steps.values())
    slow = rows(url, tables.slow_messages)
    assert [row.place for row in slow] == [1, 2, 3]
    assert {row.msg_id for row in slow} <= sent


def connect(url: str) -> Any:  # noqa: ANN401 - of either driver
    """A connection of the program's own, by its driver."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url)


def test_the_outbox_is_compared_with_the_log(
    spark: SparkSession, small: Cluster, database_url: str, tmp_path: Path
) -> None:
    """The program's table and the results are in databases of their own."""
    results = f"sqlite:///{tmp_path / 'results.db'}"
    is_sqlite = database_url.startswith("sqlite")
    # With schemas, the table may be in one.
    name = "main.tianzhou_outbox" if is_sqlite else "shop.outgoing"
    topic = f"outgoing-{database_url.partition(':')[0]}"
    small.create_topic(topic, 1)
    connection = connect(database_url)
    if not is_sqlite:
        connection.execute("CREATE SCHEMA shop")
    outbox = Outbox("tianzhou_outbox" if is_sqlite else name, clock=lambda: wall_ms() - 60_000)
    outbox.create(connection)
    outbox.put(connection, *(Message(topic, f"{n}") for n in range(1, 6)))
    marked = f"UPDATE {name} SET state = 'sent', sent_ms = {outbox.now_ms(connection)} WHERE id < 5"  # noqa: S608 - our own words
    connection.execute(marked)
    connection.commit()
    connection.close()
    with Producer("more", namesrv=small.namesrv_address) as producer:
        # 2 was never stored; 99 is no row of the outbox; 5 is not marked as sent and is extra, too.
        for number in (1, 3, 4, 5, 99):
            producer.send(topic, b"x", properties={OUTBOX_ID: str(number)})
    given = {
        "nameServer": small.namesrv_address, "database": results, "topics": topic,
        "business": database_url, "table": name, "settle": "0",
    }  # fmt: skip
    outcome = runner.run("reconcile", given, spark=spark)
    assert outcome.note == "1 missing, 2 extra"
    found = {row.token: row.finding for row in rows(results, tables.reconciliation)}
    assert found == {"2": "missing", "5": "extra", "99": "extra"}
    # Recent rows may be in flight and are ignored.
    runner.run("reconcile", given | {"settle": "30s"}, spark=spark)
    found = {row.token: row.finding for row in rows(results, tables.reconciliation)}
    assert found == {"2": "missing"}
    # The URL may contain a password, which the record of the run must not show.
    assert {json.loads(row.options)["business"] for row in rows(results, tables.runs)} == {"***"}


def test_handled_tokens_are_compared_with_the_log(
    spark: SparkSession, small: Cluster, database_url: str
) -> None:
    """The program's table and the results are in one database."""
    topic = f"handled-{database_url.partition(':')[0]}"
    small.create_topic(topic, 1)
    with Producer("more", namesrv=small.namesrv_address) as producer:
        for key in ("a", "b", "c"):
            producer.send(topic, b"x", keys=key)
    connection = connect(database_url)
    table = TokenTable()
    table.create(connection)
    for token in ("a", "c", "z"):
        table.claim(connection, "clerks", token)
    table.claim(connection, "others", "b")
    connection.commit()
    connection.close()
    given = {
        "nameServer": small.namesrv_address, "database": database_url, "topics": topic,
        "settle": "0", "against": "tokens", "group": "clerks",
    }  # fmt: skip
    runner.run("reconcile", given, spark=spark)
    found = {row.token: row.finding for row in rows(database_url, tables.reconciliation)}
    assert found == {"b": "missing", "z": "extra"}
    with pytest.raises(ConfigError, match=r"database (sqlite|postgresql)://.*nowhere") as caught:
        runner.run("reconcile", given | {"table": "nowhere"}, spark=spark)
    assert "\n" not in str(caught.value)


def test_an_archive_contains_each_message_once_and_can_be_replayed(
    spark: SparkSession, small: Cluster, url: str, tmp_path: Path
) -> None:
    small.create_topic("kept", 3)
    small.create_topic("again", 2)
    path = str(tmp_path / "archive")
    given = {"nameServer": small.namesrv_address, "database": url, "path": path}
    with Producer("more", namesrv=small.namesrv_address) as producer:
        for start in (0, 30):
            producer.send_many(
                Message("kept", f"{n}", keys=f"k{n}", tags="t", properties={"p": f"{n}"})
                for n in range(start, start + 30)
            )
            runner.run(
                "archive", given | {"topics": "kept", "maxOffsetsPerTrigger": "20"}, spark=spark
            )
    archived = spark.read.parquet(path)
    assert Counter(int(row.body) for row in archived.select("body").collect()) == Counter(range(60))
    assert {row.topic for row in archived.select("topic").distinct().collect()} == {"kept"}
    outcome = runner.run("replay", given | {"toTopic": "again", "rate": "100000"}, spark=spark)
    assert outcome.row_count == 60
    first = {message.properties["KEYS"]: message for message in stored(small, "kept")}
    again = stored(small, "again")
    assert Counter(int(message.body) for message in again) == Counter(range(60))
    for message in again:
        before = first[message.properties["KEYS"]]
        assert (message.tags, message.properties["p"]) == ("t", before.properties["p"])
        assert message.properties["REPLAY_TOPIC"] == "kept"
        assert message.properties["REPLAY_STORE_MS"] == str(before.store_time_ms)
        assert message.properties["REPLAY_BORN_MS"] == str(before.born_time_ms)


def test_an_error_of_spark_is_reported_in_one_line(
    spark: SparkSession, small: Cluster, url: str, tmp_path: Path
) -> None:
    given = {"nameServer": small.namesrv_address, "database": url}
    with pytest.raises(PipelineError, match="nowhere") as caught:
        runner.run("archive", given | {"topics": "nowhere", "path": str(tmp_path)}, spark=spark)
    assert "\n" not in str(caught.value)
    (run,) = runner.status(url)
    assert (run.state, run.note) == ("failed", str(caught.value))


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("archive", {"topics": "a"}, "option path is needed"),
        ("archive", {"path": "p"}, "one of the options topics and pattern"),
        ("replay", {}, "option path is needed"),
        ("reconcile", {}, "option topics is needed"),
        ("reconcile", {"topics": "a", "against": "tokens"}, "option group is needed"),
        ("reconcile", {"topics": "a", "table": "a; b"}, "not a valid table name"),
        ("reconcile", {"topics": "a", "business": "mysql://h/b"}, "only SQLite and PostgreSQL"),
        (
            "reconcile",
            {"topics": "a", "business": "sqlite:///no/such.db"},
            "the file does not exist",
        ),
        ("backlog-alarm", {"threshold": "-1"}, "a whole number of at least 0"),
        ("dlq-alarm", {"notify": "pigeon"}, "is expected"),
        ("duplicates", {"by": "colour"}, "one of key, msgId"),
        ("trace-latency", {"slow": "1"}, "did you mean slowest"),
    ],
)
def test_invalid_options_are_rejected_before_spark_starts(
    name: str, given: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        runner.check(name, {"nameServer": "127.0.0.1:1"} | given)
