"""Groups with our consumers and stock Java consumers: both allocate queues alike."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.support.apache.backends import Backend
from tests.support.apache.servers import Shell, java_shells
from tests.support.brokers import eventually
from tests.support.gate import EACH_VERSION
from tianzhou.client import Producer, PushConsumer, Queue, ReceivedMessage
from tianzhou.client.group.rebalance import (
    STRATEGIES,
    Allocate,
    averagely,
    by_machine_room,
    machine_room_nearby,
    shares,
)
from tianzhou.client.queues import java_order, java_text

pytestmark = pytest.mark.apache

Shells = Callable[[str], Shell]

ALLOCATIONS: dict[str, Allocate] = {
    **STRATEGIES,
    "by_machine_room": by_machine_room(["r1"]),
    "machine_room_nearby": machine_room_nearby(
        averagely,
        lambda queue: f"room{len(queue.broker_name.encode('utf-16-le')) // 2 % 3}",
        lambda client_id: f"room{len(client_id.encode('utf-16-le')) // 2 % 3}",
    ),
}


@pytest.fixture(scope="module")
def mixed_shells(apache: None) -> Iterator[Shells]:
    """Stock consumers of a version, in a JVM that is started on first use."""
    with java_shells("MixedShell") as shell:
        yield shell


# -- allocation ------------------------------------------------------------------------------------


def random_name(dice: random.Random) -> str:
    letters = "ab9@#-_%\u00e9\u4e2d\ufffd\U0001f600"
    return "".join(dice.choice(letters) for _ in range(dice.randint(1, 6)))


@pytest.mark.parametrize("version", EACH_VERSION)
@pytest.mark.parametrize("name", ALLOCATIONS)
def test_allocation_equals_that_of_java(name: str, version: str, mixed_shells: Shells) -> None:
    dice = random.Random(name)
    for _ in range(40):
        brokers = [random_name(dice) for _ in range(dice.randint(1, 4))] + ["r1@x", "r2@x"]
        queues = java_order(
            {Queue("t", dice.choice(brokers), dice.randint(0, 15)) for _ in range(25)}
        )
        ids = sorted({random_name(dice) for _ in range(dice.randint(1, 9))}, key=java_text)
        java = mixed_shells(version).ask(
            "allocate", strategy=name, queues=[list(each) for each in queues], ids=ids
        )
        ours = [
            sorted(
                queues.index(queue) for queue in shares(ALLOCATIONS[name], "g", each, queues, ids)
            )
            for each in ids
        ]
        assert ours == [sorted(share) for share in java], (queues, ids)


# -- one group -------------------------------------------------------------------------------------


def java_version(backend: Backend) -> str:
    """Stock clients of the broker's version; ours is consumed with 5.x."""
    return "5.5.0" if backend.is_ours else backend.kind


async def new_topic(backend: Backend) -> tuple[str, int]:
    """A topic with one message in each queue, and how many queues it has."""
    topic = backend.name("mixed")
    async with Producer("mixed-producers", namesrv=backend.namesrv) as producer:
        await producer.send(topic, b"first")
        queues = await producer.queues(topic)
    await backend.await_stored(topic, 1)
    return topic, len(queues)


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrently", "ordered"])
async def test_java_and_our_consumers_share_a_group(
    ordered: bool, backend: Backend, mixed_shells: Shells
) -> None:
    java = mixed_shells(java_version(backend))
    topic, queue_count = await new_topic(backend)
    group, name = backend.name("mixed-group"), backend.name("java")
    seen: list[tuple[int, str]] = []
    sent: list[str] = ["first"]
    consumer = PushConsumer(group, namesrv=backend.namesrv, start="first", ordered=ordered)

    @consumer.handler(topic)
    async def keep(message: ReceivedMessage) -> None:
        seen.append((message.queue_id, message.text))

    def ours() -> list[int]:
        return sorted(queue.queue_id for queue in consumer.assignment if queue.topic == topic)

    def theirs() -> list[int]:
        found: list[int] = java.ask("queues", name=name, topic=topic)
        return found

    def consumed() -> Counter[str]:
        return Counter([text for _, text in seen] + [each["body"] for each in java.consumed(name)])

    async def send(count: int) -> None:
        async with Producer("mixed-producers", namesrv=backend.namesrv) as producer:
            queues = await producer.queues(topic)
            for number in range(len(sent), len(sent) + count):
                queue = queues[number % len(queues)]
                await producer.send(topic, f"m{number}", queue=queue)
                sent.append(f"m{number}")

    async with consumer:
        await eventually(lambda: ours() == list(range(queue_count)), "all queues for us")
        java_id: str = java.ask(
            "start_consumer", name=name, namesrv=backend.namesrv, group=group, topic=topic,
            ordered=ordered, strategy="averagely",
        )  # fmt: skip
        half = queue_count // 2
        await eventually(
            lambda: len(ours()) == half and sorted(ours() + theirs()) == list(range(queue_count)),
            "half of the queues each",
        )
        assert (consumer.client_id < java_id) == (ours()[0] == 0)
        await send(20)
        await eventually(lambda: set(consumed()) == set(sent), "all messages at both")
        assert java.consumed(name)
        java.ask("stop_consumer", name=name)
        await eventually(lambda: ours() == list(range(queue_count)), "all queues for us again")
        await send(8)
        await eventually(lambda: set(consumed()) == set(sent), "the rest with us")
    for queue_id in range(queue_count if ordered else 0):
        own = [int(text[1:]) for queue, text in seen if queue == queue_id and text != "first"]
        assert own == sorted(own)


async def test_java_continues_at_our_offsets(backend: Backend, mixed_shells: Shells) -> None:
    java = mixed_shells(java_version(backend))
    topic, queue_count = await new_topic(backend)
    group, name = backend.name("mixed-group"), backend.name("java")
    java.ask(
        "start_consumer", name=name, namesrv=backend.namesrv, group=group, topic=topic,
        ordered=True, strategy="averagely_by_circle",
    )  # fmt: skip

    def theirs() -> list[int]:
        found: list[int] = java.ask("queues", name=name, topic=topic)
        return found

    seen: list[str] = []
    try:
        await eventually(lambda: theirs() == list(range(queue_count)), "all queues for Java")
        consumer = PushConsumer(
            group,
            namesrv=backend.namesrv,
            start="first",
            ordered=True,
            allocate="averagely_by_circle",
        )
        consumer.subscribe(topic, lambda message: seen.append(message.text))
        async with consumer:
            await eventually(
                lambda: len(theirs()) == queue_count // 2 == len(consumer.assignment) - 1,
                "half of the queues each, and the retry topic's",
            )
        await eventually(lambda: theirs() == list(range(queue_count)), "all queues for Java again")
        async with Producer("mixed-producers", namesrv=backend.namesrv) as producer:
            for queue in await producer.queues(topic):
                await producer.send(topic, f"to {queue.queue_id}", queue=queue)
        expected = {f"to {queue_id}" for queue_id in range(queue_count)}
        await eventually(
            lambda: expected <= {each["body"] for each in java.consumed(name)}, "all with Java"
        )
    finally:
        java.ask("stop_consumer", name=name)


async def test_mqadmin_sees_our_consumer(backend: Backend, shells: Callable[[str], Shell]) -> None:
    topic, queue_count = await new_topic(backend)
    group = backend.name("seen-group")
    seen: list[str] = []
    consumer = PushConsumer(group, namesrv=backend.namesrv, start="first", persist_offsets_ms=100)
    consumer.subscribe(topic, lambda message: seen.append(message.text))
    async with consumer:
        await eventually(lambda: seen == ["first"], "the message")
        await eventually(
            lambda: sum(queue.topic == topic for queue in consumer.assignment) == queue_count,
            "all queues",
        )
        tool = shells(java_version(backend))

        def ask(*arguments: str) -> str:
            return tool.mqadmin(backend.namesrv, *arguments, "-g", group)

        connections = await asyncio.to_thread(ask, "consumerConnection")
        assert consumer.client_id in connections
        assert "PYTHON" in connections
        status = await asyncio.to_thread(ask, "consumerStatus")
        assert consumer.client_id in status
        details = await asyncio.to_thread(ask, "consumerStatus", "-i", consumer.client_id)
        assert details.count(topic) > queue_count, details
        assert "PROP_CONSUME_TYPE" in details
