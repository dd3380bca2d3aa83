"""Selectors with `submit` and `send_many`."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tianzhou.client import Message, Producer, Queue, QueueReader, SendResult, by_shard, sync
from tianzhou.client.producer.selectors import Selector
from tianzhou.errors import BrokerError, MessageRefused, SendManyError
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as it:
        yield it


def last_queue(queues: "list[Queue] | tuple[Queue, ...]", _: Message) -> Queue:
    return queues[-1]


LAST: Selector = last_queue  # type: ignore[assignment]  # gets lists and tuples alike


async def texts_of(cluster: Cluster, queue: Queue) -> list[str]:
    async with QueueReader("g", namesrv=cluster.namesrv_address) as reader:
        found: list[str] = []
        while len(found) < await reader.max_offset(queue):
            found += [each.text for each in (await reader.pull(queue, len(found))).messages]
        return found


async def test_submit_sends_to_the_chosen_queue(cluster: Cluster) -> None:
    cluster.create_topic("submitted", 4)
    told: list[SendResult | None] = []
    async with Producer("g", namesrv=cluster.namesrv_address) as producer:
        queues = await producer.queues("submitted")
        assert len(queues) == 8
        for queue in queues:
            future = await producer.submit(
                Message("submitted", b"x"), queue=queue, on_done=lambda it, _: told.append(it)
            )
            assert (await future).queue == queue
        ordered = [
            await producer.submit(Message("submitted", b"x", shard="4711"), select=by_shard)
            for _ in range(10)
        ]
        chosen = {result.queue for result in await asyncio.gather(*ordered)}
        assert chosen == {by_shard(queues, Message("submitted", b"", shard="4711"))}
        with pytest.raises(MessageRefused, match="belongs to topic other"):
            await producer.submit(Message("submitted", b"x"), queue=Queue("other", "broker-0", 0))
    assert [result.queue for result in told if result is not None] == list(queues)


async def test_send_many_keeps_the_order_within_chosen_queues(
    cluster: Cluster,
) -> None:
    cluster.create_topic("many", 2)
    async with Producer("g", namesrv=cluster.namesrv_address, batch_count=3) as producer:
        queues = await producer.queues("many")
        await producer.send_many([Message("many", f"{n}") for n in range(20)], queue=queues[0])
        assert await texts_of(cluster, queues[0]) == [f"{n}" for n in range(20)]
        mixed = [Message("many", f"{n % 3} {n}", shard=f"{n % 3}") for n in range(30)]
        results = await producer.send_many(mixed, select=by_shard)
    for message, result in zip(mixed, results, strict=True):
        assert result.queue == by_shard(queues, message)
        assert (await texts_of(cluster, result.queue))[
            result.queue_offset
        ] == message.payload.decode()
    for shard in ("0", "1", "2"):
        offsets = [
            result.queue_offset
            for message, result in zip(mixed, results, strict=True)
            if message.shard == shard
        ]
        assert offsets == sorted(offsets)


async def test_selector_is_called_again_after_queues_were_removed(cluster: Cluster) -> None:
    cluster.create_topic("shrunk", 4)
    async with Producer("g", namesrv=cluster.namesrv_address) as producer:
        assert (await producer.send("shrunk", b"x", select=LAST)).queue.queue_id == 3
        gone = Queue("shrunk", "broker-1", 3)
        cluster.create_topic("shrunk", 2)
        result = await (await producer.submit(Message("shrunk", b"x"), select=LAST))
        assert result.queue.queue_id == 1
        # What the program itself named is not exchanged for another.
        future = await producer.submit(Message("shrunk", b"x"), queue=gone)
        with pytest.raises(BrokerError):
            await future
        with pytest.raises(SendManyError, match="2 of 2 messages"):
            await producer.send_many([Message("shrunk", b"x") for _ in range(2)], queue=gone)
    async with Producer("g", namesrv=cluster.namesrv_address) as producer:
        assert len(await producer.queues("shrunk")) == 4
        cluster.create_topic("shrunk", 1)
        many = [Message("shrunk", f"{n}") for n in range(5)]
        results = await producer.send_many(many, select=LAST)
        assert {result.queue.queue_id for result in results} == {0}


def test_blocking_producer_supports_selectors(cluster: Cluster) -> None:
    cluster.create_topic("blocking", 2)
    with sync.Producer("g", namesrv=cluster.namesrv_address) as producer:
        queue = producer.queues("blocking")[1]
        assert producer.submit(Message("blocking", b"x"), queue=queue).result().queue == queue
        assert producer.submit(Message("blocking", b"x"), select=LAST).result().queue.queue_id == 1
        results = producer.send_many([Message("blocking", b"x") for _ in range(3)], queue=queue)
        assert {result.queue for result in results} == {queue}
        soon = datetime.now(UTC) + timedelta(days=1)
        producer.send("blocking", b"x", deliver_at=soon, queue=queue)
        producer.send("blocking", b"x", delay=timedelta(days=1), queue=queue)
