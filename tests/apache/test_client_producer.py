"""The producers of our client against our broker and Apache's: one set of tests for all."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.apache.backends import Backend, until
from tianzhou.client import (
    ClientSettings,
    Credentials,
    Message,
    Producer,
    Queue,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionState,
    by_hash,
)
from tianzhou.client.connection import shared_hubs
from tianzhou.errors import BrokerError, ReplyTimeout, RouteNotFound
from tianzhou.message import StoredMessage
from tianzhou.names import TRACE_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command, HeaderEncoding
from tianzhou.protocol.records.compression import CompressionType, plain_body


@pytest.fixture
async def producer(backend: Backend) -> AsyncIterator[Producer]:
    async with Producer(backend.name("senders"), namesrv=backend.namesrv) as it:
        yield it


def bodies(found: list[StoredMessage]) -> list[bytes]:
    return sorted(message.body for message in found)


# -- sending ---------------------------------------------------------------------------------------


async def test_send_creates_the_topic_and_returns_the_queue(
    backend: Backend, producer: Producer
) -> None:
    topic = backend.name("Created")
    result = await producer.send(
        topic, b"hello", tags="blue", keys=("4711", "4712"), properties={"colour": "sky"}, flag=7
    )
    assert result.status is SendStatus.SEND_OK
    (stored,) = await backend.await_stored(topic, 1)
    received = ReceivedMessage(stored, broker_name=result.queue.broker_name)
    assert (received.body, received.text, received.flag) == (b"hello", "hello", 7)
    assert (received.tags, received.keys, received.key) == ("blue", ("4711", "4712"), "4711")
    assert received.properties["colour"] == "sky"
    assert received.msg_id == result.msg_id == stored.properties[properties.UNIQUE_KEY]
    assert received.offset_msg_id == result.offset_msg_id
    assert received.queue == result.queue
    assert received.queue_offset == result.queue_offset == 0
    assert abs(received.born_time - datetime.now(UTC)) < timedelta(minutes=5)


async def test_binary_headers(backend: Backend) -> None:
    topic = backend.name("Binary")
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, header_encoding=HeaderEncoding.ROCKETMQ
    ) as producer:
        result = await producer.send(topic, b"binary", keys="k")
    assert result.status is SendStatus.SEND_OK
    assert bodies(await backend.await_stored(topic, 1)) == [b"binary"]


async def test_queues_are_used_round_robin(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Turns")
    await producer.send(topic, b"first")
    queues = await producer.queues(topic)
    results = [await producer.send(topic, b"next") for _ in range(2 * len(queues))]
    counts = [sum(result.queue == queue for result in results) for queue in queues]
    assert counts == [2] * len(queues)


async def test_chosen_queue_and_selector(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Chosen")
    await producer.send(topic, b"first")
    queues = await producer.queues(topic)
    for queue in queues:
        assert (await producer.send(topic, b"there", queue=queue)).queue == queue
    picked = await producer.send(topic, b"by hash", select=by_hash("order-1"))
    assert picked.queue == by_hash("order-1")(queues, Message(topic, b""))
    nowhere = Queue(topic, queues[0].broker_name, 99)
    with pytest.raises(BrokerError) as refused:
        await producer.send(topic, b"nowhere", queue=nowhere)
    assert topic in str(refused.value)


async def test_ordered_by_shard(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Ordered")
    for number in range(20):
        shard = f"order-{number % 3}"
        await producer.send_ordered(Message(topic, f"{number}", shard=shard))
    by_shard: dict[str, list[tuple[int, int]]] = {}
    for message in await backend.await_stored(topic, 20):
        shard = message.properties[properties.SHARDING_KEY]
        by_shard.setdefault(shard, []).append((message.queue_id, int(message.body)))
    for sent_in_shard in by_shard.values():
        assert len({queue_id for queue_id, _ in sent_in_shard}) == 1
        assert [number for _, number in sent_in_shard] == sorted(
            number for _, number in sent_in_shard
        )


async def test_oneway(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Oneway")
    await producer.oneway(Message(topic, b"gone"))
    assert bodies(await backend.await_stored(topic, 1)) == [b"gone"]


async def test_in_flight(backend: Backend) -> None:
    topic = backend.name("InFlight")
    callbacks: list[str] = []
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, in_flight_count=16, send_timeout_ms=20_000
    ) as producer:
        await producer.send(topic, b"0")
        futures = [
            await producer.submit(
                Message(topic, f"{number}"),
                on_done=lambda result, error: callbacks.append(
                    result.msg_id if result else str(error)
                ),
            )
            for number in range(1, 200)
        ]
        results = await asyncio.gather(*futures)
    assert sorted(callbacks) == sorted(result.msg_id for result in results)
    found = await backend.await_stored(topic, 200)
    assert sorted(int(message.body) for message in found) == list(range(200))


# -- batches ---------------------------------------------------------------------------------------


async def test_send_many_splits_batches_in_order(backend: Backend) -> None:
    topic = backend.name("Many")
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, batch_bytes=4_000
    ) as producer:
        messages = [Message(topic, f"{number:04}" * 20, keys=f"k{number}") for number in range(100)]
        results = await producer.send_many(messages)
    assert len({(each.queue, each.queue_offset) for each in results}) == 100
    assert len({each.offset_msg_id for each in results}) == 100
    stored = {
        message.properties[properties.UNIQUE_KEY]: message
        for message in await backend.await_stored(topic, 100)
    }
    for message, result in zip(messages, results, strict=True):
        found = stored[result.msg_id]
        assert found.body == message.payload
        assert (found.queue_id, found.queue_offset) == (result.queue.queue_id, result.queue_offset)
        assert ReceivedMessage(found).offset_msg_id == result.offset_msg_id


async def test_linger_batches_have_a_future_per_message(backend: Backend) -> None:
    topic = backend.name("Linger")
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, linger_ms=20, send_timeout_ms=20_000
    ) as producer:
        await producer.send(topic, b"0")
        results = await asyncio.gather(
            *(producer.send(Message(topic, f"{number}")) for number in range(1, 50))
        )
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset - results[0].queue_offset for result in results] == [*range(49)]
    found = await backend.await_stored(topic, 50)
    by_id = {message.properties[properties.UNIQUE_KEY]: message.body for message in found}
    assert [by_id[result.msg_id] for result in results] == [
        f"{number}".encode() for number in range(1, 50)
    ]


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CompressionType)
async def test_compressed(backend: Backend, kind: CompressionType) -> None:
    topic = backend.name("Packed")
    text = "long enough to be packed. " * 400
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, compression=kind
    ) as producer:
        await producer.send(topic, text)
    (stored,) = await backend.await_stored(topic, 1)
    assert len(stored.body) < len(text)
    assert plain_body(stored.body, stored.sys_flag, 1 << 20) == text.encode()
    assert ReceivedMessage(stored).text == text


async def test_json(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Json")
    await producer.send(Message.json(topic, {"amount": 12, "currency": "EUR"}, keys="o-1"))
    (stored,) = await backend.await_stored(topic, 1)
    assert ReceivedMessage(stored).json() == json.loads(stored.body)
    assert ReceivedMessage(stored).as_(dict[str, str | int])["amount"] == 12


async def test_namespace(backend: Backend) -> None:
    topic = backend.name("Spaced")
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, namespace="tenant"
    ) as producer:
        result = await producer.send(topic, b"inside")
        assert result.queue.topic == topic
    (stored,) = await backend.await_stored(f"tenant%{topic}", 1)
    received = ReceivedMessage(stored, namespace="tenant")
    assert (stored.topic, received.topic) == (f"tenant%{topic}", topic)
    assert stored.properties[properties.INSTANCE_ID] == "tenant"


async def test_broker_rejects_a_large_body(backend: Backend) -> None:
    topic = backend.name("Large")
    async with Producer(
        backend.name("senders"), namesrv=backend.namesrv, message_bytes_max=9 << 20,
        compress_over_bytes=64 << 20,
    ) as producer:  # fmt: skip
        await producer.send(topic, b"small")
        with pytest.raises(BrokerError) as refused:
            await producer.send(topic, bytes(8 << 20))
    assert not refused.value.retriable
    assert topic in str(refused.value)


# -- delays ----------------------------------------------------------------------------------------


async def test_delay_level(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Level")
    await producer.send(topic, b"now")
    await producer.send(topic, b"later", delay_level=1)
    found = {m.body: m.store_time_ms - m.born_time_ms for m in await backend.await_stored(topic, 2)}
    assert found[b"later"] >= 900


@pytest.mark.parametrize("how", ["delay", "deliver_at"])
async def test_arbitrary_delay(backend: Backend, producer: Producer, how: str) -> None:
    """4.9 has no timers: it stores the message immediately, as docs/client.md says."""
    topic = backend.name("Timer")
    await producer.send(topic, b"now")
    # If it is stored immediately, it is visible long before its delivery time.
    delay = timedelta(seconds=2.5 if backend.has_timers else 3_600)
    due = datetime.now(UTC) + delay
    message = (
        Message(topic, b"later", delay=delay.total_seconds())
        if how == "delay"
        else Message(topic, b"later", deliver_at=due)
    )
    await producer.send(message)
    found = {m.body: m.store_time_ms for m in await backend.await_stored(topic, 2)}
    # Apache's timers have a resolution of one second.
    is_late = found[b"later"] >= due.timestamp() * 1000 - 1_100
    assert is_late is backend.has_timers


async def test_recall(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Recalled")
    await producer.send(topic, b"now")
    if not backend.has_timers:
        at_once = await producer.send(topic, b"kept", delay=4)
        assert at_once.recall_handle is None
        return
    recalled = await producer.send(topic, b"recalled", delay=6)
    kept = await producer.send(topic, b"kept", delay=7)
    assert recalled.recall_handle is not None
    assert await producer.recall(topic, recalled.recall_handle) == recalled.msg_id
    found = await backend.await_stored(topic, 2)
    assert {message.body for message in found} == {b"now", b"kept"}
    assert kept.msg_id in {message.properties[properties.UNIQUE_KEY] for message in found}


# -- transactions ----------------------------------------------------------------------------------


class Books:
    """A listener that decides by the body, and records its calls."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.checked: list[str] = []

    async def execute(self, message: Message, transaction_id: str) -> TransactionState:
        self.executed.append(transaction_id)
        if message.payload.startswith(b"raise"):
            raise RuntimeError("the local work failed")
        return _state(message.payload)

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.checked.append(message.msg_id)
        return _state(message.body.removeprefix(b"open ").removeprefix(b"raise "))


def _state(body: bytes) -> TransactionState:
    for state in TransactionState:
        if body.startswith(state.name.lower().encode()):
            return state
    return TransactionState.UNKNOWN


async def test_transactions_end_as_the_local_transaction(backend: Backend) -> None:
    topic = backend.name("Transactions")
    books = Books()
    async with TransactionProducer(
        backend.name("books"), books, namesrv=backend.namesrv
    ) as producer:
        await producer.send(topic, b"plain")
        committed = await producer.send_in_transaction(Message(topic, b"commit", keys="tx"))
        rolled_back = await producer.send_in_transaction(Message(topic, b"rollback"))
        assert committed.state is TransactionState.COMMIT
        assert rolled_back.state is TransactionState.ROLLBACK
        await backend.await_bodies(topic, {b"commit", b"plain"})
        found = await backend.stored(topic)
    assert books.executed == [committed.sent.msg_id, rolled_back.sent.msg_id]
    ids = {message.properties[properties.UNIQUE_KEY] for message in found}
    assert committed.sent.msg_id in ids


async def test_open_transactions_are_checked(backend: Backend) -> None:
    topic = backend.name("Checked")
    books = Books()
    async with TransactionProducer(
        backend.name("books"), books, namesrv=backend.namesrv
    ) as producer:
        await producer.send(topic, b"plain")
        opened = await producer.send_in_transaction(Message(topic, b"open commit"))
        failed = await producer.send_in_transaction(Message(topic, b"raise commit"))
        dropped = await producer.send_in_transaction(Message(topic, b"open rollback"))
        assert {opened.state, failed.state, dropped.state} == {TransactionState.UNKNOWN}
        await backend.await_bodies(topic, {b"open commit", b"plain", b"raise commit"})

        async def checked() -> list[str]:
            return books.checked

        await until(checked, lambda seen: dropped.sent.msg_id in seen)
    await backend.await_bodies(topic, {b"open commit", b"plain", b"raise commit"})


async def test_transaction_as_a_block(backend: Backend) -> None:
    topic = backend.name("Block")
    async with TransactionProducer(
        backend.name("books"), Books(), namesrv=backend.namesrv
    ) as producer:
        await producer.send(topic, b"plain")
        async with producer.transaction(Message(topic, b"done")) as transaction:
            assert transaction.id == transaction.sent.msg_id
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(topic, b"rollback, it failed")):
                raise ZeroDivisionError
        await backend.await_bodies(topic, {b"done", b"plain"})


# -- request and reply -----------------------------------------------------------------------------


async def test_request_and_reply(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Questions")
    first = await producer.send(topic, b"not a question")
    asked = asyncio.create_task(
        producer.request(Message(topic, b"6 x 7?", keys="q"), timeout_ms=60_000)
    )
    found = await backend.await_stored(topic, 2)
    question = ReceivedMessage(
        next(m for m in found if m.body == b"6 x 7?"), broker_name=first.queue.broker_name
    )
    async with Producer(backend.name("answers"), namesrv=backend.namesrv) as answering:
        await answering.reply(question, "42", properties={"sure": "yes"})
        answer = await asked
    assert (answer.text, answer.properties["sure"]) == ("42", "yes")


async def test_request_without_reply(backend: Backend, producer: Producer) -> None:
    topic = backend.name("Unanswered")
    await producer.send(topic, b"first")
    with pytest.raises(ReplyTimeout) as late:
        await producer.request(Message(topic, b"anybody?"), timeout_ms=3_000)
    assert late.value.retriable
    assert topic in str(late.value)


# -- stale routes ----------------------------------------------------------------------------------


async def create_topic(
    backend: Backend,
    topic: str,
    queue_count: int,
    attributes: str = "",
    credentials: Credentials | None = None,
) -> None:
    """As operators do, without notice to producers."""
    settings = ClientSettings(
        namesrv=backend.namesrv, instance_name="operator", credentials=credentials
    )
    own = shared_hubs.acquire(settings)
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false", "attributes": attributes,
    }  # fmt: skip
    try:
        await own.routes.get("TBW102")
        (address,) = own.routes.topic_addresses("TBW102")
        await own.call(
            address, Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        )

        async def queue_ids() -> list[int]:
            try:
                route = await own.routes.get(topic, refresh=True)
            except RouteNotFound:
                return []
            return [queue.queue_id for queue in route.writable]

        await until(queue_ids, lambda found: found == list(range(queue_count)))
    finally:
        await own.release()


_shards = itertools.count()


async def send_by(way: str, producer: Producer, topic: str) -> int:
    """The queue of the message."""
    if way == "send":
        return (await producer.send(topic, b"x")).queue.queue_id
    if way == "ordered":
        message = Message(topic, b"x", shard=f"{next(_shards)}")
        return (await producer.send_ordered(message)).queue.queue_id
    if way == "submit":
        return (await (await producer.submit(Message(topic, b"x")))).queue.queue_id
    results = await producer.send_many([Message(topic, b"x"), Message(topic, b"y")])
    return results[1].queue.queue_id


@pytest.mark.parametrize("way", ["send", "submit", "send_many", "ordered"])
async def test_sends_succeed_after_the_number_of_queues_is_reduced(
    backend: Backend, way: str
) -> None:
    topic = backend.name("Fewer")
    async with Producer(backend.name("old"), namesrv=backend.namesrv, retry_count=0) as producer:
        # First the topic's template has more queues than the topic, then the topic had more before.
        for known_count, count in ((4, 2), (2, 1)):
            assert len(await producer.queues(topic)) == known_count
            await create_topic(backend, topic, count)
            used = {await send_by(way, producer, topic) for _ in range(known_count)}
            assert used == set(range(count))


# -- trace -----------------------------------------------------------------------------------------


async def test_trace(backend: Backend) -> None:
    topic = backend.name("Traced")
    group = backend.name("traced")
    async with TransactionProducer(group, Books(), namesrv=backend.namesrv, trace=True) as producer:
        plain = await producer.send(topic, b"plain", keys=("k1", "k2"), tags="blue")
        many = await producer.send_many([Message(topic, b"1"), Message(topic, b"2")])
        half = await producer.send_in_transaction(Message(topic, b"commit"))
    wanted = {plain.msg_id, half.sent.msg_id, *(result.msg_id for result in many)}

    async def read_traces() -> dict[str, list[str]]:
        return _trace_of(await backend.stored(TRACE_TOPIC), group)

    found = await until(
        read_traces, lambda seen: set(seen) == wanted and len(seen[half.sent.msg_id]) == 2
    )
    kind, began_ms, region, _, of, msg_id, tags, keys, host, size, cost, number, offset_id, ok = (
        found[plain.msg_id][0].split("\x01")
    )
    assert (kind, region, of, msg_id) == ("Pub", plain.region_id, topic, plain.msg_id)
    assert (tags, keys, size, number, ok) == ("blue", "k1 k2", "5", "0", "true")
    assert offset_id == plain.offset_msg_id
    assert abs(int(began_ms) - time.time() * 1000) < 300_000
    assert int(cost) >= 0
    assert ":" in host
    ended = sorted(found[half.sent.msg_id])
    assert [each.split("\x01")[0] for each in ended] == ["EndTransaction", "Pub"]
    assert ended[0].split("\x01")[-2:] == ["COMMIT_MESSAGE", "false"]


def _trace_of(stored: list[StoredMessage], group: str) -> dict[str, list[str]]:
    """The trace entries of a group, by message id."""
    found: dict[str, list[str]] = {}
    for message in stored:
        for entry in message.body.decode().split("\x02"):
            fields = entry.split("\x01")
            if len(fields) > 5 and fields[3] == group:
                assert fields[5] in message.properties[properties.KEYS].split()
                found.setdefault(fields[5], []).append(entry)
    return found
