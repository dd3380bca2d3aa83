"""The start offset of a new group, as documented in docs/client.md."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.support.brokers import eventually
from tests.support.command_line import Cli

from tianzhou.client import LitePullConsumer, Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.client.group.settings import Start
from tianzhou.testing import Cluster

OLD, NEW = [b"old 0", b"old 1"], b"new"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as it:
        yield it


async def received(cluster: Cluster, topic: str, start: Start) -> list[bytes]:
    """The messages that a group receives of two before its start and one after it."""
    got: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        got.append(message.body)

    consumer = PushConsumer(topic, namesrv=cluster.namesrv_address, start=start)
    consumer.subscribe(topic, take)
    async with Producer("p", namesrv=cluster.namesrv_address) as producer, consumer:
        await eventually(lambda: consumer.assignment, "a queue")
        await producer.send(Message(topic, NEW))
        await eventually(lambda: NEW in got, "the new message")
    return got


async def fill(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(cluster.create_topic, topic, 1)
    async with Producer("p", namesrv=cluster.namesrv_address) as producer:
        for body in OLD:
            await producer.send(topic, body)


@pytest.mark.parametrize("start", ["last", datetime.now(UTC)])
async def test_new_group_gets_all_messages_of_a_young_topic(cluster: Cluster, start: Start) -> None:
    topic = f"young-{type(start).__name__}"
    await fill(cluster, topic)
    assert sorted(await received(cluster, topic, start)) == sorted([*OLD, NEW])


async def test_group_begins_at_the_end_after_an_offset_reset(
    cluster: Cluster,
) -> None:
    await fill(cluster, "reset-first")
    cli = Cli(cluster.namesrv_address)
    words = ("offset", "reset", "reset-first", "reset-first", "--to", "latest", "--yes")
    await cli.run(*words)
    assert await received(cluster, "reset-first", "last") == [NEW]


async def test_a_lite_pull_consumer_seeks_to_the_end(cluster: Cluster) -> None:
    await fill(cluster, "sought")
    async with (
        Producer("p", namesrv=cluster.namesrv_address) as producer,
        LitePullConsumer("seeker", namesrv=cluster.namesrv_address) as consumer,
    ):
        queues = await consumer.queues("sought")
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_end(queue)
        await producer.send("sought", NEW)
        got: list[bytes] = []

        async def polled() -> list[bytes]:
            got.extend(message.body for message in await consumer.poll(timeout_ms=100))
            return got

        await eventually(polled, "the new message")
        assert got == [NEW]
