"""Request and reply: repliers, and late replies."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.brokers import eventually
from tests.support.command_line import run_words

from tianzhou.admin import Admin
from tianzhou.admin.topics import extents
from tianzhou.client import Message, Producer, PushConsumer, ReceivedMessage, Replier, sync
from tianzhou.errors import ConfigError, ReplyTimeout, RequestError
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.testing import Cluster

LONG_MS = 30_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as it:
        it.create_topic("questions", 1)
        it.create_topic("late", 1)
        it.create_topic("unheard", 1)
        it.create_topic("plain", 1)
        yield it


async def test_return_value_of_a_handler_is_the_reply(cluster: Cluster) -> None:
    namesrv = cluster.namesrv_address
    replier = Replier("answerers", namesrv=namesrv, start="first", persist_offsets_ms=100)

    @replier.handler("questions", tags="async")
    async def answer(message: ReceivedMessage) -> bytes:  # pyright: ignore[reportUnusedFunction] - called by the replier
        return message.body * 2

    async with replier, Producer("curious", namesrv=namesrv) as producer:
        asked = [Message("questions", f"{number}", tags="async") for number in range(4)]
        replies = await asyncio.gather(
            *(producer.request(each, timeout_ms=LONG_MS) for each in asked)
        )
        assert [reply.text for reply in replies] == ["00", "11", "22", "33"]


def test_blocking_replier(cluster: Cluster) -> None:
    namesrv = cluster.namesrv_address
    replier = sync.Replier("answerers-too", namesrv=namesrv, start="first", persist_offsets_ms=100)

    @replier.handler("questions", tags="sync")
    def answer(message: ReceivedMessage) -> str:  # pyright: ignore[reportUnusedFunction] - called by the replier
        return message.text.upper()

    with replier, sync.Producer("curious-too", namesrv=namesrv) as producer:
        message = Message("questions", "loud", tags="sync")
        assert producer.request(message, timeout_ms=LONG_MS).text == "LOUD"


async def test_late_reply_is_dropped_and_the_request_consumed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tianzhou.client")
    namesrv = cluster.namesrv_address
    calls: list[int] = []
    timed_out = asyncio.Event()
    replier = Replier("slow", namesrv=namesrv, start="first", persist_offsets_ms=100)

    @replier.handler("late")
    async def answer(message: ReceivedMessage) -> str:  # pyright: ignore[reportUnusedFunction] - called by the replier
        calls.append(message.reconsume_times)
        await timed_out.wait()
        return "too late"

    async with replier, Producer("hasty", namesrv=namesrv) as producer:
        with pytest.raises(ReplyTimeout):
            await producer.request(Message("late", b"?"), timeout_ms=400)
        await eventually(lambda: calls, "the request")
        timed_out.set()
        await eventually(
            lambda: "it arrived after the time-out of its request" in caplog.text, "a line"
        )
        await eventually(lambda: consumed(cluster, "slow", "late"), "progress")
    assert calls == [0]
    assert await sent_back_count(cluster) == 0


@pytest.mark.parametrize("by_producer", [False, True])
async def test_reply_to_a_closed_sender_is_dropped_and_the_request_consumed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, *, by_producer: bool
) -> None:
    namesrv = cluster.namesrv_address
    group = f"forsaken-{by_producer}"
    arrived, gone = asyncio.Event(), asyncio.Event()
    answering = Producer("answering", namesrv=namesrv, instance_name=group)

    async def answer(message: ReceivedMessage) -> str | None:
        if not message.text.endswith(group):
            return None
        arrived.set()
        await gone.wait()
        if not by_producer:
            return "to nobody"
        assert await answering.reply(message, "to nobody") is None
        return None

    kind = PushConsumer if by_producer else Replier
    consumer = kind(
        group, namesrv=namesrv, start="first", persist_offsets_ms=100, instance_name=group
    )
    consumer.subscribe("unheard", answer)
    async with answering, consumer:
        async with Producer("leaving", namesrv=namesrv, instance_name=f"l{group}") as producer:
            asking = asyncio.ensure_future(
                producer.request(Message("unheard", group), timeout_ms=LONG_MS)
            )
            await arrived.wait()
            asking.cancel()
            await asyncio.wait((asking,))
        gone.set()
        await eventually(lambda: "its sender stopped waiting" in caplog.text, "a line")
        await eventually(lambda: consumed(cluster, group, "unheard"), "progress")
    assert await sent_back_count(cluster) == 0


async def test_message_without_reply_address_is_consumed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    namesrv = cluster.namesrv_address
    replier = Replier("eager", namesrv=namesrv, start="first", persist_offsets_ms=100)
    replier.subscribe("plain", lambda message: "a reply")
    async with replier, Producer("telling", namesrv=namesrv) as producer:
        await producer.send("plain", b"no question")
        await eventually(lambda: "is no request" in caplog.text, "a line")
        await eventually(lambda: consumed(cluster, "eager", "plain"), "progress")
    assert await sent_back_count(cluster) == 0


def test_a_replier_needs_handlers_of_single_messages() -> None:
    replier = Replier("g", namesrv="127.0.0.1:9876")
    with pytest.raises(ConfigError, match="needs a handler, which returns the reply"):
        replier.subscribe("questions")
    with pytest.raises(ConfigError, match="one by one"):
        replier.subscribe_batches("questions", print)


async def consumed(cluster: Cluster, group: str, topic: str) -> bool:
    ran = await asyncio.to_thread(
        run_words, ["group", "show", group, "--json", "--namesrv", cluster.namesrv_address]
    )
    queues: list[dict[str, Any]] = ran.json["queues"] if ran.code == 0 else []
    own = [each for each in queues if each["topic"] == topic]
    return any(each["committed"] for each in own) and not any(each["lag"] for each in own)


async def sent_back_count(cluster: Cluster) -> int:
    """The number of messages sent back; they are stored as delayed messages first."""
    async with Admin(cluster.namesrv_address) as admin:
        try:
            queues = extents(await admin.topics.stats(SCHEDULE_TOPIC))
        except RequestError:
            return 0
    return sum(each.max_offset for _, each in queues)
