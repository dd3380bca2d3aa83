"""Standard pipelines on Apache RocketMQ of both versions: a broker for all of them."""

import asyncio
import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.apache.servers import (
    VERSIONS,
    apache_broker,
    java_shell,
    tianzhou_namesrv,
    wait_until,
)
from tests.support.gate import EACH_VERSION
from tianzhou.admin import Admin
from tianzhou.admin.messages import body_of
from tianzhou.admin.topics import extents
from tianzhou.admin.trace import parse_trace
from tianzhou.client import Later, Message, ReceivedMessage
from tianzhou.client.database.idempotence import TokenTable
from tianzhou.client.database.outbox import OUTBOX_ID, Outbox
from tianzhou.client.sync import Producer, PushConsumer
from tianzhou.names import TRACE_TOPIC
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.properties import UNIQUE_KEY

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql import SparkSession

from tests.support.spark.reading import rows, stored_at
from tianzhou.monitor import tables
from tianzhou.spark.pipelines import runner

pytestmark = [pytest.mark.apache, pytest.mark.usefixtures("apache")]

COUNT = 150
DEAD = 6
TRACED = 20
LETTERS = (1, 3, 4, 99)
WAIT_S = 120


@pytest.fixture(scope="module", params=EACH_VERSION)
def broker_version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture(scope="module")
def namesrv(apache: None, broker_version: str) -> Iterator[str]:
    """A broker with consumed orders, and with bills that became dead letters.

    Also traced shipments, and mail with an outbox of which one message was never stored.
    """
    with (
        tianzhou_namesrv() as namesrv,
        apache_broker(broker_version, namesrv.address, graceful=False, traceTopicEnable="true"),
        Producer("pipelines", namesrv=namesrv.address) as producer,
    ):
        for number in range(COUNT):
            producer.send("orders", f"{number}", keys=f"k{number % 100}", tags="t")
        producer.send_many(Message("bills", f"bill {number}") for number in range(DEAD))
        for number in LETTERS:
            producer.send("mail", b"x", keys=f"m{number}", properties={OUTBOX_ID: str(number)})
        for topic, count in (("orders", COUNT), ("bills", DEAD), ("mail", len(LETTERS))):
            # Stored messages are in their queue a little later.
            wait_until(
                partial(_has, namesrv.address, topic, count), f"{count} {topic}", timeout_s=WAIT_S
            )
        _consume(namesrv.address, "clerks", "orders", COUNT)
        _give_up(namesrv.address, "billing", "bills", DEAD)
        _trace(namesrv.address, "carriers", "shipments", TRACED)
        # A group with committed offsets of 0.
        _commit(namesrv.address, "sleepers", "orders", 0)
        yield namesrv.address


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


def _trace(namesrv: str, group: str, topic: str, count: int) -> None:
    """Sent and consumed by clients with tracing, until the broker has stored all traces."""
    with Producer("traced", namesrv=namesrv, trace=True) as producer:
        for number in range(count):
            producer.send(topic, f"{number}", keys=f"t{number}")
        _consume(namesrv, group, topic, count, trace=True)

    def events() -> bytes:
        return b"".join(each.body for each in stored_at(namesrv, TRACE_TOPIC))

    # Types end with a separator; SubAfter of one attempt may be stored more than once.
    wait_until(
        lambda: events().count(b"Pub\x01") >= count and events().count(b"SubAfter\x01") >= count,
        "traces", timeout_s=WAIT_S,
        seen=lambda: (events().count(b"Pub\x01"), events().count(b"SubAfter\x01")),
    )  # fmt: skip


def _consume(namesrv: str, group: str, topic: str, count: int, *, trace: bool = False) -> None:
    seen: list[str] = []
    consumer = PushConsumer(group, namesrv=namesrv, start="first", trace=trace)
    consumer.subscribe(topic, handler=lambda message: seen.append(message.msg_id))
    with consumer:
        wait_until(
            lambda: len(seen) >= count, f"consuming {topic}", timeout_s=WAIT_S,
            seen=lambda: len(seen),
        )  # fmt: skip


def _give_up(namesrv: str, group: str, topic: str, count: int) -> None:
    def give_up(_: ReceivedMessage) -> Later:
        return Later(delay_level=-1)

    consumer = PushConsumer(group, namesrv=namesrv, start="first")
    consumer.subscribe(topic, handler=give_up)
    dead = f"%DLQ%{group}"
    with consumer:
        wait_until(
            lambda: _end(namesrv, dead) >= count, f"{count} dead letters", timeout_s=WAIT_S,
            seen=lambda: _end(namesrv, dead),
        )  # fmt: skip


def _has(namesrv: str, topic: str, count: int) -> bool:
    return _end(namesrv, topic) == count


def _end(namesrv: str, topic: str) -> int:
    """The number of messages in a topic by the broker's offsets; 0 while there is no such topic."""

    async def ask() -> int:
        async with Admin(namesrv) as admin:
            if topic not in await admin.topics.names():
                return 0
            return sum(extent.max_offset for _, extent in extents(await admin.topics.stats(topic)))

    return asyncio.run(ask())


def _commit(namesrv: str, group: str, topic: str, queue_offset: int) -> None:
    async def move() -> None:
        async with Admin(namesrv) as admin:
            for broker in await admin.clusters.brokers(masters=True):
                await admin.groups.put(broker, SubscriptionGroupConfig(group_name=group))
            for at in await admin.messages.read_queues(topic):
                await admin.offsets.commit(at.broker, group, topic, at.queue_id, queue_offset)

    asyncio.run(move())


def test_statistics_equal_the_counters_of_the_broker(
    spark: SparkSession, namesrv: str, url: str
) -> None:
    runner.run("topic-stats", {"nameServer": namesrv, "database": url}, spark=spark)
    produced: Counter[str] = Counter()
    consumed: Counter[tuple[str, str]] = Counter()
    for row in rows(url, tables.topic_stats, hour=-1):
        produced[row.topic] += row.produced
        consumed[row.topic, row.consumer_group] += row.consumed
    # Topics of programs only: no system topics, no retries and no dead letters.
    assert dict(produced) == {
        topic: _end(namesrv, topic) for topic in ("orders", "bills", "shipments", "mail")
    }
    assert produced["orders"] == consumed["orders", "clerks"] == COUNT
    assert ("orders", "sleepers") not in consumed


def test_duplicates_are_reported_with_their_positions(
    spark: SparkSession, namesrv: str, url: str
) -> None:
    given = {"nameServer": namesrv, "database": url, "topics": "orders"}
    runner.run("duplicates", given, spark=spark)
    found = rows(url, tables.duplicates)
    assert {row.token for row in found} == {f"k{number}" for number in range(COUNT - 100)}
    positions = {
        (message.queue_id, message.queue_offset): message.keys[0]
        for message in stored_at(namesrv, "orders")
    }
    for row in found:
        copies = [positions[queue, at] for _, queue, at in json.loads(row.copies)]
        assert copies == [row.token] * 2


def test_an_archive_is_replayed(
    spark: SparkSession, namesrv: str, url: str, tmp_path: Path
) -> None:
    given = {"nameServer": namesrv, "database": url, "path": str(tmp_path / "archive")}
    assert runner.run("archive", given | {"topics": "orders"}, spark=spark).row_count == COUNT
    assert runner.run("archive", given | {"topics": "orders"}, spark=spark).row_count == 0
    replay = {"toTopic": "orders-again", "rate": "10000"}
    assert runner.run("replay", given | replay, spark=spark).row_count == COUNT
    before = sorted((each.body, each.keys, each.tags) for each in stored_at(namesrv, "orders"))
    # Stored messages are in their queue a little later.
    wait_until(
        partial(_has, namesrv, "orders-again", COUNT), "the replayed messages", timeout_s=WAIT_S,
        seen=lambda: _end(namesrv, "orders-again"),
    )  # fmt: skip
    again = stored_at(namesrv, "orders-again")
    assert sorted((each.body, each.keys, each.tags) for each in again) == before
    assert {each.properties["REPLAY_TOPIC"] for each in again} == {"orders"}


def test_alarms_open_once_and_recover(spark: SparkSession, namesrv: str, url: str) -> None:
    given = {"nameServer": namesrv, "database": url, "once": "true"}
    for name in ("backlog-alarm", "dlq-alarm", "backlog-alarm", "dlq-alarm"):
        runner.run(name, given, spark=spark)
    events = rows(url, tables.alarm_events)
    assert [(row.kind, row.consumer_group, row.topic, row.event, row.value) for row in events] == [
        ("backlog", "sleepers", "orders", "open", COUNT),
        ("dlq", "billing", "bills", "open", DEAD),
    ]
    assert "bill " in events[1].detail
    _consume(namesrv, "sleepers", "orders", COUNT)
    runner.run("backlog-alarm", given, spark=spark)
    last = rows(url, tables.alarm_events)[-1]
    assert (last.consumer_group, last.event, last.value) == ("sleepers", "recovered", 0)


def test_a_group_without_committed_offsets_has_a_backlog(
    spark: SparkSession, namesrv: str, url: str
) -> None:
    with Producer("waiting", namesrv=namesrv) as producer:
        producer.send_many(Message("waiting", f"{number}") for number in range(COUNT))
    wait_until(
        partial(_has, namesrv, "waiting", COUNT), "messages to wait for", timeout_s=WAIT_S
    )  # fmt: skip
    reached, release = threading.Event(), threading.Event()

    def hang(_: ReceivedMessage) -> None:
        reached.set()
        release.wait()

    consumer = PushConsumer("stuck", namesrv=namesrv, start="first")
    consumer.subscribe("waiting", handler=hang)
    with consumer:
        try:
            assert reached.wait(WAIT_S)
            given = {"nameServer": namesrv, "database": url, "once": "true"}
            runner.run("backlog-alarm", given, spark=spark)
        finally:
            release.set()
    (event,) = rows(url, tables.alarm_events, consumer_group="stuck")
    assert (event.topic, event.event, event.value) == ("waiting", "open", COUNT)


def test_latencies_are_computed_from_traces(spark: SparkSession, namesrv: str, url: str) -> None:
    given = {"nameServer": namesrv, "database": url, "slowest": "3"}
    runner.run("trace-latency", given, spark=spark)
    steps = {
        (row.consumer_group, row.step): row
        for row in rows(url, tables.trace_latency, topic="shipments")
    }
    for step in (("", "send"), ("", "store"), ("carriers", "deliver"), ("carriers", "consume")):
        assert steps[step].message_count == TRACED, (step, steps)
    assert all(row.p50_ms <= row.p99_ms <= row.max_ms for row in steps.values())
    slow = rows(url, tables.slow_messages, topic="shipments")
    assert [row.place for row in slow] == [1, 2, 3]
    assert {row.msg_id for row in slow} <= {
        each.properties[UNIQUE_KEY] for each in stored_at(namesrv, "shipments")
    }


def test_latencies_are_computed_from_traces_of_stock_clients(
    spark: SparkSession, namesrv: str, broker_version: str, url: str
) -> None:
    """Clients of 4.9 and of 5.x write traces in different formats.

    Consumers of 5.x trace only messages with a region, and brokers of 4.9 set none.
    """
    versions = [each for each in VERSIONS if broker_version >= each]
    sent = {
        version: _trace_stock(version, namesrv, f"parcels-{version[0]}") for version in versions
    }
    given = {"nameServer": namesrv, "database": url, "slowest": "3"}
    runner.run("trace-latency", given, spark=spark)
    for version, msg_ids in sent.items():
        topic = f"parcels-{version[0]}"
        steps = {
            (row.consumer_group, row.step): row.message_count
            for row in rows(url, tables.trace_latency, topic=topic)
        }
        wanted = [("", "send"), ("", "store"), (f"{topic}-g", "deliver"), (f"{topic}-g", "consume")]
        assert steps == dict.fromkeys(wanted, TRACED)
        slow = rows(url, tables.slow_messages, topic=topic)
        assert [row.place for row in slow] == [1, 2, 3]
        assert {row.msg_id for row in slow} <= msg_ids


def _trace_stock(version: str, namesrv: str, topic: str) -> set[str]:
    """Ids of messages from a stock producer to a stock consumer, once all traces are stored."""
    with java_shell(version, "KindsShell") as shell:
        shell.ask("start_producer", name=f"{topic}-p", namesrv=namesrv, trace=True)
        bodies = [f"{number}" for number in range(TRACED)]
        sent = shell.ask("send", name=f"{topic}-p", topic=topic, bodies=bodies, keys="k")
        shell.ask(
            "start_consumer", name=f"{topic}-c", group=f"{topic}-g", topic=topic, way="plain",
            namesrv=namesrv, trace=True,
        )  # fmt: skip
        wait_until(
            lambda: len(shell.consumed(f"{topic}-c")) >= TRACED, f"consuming {topic}",
            timeout_s=WAIT_S, seen=lambda: (len(shell.consumed(f"{topic}-c")), shell.report()),
        )  # fmt: skip
        msg_ids = {each["msgId"] for each in sent}
        wait_until(
            lambda: all(_told_ids(namesrv, kind) >= msg_ids for kind in ("Pub", "SubAfter")),
            "traces", timeout_s=WAIT_S,
            seen=lambda: (_told_ids(namesrv, "Pub"), _told_ids(namesrv, "SubAfter")),
        )  # fmt: skip
    return msg_ids


def _told_ids(namesrv: str, kind: str) -> set[str]:
    """Ids of messages with this entry in the trace topic."""
    return {
        event.message_id
        for record in stored_at(namesrv, TRACE_TOPIC)
        for event in parse_trace(body_of(record).decode(), "")
        if event.kind == kind
    }


def test_an_outbox_and_tokens_are_compared_with_the_log(
    spark: SparkSession, namesrv: str, url: str, tmp_path: Path
) -> None:
    business = tmp_path / "business.db"
    connection = sqlite3.connect(business)
    outbox = Outbox(clock=lambda: time.time_ns() // 1_000_000 - 60_000)
    outbox.create(connection)
    outbox.put(connection, *(Message("mail", f"{number}") for number in range(1, 5)))
    sent_ms = outbox.now_ms(connection)
    connection.execute("UPDATE tianzhou_outbox SET state = 'sent', sent_ms = ?", (sent_ms,))
    handled = TokenTable()
    handled.create(connection)
    for token in ("m1", "m3", "m99", "unknown"):
        handled.claim(connection, "readers", token)
    connection.commit()
    connection.close()
    given = {
        "nameServer": namesrv, "database": url, "topics": "mail", "settle": "0",
        "business": f"sqlite:///{business}",
    }  # fmt: skip
    assert runner.run("reconcile", given, spark=spark).note == "1 missing, 1 extra"
    found = {row.token: row.finding for row in rows(url, tables.reconciliation)}
    assert found == {"2": "missing", "99": "extra"}
    tokens = {"against": "tokens", "group": "readers"}
    assert runner.run("reconcile", given | tokens, spark=spark).note == "1 missing, 1 extra"
    found = {
        row.token: row.finding for row in rows(url, tables.reconciliation, name="tokens readers")
    }
    assert found == {"m4": "missing", "unknown": "extra"}
