"""Queue locks, replies, traces, queries and requests relayed to clients, over real sockets."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.support.brokers import (
    Cluster,
    Peer,
    bodies_in,
    cluster,
    eventually,
    messages_in,
    send_fields,
)

from tianzhou.broker.handlers import client_calls as relay_handlers
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.offsets import (
    ConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from tianzhou.protocol.bodies.queues import LockBatchResponseBody, MessageQueue, QueueLockBody
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, Language
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection

Answers = Callable[[Command], Command | Awaitable[Command | None] | None]


@asynccontextmanager
async def answering_peer(address: str, answers: Answers) -> AsyncGenerator[Peer]:
    """A peer that responds to requests of the broker."""
    pushed: list[Command] = []

    def handle(_: Connection, command: Command) -> Command | Awaitable[Command | None] | None:
        pushed.append(command)
        return answers(command)

    client = Client(handle=handle)
    try:
        yield Peer(client, address, pushed)
    finally:
        await client.close()


def success(_: Command) -> Command:
    return Command(code=ResponseCode.SUCCESS, body=b"mine", ext_fields={"x": "y"})


def no_response(_: Command) -> None:
    return None


def was_asked(peer: Peer) -> bool:
    return any(each.code == RequestCode.GET_CONSUMER_RUNNING_INFO for each in peer.pushed)


# -- order -----------------------------------------------------------------------------------------


def queues(*ids: int) -> list[MessageQueue]:
    return [MessageQueue(topic="t", broker_name="broker-a", queue_id=each) for each in ids]


async def lock(peer: Peer, client_id: str, *ids: int) -> list[int]:
    body = QueueLockBody(consumer_group="g", client_id=client_id, queues=queues(*ids))
    answer = await peer.expect(RequestCode.LOCK_BATCH_MQ, None, encode(body))
    return sorted(each.queue_id for each in decode(LockBatchResponseBody, answer.body).locked)


async def unlock(peer: Peer, client_id: str, *ids: int) -> None:
    body = QueueLockBody(consumer_group="g", client_id=client_id, queues=queues(*ids))
    await peer.expect(RequestCode.UNLOCK_BATCH_MQ, None, encode(body))


async def test_queues_are_locked_by_one_client_at_a_time(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        assert await lock(it.peer, "a", 0, 1) == [0, 1]
        assert await lock(it.peer, "b", 1, 2) == [2]
        await unlock(it.peer, "b", 1)
        assert await lock(it.peer, "b", 1, 2) == [2]
        await unlock(it.peer, "a", 1)
        assert await lock(it.peer, "b", 1, 2) == [1, 2]


async def test_a_lock_expires(tmp_path: Path) -> None:
    settings = {"rocketmq.broker.rebalance.lockMaxLiveTime": 1}
    async with cluster(tmp_path, **settings) as it:
        assert await lock(it.peer, "a", 0) == [0]

        async def is_acquired() -> bool:
            return await lock(it.peer, "b", 0) == [0]

        await eventually(is_acquired, "the lock of a client that is silent")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"consumerGroup":"g"}', b"[1]"])
async def test_a_lock_without_owner_is_refused(tmp_path: Path, body: bytes) -> None:
    async with cluster(tmp_path) as it:
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            answer = await it.peer.ask(code, None, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark
            assert "internal error" not in answer.remark


async def test_order_topics_of_the_nameserver_reach_clients_and_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:

        async def ask(code: int, fields: dict[str, str] | None, body: bytes = b"") -> Command:
            command = Command(code=code, ext_fields=fields, body=body)
            answer = await it.peer.client.request(it.namesrv, command)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return answer

        await it.peer.send("Ordered", b"x")
        await it.broker.register()
        order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Ordered", "value": "broker-a:4"}
        await ask(RequestCode.PUT_KV_CONFIG, order)
        await ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true")
        found = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"})
        assert decode(TopicRouteData, found.body).order_conf == "broker-a:4"
        await it.broker.register()
        topic = it.broker.topics.get("Ordered")
        assert topic is not None
        assert topic.order, "the broker learns it from the answer to its registration"


# -- request and reply -----------------------------------------------------------------------------


def reply_fields(it: Cluster, **props: str) -> dict[str, str]:
    return send_fields(
        "DefaultCluster_REPLY_TOPIC", props={"CORRELATION_ID": "c1", "MSG_TYPE": "reply"} | props
    )


async def test_reply_reaches_the_requesting_client(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as it,
        answering_peer(it.broker.address, success) as asking,
    ):
        await asking.heartbeat("asker@1", producer="askers")
        fields = reply_fields(it, REPLY_TO_CLIENT="asker@1")
        answer = await it.peer.expect(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"pong")
        (pushed,) = asking.pushed
        assert (pushed.code, pushed.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"pong")
        assert pushed.fields["topic"] == "DefaultCluster_REPLY_TOPIC"
        assert pushed.fields["storeHost"] == it.broker.address
        assert "CORRELATION_ID\x01c1" in pushed.fields["properties"]
        assert "PUSH_REPLY_TIME\x01" in pushed.fields["properties"]
        (stored,) = messages_in(await it.peer.pull("g", "DefaultCluster_REPLY_TOPIC", 0, 0))
        assert (stored.body, answer.fields["queueOffset"]) == (b"pong", "0")


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, storeReplyMessageEnable="false") as it,
        answering_peer(it.broker.address, success) as asking,
    ):
        await asking.heartbeat("asker@1", producer="askers")
        fields = reply_fields(it, REPLY_TO_CLIENT="asker@1")
        answer = await it.peer.expect(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"pong")
        assert (answer.fields["msgId"], answer.fields["queueOffset"]) == ("0", "0")
        assert it.broker.stats.put.messages == 0


async def test_a_reply_without_a_receiver_is_refused(tmp_path: Path) -> None:
    def refuse(_: Command) -> Command:
        return Command(code=ResponseCode.SYSTEM_ERROR, remark="not mine")

    async with cluster(tmp_path) as it, answering_peer(it.broker.address, refuse) as asking:
        await asking.heartbeat("asker@1", producer="askers")
        for props, remark in (
            ({}, "REPLY_TO_CLIENT] is null"),
            ({"REPLY_TO_CLIENT": "nobody"}, "channel of <nobody> not found"),
            ({"REPLY_TO_CLIENT": "asker@1"}, "not mine"),
        ):
            answer = await it.peer.ask(
                RequestCode.SEND_REPLY_MESSAGE_V2, reply_fields(it, **props), b"pong"
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert remark in (answer.remark or "")
        await asking.client.close()
        await eventually(lambda: it.broker.producers.find("asker@1") is None, "the asker to go")


# -- batches and traces ----------------------------------------------------------------------------


async def test_half_in_a_batch_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
        for items, outer in (
            ([BatchItem(b"1", "", 0), BatchItem(b"2", half, 0)], {}),
            ([BatchItem(b"1", "", 0)], {"TRAN_MSG": "true", "PGROUP": "p"}),
        ):
            fields = send_fields("t", batch=True, props=outer)
            answer = await it.peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch.encode(items))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "batch" in (answer.remark or "")
        assert it.broker.stats.put.messages == 0


async def test_traces_are_stored_in_the_trace_topic(tmp_path: Path) -> None:
    async with cluster(tmp_path, traceTopicEnable="true", autoCreateTopicEnable="false") as it:
        answer = await it.peer.send("RMQ_SYS_TRACE_TOPIC", b"Pub\x01", props={"KEYS": "id1"})
        assert answer.code == ResponseCode.SUCCESS
        assert bodies_in(await it.peer.pull("g", "RMQ_SYS_TRACE_TOPIC", 0, 0)) == [b"Pub\x01"]
    named = {"traceTopicEnable": "true", "msgTraceTopicName": "my_trace"}
    async with cluster(tmp_path / "2", autoCreateTopicEnable="false", **named) as it:
        assert (await it.peer.send("my_trace", b"Pub")).code == ResponseCode.SUCCESS


# -- queries ---------------------------------------------------------------------------------------


def query(key: str, **changes: str) -> dict[str, str]:
    return {
        "topic": "t", "key": key, "maxNum": "32", "beginTimestamp": "0",
        "endTimestamp": str(2**62),
    } | changes  # fmt: skip


async def test_messages_are_queried_by_keys_unique_keys_and_time(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for number in range(3):
            props = {"KEYS": f"all k{number}", "UNIQ_KEY": f"U{number}"}
            await it.peer.send("t", b"%d" % number, props=props)
        ask = it.peer.ask
        code = RequestCode.QUERY_MESSAGE
        assert bodies_in(await ask(code, query("k1"))) == [b"1"]
        assert bodies_in(await ask(code, query("U2", _UNIQUE_KEY_QUERY="true"))) == [b"2"]
        assert bodies_in(await ask(code, query("U2", indexType="U"))) == [b"2"]
        assert bodies_in(await ask(code, query("all"))) == [b"0", b"1", b"2"]
        assert bodies_in(await ask(code, query("all", maxNum="2"))) == [b"1", b"2"]
        # A unique key belongs to one message, so the limit does not matter.
        one = query("U2", _UNIQUE_KEY_QUERY="true", maxNum="0")
        assert bodies_in(await ask(code, one)) == [b"2"]
        tomorrow = str(int(time.time() * 1000) + 86_400_000)
        late = await ask(code, query("all", beginTimestamp=tomorrow))
        assert late.code == ResponseCode.QUERY_NOT_FOUND
        # An index type restricts the kind of key.
        for kind, key, found in (("K", "U2", False), ("U", "k1", False), ("K", "k1", True)):
            answer = await ask(code, query(key, indexType=kind))
            assert (answer.code == ResponseCode.SUCCESS) is found, (kind, key)


# -- relays ----------------------------------------------------------------------------------------


def of_client(client_id: str = "c1", **more: str) -> dict[str, str]:
    return {"consumerGroup": "g", "clientId": client_id} | more


async def test_running_info_comes_from_the_consumer(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, answering_peer(it.broker.address, success) as consumer:
        await consumer.heartbeat("c1", "g", {"t": "*"})
        fields = of_client(jstackEnable="true")
        answer = await it.peer.expect(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert (answer.body, answer.fields) == (b"mine", {"x": "y"})
        asked = consumer.pushed[-1]
        assert asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert asked.fields["jstackEnable"] == "true"
        absent = await it.peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, of_client("other"))
        assert absent.remark == "The Consumer <g> <other> not online"


async def test_a_message_is_consumed_directly(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, answering_peer(it.broker.address, success) as consumer:
        sent = await it.peer.send("t", b"again")
        await consumer.heartbeat("c1", "g", {"t": "*"})
        fields = of_client(msgId=sent.fields["msgId"], topic="t")
        answer = await it.peer.expect(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
        assert answer.body == b"mine"
        asked = consumer.pushed[-1]
        assert decode_record(asked.body).body == b"again"
        assert (asked.fields["brokerName"], asked.fields["topicSysFlag"]) == ("broker-a", "0")
        for msg_id in ("", "x", sent.fields["msgId"][:-1] + "1"):
            bad = await it.peer.ask(
                RequestCode.CONSUME_MESSAGE_DIRECTLY, of_client(msgId=msg_id, topic="t")
            )
            assert bad.code == ResponseCode.SYSTEM_ERROR
            assert "id" in (bad.remark or "")


async def test_a_client_that_does_not_respond_is_named_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.broker.cluster.call_client.call_client.__defaults__", (200,))
    async with cluster(tmp_path) as it, answering_peer(it.broker.address, no_response) as consumer:
        await consumer.heartbeat("c1", "g", {"t": "*"})
        waiting = asyncio.create_task(
            it.peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, of_client())
        )
        await eventually(lambda: was_asked(consumer), "the question")
        assert (await it.peer.send("t", b"x")).code == ResponseCode.SUCCESS
        answer = await waiting
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert answer.remark == "The Consumer <g> <c1> has not responded within 200 ms"


async def test_a_client_that_disconnects_meanwhile_is_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, answering_peer(it.broker.address, no_response) as consumer:
        await consumer.heartbeat("c1", "g", {"t": "*"})
        waiting = asyncio.create_task(
            it.peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, of_client())
        )
        await eventually(lambda: was_asked(consumer), "the question")
        await consumer.client.close()
        answer = await waiting
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "The Consumer <g> <c1> cannot be reached" in (answer.remark or "")


async def test_the_status_of_all_consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_handlers, "_STATUS_TIMEOUT_MS", 300)
    (queue,) = queues(1)

    def tell(_: Command) -> Command:
        body = ConsumerStatusBody(offsets={queue: 7})
        return Command(code=ResponseCode.SUCCESS, body=encode(body))

    async with (
        cluster(tmp_path) as it,
        answering_peer(it.broker.address, tell) as first,
        answering_peer(it.broker.address, no_response) as second,
    ):
        code, fields = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "t"}
        nobody = await it.peer.ask(code, fields | {"group": "g"})
        assert "No Any Consumer online" in (nobody.remark or "")
        await first.heartbeat("c1", "g", {"t": "*"})
        await second.heartbeat("c2", "g", {"t": "*"})
        answer = await it.peer.expect(code, fields | {"group": "g"})
        status = decode(ConsumerStatusBody, answer.body)
        assert status.offsets_by_client == {"c1": {queue: 7}}
        assert answer.remark == "no answer from c2"
        one = await it.peer.expect(code, fields | {"group": "g", "clientAddr": "c1"})
        assert one.remark is None


# -- resetting offsets -----------------------------------------------------------------------------


def reset(**changes: str) -> dict[str, str]:
    return {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"} | changes


async def offsets_after(it: Cluster, **changes: str) -> dict[int, int]:
    answer = await it.peer.expect(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(**changes))
    table = decode(ResetOffsetBody, answer.body).offsets
    assert {each.broker_name for each in table} == {"broker-a"}
    for queue, queue_offset in table.items():
        assert it.broker.offsets.find("g", "t", queue.queue_id) == queue_offset
    return {queue.queue_id: queue_offset for queue, queue_offset in table.items()}


async def filled(it: Cluster) -> None:
    """Four queues, three messages in queue 0, of which a group has consumed two."""
    for number in range(3):
        await it.peer.send("t", b"%d" % number)
    await it.peer.pull("g", "t", 0, 0)
    it.broker.offsets.commit("g", "t", 0, 2)


async def test_offsets_are_reset_by_time_and_by_offset(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await filled(it)
        assert await offsets_after(it) == {0: 0, 1: 0, 2: 0, 3: 0}
        assert (await offsets_after(it, timestamp="-1"))[0] == 3
        assert (await offsets_after(it, timestamp="-1", isForce="false"))[0] == 3
        assert (await offsets_after(it, timestamp="-2"))[0] == 0
        assert (await offsets_after(it, timestamp="-1", isForce="false"))[0] == 0
        assert await offsets_after(it, queueId="0", offset="2") == {0: 2}
        assert await offsets_after(it, queueId="0", timestamp="-1", offset="-1") == {0: 3}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": "0", "offset": "9"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_reset_to_an_invalid_offset_is_refused(
    tmp_path: Path, changes: dict[str, str], code: int
) -> None:
    async with cluster(tmp_path) as it:
        await filled(it)
        answer = await it.peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(**changes))
        assert (answer.code, bool(answer.remark)) == (code, True)
        assert it.broker.offsets.find("g", "t", 0) == 2


async def test_connected_consumers_are_notified_of_a_reset(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, useServerSideResetOffset="false") as it,
        answering_peer(it.broker.address, no_response) as java,
        answering_peer(it.broker.address, no_response) as cpp,
    ):
        await filled(it)
        await java.heartbeat("c1", "g", {"t": "*"})
        beat = Command(
            code=RequestCode.HEART_BEAT, language=Language.CPP,
            body=msgspec.json.encode({
                "clientID": "c2",
                "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}]}],
            }),
        )  # fmt: skip
        await cpp.client.request(cpp.address, beat)
        await offsets_after(it, queueId="0", offset="1")
        for peer in (java, cpp):
            await eventually(
                lambda peer=peer: (
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET  # type: ignore[misc]
                    in [each.code for each in peer.pushed]
                ),
                "the reset",
            )
        (queue,) = queues(0)
        assert decode(ResetOffsetBody, java.pushed[-1].body).offsets == {queue: 1}
        (decoded,) = decode(ResetOffsetBodyForC, cpp.pushed[-1].body).offsets or []
        assert (decoded.topic, decoded.queue_id, decoded.queue_offset) == ("t", 0, 1)
