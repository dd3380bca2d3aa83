"""A slave on the wire: what it refuses, what readers get, and that it changes nothing by itself.

The store is prepared by a master, which is stopped; the slave opens the same folder. A message that
the test appends to the slave's store stands for one that is copied from the master.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import (
    Cluster,
    Peer,
    bodies_in,
    cluster,
    eventually,
    peer_of,
    running_broker,
    send_fields,
)

from tianzhou.broker.handlers import Answer
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.requests.slave_refusals import REFUSED_BY_SLAVES
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.broker.server import Broker
from tianzhou.protocol import host, kernel
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies.clients import ConsumerIdList
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

TOPIC = "t"
HOST = ("127.0.0.1", 1)
COMMIT, SUSPEND, INLINE = 1, 2, 4
RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
SLAVE: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}
READING: dict[str, object] = SLAVE | {"slaveReadEnable": "true"}


async def prepare(folder: Path, count: int = 3) -> None:
    async with cluster(folder) as it:
        for number in range(count):
            await it.peer.send(TOPIC, str(number).encode())
        await it.peer.heartbeat("c", "g", {TOPIC: "*"})
        committed = {
            "consumerGroup": "g", "topic": TOPIC, "queueId": "0", "commitOffset": "1",
        }  # fmt: skip
        await it.peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, committed)


@asynccontextmanager
async def slave(folder: Path, settings: dict[str, object]) -> AsyncGenerator[Cluster]:
    async with (
        running_broker(folder / "store", **settings) as broker,
        peer_of(broker.address) as peer,
    ):
        yield Cluster("", broker, peer)


def copy_message(broker: Broker, body: bytes, queue_id: int = 0) -> None:
    """What the store gets when a message is copied from the master."""
    store, time_ms, packed = broker.store, 1_700_000_000_000, host.pack(HOST)
    record = kernel.encode_record(
        TOPIC, body, "", queue_id, store.max_offset(TOPIC, queue_id), store.end_log_offset, 0, 0,
        time_ms, packed, time_ms, packed, 0, 0,
    )  # fmt: skip
    assert store.append_copied(memoryview(record)) == len(record)


def suggested(answer: Command) -> tuple[int, str, str]:
    return (
        answer.code, answer.fields["suggestWhichBrokerId"], answer.fields["nextBeginOffset"],
    )  # fmt: skip


# -- refusals --------------------------------------------------------------------------------------


async def test_requests_that_change_the_log_or_tables_are_refused(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        broker = it.broker
        end, topics = broker.store.end_log_offset, broker.topics.data_version
        groups = broker.groups.data_version
        for code, refusal in REFUSED_BY_SLAVES.items():
            answer = await it.peer.ask(code, {"topic": TOPIC, "group": "g"})
            assert answer.code == refusal.code, RequestCode(code).name
        assert broker.store.end_log_offset == end
        assert (broker.topics.data_version, broker.groups.data_version) == (topics, groups)


async def test_sends_in_one_write_are_all_refused(tmp_path: Path) -> None:
    """The kernel's fast path, which saw this topic's pulls, stores none of them either."""
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        await it.peer.pull("g", TOPIC, 0, 0)
        end = it.broker.store.end_log_offset
        answers = await asyncio.gather(
            *(it.peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"x") for _ in range(20))
        )
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert it.broker.store.end_log_offset == end


async def test_queries_and_clients_are_served(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, SLAVE) as it:
        peer, queue = it.peer, {"topic": TOPIC, "queueId": "0"}
        at = await peer.expect(RequestCode.QUERY_CONSUMER_OFFSET, queue | {"consumerGroup": "g"})
        assert at.fields["offset"] == "1"
        assert (await peer.expect(RequestCode.GET_MAX_OFFSET, queue)).fields["offset"] == "3"
        update = queue | {"consumerGroup": "g", "commitOffset": "2"}
        await peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        assert it.broker.offsets.find("g", TOPIC, 0) == 2
        assert (await peer.heartbeat("c", "g", {TOPIC: "*"})).code == ResponseCode.SUCCESS
        listed = await peer.expect(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        assert decode_body(ConsumerIdList, listed.body).consumer_ids == ["c"]
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.GET_BROKER_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ):  # fmt: skip
            await peer.expect(code)


async def test_queues_without_a_topic_are_not_removed(tmp_path: Path) -> None:
    """The topic table is copied now and then, so it may lack a topic of the log."""
    await prepare(tmp_path)
    async with slave(tmp_path, SLAVE) as it:
        it.broker.topics.remove(TOPIC)
        answer = await it.peer.expect(RequestCode.CLEAN_UNUSED_TOPIC)
        assert "slave" in (answer.remark or "")
        assert it.broker.store.max_offset(TOPIC, 0) == 3


# -- topics and groups come from the master --------------------------------------------------------


async def test_clients_create_no_topics_and_groups(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        broker, peer = it.broker, it.peer
        topics, groups = set(broker.topics.topics), set(broker.groups.groups)
        await peer.heartbeat("c2", "new", {TOPIC: "*"})
        assert bodies_in(await peer.pull("new", TOPIC, 0, 0)) == [b"0", b"1", b"2"]
        # By the subscription of the heartbeat.
        registered = await peer.pull("new", TOPIC, 0, 0, sys_flag=0, subscription=None, version=1)
        assert bodies_in(registered) == [b"0", b"1", b"2"]
        update = {"consumerGroup": "new", "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
        await peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        unknown = await peer.pull("g", "unknown", 0, 0)
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        assert set(broker.topics.topics) == topics
        assert set(broker.groups.groups) == groups


async def test_unknown_group_is_refused_if_groups_are_not_created(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, READING | {"autoCreateSubscriptionGroup": "false"}) as it:
        assert (await it.peer.pull("g", TOPIC, 0, 0)).code == ResponseCode.SUCCESS
        answer = await it.peer.pull("new", TOPIC, 0, 0)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# -- pulls without slaveReadEnable -----------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_reader_is_sent_to_the_master(tmp_path: Path, code: int) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, SLAVE) as it:
        for queue_offset in (0, 3, 99):
            fields = {
                "consumerGroup": "g", "topic": TOPIC, "queueId": "0", "maxMsgNums": "32",
                "queueOffset": str(queue_offset), "sysFlag": str(INLINE), "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
            }  # fmt: skip
            answer = await it.peer.ask(code, fields)
            assert suggested(answer) == (RETRY, "0", str(queue_offset))
            assert not answer.body


async def test_reader_that_may_wait_is_sent_to_the_master_after_a_second(tmp_path: Path) -> None:
    """Clients without a master in their route repeat the pull at once."""
    await prepare(tmp_path)
    async with slave(tmp_path, SLAVE) as it:
        asked = asyncio.create_task(
            it.peer.pull("g", TOPIC, 0, 0, sys_flag=INLINE | SUSPEND, suspend_ms=30_000)
        )
        await eventually(lambda: len(it.broker.parked), "parked")
        copy_message(it.broker, b"3")
        assert suggested(await asked) == (RETRY, "0", "0")


# -- pulls with slaveReadEnable --------------------------------------------------------------------


async def test_commit_with_a_pull_is_ignored(tmp_path: Path) -> None:
    """`storeOffsetEnable` of 4.9.7's PullMessageProcessor; by handlers, and by the fast path."""
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        for _ in range(3):
            answer = await it.peer.pull("g", TOPIC, 0, 0, sys_flag=INLINE | COMMIT, commit_offset=3)
            assert len(bodies_in(answer)) == 3
        assert it.broker.offsets.find("g", TOPIC, 0) == 1


async def test_wrong_offset_is_not_corrected(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        assert suggested(await it.peer.pull("g", TOPIC, 0, 99)) == (RETRY, "0", "99")
        assert suggested(await it.peer.pull("g", TOPIC, 1, 7)) == (RETRY, "0", "7")
    async with slave(tmp_path, READING | {"offsetCheckInSlave": "true"}) as it:
        moved = await it.peer.pull("g", TOPIC, 0, 99)
        assert suggested(moved) == (ResponseCode.PULL_OFFSET_MOVED, "0", "3")


async def test_parked_pull_gets_a_copied_message(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        for number in (3, 4):
            asked = asyncio.create_task(
                it.peer.pull("g", TOPIC, 0, number, sys_flag=INLINE | SUSPEND, suspend_ms=30_000)
            )
            await eventually(lambda: len(it.broker.parked), "parked")
            copy_message(it.broker, str(number).encode())
            assert bodies_in(await asked) == [str(number).encode()]


async def test_reader_ahead_of_the_slave_gets_the_message_once_it_is_copied(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with slave(tmp_path, READING) as it:
        asked = asyncio.create_task(
            it.peer.pull("g", TOPIC, 0, 4, sys_flag=INLINE | SUSPEND, suspend_ms=30_000)
        )
        await eventually(lambda: len(it.broker.parked), "parked")
        copy_message(it.broker, b"3")
        copy_message(it.broker, b"4")
        assert bodies_in(await asked) == [b"4"]


async def set_group(peer: Peer, **changes: int) -> None:
    body = {"groupName": "g", **changes}
    text = str(body).replace("'", '"').encode()
    await peer.expect(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=text)


@pytest.mark.kernel
@pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}")
@pytest.mark.parametrize("is_slave", [True, False])
@pytest.mark.parametrize(("ratio", "broker_id"), [(40, "5"), (0, "6")])
async def test_fast_path_suggests_the_brokers_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slave: bool, ratio: int, broker_id: str
) -> None:
    await prepare(tmp_path)
    async with cluster(tmp_path) as it:
        await set_group(it.peer, brokerId=5, whichBrokerWhenConsumeSlowly=6)
    settings: dict[str, object] = {
        "slaveReadEnable": "true",
        "accessMessageInMemoryMaxRatio": ratio,
    } | (SLAVE if is_slave else {})
    handled: list[Command] = []
    handler = HANDLERS[RequestCode.PULL_MESSAGE]

    def pull(deps: Deps, connection: Connection, request: Command) -> Answer:
        handled.append(request)
        return handler(deps, connection, request)

    monkeypatch.setitem(HANDLERS, RequestCode.PULL_MESSAGE, pull)
    async with slave(tmp_path, settings) as it:
        for _ in range(4):
            answer = await it.peer.pull("g", TOPIC, 0, 0, count=2)
            assert suggested(answer) == (ResponseCode.SUCCESS, broker_id, "2")
        assert len(handled) == 1, "later pulls are the fast path's"
        update = b"slaveReadEnable=false"
        await it.peer.expect(RequestCode.UPDATE_BROKER_CONFIG, body=update)
        answer = await it.peer.pull("g", TOPIC, 0, 0, count=2)
        expected = (RETRY, "0", "0") if is_slave else (ResponseCode.SUCCESS, "0", "2")
        assert suggested(answer) == expected
