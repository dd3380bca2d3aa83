"""`tianzhou.testing`: real servers that start, restart, store messages and follow a clock."""

import asyncio
import threading
from pathlib import Path

import pytest

from tianzhou.errors import ConfigError, RequestError, TianzhouError
from tianzhou.protocol import properties
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.record import decode_records
from tianzhou.remoting.client import Client
from tianzhou.testing import Cluster, MovingClock

pytest_plugins = ["pytester"]


async def ask(address: str, code: int, body: bytes = b"", **fields: object) -> Command:
    client = Client()
    try:
        ext_fields = {name: str(value) for name, value in fields.items()}
        return await client.request(address, Command(code=code, ext_fields=ext_fields, body=body))
    finally:
        await client.close()


async def send(address: str, topic: str, body: bytes) -> Command:
    return await ask(
        address, RequestCode.SEND_MESSAGE, body, producerGroup="p", topic=topic,
        defaultTopic="TBW102", defaultTopicQueueNums=4, queueId=0, sysFlag=0,
        bornTimestamp=1, flag=0, properties=properties.encode({"UNIQ_KEY": "1"}),
        reconsumeTimes=0, unitMode="false", maxReconsumeTimes=0, batch="false",
    )  # fmt: skip


async def bodies(address: str, topic: str) -> list[bytes]:
    answer = await ask(
        address, RequestCode.PULL_MESSAGE, consumerGroup="g", topic=topic, queueId=0,
        queueOffset=0, maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0,
        subscription="*", subVersion=0, expressionType="TAG",
    )  # fmt: skip
    return [bytes(message.body) for message in decode_records(answer.body)]


def test_message_survives_a_broker_restart() -> None:
    with Cluster(topics={"orders": 2}) as cluster:
        assert asyncio.run(send(cluster.broker_addresses["broker-0"], "orders", b"one")).code == 0
        cluster.stop_broker()
        assert cluster.broker_addresses == {}
        cluster.start_broker()
        assert asyncio.run(bodies(cluster.broker_addresses["broker-0"], "orders")) == [b"one"]


async def test_topics_are_routed_when_create_topic_returns() -> None:
    async with Cluster(brokers=2) as cluster:
        await asyncio.to_thread(cluster.create_topic, "orders", 3)
        answer = await ask(
            cluster.namesrv_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders"
        )
        route = decode(TopicRouteData, answer.body)
        assert {data.broker_name: data.write_queue_count for data in route.queues} == {
            "broker-0": 3,
            "broker-1": 3,
        }


def test_advancing_the_clock_ends_the_wait_of_a_pull_and_stamps_messages() -> None:
    with Cluster(topics={"orders": 1}) as cluster:
        address = cluster.broker_addresses["broker-0"]

        async def hold_and_advance() -> Command:
            pull = asyncio.create_task(
                ask(
                    address, RequestCode.PULL_MESSAGE, consumerGroup="g", topic="orders",
                    queueId=0, queueOffset=0, maxMsgNums=32, sysFlag=6, commitOffset=0,
                    suspendTimeoutMillis=15_000, subscription="*", subVersion=0,
                    expressionType="TAG",
                )
            )  # fmt: skip
            while not pull.done():
                await asyncio.to_thread(cluster.advance, seconds=20)
                await asyncio.wait((pull,), timeout=0.05)
            return await pull

        assert asyncio.run(hold_and_advance()).code == ResponseCode.PULL_NOT_FOUND


def test_store_in_a_folder_outlives_the_cluster(tmp_path: Path) -> None:
    with Cluster(topics={"orders": 1}, folder=tmp_path) as cluster:
        asyncio.run(send(cluster.broker_addresses["broker-0"], "orders", b"kept"))
    with Cluster(folder=tmp_path) as cluster:
        assert asyncio.run(bodies(cluster.broker_addresses["broker-0"], "orders")) == [b"kept"]


def test_wrong_use_raises_and_leaves_nothing_behind() -> None:
    threads = threading.active_count()
    with pytest.raises(ConfigError, match="flushDiskType"):
        Cluster(flushDiskType="NEVER")
    with pytest.raises(ValueError, match="at least one broker"):
        Cluster(brokers=0)
    cluster = Cluster(topics={"not a name": 1})
    with pytest.raises(RequestError, match="illegal"):
        cluster.start()
    with pytest.raises(TianzhouError, match="does not run"):
        cluster.create_topic("orders")
    cluster.stop()
    with Cluster() as running, pytest.raises(TianzhouError, match="no broker-7"):
        running.start_broker("broker-7")
    assert threading.active_count() == threads


def test_clock_cannot_be_advanced_backwards() -> None:
    clock = MovingClock(lambda: 1000)
    clock.advance(500)
    assert clock() == 1500
    with pytest.raises(ValueError, match="0 ms or more"):
        clock.advance(-1)


def test_plugin_offers_an_own_and_a_shared_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        seen = []

        @pytest.mark.rocketmq(brokers=2, topics={"orders": 1})
        def test_own(rocketmq):
            assert sorted(rocketmq.broker_addresses) == ["broker-0", "broker-1"]

        @pytest.mark.parametrize("number", [1, 2])
        def test_shared(rocketmq_session, number):
            seen.append(rocketmq_session)
            assert all(each is seen[0] for each in seen)
        """
    )
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
