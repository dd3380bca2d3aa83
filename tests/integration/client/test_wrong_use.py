"""Typical mistakes of new users: each is reported by one clear line."""

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.support.brokers import eventually
from tests.support.ports import free_port

from tianzhou.client import (
    ClientSettings,
    Message,
    Producer,
    PushConsumer,
    Queue,
    ReceivedMessage,
    SimpleConsumer,
)
from tianzhou.errors import ConfigError, ConnectError, MessageRefused, TianzhouError
from tianzhou.testing import Cluster

NAMESRV = "127.0.0.1:9876"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2}) as it:
        yield it


@pytest.mark.parametrize(
    ("namesrv", "says"),
    [
        (None, r"namesrv is None; it must be a string such as '127.0.0.1:9876'"),
        (9876, "namesrv is 9876; it must be a string"),
        (b"127.0.0.1:9876", "it must be a string"),
        (["127.0.0.1:9876"], "it must be a string"),
        ("a:9876,b:9876", "separate them by ';'"),
        ("a:9876 b:9876", "separate them by ';'"),
        ("a:9876, b:9876", "separate them by ';'"),
        ("http://127.0.0.1:9876", "leave out http://"),
        ("127.0.0.1", "has no port; write host:port"),
        (":9876", "has no host"),
        ("127.0.0.1:nine", "'nine' is no port"),
        ("127.0.0.1:98765", "'98765' is no port"),
    ],
)
def test_invalid_addresses(namesrv: Any, says: str) -> None:  # noqa: ANN401 - that is the mistake
    for make in (Producer, PushConsumer, SimpleConsumer):
        with pytest.raises(ConfigError, match=says):
            make("g", namesrv=namesrv)
    with pytest.raises(ConfigError, match=says):
        ClientSettings(namesrv=namesrv)


async def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="give namesrv='host:9876' or set NAMESRV_ADDR"):
        await Producer("g").start()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"send_timeout": 5}, "did you mean send_timeout_ms"),
        ({"send_timeout_ms": "3000"}, "send_timeout_ms is '3000'; it must be a whole number"),
        ({"retry_count": None}, "retry_count is None; it must be a whole number"),
        ({"trace": "yes"}, "trace is 'yes'; it must be True or False"),
        ({"linger_ms": "1"}, "linger_ms is '1'; it must be a number"),
        ({"credentials": ("key", "secret")}, r"it must be Credentials \| None"),
        ({"tls": True}, r"tls is True; it must be Tls \| None"),
    ],
)
def test_invalid_settings(option: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Producer("g", namesrv=NAMESRV, **option)


@pytest.mark.parametrize(
    ("topic", "body", "options", "says"),
    [
        (None, b"x", {}, "topic is None; it must be a string"),
        (b"orders", b"x", {}, "topic is b'orders'; it must be a string"),
        ("", b"x", {}, "the topic is empty"),
        ("my topic", b"x", {}, "only letters, digits"),
        ("orders", None, {}, "the body is empty"),
        ("orders", 5, {}, "a body is bytes or text, not int"),
        ("orders", {"id": 1}, {}, r"Message\.json"),
        ("orders", b"x", {"tag": "a"}, "no option tag, did you mean tags"),
        ("orders", b"x", {"colour": "a"}, "no option colour; known are tags"),
        ("orders", b"x", {"tags": ["a"]}, "tags is .*; it must be a string"),
        ("orders", b"x", {"keys": 5}, "keys is 5; it must be a string, or a list"),
        ("orders", b"x", {"properties": ["a"]}, "it must be a mapping"),
        ("orders", b"x", {"delay": "5s"}, "delay is '5s'; it must be seconds"),
        ("orders", b"x", {"delay_level": "3"}, "delay_level is '3'; it must be a number"),
        ("orders", b"x", {"deliver_at": "noon"}, "deliver_at is 'noon'; it must be a datetime"),
        ("orders", b"x", {"deliver_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the mistake
        ("orders", b"x", {"timeout_ms": "500"}, "timeout_ms is '500'; it must be a number"),
        ("orders", b"x", {"timeout_ms": -1}, "timeout_ms is -1"),
        ("orders", b"x", {"queue": 1}, "queue is 1; it must be a Queue"),
    ],
)
async def test_invalid_messages(
    cluster: Cluster, topic: Any, body: Any, options: dict[str, Any], says: str  # noqa: ANN401 - those are the mistakes
) -> None:  # fmt: skip
    async with Producer("g", namesrv=cluster.namesrv_address) as producer:
        with pytest.raises((MessageRefused, ConfigError), match=says):
            await producer.send(topic, body, **options)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        (None, "the group is None; it must be a string"),
        ("", "group"),
        ("my group", "only letters, digits"),
    ],
)
async def test_invalid_groups(cluster: Cluster, group: Any, says: str) -> None:  # noqa: ANN401 - that is the mistake
    with pytest.raises(MessageRefused, match=says):
        Producer(group, namesrv=cluster.namesrv_address)
    with pytest.raises(ConfigError, match=says):
        await started_consumer(group, cluster.namesrv_address)


async def started_consumer(group: str, namesrv: str) -> None:
    consumer = PushConsumer(group, namesrv=namesrv)
    consumer.subscribe("orders", print)
    await consumer.start()


@pytest.mark.parametrize(
    ("topic", "tags", "says"),
    [
        (None, "*", "the topic is None"),
        ("my topic", "*", "only letters, digits"),
        ("orders", ["a", "b"], r"tags is .*; it must be a string, 'a \|\| b'"),
    ],
)
def test_invalid_subscriptions(topic: Any, tags: Any, says: str) -> None:  # noqa: ANN401 - those are the mistakes
    with pytest.raises(ConfigError, match=says):
        PushConsumer("g", namesrv=NAMESRV).subscribe(topic, print, tags=tags)


async def test_broker_address_instead_of_a_nameserver(cluster: Cluster) -> None:
    (address,) = cluster.broker_addresses.values()
    async with Producer("g", namesrv=address) as producer:
        with pytest.raises(ConfigError, match=f"{address} is not a nameserver.*9876"):
            await producer.send("orders", b"x")
    consumer = PushConsumer("g", namesrv=address)
    consumer.subscribe("orders", print)
    with pytest.raises(ConfigError, match=f"{address} is not a nameserver"):
        await consumer.start()


async def test_unreachable_nameserver() -> None:
    async with Producer("g", namesrv=f"127.0.0.1:{free_port()}") as producer:
        with pytest.raises(ConnectError, match=r"no nameserver answers.*refused.*check that one"):
            await producer.send("orders", b"x", timeout_ms=100)


async def test_queue_of_an_unknown_broker(cluster: Cluster) -> None:
    async with Producer("g", namesrv=cluster.namesrv_address) as producer:
        with pytest.raises(TianzhouError, match="no master of broker nowhere is known"):
            await producer.send("orders", b"x", queue=Queue("orders", "nowhere", 0), timeout_ms=100)


async def test_missing_topic_logs_one_line(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tianzhou.client")
    got: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        got.append(message.body)

    consumer = PushConsumer(
        "early", namesrv=cluster.namesrv_address, start="first", poll_namesrv_ms=50
    )
    consumer.subscribe("to-come", take)
    async with consumer, Producer("g", namesrv=cluster.namesrv_address) as producer:
        await asyncio.sleep(0.2)  # several looks for the topic
        await producer.send(Message("to-come", b"first"))
        await eventually(lambda: got == [b"first"], "the message")
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert told == ["topic to-come does not exist yet; it is looked up every 0.05 s"]
