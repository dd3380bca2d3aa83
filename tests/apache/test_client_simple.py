"""Our simple consumer with our broker and with Apache's: the same functions run against both.

4.9 does not support pop, and the error must say so. Time is real here, so tests wait.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.apache.test_client_consumer import broker_of
from tests.support.apache.backends import OURS, Backend
from tests.support.apache.consumer_scenarios import Site
from tests.support.brokers import DEADLINE_S, eventually, peer_of
from tianzhou.client import PoppedMessage, SimpleConsumer
from tianzhou.errors import BrokerError, ClientClosed, HandleExpired

Scenario = Callable[[Site], Awaitable[None]]

INVISIBLE_S = 2
LONG_S = 600
CAN_POP = [OURS, pytest.param("5.5.0", marks=pytest.mark.apache)]


@asynccontextmanager
async def consuming(site: Site, group: str, *topics: str) -> AsyncGenerator[SimpleConsumer]:
    async with SimpleConsumer(group, namesrv=site.namesrv, start="first") as consumer:
        for topic in topics:
            await consumer.subscribe(topic)
        yield consumer


def texts(messages: list[PoppedMessage]) -> list[str]:
    return [each.text for each in messages]


async def received(
    consumer: SimpleConsumer, count: int, invisible_s: float = LONG_S
) -> list[PoppedMessage]:
    """Receive `count` messages."""
    found: list[PoppedMessage] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.receive(invisible=invisible_s)
    return found


async def until_committed(site: Site, group: str, topic: str, offsets: list[int]) -> None:
    """Apache's brokers commit acknowledged messages with a delay."""

    async def is_committed() -> bool:
        return await site.committed(group, topic, len(offsets)) == offsets

    await eventually(is_committed, f"{offsets} committed")


async def consumers_share_one_queue(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    sent = await site.send(topic, 60, queues=1)
    seen: list[list[str]] = []

    async def work() -> None:
        own: list[str] = []
        seen.append(own)
        async with consuming(site, group, topic) as consumer:
            while sum(map(len, seen)) < len(sent):
                messages = await consumer.receive(2, invisible=LONG_S, wait=0.5)
                own += texts(messages)
                await consumer.ack_many(messages)

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(work() for _ in range(3)))
    assert Counter(text for own in seen for text in own) == Counter(sent)
    await until_committed(site, group, topic, [60])


async def until_expired(consumer: SimpleConsumer, message: PoppedMessage) -> None:
    """A handle is refused, at the latest when the copy that is redelivered is on disk."""
    for _ in range(100):
        try:
            await consumer.ack(message)
        except HandleExpired:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the handle stays valid after the message was redelivered")


async def what_is_not_acknowledged_comes_again(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    await site.send_one(topic, "forgotten", UNIQ_KEY="7F" * 16)
    await site.send_one(topic, "done")
    async with consuming(site, group, topic) as first, consuming(site, group, topic) as second:
        found = {each.text: each for each in await received(first, 2, INVISIBLE_S)}
        await first.ack(found["done"])
        (again,) = await received(second, 1)
        assert (again.text, again.topic, again.reconsume_times) == ("forgotten", topic, 1)
        assert again.msg_id == found["forgotten"].msg_id
        assert again.handle != found["forgotten"].handle
        await until_expired(first, found["forgotten"])
        await second.ack_many([again])
        await until_committed(site, group, topic, [2])
        await until_committed(site, group, f"%RETRY%{group}_{topic}", [1])


async def another_time_gives_another_handle(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    await site.send_one(topic, "longer")
    await site.send_one(topic, "given back")
    async with consuming(site, group, topic) as consumer:
        found = {each.text: each for each in await received(consumer, 2, INVISIBLE_S)}
        longer, given = found["longer"], found["given back"]
        old = longer.handle
        assert await consumer.change_invisible(longer, LONG_S) == longer.handle != old
        await consumer.change_invisible(given, 0)
        (again,) = await received(consumer, 1)
        assert (again.text, again.reconsume_times) == ("given back", 1)
        # The first invisible time of the other is over as well, and it was not redelivered.
        await consumer.ack_many([longer, again])
        await until_committed(site, group, topic, [2])


async def filters_and_topics(site: Site) -> None:
    tagged, asked, group = await site.topic(2), await site.topic(2), site.name("group")
    for tags in ("paid", "sent", "refunded"):
        await site.send_one(tagged, tags, TAGS=tags)
    for amount in ("5", "15"):
        await site.send_one(asked, amount, amount=amount)
    async with consuming(site, group) as consumer:
        await consumer.subscribe(tagged, tags="paid || refunded")
        await consumer.subscribe(asked, sql="amount > 10")
        found = await received(consumer, 3)
        assert sorted(texts(found)) == ["15", "paid", "refunded"]
        await consumer.ack_many(found)
        assert await consumer.receive(wait=0) == []


async def waiting_takes_any_topic_and_ends_with_the_consumer(site: Site) -> None:
    first, second, group = await site.topic(), await site.topic(), site.name("group")
    async with consuming(site, group, first, second) as consumer:
        for topic in (first, second, first):
            waiting = asyncio.create_task(consumer.receive(wait=LONG_S))
            await site.send_one(topic, f"for {topic}")
            async with asyncio.timeout(DEADLINE_S):
                (message,) = await waiting
            assert (message.text, message.topic) == (f"for {topic}", topic)
            await consumer.ack(message)
        waiting = asyncio.create_task(consumer.receive(wait=LONG_S))
    with pytest.raises(ClientClosed):
        await waiting


SCENARIOS: list[Scenario] = [
    consumers_share_one_queue,
    what_is_not_acknowledged_comes_again,
    another_time_gives_another_handle,
    filters_and_topics,
    waiting_takes_any_topic_and_ends_with_the_consumer,
]


@pytest.mark.parametrize("backend", CAN_POP, indirect=True)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_simple_consumer(scenario: Scenario, backend: Backend, tmp_path: Path) -> None:
    name, address = await broker_of(backend.namesrv)
    async with peer_of(address) as peer:
        await scenario(Site(backend.namesrv, peer, tmp_path, name))


@pytest.mark.parametrize(
    "backend", [pytest.param("4.9.7", marks=(pytest.mark.apache, pytest.mark.full))], indirect=True
)
async def test_broker_4_9_does_not_support_pop(backend: Backend, tmp_path: Path) -> None:
    name, address = await broker_of(backend.namesrv)
    async with peer_of(address) as peer:
        site = Site(backend.namesrv, peer, tmp_path, name)
        topic = await site.topic()
        async with consuming(site, site.name("group"), topic) as consumer:
            for wait_s in (0, LONG_S):
                with pytest.raises(BrokerError, match="does not support pop") as caught:
                    await consumer.receive(wait=wait_s)
                assert not caught.value.retriable
