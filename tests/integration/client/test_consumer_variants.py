"""Variants of consumers: blocking, traced, in a namespace, with credentials."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import cluster as running_cluster
from tests.support.brokers import eventually

from tianzhou.client import (
    ClientSettings,
    Credentials,
    Later,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    Queue,
    QueueReader,
    ReceivedMessage,
    SimpleConsumer,
    sync,
)
from tianzhou.errors import BrokerError
from tianzhou.testing import Cluster

DEADLINE_S = 90


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as it:
        yield it


def test_the_blocking_consumer_calls_functions_and_coroutines(cluster: Cluster) -> None:
    cluster.create_topic("faces-1", 2)
    cluster.create_topic("faces-2", 2)
    seen: list[str] = []
    all_seen = threading.Event()
    consumer = sync.PushConsumer("faces", namesrv=cluster.namesrv_address, start="first")

    def note(message: ReceivedMessage) -> None:
        seen.append(message.text)
        if len(seen) == 6:
            all_seen.set()

    consumer.subscribe("faces-1", note)

    @consumer.batch_handler("faces-2", size=8)
    async def note_all(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            note(message)

    with sync.Producer("faces", namesrv=cluster.namesrv_address) as producer, consumer:
        for number in range(3):
            producer.send("faces-1", f"one {number}")
            producer.send("faces-2", f"two {number}")
        assert all_seen.wait(DEADLINE_S), seen
        assert {queue.topic for queue in consumer.assignment} >= {"faces-1", "faces-2"}
        assert not consumer.wait_closed(0.01)
    assert consumer.wait_closed(0)
    assert sorted(seen) == sorted(f"{word} {n}" for word in ("one", "two") for n in range(3))


def test_the_blocking_consumer_is_a_stream(cluster: Cluster) -> None:
    cluster.create_topic("faces-3", 1)
    consumer = sync.PushConsumer("faces-stream", namesrv=cluster.namesrv_address, start="first")
    consumer.subscribe("faces-3")
    seen: list[str] = []
    with sync.Producer("faces", namesrv=cluster.namesrv_address) as producer, consumer:
        for number in range(3):
            producer.send("faces-3", str(number))
        first = consumer.next_message()
        assert first is not None
        seen.append(first.text)
        consumer.ack(first)
        for message in consumer:
            seen.append(message.text)
            if len(seen) == 3:
                consumer.ack(message)
                break
        topics = {each.topic for each in consumer.running_info().subscriptions}
        assert topics == {"faces-3", "%RETRY%faces-stream"}
    assert consumer.next_message() is None
    assert seen == ["0", "1", "2"]
    with sync.QueueReader("faces-stream", namesrv=cluster.namesrv_address) as reader:
        (queue,) = reader.queues("faces-3")
        assert (reader.committed(queue), reader.max_offset(queue)) == (3, 3)
        assert [each.text for each in reader.pull(queue, 1).messages] == ["1", "2"]
        (first, *_) = reader.pull(queue, 0, timeout_ms=30_000).messages
        assert reader.earliest_store_time(queue) == first.store_time


def test_the_blocking_lite_pull(cluster: Cluster) -> None:
    cluster.create_topic("faces-4", 1)
    with (
        sync.Producer("faces", namesrv=cluster.namesrv_address) as producer,
        sync.LitePullConsumer(
            "faces-lite", namesrv=cluster.namesrv_address, start="first"
        ) as consumer,
    ):
        producer.send_many([Message("faces-4", str(number)) for number in range(4)])
        consumer.subscribe("faces-4")
        (queue,) = consumer.queues("faces-4")
        assert [each.text for each in consumer.poll(DEADLINE_S * 1000)] == ["0", "1", "2", "3"]
        consumer.seek(queue, 2)
        assert [each.text for each in consumer.poll(DEADLINE_S * 1000)] == ["2", "3"]
        consumer.pause([queue])
        consumer.seek_to_begin(queue)
        assert consumer.poll(100) == []
        consumer.resume([queue])
        assert len(consumer.poll(DEADLINE_S * 1000)) == 4
        consumer.commit()
        assert (consumer.committed(queue), consumer.position(queue)) == (4, 4)
        assert consumer.commit_later({queue: 3}).result(DEADLINE_S) is None
        assert consumer.committed(queue) == 3
        assert consumer.commit_later({Queue("faces-4", "gone", 0): 3}).exception(DEADLINE_S)
        assert queue.to_wire() in consumer.running_info().queues
        assert consumer.client_id


async def test_namespace_is_added_and_removed(cluster: Cluster) -> None:
    cluster.create_topic("shop%spaced", 1)
    inbox: list[ReceivedMessage] = []
    settings = ClientSettings(namesrv=cluster.namesrv_address, namespace="shop")
    consumer = PushConsumer("spaced", settings=settings, start="first")

    @consumer.handler("spaced")
    async def twice(message: ReceivedMessage) -> Later | None:
        inbox.append(message)
        return None if message.reconsume_times else Later(delay_level=1)

    async with Producer("spaced", settings=settings) as producer, consumer:
        await producer.send("spaced", b"hello")
        await eventually(lambda: len(inbox) == 2, "the message again")
        assert [each.topic for each in inbox] == ["spaced", "spaced"]
        assert Queue("shop%spaced", inbox[0].broker_name, 0) in consumer.assignment
    async with LitePullConsumer("lite", settings=settings, start="first") as lite:
        await lite.assign(await lite.queues("spaced"))
        assert [each.text for each in await lite.poll()] == ["hello"]


async def test_handler_can_close_its_consumer(cluster: Cluster) -> None:
    cluster.create_topic("last", 1)
    consumer = PushConsumer("last", namesrv=cluster.namesrv_address, start="first")
    seen: list[str] = []

    @consumer.handler("last")
    async def close_after_this(message: ReceivedMessage) -> None:
        seen.append(message.text)
        await consumer.close()

    async with Producer("last", namesrv=cluster.namesrv_address) as producer:
        await producer.send("last", b"one")
        await consumer.start()
        async with asyncio.timeout(DEADLINE_S):
            await consumer.wait_closed()
        await producer.send("last", b"two")
    assert seen == ["one"]
    async with QueueReader("last", namesrv=cluster.namesrv_address) as reader:
        (queue,) = await reader.queues("last")
        assert await reader.committed(queue) == 1


@pytest.mark.parametrize("way", ["handler", "lite-pull", "stream", "simple"])
async def test_consumers_are_traced(cluster: Cluster, way: str) -> None:
    topic, key = f"traced-{way}", f"trace-key-{way}"
    cluster.create_topic(topic, 1)
    own = ClientSettings(namesrv=cluster.namesrv_address, trace=True)
    async with Producer("traced", namesrv=cluster.namesrv_address) as producer:
        await producer.send(topic, b"look", keys=key)
    if way == "lite-pull":
        async with LitePullConsumer(topic, settings=own, start="first") as lite:
            await lite.subscribe(topic)
            assert len(await lite.poll(20_000)) == 1
    elif way == "simple":
        async with SimpleConsumer(topic, settings=own, start="first") as simple:
            await simple.subscribe(topic)
            await simple.ack_many(await simple.receive(wait=60))
    elif way == "stream":
        stream = PushConsumer(topic, settings=own, start="first")
        stream.subscribe(topic)
        async with stream:
            await stream.ack(await asyncio.wait_for(anext(aiter(stream)), 90))
    else:
        seen: list[str] = []
        consumer = PushConsumer(topic, settings=own, start="first")
        consumer.subscribe(topic, lambda message: seen.append(message.text))
        async with consumer:
            await eventually(lambda: seen == ["look"], "the message")
    found: list[str] = []
    async with LitePullConsumer(
        f"tracers-{way}", namesrv=cluster.namesrv_address, start="first"
    ) as reader:
        await reader.subscribe("RMQ_SYS_TRACE_TOPIC")

        async def look() -> bool:
            entries = "".join([each.text for each in await reader.poll(200)]).split("\x02")
            found.extend(entry.split("\x01")[0] for entry in entries if key in entry)
            return len(found) >= 2

        await eventually(look, "what was traced")
    assert found == ["SubBefore", "SubAfter"]


ACCOUNTS = """
accounts:
  - accessKey: clerk-account
    secretKey: clerk-secret
    topicPerms: [guarded=PUB|SUB]
    groupPerms: [clerks=SUB]
"""


async def test_credentials_grant_only_their_permissions(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    seen: list[tuple[str, int]] = []

    async def twice(message: ReceivedMessage) -> Later | None:
        seen.append((message.text, message.reconsume_times))
        return None if message.reconsume_times else Later(delay_level=1)

    async with running_cluster(tmp_path, aclEnable="true", rocketmqHome=tmp_path) as it:
        known = ClientSettings(
            namesrv=it.namesrv, credentials=Credentials("clerk-account", "clerk-secret")
        )
        consumer = PushConsumer("clerks", settings=known, start="first")
        consumer.subscribe("guarded", twice)
        async with Producer("clerks", settings=known) as producer, consumer:
            await producer.send("guarded", b"hello")
            await eventually(lambda: seen == [("hello", 0), ("hello", 1)], "the message twice")
        for credentials in (Credentials("clerk-account", "guessed"), None):
            stranger = PushConsumer("clerks", namesrv=it.namesrv, credentials=credentials)
            stranger.subscribe("guarded", twice)
            with pytest.raises(BrokerError):
                await stranger.start()
            await stranger.close()
        other = PushConsumer("others", settings=known)
        other.subscribe("guarded", twice)
        with pytest.raises(BrokerError, match="others"):
            await other.start()
        await other.close()


async def test_simple_consumer_with_credentials(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    async with running_cluster(tmp_path, aclEnable="true", rocketmqHome=tmp_path) as it:
        known = ClientSettings(
            namesrv=it.namesrv, credentials=Credentials("clerk-account", "clerk-secret")
        )
        async with (
            Producer("clerks", settings=known) as producer,
            SimpleConsumer("clerks", settings=known, start="first") as consumer,
        ):
            await consumer.subscribe("guarded")
            waiting = asyncio.create_task(consumer.receive(1, wait=DEADLINE_S))
            await producer.send_many([Message("guarded", "a"), Message("guarded", "b")])
            found = await waiting
            while len(found) < 2:
                found += await consumer.receive(wait=DEADLINE_S)
            await consumer.change_invisible(found[0], 60)
            await consumer.ack_many(found)
            await consumer.ack(found[0])
        for credentials in (Credentials("clerk-account", "guessed"), None):
            stranger = SimpleConsumer("clerks", namesrv=it.namesrv, credentials=credentials)
            await stranger.subscribe("guarded")
            with pytest.raises(BrokerError):
                await stranger.start()
        other = SimpleConsumer("others", settings=known)
        await other.subscribe("guarded")
        with pytest.raises(BrokerError, match="others"):
            await other.start()


async def test_a_simple_consumer_in_a_namespace(cluster: Cluster) -> None:
    cluster.create_topic("tenant%popped", 1)
    own = ClientSettings(namesrv=cluster.namesrv_address, namespace="tenant")
    async with (
        Producer("senders", settings=own) as producer,
        SimpleConsumer("poppers", settings=own, start="first") as consumer,
    ):
        await consumer.subscribe("popped")
        await producer.send("popped", "hello")
        (message,) = await consumer.receive(invisible=60, wait=DEADLINE_S)
        assert (message.topic, message.queue.topic) == ("popped", "tenant%popped")
        await consumer.change_invisible(message, 0)
        (again,) = await consumer.receive(wait=DEADLINE_S)
        assert (again.topic, again.reconsume_times) == ("popped", 1)
        await consumer.ack(again)


def test_the_blocking_simple_consumer(cluster: Cluster) -> None:
    cluster.create_topic("blocking-pops", 1)
    with (
        sync.Producer("senders", namesrv=cluster.namesrv_address) as producer,
        sync.SimpleConsumer(
            "blocking-pops", namesrv=cluster.namesrv_address, start="first"
        ) as consumer,
    ):
        consumer.subscribe("blocking-pops")
        producer.send_many(Message("blocking-pops", text) for text in "abcde")
        a, b, c = consumer.receive(3, invisible=60, wait=DEADLINE_S)
        consumer.ack(a)
        consumer.ack_many([b, c])
        (d,) = consumer.receive(1)
        assert consumer.change_invisible(d, 0) == d.handle
        seen: list[tuple[str, int]] = []
        for message in consumer:
            seen.append((message.text, message.reconsume_times))
            if len(seen) == 2:
                consumer.ack(message)
                break
        assert sorted(seen) == [("d", 1), ("e", 0)]
        assert consumer.receive(wait=0) == []
        assert consumer.client_id
        consumer.unsubscribe("blocking-pops")
