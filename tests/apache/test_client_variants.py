"""Variants of our client, with our broker and Apache's: blocking, in a namespace, traced.

Credentials and TLS are in another file, since they need other brokers.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.apache.test_client_producer import create_topic
from tests.support.apache.backends import Backend, until
from tests.support.brokers import eventually
from tianzhou.client import (
    ClientSettings,
    Later,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    Queue,
    ReceivedMessage,
    SendResult,
    TransactionState,
    by_hash,
    sync,
)
from tianzhou.names import TRACE_TOPIC

DEADLINE_S = 90


def new_topic(backend: Backend, text: str, queue_count: int) -> str:
    topic = backend.name(text)
    asyncio.run(create_topic(backend, topic, queue_count))
    return topic


# -- blocking --------------------------------------------------------------------------------------


def test_the_blocking_producer_has_the_same_names(backend: Backend) -> None:
    topic = new_topic(backend, "Blocking", 4)
    callbacks: list[SendResult | None] = []
    with sync.Producer(backend.name("blocking"), namesrv=backend.namesrv) as producer:
        first = producer.send(topic, b"x", keys="k")
        queues = producer.queues(topic)
        assert first.queue in queues
        picked = producer.send(topic, b"z", select=by_hash("k"))
        assert picked.queue == by_hash("k")(queues, Message(topic, b"z"))
        producer.oneway(Message(topic, b"gone"))
        assert producer.send_ordered(Message(topic, b"o", shard="k")).queue == picked.queue
        assert len(producer.send_many([Message(topic, f"{n}") for n in range(10)])) == 10
        futures = [
            producer.submit(Message(topic, f"{n}"), on_done=lambda done, _: callbacks.append(done))
            for n in range(20)
        ]
        results = [future.result(timeout=DEADLINE_S) for future in futures]
    assert {each.msg_id for each in callbacks if each} == {result.msg_id for result in results}
    assert len(asyncio.run(backend.await_stored(topic, 34))) == 34


class Ledger:
    """Commits immediately, except transactions that stay open until the check."""

    def execute(self, message: Message, transaction_id: str) -> TransactionState:
        assert transaction_id
        return TransactionState.UNKNOWN if message.keys == "open" else TransactionState.COMMIT

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if message.key == "open" else TransactionState.ROLLBACK


def test_blocking_transactions(backend: Backend) -> None:
    topic = new_topic(backend, "BlockingTx", 2)
    group = backend.name("blocking-ledger")
    with sync.TransactionProducer(group, Ledger(), namesrv=backend.namesrv) as producer:
        done = producer.send_in_transaction(Message(topic, b"at once", keys="done"))
        assert done.state is TransactionState.COMMIT
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"never")):
            raise ZeroDivisionError
        opened = producer.send_in_transaction(Message(topic, b"when asked", keys="open"))
        assert opened.state is TransactionState.UNKNOWN
        asyncio.run(backend.await_bodies(topic, {b"at once", b"when asked"}))


def test_the_blocking_consumer_calls_functions_and_coroutines(backend: Backend) -> None:
    one, two = new_topic(backend, "faces", 2), new_topic(backend, "faces", 2)
    seen: list[str] = []
    all_seen = threading.Event()
    group = backend.name("faces")
    consumer = sync.PushConsumer(group, namesrv=backend.namesrv, start="first")

    def note(message: ReceivedMessage) -> None:
        seen.append(message.text)
        if len(seen) == 6:
            all_seen.set()

    consumer.subscribe(one, note)

    @consumer.batch_handler(two, size=8)
    async def note_all(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            note(message)

    with sync.Producer(group, namesrv=backend.namesrv) as producer, consumer:
        for number in range(3):
            producer.send(one, f"one {number}")
            producer.send(two, f"two {number}")
        assert all_seen.wait(DEADLINE_S), seen
        assert {queue.topic for queue in consumer.assignment} >= {one, two}
        assert not consumer.wait_closed(0.01)
    assert consumer.wait_closed(0)
    assert sorted(seen) == sorted(f"{word} {n}" for word in ("one", "two") for n in range(3))


def test_the_blocking_consumer_is_a_stream(backend: Backend) -> None:
    topic, group = new_topic(backend, "stream", 1), backend.name("stream")
    consumer = sync.PushConsumer(group, namesrv=backend.namesrv, start="first")
    consumer.subscribe(topic)
    seen: list[str] = []
    with sync.Producer(group, namesrv=backend.namesrv) as producer, consumer:
        for number in range(3):
            producer.send(topic, str(number))
        for message in consumer:
            seen.append(message.text)
            if len(seen) == 3:
                consumer.ack(message)
                break
    assert seen == ["0", "1", "2"]
    with sync.QueueReader(group, namesrv=backend.namesrv) as reader:
        (queue,) = reader.queues(topic)
        assert (reader.committed(queue), reader.max_offset(queue)) == (3, 3)
        assert [each.text for each in reader.pull(queue, 1).messages] == ["1", "2"]
        (first, *_) = reader.pull(queue, 0, timeout_ms=30_000).messages
        assert reader.earliest_store_time(queue) == first.store_time


def test_the_blocking_lite_pull(backend: Backend) -> None:
    topic, group = new_topic(backend, "lite", 1), backend.name("lite")
    with (
        sync.Producer(group, namesrv=backend.namesrv) as producer,
        sync.LitePullConsumer(group, namesrv=backend.namesrv, start="first") as consumer,
    ):
        producer.send_many([Message(topic, str(number)) for number in range(4)])
        consumer.subscribe(topic)
        (queue,) = consumer.queues(topic)
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


# -- in a namespace --------------------------------------------------------------------------------


async def test_namespace_is_added_and_removed(backend: Backend) -> None:
    space, topic, group = backend.name("shop"), backend.name("spaced"), backend.name("spaced")
    await create_topic(backend, f"{space}%{topic}", 1)
    inbox: list[ReceivedMessage] = []
    settings = ClientSettings(namesrv=backend.namesrv, namespace=space)
    consumer = PushConsumer(group, settings=settings, start="first")

    @consumer.handler(topic)
    async def twice(message: ReceivedMessage) -> Later | None:
        inbox.append(message)
        return None if message.reconsume_times else Later(delay_level=1)

    async with Producer(group, settings=settings) as producer, consumer:
        await producer.send(topic, b"hello")
        await eventually(lambda: len(inbox) == 2, "the message again")
        assert [each.topic for each in inbox] == [topic, topic]
        assert Queue(f"{space}%{topic}", inbox[0].broker_name, 0) in consumer.assignment
    async with LitePullConsumer(backend.name("lite"), settings=settings, start="first") as lite:
        await lite.assign(await lite.queues(topic))
        assert [each.text for each in await lite.poll(20_000)] == ["hello"]


# -- traced ----------------------------------------------------------------------------------------


async def consume_by_handler(settings: ClientSettings, topic: str) -> None:
    seen: list[str] = []
    consumer = PushConsumer(topic, settings=settings, start="first")
    consumer.subscribe(topic, lambda message: seen.append(message.text))
    async with consumer:
        await eventually(lambda: seen == ["look"], "the message")


async def consume_by_lite_pull(settings: ClientSettings, topic: str) -> None:
    async with LitePullConsumer(topic, settings=settings, start="first") as lite:
        await lite.subscribe(topic)
        assert len(await lite.poll(DEADLINE_S * 1000)) == 1


async def consume_by_stream(settings: ClientSettings, topic: str) -> None:
    stream = PushConsumer(topic, settings=settings, start="first")
    stream.subscribe(topic)
    async with stream:
        await stream.ack(await asyncio.wait_for(anext(aiter(stream)), DEADLINE_S))


@pytest.mark.parametrize("consume", [consume_by_handler, consume_by_lite_pull, consume_by_stream])
async def test_consumers_are_traced(
    backend: Backend, consume: Callable[[ClientSettings, str], Coroutine[Any, Any, None]]
) -> None:
    topic, key = backend.name("traced"), backend.name("key")
    await create_topic(backend, topic, 1)
    async with Producer("traced", namesrv=backend.namesrv) as producer:
        await producer.send(topic, b"look", keys=key)
    await consume(ClientSettings(namesrv=backend.namesrv, trace=True), topic)

    async def read_traces() -> list[str]:
        stored = await backend.stored(TRACE_TOPIC)
        entries = [each for message in stored for each in message.body.decode().split("\x02")]
        return [entry.split("\x01")[0] for entry in entries if key in entry]

    found = await until(read_traces, lambda found: len(found) >= 2)
    assert sorted(found) == ["SubAfter", "SubBefore"]
