"""A proxy that records the requests to a server, in order.

    async with recorded_broker(tmp_path, "t") as it:
        async with PushConsumer("g", namesrv=it.namesrv) ...
        assert it.log[0] == "GET_ROUTEINFO_BY_TOPIC"

Nameserver and broker are real; both are reached through the recorder only.
"""

import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import registration
from tests.support.brokers import Peer, eventually, peer_of, running_broker, running_namesrv
from tests.support.remoting import serving
from tianzhou.protocol import headers
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.topics import TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.namesrv import RegisterBrokerRequest
from tianzhou.protocol.version import CURRENT_VERSION
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection

BROKER = "broker-a"
_LONGEST_MS = 60_000


@dataclass(slots=True)
class Recorded:
    """The addresses for clients of the recorder, and the recorded requests."""

    namesrv: str
    broker: Peer
    """The broker behind the recorder."""
    log: list[str] = field(default_factory=list[str])
    """Names of the requests; tests add their own events."""

    def first(self, name: str, since: int = 0) -> int:
        """The index of the first one."""
        return self.log.index(name, since)


@asynccontextmanager
async def _recording(address: str, log: list[str]) -> AsyncGenerator[str]:
    """A server that forwards every request to an address; yields its own."""
    client = Client()

    async def hand_on(_: Connection, request: Command) -> Command | None:
        log.append(RequestCode(request.code).name)
        asked = Command(
            code=request.code, ext_fields=dict(request.fields) or None, body=request.body
        )
        if request.is_oneway:
            await client.oneway(address, asked, _LONGEST_MS)
            return None
        answer = await client.request(address, asked, _LONGEST_MS)
        return Command(
            code=answer.code, version=answer.version, remark=answer.remark,
            ext_fields=answer.ext_fields, body=answer.body,
        )  # fmt: skip

    try:
        async with serving(hand_on, drain_s=0) as (_, own_address):
            yield own_address
    finally:
        await client.close()


async def register(
    namesrv: Peer, broker_name: str, address: str, topics: tuple[str, ...], queue_count: int = 1
) -> None:
    """Register a broker at an address with a nameserver, for as long as the peer is connected."""
    table = TopicConfigTable(
        topics={
            name: TopicConfig(
                topic_name=name, read_queue_count=queue_count, write_queue_count=queue_count
            )
            for name in topics
        }
    )
    body = registration.encode(
        RegisterBrokerBody(topic_config=table), compressed=False, broker_version=CURRENT_VERSION
    )
    header = RegisterBrokerRequest(
        broker_name=broker_name, broker_addr=address, cluster_name="c", ha_server_addr=address,
        broker_id=0, compressed=False, body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )  # fmt: skip
    await namesrv.expect(RequestCode.REGISTER_BROKER, headers.encode(header), body)


@asynccontextmanager
async def recorded_broker(folder: Path, *topics: str) -> AsyncGenerator[Recorded]:
    """A cluster whose only broker has these topics, one queue each, behind a recorder."""
    log: list[str] = []
    async with (
        running_namesrv(folder) as namesrv,
        running_broker(folder / "store", brokerName=BROKER, enablePropertyFilter="true") as broker,
        peer_of(broker.address) as peer,
        peer_of(namesrv) as registrar,
        _recording(broker.address, log) as address,
        _recording(namesrv, log) as shown_namesrv,
    ):
        for topic in topics:
            fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1",
                "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        await register(registrar, BROKER, address, topics)

        async def is_routed() -> bool:
            fields = {"topic": topics[0]}
            return (await registrar.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)).code == 0

        await eventually(is_routed, "a route")
        yield Recorded(shown_namesrv, peer, log)
