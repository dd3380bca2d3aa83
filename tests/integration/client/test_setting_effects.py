"""Effects of settings: each test fails if its setting is ignored.

No test measures time. For a duration, two timers of one event loop show which ends
first, or an event that must come later has not happened.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
from tests.support.brokers import eventually, peer_of
from tests.support.ports import free_port
from tests.support.scripted_broker import scripted_cluster, stored

from tianzhou.client import (
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
    QueueReader,
    ReceivedMessage,
    SendStatus,
)
from tianzhou.client.group.settings import PushOptions
from tianzhou.errors import ConnectError, RouteNotFound, SendError, SendTimeout
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.testing import Cluster

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as it:
        yield it


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer(
        "settings", namesrv=cluster.namesrv_address, compress_over_bytes=8 * MIB
    ) as it:
        yield it


# -- producers: tries ------------------------------------------------------------------------------


@pytest.mark.parametrize("insists", [True, False])
async def test_retry_when_not_stored(insists: bool) -> None:
    answers = iter([stored(ResponseCode.FLUSH_DISK_TIMEOUT), stored()])

    async with (
        scripted_cluster(lambda _c, _r: next(answers), broker_names=("a", "b")) as script,
        Producer("g", namesrv=script.namesrv, retry_when_not_stored=insists) as producer,
    ):
        result = await producer.send("T", b"x")
    asked = [fields["n"] for fields in script.fields(RequestCode.SEND_MESSAGE_V2)]
    if insists:
        assert result.status is SendStatus.SEND_OK
        assert sorted(asked) == ["a", "b"]
    else:
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(asked) == 1


@pytest.mark.parametrize("retry_count", [0, 3])
async def test_async_retry_count(retry_count: int) -> None:
    def hang_up(connection: Connection, _request: Command) -> None:
        connection.abort("the script says so")

    async with (
        scripted_cluster(hang_up, broker_names=("a", "b")) as script,
        Producer(
            "g", namesrv=script.namesrv, retry_count=7, async_retry_count=retry_count,
            send_timeout_ms=60_000, reconnect_min_ms=1, reconnect_max_ms=1,
        ) as producer,
    ):  # fmt: skip
        submitted = await producer.submit(Message("T", b"x"))
        with pytest.raises(SendError, match=f"perhaps stored, in {retry_count + 1} tries"):
            await submitted
    assert script.count(RequestCode.SEND_MESSAGE_V2) == retry_count + 1


# -- producers: where to ---------------------------------------------------------------------------


async def test_vip_channel() -> None:
    """The route has a port without a server; a server listens two ports below."""
    async with scripted_cluster(port_shift=2) as script:
        async with Producer("g", namesrv=script.namesrv, vip_channel=True) as producer:
            assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
            submitted = await producer.submit(Message("T", b"x"))
            assert (await submitted).status is SendStatus.SEND_OK
        async with Producer("g", namesrv=script.namesrv, retry_count=0) as plain:
            with pytest.raises(SendError):
                await plain.send("T", b"x")


async def make_template(cluster: Cluster, topic: str, queue_count: int) -> None:
    """A template topic: its permission has the inherit flag."""
    (address,) = cluster.broker_addresses.values()
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count), "perm": "7", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    async with peer_of(address) as peer:
        await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    await eventually(partial(has_queues, cluster, topic, queue_count), f"a route of {topic}")


async def has_queues(cluster: Cluster, topic: str, count: int) -> bool:
    async with QueueReader("lookers", namesrv=cluster.namesrv_address) as reader:
        try:
            return len(await reader.queues(topic)) == count
        except RouteNotFound:
            return False  # the broker has it, and is about to tell the nameserver


async def test_template_topic(cluster: Cluster) -> None:
    await make_template(cluster, "Pattern", 3)
    async with Producer("g", namesrv=cluster.namesrv_address, template_topic="Pattern") as producer:
        await producer.send("FromPattern", b"x")
    await eventually(
        partial(has_queues, cluster, "FromPattern", 3), "as many queues as the template has"
    )


async def test_template_queue_count(cluster: Cluster) -> None:
    async with Producer("g", namesrv=cluster.namesrv_address, template_queue_count=2) as producer:
        await producer.send("OfTwo", b"x")
    await eventually(partial(has_queues, cluster, "OfTwo", 2), "two queues")


# -- producers: bodies and room --------------------------------------------------------------------


@pytest.mark.parametrize(("level", "sign"), [(1, b"\x78\x01"), (9, b"\x78\xda")])
async def test_compression_level(cluster: Cluster, level: int, sign: bytes) -> None:
    """The header of a zlib stream has the compression level."""
    async with Producer(
        "g", namesrv=cluster.namesrv_address, compression_level=level, compress_over_bytes=100
    ) as producer:
        sent = await producer.send("Levels", b"pack me " * 1_000)
    async with QueueReader("lookers", namesrv=cluster.namesrv_address) as reader:
        (found,) = (await reader.pull(sent.queue, sent.queue_offset, message_count=1)).messages
    assert found.stored.body[:2] == sign
    assert found.body == b"pack me " * 1_000


async def test_in_flight_bytes() -> None:
    """Two messages reach the limit; a third waits until it times out."""
    answered = asyncio.Event()

    async def answer_later() -> Command:
        await answered.wait()
        return stored()

    async with (
        scripted_cluster(lambda _c, _r: answer_later()) as script,
        Producer("g", namesrv=script.namesrv, in_flight_bytes=100) as producer,
    ):
        futures = [
            await producer.submit(Message("T", b"x" * 60), timeout_ms=60_000) for _ in range(2)
        ]
        with pytest.raises(SendTimeout, match="2 messages of 120 bytes are in flight"):
            await producer.send("T", b"y", timeout_ms=100)
        await eventually(lambda: script.count(RequestCode.SEND_MESSAGE_V2) == 2, "the first two")
        answered.set()
        await asyncio.gather(*futures)
        await producer.send("T", b"y")
    assert script.count(RequestCode.SEND_MESSAGE_V2) == 3


# -- every client ----------------------------------------------------------------------------------


async def test_trace_topic(cluster: Cluster) -> None:
    cluster.create_topic("OwnTrace", 1)
    async with Producer(
        "g", namesrv=cluster.namesrv_address, trace=True, trace_topic="OwnTrace"
    ) as producer:
        sent = await producer.send("Watched", b"x")
    async with LitePullConsumer(
        "watchers", namesrv=cluster.namesrv_address, start="first"
    ) as reader:
        await reader.subscribe("OwnTrace")
        (about,) = await reader.poll(60_000)
    assert sent.msg_id in about.text


async def test_reconnect_min_ms() -> None:
    """A failed address is not dialled during the back-off, even if a server listens now."""
    port = free_port()
    patient = Producer(
        "g", namesrv=f"127.0.0.1:{port}", reconnect_min_ms=600_000, instance_name="patient"
    )
    hasty = Producer(
        "g", namesrv=f"127.0.0.1:{port}", reconnect_min_ms=1, reconnect_max_ms=1,
        instance_name="hasty",
    )  # fmt: skip
    async with patient, hasty:
        for producer in (patient, hasty):
            with pytest.raises(ConnectError):
                await producer.queues("T")
        async with scripted_cluster(port=port):

            async def reached() -> bool:
                try:
                    return bool(await hasty.queues("T"))
                except ConnectError:
                    return False

            await eventually(reached, "a connection")
            with pytest.raises(ConnectError, match="after 600000 ms"):
                await patient.queues("T")


# -- consumers: pulls ------------------------------------------------------------------------------


async def test_pull_batch_bytes() -> None:
    """Brokers of 5.x apply it, so the test checks the request."""
    async with (
        scripted_cluster() as script,
        LitePullConsumer("g", namesrv=script.namesrv, pull_batch_bytes=12_345) as consumer,
    ):
        await consumer.assign(await consumer.queues("T"))
        await eventually(lambda: script.count(RequestCode.PULL_MESSAGE), "a pull")
    assert script.fields(RequestCode.PULL_MESSAGE)[0]["maxMsgBytes"] == "12345"


async def test_pull_interval_ms(cluster: Cluster, producer: Producer) -> None:
    """The consumer pauses after its first pull, while another without interval gets everything."""
    cluster.create_topic("Rests", 1)
    await producer.send_many(Message("Rests", f"{number}") for number in range(50))
    rested, hurried = Inbox(), Inbox()
    base = PushSettings(namesrv=cluster.namesrv_address, start="first", pull_batch_size=1)
    slow = PushConsumer("rests", settings=base, pull_interval_ms=600_000)
    slow.subscribe("Rests", rested.take)
    quick = PushConsumer("hurries", settings=base)
    quick.subscribe("Rests", hurried.take)
    async with slow:
        await eventually(lambda: len(rested.seen) == 1, "the first message")
        async with quick:
            await eventually(lambda: len(hurried.seen) == 50, "all messages at the other")
        assert len(rested.seen) == 1


async def test_poll_timeout_ms(cluster: Cluster) -> None:
    """Of two empty polls the one with the shorter time-out ends first."""
    cluster.create_topic("Nothing", 1)
    async with LitePullConsumer(
        "asks", namesrv=cluster.namesrv_address, poll_timeout_ms=1
    ) as consumer:
        await consumer.subscribe("Nothing")
        longer = asyncio.create_task(consumer.poll(2_000))
        own = asyncio.create_task(consumer.poll())
        first, _ = await asyncio.wait((longer, own), return_when=asyncio.FIRST_COMPLETED)
        assert first == {own}
        assert own.result() == []
        longer.cancel()


# -- consumers: how much is held -------------------------------------------------------------------


class Inbox:
    """A handler that stores its messages."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def take(self, message: ReceivedMessage) -> None:
        self.seen.append(message.text)


class Stuck:
    """A handler that blocks at the first message of a queue."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def take_none(self, _message: ReceivedMessage) -> None:
        await self.go_on.wait()

    async def take_others(self, message: ReceivedMessage) -> None:
        if not message.queue_offset:
            await self.go_on.wait()


@pytest.mark.parametrize(
    ("options", "body_bytes", "reason"),
    [
        # The topic has one queue and the group's retry topic another; each gets its half.
        ({"topic_messages_max": 4}, 10, "3 messages are in flight, the limit is 2"),
        ({"topic_mib_max": 2}, 700_000, "2 MiB are in flight, the limit is 1"),
        ({"queue_mib_max": 1}, 700_000, "2 MiB are in flight, the limit is 1"),
        ({"queue_span_max": 5}, 10, "the messages in flight span 6 offsets, the limit is 5"),
    ],
    ids=["topic_messages_max", "topic_mib_max", "queue_mib_max", "queue_span_max"],
)
async def test_flow_control_pauses_pulls(
    cluster: Cluster,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    options: PushOptions,
    body_bytes: int,
    reason: str,
) -> None:
    caplog.set_level(logging.INFO, "tianzhou.client")
    topic = group = f"held-by-{next(iter(options))}"
    cluster.create_topic(topic, 1)
    stuck = Stuck()
    base = PushSettings(namesrv=cluster.namesrv_address, start="first", pull_batch_size=1)
    consumer = PushConsumer(group, settings=base, **options)
    spans = "queue_span_max" in options
    consumer.subscribe(topic, stuck.take_others if spans else stuck.take_none)
    async with consumer:
        await eventually(lambda: len(consumer.assignment) == 2, "both queues, which share limits")
        for _ in range(12):
            await producer.send(topic, b"x" * body_bytes)
        await eventually(
            lambda: re.search(f"group {group}, queue .* is paused: {reason}", caplog.text),
            f"a pause because {reason}",
        )
        stuck.go_on.set()
