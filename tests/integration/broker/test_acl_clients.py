"""Access control over connections: half messages, replies, client ids and recalls of others."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.broker.test_acl import ask
from tests.integration.broker.test_locks_replies_queries import answering_peer, success
from tests.support.brokers import (
    Cluster,
    Peer,
    bodies_in,
    cluster,
    eventually,
    peer_of,
    pull_fields,
    send_fields,
)

from tianzhou.protocol import acl, sysflag
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.clients import HeartbeatData, ProducerData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

REPLIES = "DefaultCluster_REPLY_TOPIC"
OWNER = acl.Credentials("order-service", "order-secret")
OTHER = acl.Credentials("other-service", "other-secret")
READER = acl.Credentials("log-reader", "reader-secret")
ACCOUNTS = """
accounts:
  - accessKey: order-service
    secretKey: order-secret
    topicPerms: [orders=PUB|SUB, DefaultCluster_REPLY_TOPIC=PUB]
    groupPerms: [clerks=SUB]
  - accessKey: other-service
    secretKey: other-secret
    topicPerms: [other=PUB|SUB]
    groupPerms: [others=SUB]
  - accessKey: log-reader
    secretKey: reader-secret
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""
CHECKS_SEEN = 8
"""One of two members is chosen at random: in eight checks an allowed one is chosen."""


@asynccontextmanager
async def guarded(folder: Path, **settings: object) -> AsyncGenerator[Cluster]:
    (folder / "conf").mkdir()
    (folder / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    async with cluster(folder, aclEnable="true", rocketmqHome=folder, **settings) as it:
        yield it


async def request(
    peer: Peer, by: acl.Credentials, code: int, fields: dict[str, str], body: bytes = b""
) -> Command:
    command = Command(code=code, ext_fields=dict(fields), body=body)
    acl.sign(command, by)
    return await peer.client.request(peer.address, command)


async def heartbeat(peer: Peer, by: acl.Credentials, client_id: str, group: str) -> Command:
    data = HeartbeatData(client_id=client_id, producers=[ProducerData(group_name=group)])
    return await request(peer, by, RequestCode.HEART_BEAT, {}, encode_body(data))


async def send(peer: Peer, by: acl.Credentials, topic: str, **props: str) -> Command:
    flag = sysflag.TRANSACTION_PREPARED if "TRAN_MSG" in props else 0
    fields = send_fields(topic, queue_id=0, props=props, sys_flag=flag)
    return await request(peer, by, RequestCode.SEND_MESSAGE_V2, fields, b"confidential")


def checks_of(peer: Peer) -> list[Command]:
    return [each for each in peer.pushed if each.code == RequestCode.CHECK_TRANSACTION_STATE]


# -- transactions ----------------------------------------------------------------------------------


async def test_halves_are_sent_only_to_producers_that_may_publish_to_the_topic(
    tmp_path: Path,
) -> None:
    quick = {"transactionTimeOut": 1, "transactionCheckInterval": 20, "transactionCheckMax": 1000}
    async with guarded(tmp_path, **quick) as it, peer_of(it.broker.address) as intruder:
        assert (await heartbeat(it.peer, OWNER, "owner@1", "producers")).code == 0
        joined = await heartbeat(intruder, OTHER, "intruder@1", "producers")
        assert joined.code == ResponseCode.SUCCESS, "a group of producers has no permissions"
        half = await send(
            it.peer, OWNER, "orders", TRAN_MSG="true", PGROUP="producers", UNIQ_KEY="U"
        )
        assert half.code == ResponseCode.SUCCESS, half.remark
        await eventually(lambda: len(checks_of(it.peer)) >= CHECKS_SEEN, "the checks")
        assert not checks_of(intruder)
        # The permission is checked before each check: once removed, the producer gets no more.
        file = tmp_path / "conf" / "plain_acl.yml"
        swapped = ACCOUNTS.replace("orders=PUB|SUB", "none=SUB").replace("other=PUB", "orders=PUB")
        file.write_text(swapped)
        await eventually(lambda: len(checks_of(intruder)) >= 1, "the other to be asked")


# -- replies ---------------------------------------------------------------------------------------


async def reply(peer: Peer, by: acl.Credentials, topic: str, size: int = 4) -> Command:
    props = {"CORRELATION_ID": "c1", "MSG_TYPE": "reply", "REPLY_TO_CLIENT": "asker@1"}
    fields = send_fields(topic, props=props)
    return await request(peer, by, RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"x" * size)


async def test_reply_needs_permission_to_publish_to_the_reply_topic(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, maxMessageSize=65536) as it,
        answering_peer(it.broker.address, success) as asker,
    ):
        assert (await heartbeat(asker, OWNER, "asker@1", "askers")).code == 0
        denied = await reply(it.peer, OTHER, REPLIES)
        assert denied.code == ResponseCode.NO_PERMISSION
        for topic in ("orders", "%RETRY%clerks"):
            elsewhere = await reply(it.peer, OWNER, topic)
            assert elsewhere.code == ResponseCode.MESSAGE_ILLEGAL, elsewhere.remark
            assert f"a reply goes to topic {REPLIES}" in (elsewhere.remark or "")
        long = await reply(it.peer, OWNER, REPLIES, 65537)
        assert long.code == ResponseCode.MESSAGE_ILLEGAL
        assert not asker.pushed
        assert it.broker.stats.put.messages == 0
        assert (await reply(it.peer, OWNER, REPLIES)).code == ResponseCode.SUCCESS
        assert len(asker.pushed) == 1
        stolen = await request(
            it.peer, READER, RequestCode.PULL_MESSAGE, pull_fields("g", REPLIES, 0, 0)
        )
        assert stolen.code == ResponseCode.NO_PERMISSION
        assert not stolen.body


async def test_reply_to_another_topic_is_refused_without_access_control(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        before = it.broker.topics.get("orders")
        for code, fields in (
            (RequestCode.SEND_REPLY_MESSAGE_V2, send_fields("orders")),
            (RequestCode.SEND_REPLY_MESSAGE_V2, send_fields("SCHEDULE_TOPIC_XXXX")),
        ):
            answer = await ask(it, None, code, fields, b"x")
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert it.broker.topics.get("orders") is before
        assert it.broker.stats.put.messages == 0


# -- client ids ------------------------------------------------------------------------------------


async def test_a_client_id_in_use_cannot_be_used_by_another_account(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as it,
        answering_peer(it.broker.address, success) as owner,
        answering_peer(it.broker.address, success) as intruder,
    ):
        assert (await heartbeat(owner, OWNER, "asker@1", "askers")).code == 0
        refused_heartbeat = await heartbeat(intruder, OTHER, "asker@1", "askers")
        assert refused_heartbeat.code == ResponseCode.NO_PERMISSION
        assert "client id asker@1 is in use" in (refused_heartbeat.remark or "")
        assert (await reply(it.peer, OWNER, REPLIES)).code == ResponseCode.SUCCESS
        assert (len(owner.pushed), len(intruder.pushed)) == (1, 0)
        # A client that reconnects may use its id again, and an unused id is free.
        async with answering_peer(it.broker.address, success) as again:
            assert (await heartbeat(again, OWNER, "asker@1", "askers")).code == 0
            assert (await reply(it.peer, OWNER, REPLIES)).code == ResponseCode.SUCCESS
            assert len(again.pushed) == 1
        await owner.client.close()

        async def is_free() -> bool:
            return (await heartbeat(intruder, OTHER, "asker@1", "askers")).code == 0

        await eventually(is_free, "the id to be free")


# -- requests that wait ----------------------------------------------------------------------------


async def test_a_parked_pull_or_pop_is_refused_once_the_permission_is_removed(
    tmp_path: Path,
) -> None:
    pop = {
        "consumerGroup": "clerks", "topic": "orders", "queueId": "-1", "maxMsgNums": "8",
        "invisibleTime": "60000", "pollTime": "60000", "bornTime": "0", "initMode": "0",
    }  # fmt: skip
    async with guarded(tmp_path) as it:
        assert (await send(it.peer, OWNER, "orders")).code == ResponseCode.SUCCESS
        pull = pull_fields("clerks", "orders", 0, 1, sys_flag=6, suspend_ms=60_000)
        first = await request(it.peer, OWNER, RequestCode.POP_MESSAGE, pop)
        assert first.code == ResponseCode.SUCCESS
        waiting = [
            asyncio.create_task(request(it.peer, OWNER, code, fields))
            for code, fields in (
                (RequestCode.PULL_MESSAGE, pull), (RequestCode.POP_MESSAGE, pop),
            )
        ]  # fmt: skip
        await eventually(lambda: len(it.broker.parked) == 1, "the pull to wait")

        async def both_wait() -> bool:
            info = {"consumerGroup": "clerks", "topic": "orders", "queueId": "-1"}
            response = await request(it.peer, OWNER, RequestCode.POLLING_INFO, info)
            return response.fields.get("pollingNum") == "1"

        await eventually(both_wait, "the pop to wait")
        swapped = ACCOUNTS.replace("orders=PUB|SUB", "none=SUB").replace("other=PUB", "orders=PUB")
        (tmp_path / "conf" / "plain_acl.yml").write_text(swapped)

        async def other_sends() -> bool:
            return (await send(it.peer, OTHER, "orders")).code == ResponseCode.SUCCESS

        await eventually(other_sends, "the new rules")
        for task in waiting:
            answer = await task
            assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
            assert not answer.body


# -- recalls ---------------------------------------------------------------------------------------


async def test_a_timed_message_is_not_recalled_by_a_message_of_another_topic(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, timerWheelEnable="true") as it:
        await send(it.peer, OTHER, "other")
        due_ms = str(int(time.time() * 1000) + 1500)
        timed = await send(it.peer, OWNER, "orders", UNIQ_KEY="U1", TIMER_DELIVER_MS=due_ms)
        assert timed.code == ResponseCode.SUCCESS, timed.remark
        # Whether such a property is refused or dropped, it has no effect.
        await send(
            it.peer, OTHER, "other", TIMER_DEL_UNIQKEY="orders+U1", TIMER_DELIVER_MS=due_ms,
            UNIQ_KEY="U1",
        )  # fmt: skip
        denied = await request(
            it.peer, OTHER, RequestCode.RECALL_MESSAGE,
            {"topic": "orders", "recallHandle": timed.fields["recallHandle"]},
        )  # fmt: skip
        assert denied.code == ResponseCode.NO_PERMISSION

        async def delivered() -> bool:
            fields = pull_fields("clerks", "orders", 0, 0)
            pulled = await request(it.peer, OWNER, RequestCode.PULL_MESSAGE, fields)
            return pulled.code == ResponseCode.SUCCESS and bodies_in(pulled) == [b"confidential"]

        await eventually(delivered, "the timed message")
