"""Alarms of backlogs and dead letters: they open once, recover, and are not notified twice."""

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import update

from tests.support.spark.reading import DEADLINE_S, rows, until
from tianzhou.admin import Admin
from tianzhou.client import Later, Message, ReceivedMessage
from tianzhou.client.sync import Producer, PushConsumer
from tianzhou.errors import ConnectError
from tianzhou.monitor import tables
from tianzhou.monitor.rounds import Observation
from tianzhou.monitor.rules import Rule
from tianzhou.spark.pipelines import runner
from tianzhou.spark.pipelines.alarm_rounds import AlarmOptions, run_rounds
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def small() -> Generator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


def commit(cluster: Cluster, group: str, topic: str, *, at_end: bool) -> None:
    """Commit the beginning or the end of a topic for a group."""

    async def move() -> None:
        async with Admin(cluster.namesrv_address) as admin:
            for at in await admin.messages.read_queues(topic):
                end = await admin.offsets.end(at.broker, topic, at.queue_id)
                offset = end if at_end else 0
                await admin.offsets.commit(at.broker, group, topic, at.queue_id, offset)

    asyncio.run(move())


def events(url: str) -> list[tuple[str, str, str, str, int]]:
    return [
        (row.tenant, row.consumer_group, row.topic, row.event, row.value)
        for row in rows(url, tables.alarm_events)
    ]


def test_backlog_alarms_open_and_recover_by_the_rules_of_tenants(
    spark: SparkSession, small: Cluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    for topic in ("T_orders", "calm"):
        small.create_topic(topic, 2)
    with Producer("alarms", namesrv=small.namesrv_address) as producer:
        producer.send_many(Message("T_orders", f"{number}") for number in range(150))
        producer.send_many(Message("calm", f"{number}") for number in range(100))
    for group, topic in (("T_pay", "T_orders"), ("watchers", "T_orders"), ("calm", "calm")):
        commit(small, group, topic, at_end=False)
    engine = tables.open_database(url)
    with engine.begin() as connection:
        rule = {"tenant": "T", "kind": "backlog", "consumer_group": "T_*", "threshold": 500}
        connection.execute(tables.alarm_rules.insert().values(rule))
    engine.dispose()
    given = {"nameServer": small.namesrv_address, "database": url, "once": "true"}

    runner.run("backlog-alarm", given, spark=spark)
    # The tenant's own threshold is higher, and 100 is not above 100.
    assert events(url) == [("", "watchers", "T_orders", "open", 150)]
    runner.run("backlog-alarm", given, spark=spark)
    assert len(events(url)) == 1

    engine = tables.open_database(url)
    with engine.begin() as connection:
        connection.execute(update(tables.alarm_rules).values(threshold=149))
    engine.dispose()
    commit(small, "watchers", "T_orders", at_end=True)
    runner.run("backlog-alarm", given, spark=spark)
    assert sorted(events(url)[1:]) == [
        ("", "watchers", "T_orders", "recovered", 0),
        ("T", "T_pay", "T_orders", "open", 150),
    ]
    assert all(row.told_ms for row in rows(url, tables.alarm_events))


def test_backlog_without_committed_offsets_equals_consume_stats(
    spark: SparkSession, small: Cluster, tmp_path: Path
) -> None:
    """A group stuck on its first messages, one with a new queue, and three that are not behind."""
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    namesrv = small.namesrv_address
    for topic in ("firsts", "growing", "elsewhere"):
        small.create_topic(topic, 1)
    commit(small, "grown", "growing", at_end=True)
    commit(small, "left", "firsts", at_end=False)
    small.create_topic("growing", 2)
    with Producer("alarms", namesrv=namesrv) as producer:
        producer.send_many(Message("firsts", f"{number}") for number in range(150))
        new = next(each for each in producer.queues("growing") if each.queue_id == 1)
        for number in range(120):
            producer.send(Message("growing", f"{number}"), queue=new)
    release = threading.Event()
    reached = threading.Semaphore(0)

    def hang(_: ReceivedMessage) -> None:
        reached.release()
        release.wait()

    with ExitStack() as online:
        for group, topic, handler, broadcasting in (
            ("stuck", "firsts", hang, False),
            ("everybody", "firsts", hang, True),
            ("left", "elsewhere", hang, False),
        ):
            consumer = PushConsumer(
                group, namesrv=namesrv, start="first", broadcasting=broadcasting,
                offsets_dir=str(tmp_path),
            )  # fmt: skip
            consumer.subscribe(topic, handler=handler)
            online.enter_context(consumer)
            # Handlers must return before their consumers can stop, even if the test fails.
            online.callback(release.set)
        assert reached.acquire(timeout=DEADLINE_S)
        given = {"nameServer": namesrv, "database": url, "once": "true"}
        runner.run("backlog-alarm", given, spark=spark)
        ours = {"firsts", "growing", "elsewhere"}
        assert sorted(each for each in events(url) if each[2] in ours) == [
            ("", "grown", "growing", "open", 120),
            ("", "stuck", "firsts", "open", 150),
        ]
        assert behind_by_stats(small, "stuck", "firsts") == 150
        assert behind_by_stats(small, "grown", "growing") == 120


def behind_by_stats(cluster: Cluster, group: str, topic: str) -> int:
    """The backlog as the brokers count it."""

    async def ask() -> int:
        async with Admin(cluster.namesrv_address) as admin:
            told = await admin.groups.progress(group, topic)
            return sum(
                each.broker_offset - each.consumer_offset
                for stats in told.responses.values()
                for each in stats.offsets.values()
            )

    return asyncio.run(ask())


def test_rounds_resume_from_their_checkpoint(
    spark: SparkSession, small: Cluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    given = {
        "nameServer": small.namesrv_address, "database": url, "every": "1s", "rounds": "2",
        "checkpoint": str(tmp_path / "checkpoint"), "threshold": "0",
    }  # fmt: skip
    small.create_topic("stream", 1)
    with Producer("alarms", namesrv=small.namesrv_address) as producer:
        producer.send("stream", b"x")
    commit(small, "slow", "stream", at_end=False)
    for _ in range(2):
        runner.run("backlog-alarm", given, spark=spark)
    mine = [each for each in events(url) if each[1] == "slow"]
    assert mine == [("", "slow", "stream", "open", 1)]
    rounds = rows(url, tables.batches)
    assert len({row.query for row in rounds}) == 1
    assert len(rounds) >= 3


def test_a_failed_check_changes_no_alarm(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    looks: list[int] = []

    def observe(now_ms: int, rules: list[Rule]) -> list[Observation]:
        looks.append(now_ms)
        if len(looks) in (2, 3):
            raise ConnectError("broker-a: nobody listens")
        return [Observation("pay", "orders", 500 if len(looks) < 5 else 0)]

    options = AlarmOptions(name_server="a:1", database=url, every=100, rounds=5)
    run_rounds(spark, options, "backlog", observe)
    assert [each[3] for each in events(url)] == ["open", "recovered"]
    assert caplog.text.count("check of the cluster failed: broker-a: nobody listens") == 1
    assert "working again after 2 failed checks" in caplog.text


def test_a_streaming_pipeline_ends_when_it_is_stopped(
    spark: SparkSession, small: Cluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    given = {"nameServer": small.namesrv_address, "database": url, "every": "1s"}
    stop = threading.Event()
    thread = threading.Thread(
        target=runner.run, args=("backlog-alarm", given), kwargs={"spark": spark, "stop": stop}
    )
    thread.start()
    until(lambda: bool(rows(url, tables.batches)), lambda: "no round")
    stop.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [run.state for run in runner.status(url)] == ["stopped"]


def test_dead_letters_open_an_alarm_with_samples(
    spark: SparkSession, small: Cluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    given = {"nameServer": small.namesrv_address, "database": url, "once": "true"}
    runner.run("dlq-alarm", given, spark=spark)
    assert events(url) == []
    small.create_topic("bills", 2)
    with Producer("alarms", namesrv=small.namesrv_address) as producer:
        for number in range(6):
            producer.send("bills", f"bill {number}", keys=f"bill-{number}")
    _kill_letters(small, "billing", "bills", 6)
    runner.run("dlq-alarm", given, spark=spark)
    runner.run("dlq-alarm", given, spark=spark)
    assert events(url) == [("", "billing", "bills", "open", 6)]
    (row,) = rows(url, tables.alarm_events)
    lines = row.detail.splitlines()
    assert len(lines) == 3
    assert all("given up after" in line and "bill " in line for line in lines)
    # Their number is the same, but they are before the window.
    time.sleep(1.1)
    runner.run("dlq-alarm", given | {"window": "1s"}, spark=spark)
    assert [each[3] for each in events(url)] == ["open", "recovered"]


def _kill_letters(cluster: Cluster, group: str, topic: str, count: int) -> None:
    """A consumer whose messages all become dead letters."""
    dead: list[str] = []

    def give_up(message: ReceivedMessage) -> Later:
        dead.append(message.msg_id)
        return Later(delay_level=-1)

    consumer = PushConsumer(group, namesrv=cluster.namesrv_address, start="first")
    consumer.subscribe(topic, handler=give_up)
    with consumer:
        until(
            lambda: _dead_count(cluster, group) >= count,
            lambda: f"{len(dead)} of {count} given up",
        )


def _dead_count(cluster: Cluster, group: str) -> int:
    async def ask() -> int:
        async with Admin(cluster.namesrv_address) as admin:
            topic = f"%DLQ%{group}"
            if topic not in await admin.topics.names():
                return 0
            stats = await admin.topics.stats(topic)
            return sum(
                extent.max_offset
                for told in stats.responses.values()
                for extent in told.offsets.values()
            )

    return asyncio.run(ask())
