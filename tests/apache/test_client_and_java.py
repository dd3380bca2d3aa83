"""Our producer and the stock Java clients on one cluster: each reads what the other sent."""

from collections.abc import Iterator

import pytest

from tests.apache.test_broker_compat import broker_shell
from tests.support.apache.backends import OURS, Backend, running_backend
from tests.support.apache.servers import Shell, wait_until
from tests.support.brokers import eventually
from tests.support.gate import EACH_VERSION
from tianzhou.client import CompressionType, Message, Producer, PushConsumer
from tianzhou.protocol.records.compression import type_of

pytestmark = pytest.mark.apache

LONG = "long enough to be packed, 压缩. " * 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Backend]:
    with running_backend(OURS) as it:
        yield it


@pytest.fixture(scope="module", params=EACH_VERSION)
def java(request: pytest.FixtureRequest, apache: None) -> Iterator[Shell]:
    with broker_shell(request.param) as shell:
        yield shell


async def test_java_reads_our_messages(cluster: Backend, java: Shell) -> None:
    topic = cluster.name("ToJava")
    sent = [f"{kind.name} {LONG}" for kind in CompressionType]
    for kind, text in zip(CompressionType, sent, strict=True):
        async with Producer("packers", namesrv=cluster.namesrv, compression=kind) as producer:
            await producer.send(topic, text, keys=kind.name, tags="packed")
    async with Producer("packers", namesrv=cluster.namesrv) as producer:
        sent += [f"batched {number}" for number in range(5)]
        await producer.send_many([Message(topic, f"batched {number}") for number in range(5)])
    await cluster.await_stored(topic, 8)
    name = f"{topic}-reader"
    java.ask(
        "start_consumer", name=name, namesrv=cluster.namesrv, group=topic, topic=topic, tags="*",
        model="CLUSTERING", from_where="CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip
    try:
        wait_until(
            lambda: len(java.consumed(name)) >= len(sent),
            f"{len(sent)} messages at the Java consumer",
            timeout_s=60,
            seen=java.report,
        )
        assert sorted(each["body"] for each in java.consumed(name)) == sorted(sent)
    finally:
        java.ask("stop_consumer", name=name)


async def sent_by_java(cluster: Backend, java: Shell, compression: str) -> str:
    """The topic with one long message that the stock client has compressed."""
    topic = cluster.name("FromJava")
    name = f"{topic}-sender"
    java.ask(
        "start_producer", name=name, namesrv=cluster.namesrv, vip=False, compression=compression
    )  # fmt: skip
    try:
        java.ask("send", name=name, topic=topic, way="sync", messages=[{"body": LONG}])
    finally:
        java.ask("stop_producer", name=name)
    return topic


def ways_to_compress(version: str) -> list[str]:
    """The compression types of a stock producer; 4.9 has one."""
    return ["ZLIB"] if version == "4.9.7" else [each.name for each in CompressionType]


async def test_we_read_messages_of_java(cluster: Backend, java: Shell) -> None:
    for compression in ways_to_compress(java.version):
        topic = await sent_by_java(cluster, java, compression)
        (stored,) = await cluster.await_stored(topic, 1)
        assert len(stored.body) < len(LONG)
        assert type_of(stored.sys_flag).name == compression
        assert await consumed(cluster, topic) == [LONG]


async def consumed(cluster: Backend, topic: str) -> list[str]:
    """The message that our consumer receives from a topic with one message."""
    seen: list[str] = []
    consumer = PushConsumer(topic, namesrv=cluster.namesrv, start="first")
    consumer.subscribe(topic, lambda message: seen.append(message.text))
    async with consumer:
        await eventually(lambda: seen, "the message")
    return seen
