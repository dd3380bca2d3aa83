"""Brokers and nameservers in this process, and the requests that clients send them.

    async with cluster(tmp_path) as it:
        stored = await it.send("t", b"body")
        answer = await it.pull("g", "t", queue_id=0, queue_offset=0)

Everything goes through real sockets on ports that the system chooses.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack, cast

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.message import StoredMessage
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.protocol import properties
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.record import decode_records
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.tls.contexts import Tls

LOOPBACK = "127.0.0.1"
STAMPS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
"""Properties that a broker adds to every message outside of batches."""
DEADLINE_S = 60.0

SMALL: dict[str, object] = {
    "listenPort": 0,
    "bindAddress": LOOPBACK,
    "brokerIP1": LOOPBACK,
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 1024 * 1024,
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 99,
    "diskSpaceWarningLevelRatio": 100,
    "shutdownWaitTimeSeconds": 2,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""A broker that uses little disk space, and accepts requests on a busy machine."""


async def eventually(
    probe: Callable[[], object], what: str, patience_s: float = DEADLINE_S
) -> object:
    """Call `probe` until it is true; after the deadline fail with the last value.

    `probe` may be a coroutine function.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        seen = probe()
        if inspect.isawaitable(seen):
            seen = cast("object", await seen)
        if seen:
            return seen
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what}: not within {patience_s} s, last seen {seen!r}")
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running_namesrv(folder: Path, **settings: object) -> AsyncGenerator[str]:
    """A nameserver with `settings` by their RocketMQ keys; yields its address."""
    pairs: dict[str, object] = {
        "listenPort": 0, "bindAddress": LOOPBACK, "kvConfigPath": folder / "kv.json"
    } | settings  # fmt: skip
    loaded = load(NamesrvConfig, [Given(key, str(value), "test") for key, value in pairs.items()])
    server = NameServer(LiveSettings(loaded))
    host, port = await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def running_broker(store: Path, **settings: object) -> AsyncGenerator[Broker]:
    """A broker with `settings` by their RocketMQ keys."""
    pairs = (
        SMALL | {"storePathRootDir": store, "brokerConfigPath": store / "b.properties"} | settings
    )
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    loaded = load_broker_config(environ={}, flags=given)
    broker = Broker(LiveSettings(loaded))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


class SendOptions(TypedDict, total=False):
    """The parameters of `send_fields`."""

    queue_id: int
    queue_count: int
    template: str
    props: dict[str, str]
    properties_text: str
    sys_flag: int
    batch: bool
    flag: int


class PullOptions(TypedDict, total=False):
    """The parameters of `pull_fields`."""

    count: int
    sys_flag: int
    suspend_ms: int
    commit_offset: int
    subscription: str | None
    expression_type: str | None
    version: int


@dataclass(slots=True)
class Peer:
    """A client of one broker that only sends and receives commands."""

    client: Client
    address: str
    pushed: list[Command]
    """Requests that the broker sent."""

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 30_000,
    ) -> Command:
        command = Command(code=code, ext_fields=fields, body=body)
        return await self.client.request(self.address, command, timeout_ms)

    async def expect(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 30_000,
    ) -> Command:
        """Send a request, which must succeed."""
        answer = await self.ask(code, fields, body, timeout_ms)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer

    # -- sending -----------------------------------------------------------------------------------

    async def send(
        self, topic: str, body: bytes, *, timeout_ms: int = 30_000, **options: Unpack[SendOptions]
    ) -> Command:
        fields = send_fields(topic, **options)
        return await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body, timeout_ms)

    # -- consuming ---------------------------------------------------------------------------------

    async def pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        timeout_ms: int = 60_000,
        **options: Unpack[PullOptions],
    ) -> Command:
        fields = pull_fields(group, topic, queue_id, queue_offset, **options)
        return await self.ask(RequestCode.PULL_MESSAGE, fields, timeout_ms=timeout_ms)

    async def heartbeat(
        self,
        client_id: str,
        group: str = "",
        subscriptions: dict[str, str] | None = None,
        *,
        producer: str = "",
        model: str = "CLUSTERING",
        kind: str = "TAG",
        version: int = 1,
    ) -> Command:
        consumers = [
            ConsumerData(
                group_name=group,
                consume_type="CONSUME_PASSIVELY",
                message_model=model,
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                subscriptions=[
                    SubscriptionData(
                        topic=topic, expression=text, version=version, expression_type=kind
                    )
                    for topic, text in (subscriptions or {}).items()
                ],
            )
        ]
        body = HeartbeatData(
            client_id=client_id,
            consumers=consumers if group else [],
            producers=[ProducerData(group_name=producer)] if producer else [],
        )
        return await self.ask(RequestCode.HEART_BEAT, None, encode_body(body))

    def notices(self, group: str) -> int:
        """How often this peer was notified that the members of a group changed."""
        return sum(
            command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            and command.fields.get("consumerGroup") == group
            for command in self.pushed
        )


@asynccontextmanager
async def peer_of(
    address: str, tls: Tls | None = None, credentials: Credentials | None = None
) -> AsyncGenerator[Peer]:
    """A peer of the broker at an address."""
    pushed: list[Command] = []

    def take(_: Connection, command: Command) -> None:
        pushed.append(command)

    client = Client(handle=take, tls=tls, credentials=credentials)
    try:
        yield Peer(client, address, pushed)
    finally:
        await client.close()


@dataclass(slots=True)
class Cluster:
    """A nameserver, a broker, and a peer of that broker."""

    namesrv: str
    broker: Broker
    peer: Peer


@asynccontextmanager
async def cluster(folder: Path, **settings: object) -> AsyncGenerator[Cluster]:
    """One nameserver and one broker that is registered with it."""
    async with (
        running_namesrv(folder) as namesrv,
        running_broker(folder / "store", namesrvAddr=namesrv, **settings) as broker,
        peer_of(broker.address) as peer,
    ):
        await eventually(lambda: broker.registered_with, "registration")
        yield Cluster(namesrv, broker, peer)


# -- headers ---------------------------------------------------------------------------------------


def send_fields(
    topic: str,
    *,
    queue_id: int = 0,
    queue_count: int = 4,
    template: str = "TBW102",
    props: dict[str, str] | None = None,
    properties_text: str | None = None,
    sys_flag: int = 0,
    batch: bool = False,
    flag: int = 0,
) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2."""
    text = properties.encode(props or {}) if properties_text is None else properties_text
    return {
        "a": "producers", "b": topic, "c": template, "d": str(queue_count), "e": str(queue_id),
        "f": str(sys_flag), "g": str(int(time.time() * 1000)), "h": str(flag), "i": text,
        "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip


def pull_fields(
    group: str,
    topic: str,
    queue_id: int,
    queue_offset: int,
    *,
    count: int = 32,
    sys_flag: int = 4,
    suspend_ms: int = 0,
    commit_offset: int = 0,
    subscription: str | None = "*",
    expression_type: str | None = None,
    version: int = 0,
) -> dict[str, str]:
    """The fields of PULL_MESSAGE; by default with an inline subscription to everything."""
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id),
        "queueOffset": str(queue_offset), "maxMsgNums": str(count), "sysFlag": str(sys_flag),
        "commitOffset": str(commit_offset), "suspendTimeoutMillis": str(suspend_ms),
        "subVersion": str(version),
    }  # fmt: skip
    if subscription is not None:
        fields["subscription"] = subscription
    if expression_type is not None:
        fields["expressionType"] = expression_type
    return fields


def messages_in(answer: Command) -> list[StoredMessage]:
    """The messages in the response to a pull."""
    return decode_records(answer.body, check_crc=True)


def bodies_in(answer: Command) -> list[bytes]:
    return [message.body for message in messages_in(answer)]
