"""The stock 5.5.0 client that pops, on our broker and on Apache's own.

A consumer pops if it leaves queue allocation to the broker (`setClientRebalance(false)`) and its
group's mode is POP, which `mqadmin setConsumeMode` sets. Common behaviour is tested on both
brokers; only Tianzhou has dead letters of popped messages.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.apache.test_broker_compat import our_cluster
from tests.support.apache.servers import (
    BROKER_DEFAULTS,
    Shell,
    apache_broker,
    java_shell,
    tianzhou_broker,
    tianzhou_namesrv,
    wait_until,
)
from tests.support.brokers import Peer, eventually, peer_of
from tests.support.gate import gated
from tests.support.pop import GROUP, TOPIC, Popped, ack, pop
from tianzhou.client.sync import SimpleConsumer
from tianzhou.protocol.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.apache

VERSION = "5.5.0"
SOON_S = 120
INVISIBLE_MS = 5_000
"""The smallest value that the client accepts."""
LONG_MS = 120_000
"""Long enough for every acknowledgement."""
FIRST_DELAY_MS = 10_000
"""The delay of the first redelivery of a message that the client sent back."""
Message = dict[str, Any]
T = TypeVar("T")
Admin = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, and whether it is ours."""

    namesrv: str
    broker: str
    is_ours: bool


@pytest.fixture(scope="module", params=gated(["ours", "apache"], {"ours"}))
def place(apache: None, request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "ours":
        with our_cluster() as it:
            yield Place(it.namesrv.address, it.broker.address, is_ours=True)
    else:
        with (
            tianzhou_namesrv() as namesrv,
            apache_broker(VERSION, namesrv.address, graceful=False) as broker,
        ):
            yield Place(namesrv.address, broker.address, is_ours=False)


@pytest.fixture(scope="module")
def shell(place: Place) -> Iterator[Shell]:
    with java_shell(VERSION, "PopShell") as it:
        yield it


@pytest.fixture(scope="module")
def admin(shells: Callable[[str], Shell]) -> Admin:
    """The stock mqadmin."""
    return shells(VERSION).mqadmin


def consumed(shell: Shell, names: list[str], count: int) -> list[Message]:
    """The messages of consumers, once there are `count`."""

    def all_of_them() -> list[Message]:
        return [each for name in names for each in shell.consumed(name)]

    wait_until(
        lambda: len(all_of_them()) >= count,
        f"{count} messages for {names}",
        timeout_s=SOON_S,
        seen=lambda: f"{all_of_them()} {shell.report()}",
    )
    return all_of_them()


def topic_with_messages(
    shell: Shell, admin: Admin, place: Place, topic: str, bodies: list[str]
) -> None:
    """A topic of one queue, and a group that pops it."""
    shell.ask("start_producer", name=f"p-{topic}", namesrv=place.namesrv, queues=1)
    shell.ask("send", name=f"p-{topic}", topic=topic, bodies=bodies)
    output = admin(
        place.namesrv, "setConsumeMode", "-b", place.broker, "-t", topic,
        "-g", f"g-{topic}", "-m", "POP",
    )  # fmt: skip
    assert f"set consume mode to {place.broker} success" in output


def start_popping(
    shell: Shell, place: Place, name: str, topic: str, *, batch: int = 32, succeed_after: int = 0,
    hangs_first: bool = False, invisible_ms: int = INVISIBLE_MS,
) -> None:  # fmt: skip
    shell.ask(
        "start_consumer", name=name, namesrv=place.namesrv, group=f"g-{topic}", topic=topic,
        pop=True, invisible_ms=invisible_ms, batch=batch, succeed_after=succeed_after,
        hangs_first=hangs_first,
    )  # fmt: skip


def test_consumers_share_one_queue(shell: Shell, admin: Admin, place: Place) -> None:
    topic = "pop-share"
    topic_with_messages(shell, admin, place, topic, ["hello"])
    names = ["first", "second"]
    for name in names:
        start_popping(shell, place, name, topic, batch=1, invisible_ms=LONG_MS)
    consumed(shell, names, 1)
    sent = ["hello"]

    def both_had_some() -> bool:
        # The second gets its queue with its first rebalance.
        sent.append(f"{len(sent)}")
        shell.ask("send", name=f"p-{topic}", topic=topic, bodies=sent[-1:])
        return len(sent) > 60 and all(shell.consumed(name) for name in names)

    wait_until(both_had_some, "messages at both", timeout_s=SOON_S)
    got = Counter(each["body"] for each in consumed(shell, names, len(sent)))
    assert got == Counter(sent), "each once"
    for name in names:
        shell.ask("stop_consumer", name=name)


def test_our_consumer_and_javas_share_one_queue(shell: Shell, admin: Admin, place: Place) -> None:
    """Both pop in one group; each message is delivered to one of them, once."""
    topic = "pop-mixed"
    sent = ["hello"]
    topic_with_messages(shell, admin, place, topic, sent)
    start_popping(shell, place, topic, topic, batch=1, invisible_ms=LONG_MS)
    consumed(shell, [topic], 1)
    ours: list[str] = []
    with SimpleConsumer(f"g-{topic}", namesrv=place.namesrv, start="first") as consumer:
        consumer.subscribe(topic)

        def both_had_some() -> bool:
            more = [f"{len(sent) + number}" for number in range(20)]
            shell.ask("send", name=f"p-{topic}", topic=topic, bodies=more)
            sent.extend(more)
            messages = consumer.receive(4, invisible=LONG_MS / 1000, wait=1)
            ours.extend(message.text for message in messages)
            consumer.ack_many(messages)
            return len(ours) > 20 and len(shell.consumed(topic)) > 20

        wait_until(both_had_some, "messages at both", timeout_s=SOON_S)

        def everything_came() -> bool:
            messages = consumer.receive(32, invisible=LONG_MS / 1000, wait=0)
            ours.extend(message.text for message in messages)
            consumer.ack_many(messages)
            return len(ours) + len(shell.consumed(topic)) >= len(sent)

        wait_until(everything_came, "the rest", timeout_s=SOON_S)
    theirs = [message["body"] for message in shell.consumed(topic)]
    assert Counter(ours + theirs) == Counter(sent), "each once"
    shell.ask("stop_consumer", name=topic)


def test_messages_not_acknowledged_or_sent_back_are_redelivered(
    shell: Shell, admin: Admin, place: Place
) -> None:
    silent, rejected = "pop-silent", "pop-rejected"
    for topic in (silent, rejected):
        topic_with_messages(shell, admin, place, topic, [topic])
    start_popping(shell, place, silent, silent, hangs_first=True)
    start_popping(shell, place, rejected, rejected, succeed_after=1)
    for topic, wait_ms in ((silent, INVISIBLE_MS), (rejected, FIRST_DELAY_MS)):
        first, again = consumed(shell, [topic], 2)[:2]
        assert [first["reconsumeTimes"], again["reconsumeTimes"]] == [0, 1]
        assert {first["body"], again["body"]} == {topic}
        assert {first["topic"], again["topic"]} == {topic}, "clients show the topic it was sent to"
        assert first["msgId"] == again["msgId"]
        assert again["nowMs"] - first["nowMs"] >= wait_ms - 1000, "not before its time"
        assert again["properties"]["1ST_POP_TIME"]
    print(  # noqa: T201 - pytest -rP shows it
        place,
        {
            topic: consumed(shell, [topic], 2)[1]["nowMs"] - consumed(shell, [topic], 2)[0]["nowMs"]
            for topic in (silent, rejected)
        },
    )


# Apache's broker redelivers popped messages without limit.
@pytest.mark.parametrize("place", ["ours"], indirect=True)
def test_a_message_sent_back_too_often_becomes_a_dead_letter(
    shell: Shell, admin: Admin, place: Place
) -> None:
    topic = "pop-dead"
    topic_with_messages(shell, admin, place, topic, [topic])
    output = admin(
        place.namesrv, "updateSubGroup", "-b", place.broker, "-g", f"g-{topic}", "-r", "0"
    )
    assert "success" in output
    start_popping(shell, place, topic, topic, succeed_after=99)
    (only,) = consumed(shell, [topic], 1)
    # The dead letter creates its topic, and consumers query its route every second.
    shell.ask(
        "start_consumer", name="letters", namesrv=place.namesrv, group="g-letters",
        topic=f"%DLQ%g-{topic}",
    )  # fmt: skip
    (dead,) = consumed(shell, ["letters"], 1)
    assert dead["msgId"] == only["msgId"]
    assert dead["properties"]["RETRY_TOPIC"] == topic
    assert len(shell.consumed(topic)) == 1


# -- a store that moves between brokers ------------------------------------------------------------

SHAPE: dict[str, object] = {
    key: BROKER_DEFAULTS[key]
    for key in (
        "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
    )
}  # fmt: skip
"""Settings that must be the same for every broker of a store."""


def with_peer(address: str, work: Callable[[Peer], Coroutine[None, None, T]]) -> T:
    """A connection to a broker, ours or Apache's."""

    async def talk() -> T:
        async with peer_of(address) as peer:
            return await work(peer)

    return asyncio.run(talk())


async def pop_until(peer: Peer, bodies: set[bytes]) -> list[Popped]:
    """Pop until all of these have been received; returns all messages."""
    found: list[Popped] = []

    async def pop_once() -> bool:
        found.extend(await pop(peer, init_mode=1))
        return {each.body for each in found} >= bodies

    await eventually(pop_once, f"{bodies} popped")
    return found


def test_a_store_moves_to_rocketmq_and_back_without_loss(apache: None, tmp_path: Path) -> None:
    """The next broker of the store redelivers messages in flight, no acknowledged ones."""
    store = tmp_path / "store"

    async def ours(peer: Peer) -> None:
        for body in (b"done", b"in flight", b"acknowledged behind it", b"not popped"):
            await peer.send(TOPIC, body, queue_count=1)
        done, _, behind = await pop(peer, count=3)
        await ack(peer, done)
        await ack(peer, behind)

    async def theirs(peer: Peer) -> None:
        found = await pop_until(peer, {b"in flight", b"not popped"})
        assert b"done" not in {each.body for each in found}
        for each in found:
            assert (await ack(peer, each)).code == ResponseCode.SUCCESS
        # It commits acknowledged messages later.
        place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}

        async def committed() -> bool:
            answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
            return answer.fields.get("offset") == "4"

        await eventually(committed, "everything committed")
        for body in (b"left", b"acknowledged there", b"also left"):
            await peer.send(TOPIC, body, queue_count=1)

        async def dispatched() -> bool:
            fields = {"topic": TOPIC, "queueId": "0"}
            answer = await peer.expect(RequestCode.GET_MAX_OFFSET, fields)
            return answer.fields["offset"] == "7"

        await eventually(dispatched, "all messages in their queue")
        popped = {each.body: each for each in await pop(peer, count=3, invisible_ms=INVISIBLE_MS)}
        assert len(popped) == 3
        await ack(peer, popped[b"acknowledged there"])
        await peer.send(TOPIC, b"new", queue_count=1)

    async def ours_again(peer: Peer) -> None:
        """RocketMQ's records of popped messages are in its timer, which our broker now reads."""
        found = await pop_until(peer, {b"new", b"left", b"also left"})
        again = [each.body for each in found]
        assert sorted(again) == [b"also left", b"left", b"new"]
        counts = {each.body: each.message.reconsume_count for each in found}
        assert counts == {b"new": 0, b"left": 1, b"also left": 1}

    with tianzhou_namesrv() as namesrv:
        with tianzhou_broker(namesrv, storePathRootDir=store, **SHAPE) as broker:
            with_peer(broker.address, ours)
        with apache_broker(VERSION, namesrv.address, store_dir=store) as broker:
            with_peer(broker.address, theirs)
        with tianzhou_broker(namesrv, storePathRootDir=store, **SHAPE) as broker:
            with_peer(broker.address, ours_again)
