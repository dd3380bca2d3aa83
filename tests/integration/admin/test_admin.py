"""The admin client: requests that no command uses, and errors."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import eventually, running_broker, running_namesrv

from tianzhou.admin import Admin
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.offsets import Goal
from tianzhou.client import Producer
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.message import ReceivedMessage
from tianzhou.errors import AddressError, ConnectError, RequestError, TargetError
from tianzhou.message import Message
from tianzhou.protocol import headers
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.bodies.clients import ProducerConnection
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.headers.clients import GetProducerConnectionListRequest
from tianzhou.protocol.headers.offsets import (
    GetEarliestMsgStoretimeResponse,
    QueueRequest,
)
from tianzhou.protocol.records.message_id import decode_offset_id, encode_offset_id
from tianzhou.testing import Cluster


@asynccontextmanager
async def administered() -> AsyncGenerator[tuple[Cluster, Admin, BrokerRef]]:
    async with Cluster(topics={"orders": 2}) as cluster, Admin(cluster.namesrv_address) as admin:
        (broker,) = await admin.clusters.brokers()
        yield cluster, admin, broker


async def earliest_time_ms(admin: Admin, broker: BrokerRef, queue_id: int) -> int:
    header = QueueRequest(topic="orders", queue_id=queue_id)
    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    response = await admin.requests.request(broker.address, code, header)
    return headers.decode(GetEarliestMsgStoretimeResponse, response.fields).timestamp


async def test_topics_and_offsets() -> None:
    async with administered() as (_, admin, broker):
        assert "TBW102" in await admin.topics.system_names()
        assert "orders" in await admin.topics.names_of_cluster("DefaultCluster")
        assert await admin.topics.config(broker, "nothing") is None
        assert await earliest_time_ms(admin, broker, 0) <= 0
        sent = await admin.messages.send(Message("orders", b"x"))
        earliest = await earliest_time_ms(admin, broker, sent.queue_id)
        stored = await admin.messages.by_offset_id(sent.offset_id)
        assert earliest == stored.store_time_ms
        await admin.groups.put(broker, SubscriptionGroupConfig(group_name="g"))
        await admin.offsets.commit(broker, "g", "orders", 0, 1)
        assert await admin.offsets.committed(broker, "g", "orders", 0) == 1
        assert await admin.offsets.committed(broker, "g", "orders", 1) is None
        assert (await admin.offsets.all_committed(broker))["orders@g"] == {0: 1}
        (planned,) = await admin.offsets.plan(broker, "g", "orders", Goal(queue_id=0))
        assert planned.before == 1


async def test_message_id_is_only_sent_to_brokers_of_the_cluster() -> None:
    """A message id is data: it must not decide where a signed request goes."""
    accepted: list[object] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer.get_extra_info("peername"))
        writer.close()

    async with administered() as (cluster, _, broker):
        trap = await asyncio.start_server(accept, "127.0.0.1", 0)
        port: int = trap.sockets[0].getsockname()[1]
        account = Credentials("operations", "12345678")
        async with (
            trap,
            Admin(cluster.namesrv_address, credentials=account, timeout_ms=30_000) as admin,
        ):
            sent = await admin.messages.send(Message("orders", b"x"))
            _, log_offset = decode_offset_id(sent.offset_id)
            foreign = encode_offset_id(("127.0.0.1", port), log_offset)
            for find in (admin.messages.by_offset_id, admin.messages.by_any_id):
                with pytest.raises(TargetError, match=f"127.0.0.1:{port} is not a broker of this"):
                    await find(foreign)
            assert not accepted
            for named in (broker.name, broker.address):
                found = await admin.messages.by_offset_id(foreign, broker=named)
                assert found.body == b"x"


async def test_message_id_resolves_to_broker_registered_by_host_name(tmp_path: Path) -> None:
    async with (
        running_namesrv(tmp_path) as namesrv,
        running_broker(tmp_path / "s", namesrvAddr=namesrv, brokerIP1="localhost") as broker,
        Admin(namesrv) as admin,
    ):
        assert broker.address.startswith("localhost:")
        await admin.topics.put(
            (await admin.clusters.brokers())[0], TopicConfig(topic_name="t", perm=6)
        )
        await broker.register()
        sent = await admin.messages.send(Message("t", b"x"))
        assert (await admin.messages.by_offset_id(sent.offset_id)).body == b"x"


async def test_connected_producers_and_consumers_are_reported() -> None:
    async with administered() as (cluster, admin, broker):
        received: list[ReceivedMessage] = []

        async def take(message: ReceivedMessage) -> None:
            received.append(message)

        consumer = PushConsumer("readers", namesrv=cluster.namesrv_address)
        consumer.subscribe("orders", take)
        await consumer.start()
        async with Producer("writers", namesrv=cluster.namesrv_address) as producer:
            result = await producer.send("orders", b"x")
            await eventually(lambda: received, "the message")

            async def told() -> bool:
                return "writers" in ((await admin.groups.producers(broker)).data or {})

            await eventually(told, "the producer is known")
            online = await admin.requests.read(
                broker.address,
                ProducerConnection,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                GetProducerConnectionListRequest(producer_group="writers"),
            )
            (writer,) = online.connections
            assert writer.language == "PYTHON"
            connection = await admin.groups.connection(broker, "readers")
            assert connection is not None
            (reader,) = connection.connections
            directly = await admin.groups.consume_directly(
                broker, "readers", reader.client_id or "", result.offset_msg_id
            )
            assert directly.consume_result == "CR_SUCCESS"
            assert len(received) == 2, "the message was consumed once more"
        await consumer.close()


async def test_errors_of_servers_and_unreachable_addresses() -> None:
    with pytest.raises(AddressError):
        Admin("nowhere")
    with pytest.raises(AddressError, match="no nameserver given"):
        Admin(" ; ")
    async with Admin("127.0.0.1:1;127.0.0.1:2") as lost:
        with pytest.raises(ConnectError, match=r"no nameserver responds: .*:1: .*; .*:2: "):
            await lost.topics.names()
    async with administered() as (_, admin, broker):
        with pytest.raises(TargetError, match="there is no topic 'nothing'"):
            await admin.topics.route("nothing")
        with pytest.raises(RequestError):
            await admin.groups.put(broker, SubscriptionGroupConfig(group_name="no blanks please"))
        assert await admin.brokers.statistic(broker, "TOPIC_PUT_NUMS", "nothing") is None


async def test_responding_nameserver_is_preferred() -> None:
    async with Cluster() as cluster, Admin(f"127.0.0.1:1;{cluster.namesrv_address}") as admin:
        await admin.topics.names()
        assert admin.requests.namesrvs[0] == cluster.namesrv_address
