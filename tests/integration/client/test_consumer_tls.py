"""Consumers over TLS, with a broker that requires it: pulls, locks, offsets, redelivery."""

import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.support.brokers import eventually, running_broker, running_namesrv

from tianzhou.client import (
    ClientSettings,
    Later,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    QueueReader,
    ReceivedMessage,
    SimpleConsumer,
    Tls,
)
from tianzhou.errors import TianzhouError

TOPIC = "sealed"


@asynccontextmanager
async def sealed_cluster(folder: Path) -> AsyncGenerator[ClientSettings]:
    """A cluster that requires TLS, and the settings of a client: trusted CA and own certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, identity in (("server", "127.0.0.1"), ("client", "consumer@example.org")):
        issued = authority.issue_cert(identity)
        issued.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    secure: dict[str, object] = {
        "tlsServerCertPath": folder / "server.pem", "tlsServerKeyPath": folder / "server.pem"
    }  # fmt: skip
    only: dict[str, object] = {
        "tlsMode": "enforcing", "tlsServerNeedClientAuth": "require",
        "tlsServerTrustCertPath": folder / "ca.pem",
    }  # fmt: skip
    async with (
        running_namesrv(folder, tlsMode="permissive", **secure) as namesrv,
        running_broker(
            folder / "store", namesrvAddr=namesrv, messageDelayLevel="1s 1s 1s", **secure, **only
        ) as broker,
    ):
        await eventually(lambda: broker.registered_with, "registration")
        own = folder / "client.pem"
        tls = Tls(trusted=folder / "ca.pem", certificate=own, key=own)
        yield ClientSettings(namesrv=namesrv, tls=tls)


async def test_consumers_over_tls(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    async with sealed_cluster(tmp_path) as sealed:
        async with Producer("senders", settings=sealed) as producer:
            await producer.send_many(Message(TOPIC, f"{number}") for number in range(100))

        push = PushConsumer("pushed", settings=sealed, start="first")

        @push.handler(TOPIC)
        async def take(message: ReceivedMessage) -> Later | None:
            seen[message.text] += 1
            return Later(1) if message.text == "7" and not message.reconsume_times else None

        ordered = PushConsumer("ordered", settings=sealed, start="first", ordered=True)
        in_order: dict[int, list[int]] = {}

        @ordered.handler(TOPIC)
        def take_in_order(message: ReceivedMessage) -> None:
            in_order.setdefault(message.queue_id, []).append(message.queue_offset)

        async with push, ordered, LitePullConsumer("asks", settings=sealed, start="first") as lite:
            await lite.subscribe(TOPIC)
            polled: list[str] = []
            while len(polled) < 100:
                polled += [message.text for message in await lite.poll(20_000)]
            await lite.commit()
            await eventually(lambda: len(seen) == 100 and seen["7"] == 2, "all, and one again")
            await eventually(lambda: sum(map(len, in_order.values())) == 100, "all in order")

        async with SimpleConsumer("pops", settings=sealed, start="first") as simple:
            await simple.subscribe(TOPIC)
            popped: list[str] = []
            while len(popped) < 100:
                messages = await simple.receive(wait=20)
                popped += [message.text for message in messages]
                await simple.ack_many(messages)

        everything = [f"{number}" for number in range(100)]
        assert sorted(polled, key=int) == sorted(popped, key=int) == everything
        assert all(places == list(range(len(places))) for places in in_order.values())
        for group in ("pushed", "ordered", "asks", "pops"):
            async with QueueReader(group, settings=sealed) as reader:
                queues = await reader.queues(TOPIC)
                assert sum([await reader.committed(queue) or 0 for queue in queues]) == 100


async def test_broker_rejects_consumers_without_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a certificate, or without TLS, nothing is received, and the log names the reason."""
    caplog.set_level(logging.WARNING)
    async with sealed_cluster(tmp_path) as sealed:
        async with Producer("senders", settings=sealed) as producer:
            await producer.send(TOPIC, b"secret")
        for tls in (Tls(trusted=tmp_path / "ca.pem"), None):
            caplog.clear()
            stranger = ClientSettings(
                namesrv=sealed.namesrv, tls=tls, api_timeout_ms=1_000, instance_name=f"{tls}"
            )
            consumer = PushConsumer("strangers", settings=stranger, start="first")
            got: list[ReceivedMessage] = []
            consumer.subscribe(TOPIC, got.append)
            async with consumer:
                await eventually(lambda: "heartbeat failed" in caplog.text, "a complaint")
                assert consumer.assignment == frozenset()
                assert got == []
            async with QueueReader("strangers", settings=stranger) as reader:
                (queue, *_) = await reader.queues(TOPIC)
                with pytest.raises(TianzhouError):
                    await reader.pull(queue, 0, timeout_ms=1_000)
