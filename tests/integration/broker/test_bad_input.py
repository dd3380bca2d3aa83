"""Invalid requests, one row each: response code, readable remark, connection stays open."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.brokers import (
    STAMPS,
    Peer,
    bodies_in,
    cluster,
    messages_in,
    pull_fields,
    send_fields,
)

from tianzhou.protocol import sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.recall import RecallHandle, encode_handle

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


@dataclass(frozen=True)
class Row:
    """A request and its expected response."""

    name: str
    request: Callable[[], Command]
    code: int
    remark: str


def sending(topic: str, body: bytes = b"x", **changes: str) -> Callable[[], Command]:
    return lambda: Command(code=SEND, ext_fields=send_fields(topic) | changes, body=body)


def pulling(topic: str = "known", group: str = "g", **changes: str) -> Callable[[], Command]:
    return lambda: Command(code=PULL, ext_fields=pull_fields(group, topic, 0, 0) | changes)


def without(code: int, fields: dict[str, str], name: str) -> Callable[[], Command]:
    remaining = {key: value for key, value in fields.items() if key != name}
    return lambda: Command(code=code, ext_fields=remaining, body=b"x")


def batching(topic: str, properties_text: str) -> Callable[[], Command]:
    body = batch.encode([batch.BatchItem(body=b"x", properties_text=properties_text)])
    code = RequestCode.SEND_BATCH_MESSAGE
    return lambda: Command(code=code, ext_fields=send_fields(topic), body=body)


def sending_back(**changes: str) -> Callable[[], Command]:
    fields = {"offset": "0", "group": "g", "delayLevel": "0"} | changes
    return lambda: Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=fields)


def handle_for(topic: str, broker_name: str, deliver_ms: int) -> str:
    return encode_handle(RecallHandle(topic, broker_name, deliver_ms, "key"))


def recalling(handle: str, topic: str = "known") -> Callable[[], Command]:
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "p"}
    return lambda: Command(code=RequestCode.RECALL_MESSAGE, ext_fields=fields)


# Object keys are decoded slowly; half a megabyte of them would take a second.
_SLOW = b'{"clientID":"c","x":{' + b",".join(b'{"a":%d}:1' % n for n in range(30_000)) + b"}}"

ROWS = [
    Row("a body that takes long to read",
        lambda: Command(code=RequestCode.HEART_BEAT, body=_SLOW),
        ResponseCode.SYSTEM_ERROR, "no strict JSON"),
    # -- sending
    Row("illegal topic", sending("no blanks"), ResponseCode.SYSTEM_ERROR, "illegal characters"),
    Row("blank topic", sending(" "), ResponseCode.SYSTEM_ERROR, "blank"),
    Row("topic too long", sending("x" * 128), ResponseCode.SYSTEM_ERROR, "at most 127"),
    Row("unknown topic", sending("unknown"), ResponseCode.TOPIC_NOT_EXIST, "autoCreateTopicEnable"),
    Row("system topic", sending("SCHEDULE_TOPIC_XXXX"), ResponseCode.NO_PERMISSION, "own"),
    Row("no write permission", sending("readonly"), ResponseCode.NO_PERMISSION, "R--"),
    Row("queue id out of range", sending("known", e="4"), ResponseCode.SYSTEM_ERROR,
        "4 write queues"),
    Row("body too large", sending("known", b"x" * 1025), ResponseCode.MESSAGE_ILLEGAL,
        "1025 bytes"),
    Row("properties too long", sending("known", i="k\x01" + "v" * 33_000 + "\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "at most 32767"),
    Row("timer topic", sending("rmq_sys_wheel_timer"), ResponseCode.NO_PERMISSION, "own"),
    Row("delay level", sending("known", i="DELAY\x01soon\x02"), ResponseCode.MESSAGE_ILLEGAL,
        "'soon', not a number"),
    Row("time of delivery", sending("known", i="TIMER_DELIVER_MS\x01soon\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "'soon', not a number"),
    Row("delay too long", sending("known", i="TIMER_DELAY_SEC\x01999999\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
    Row("recall too late", sending("known", i="TIMER_DELAY_MS\x010\x02TIMER_DEL_UNIQKEY\x01k\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "before the time of the message"),
    Row("delayed message in a batch", batching("known", "DELAY\x013\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "no delayed messages"),
    Row("timed message in a batch", batching("known", "TIMER_DELAY_MS\x019\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "no timed messages"),
    Row("retries in a batch", batching("%RETRY%g", ""), ResponseCode.MESSAGE_ILLEGAL,
        "does not support retry group"),
    Row("retry of no group", sending("%RETRY%stranger"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "stranger"),
    Row("sent back by no group", sending_back(group="stranger"),
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "stranger"),
    Row("sent back from nowhere", sending_back(offset="7"), ResponseCode.SYSTEM_ERROR,
        "look message by offset failed, 7"),
    Row("sent back from before the beginning", sending_back(offset="-1"),
        ResponseCode.SYSTEM_ERROR, "look message by offset failed, -1"),
    Row("sent back without a header", lambda: Command(code=RequestCode.CONSUMER_SEND_MSG_BACK),
        ResponseCode.SYSTEM_ERROR, "missing"),
    Row("recall handle", recalling("no handle"), ResponseCode.ILLEGAL_OPERATION, "invalid"),
    Row("recall handle of another topic", recalling(handle_for("other", "broker-a", 2**40)),
        ResponseCode.ILLEGAL_OPERATION, "topic not match"),
    Row("recall handle of another broker", recalling(handle_for("known", "broker-b", 2**40)),
        ResponseCode.ILLEGAL_OPERATION, "broker-b"),
    Row("recall of the past", recalling(handle_for("known", "broker-a", 1)),
        ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
    Row("recall from no topic", recalling("x", "unknown"), ResponseCode.TOPIC_NOT_EXIST,
        "unknown"),
    Row("half message", sending("known", i="TRAN_MSG\x01true\x02"), ResponseCode.MESSAGE_ILLEGAL,
        "PGROUP"),
    Row("delayed half message",
        sending("known", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02DELAY\x013\x02"),
        ResponseCode.MESSAGE_ILLEGAL, "delayed"),
    Row("transaction flag", sending("known", f=str(sysflag.TRANSACTION_PREPARED)),
        ResponseCode.MESSAGE_ILLEGAL, "transactional"),
    Row("field missing", without(SEND, send_fields("known"), "e"), ResponseCode.SYSTEM_ERROR,
        "'e'"),
    Row("field of the wrong kind", sending("known", e="first"), ResponseCode.SYSTEM_ERROR,
        "'first'"),
    Row("number too large", sending("known", e=str(2**40)), ResponseCode.SYSTEM_ERROR, "32 bits"),
    Row("no header at all", lambda: Command(code=SEND), ResponseCode.SYSTEM_ERROR, "missing"),
    Row("broken batch",
        lambda: Command(code=RequestCode.SEND_BATCH_MESSAGE, ext_fields=send_fields("known"),
                        body=b"\0\0\0\x63oops"),
        ResponseCode.MESSAGE_ILLEGAL, "batch item"),
    Row("empty batch",
        lambda: Command(code=RequestCode.SEND_BATCH_MESSAGE, ext_fields=send_fields("known")),
        ResponseCode.MESSAGE_ILLEGAL, "no message"),
    # -- pulling
    Row("unknown topic of a pull", pulling("unknown"), ResponseCode.TOPIC_NOT_EXIST, "unknown"),
    Row("unknown group", pulling(group="stranger"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "stranger"),
    Row("no read permission", pulling("writeonly"), ResponseCode.NO_PERMISSION, "-W-"),
    Row("queue id of a pull", pulling(queueId="9"), ResponseCode.SYSTEM_ERROR, "4 read queues"),
    Row("negative queue id", pulling(queueId="-1"), ResponseCode.SYSTEM_ERROR, "out of range"),
    Row("no messages wanted", pulling(maxMsgNums="0"), ResponseCode.SYSTEM_ERROR, "maxMsgNums"),
    Row("bad SQL", pulling(subscription="a >", expressionType="SQL92"),
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "a value is expected"),
    Row("unknown filter", pulling(subscription="a", expressionType="XPATH"),
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "XPATH"),
    Row("subscription missing", pulling(sysFlag="0"), ResponseCode.SUBSCRIPTION_NOT_EXIST,
        "no heartbeat"),
    Row("offset of no queue",
        lambda: Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields={
            "consumerGroup": "g", "topic": "known", "queueId": "-1", "commitOffset": "5"}),
        ResponseCode.SYSTEM_ERROR, "queue -1"),
    Row("offset of no topic",
        lambda: Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields={
            "consumerGroup": "g", "topic": "none", "queueId": "0", "commitOffset": "5"}),
        ResponseCode.TOPIC_NOT_EXIST, "none"),
    # -- the rest
    Row("unknown code", lambda: Command(code=7777), ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        "7777"),
    Row("a nameserver's code", lambda: Command(code=RequestCode.REGISTER_BROKER),
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "REGISTER_BROKER"),
    Row("not in this version", lambda: Command(code=RequestCode.POP_LITE_MESSAGE),
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "lite topics"),
    Row("end of no transaction",
        lambda: Command(code=RequestCode.END_TRANSACTION, ext_fields={
            "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "77",
            "commitOrRollback": "8", "msgId": "m"}),
        ResponseCode.SYSTEM_ERROR, "prepared transaction message"),
    Row("end without a place", lambda: Command(code=RequestCode.END_TRANSACTION),
        ResponseCode.SYSTEM_ERROR, "producerGroup"),
    Row("lock without a client", lambda: Command(code=RequestCode.LOCK_BATCH_MQ, body=b"{}"),
        ResponseCode.SYSTEM_ERROR, "clientId"),
    Row("reply without a receiver",
        lambda: Command(code=RequestCode.SEND_REPLY_MESSAGE_V2,
                        ext_fields=send_fields("DefaultCluster_REPLY_TOPIC"), body=b"x"),
        ResponseCode.SYSTEM_ERROR, "REPLY_TO_CLIENT"),
    Row("reply elsewhere",
        lambda: Command(code=RequestCode.SEND_REPLY_MESSAGE_V2,
                        ext_fields=send_fields("known"), body=b"x"),
        ResponseCode.MESSAGE_ILLEGAL, "a reply goes to topic DefaultCluster_REPLY_TOPIC"),
    Row("running info of an unknown client",
        lambda: Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields={
            "consumerGroup": "g", "clientId": "c"}),
        ResponseCode.SYSTEM_ERROR, "not online"),
    Row("broken heartbeat", lambda: Command(code=RequestCode.HEART_BEAT, body=b"{oops"),
        ResponseCode.SYSTEM_ERROR, ""),
    Row("nameless heartbeat", lambda: Command(code=RequestCode.HEART_BEAT, body=b"{}"),
        ResponseCode.SYSTEM_ERROR, "client id"),
    Row("group with an illegal name",
        lambda: Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                        body=b'{"groupName":"a/b"}'),
        ResponseCode.SYSTEM_ERROR, "illegal characters"),
]  # fmt: skip


async def prepare(peer: Peer) -> None:
    for topic, perm in (("known", 6), ("readonly", 4), ("writeonly", 2)):
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
            "perm": str(perm), "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await peer.expect(code, None, b'{"groupName":"g"}')


async def test_every_bad_request_is_refused_with_a_reason_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with cluster(
        tmp_path, autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false",
        enablePropertyFilter="true", maxMessageSize=1024, recallMessageEnable="true",
    ) as it:  # fmt: skip
        await prepare(it.peer)
        connection = await it.peer.client.connect(it.peer.address)
        topics, groups = dict(it.broker.topics.topics), dict(it.broker.groups.groups)
        for number, row in enumerate(ROWS):
            answer = await connection.request(row.request(), 10_000)
            seen = f"{row.name}: {answer.code} {answer.remark}"
            assert answer.code == row.code, seen
            assert answer.remark, seen
            assert row.remark in answer.remark, seen
            assert "internal error" not in answer.remark, seen
            good = Command(code=SEND, ext_fields=send_fields("known"), body=b"%d" % number)
            assert (await connection.request(good, 10_000)).code == ResponseCode.SUCCESS, seen
        assert it.broker.topics.topics == topics
        assert it.broker.groups.groups == groups
        pulled = await it.peer.pull("g", "known", 0, 0)
        assert bodies_in(pulled) == [b"%d" % number for number in range(32)]


@pytest.mark.parametrize("version", [0, -1, 2**31 - 1])
async def test_any_version_in_the_header_is_served(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path) as it:
        command = Command(
            code=SEND, ext_fields=send_fields("t"), body=b"x", version=version, language=99
        )
        answer = await it.peer.client.request(it.peer.address, command)
        assert answer.code == ResponseCode.SUCCESS


async def test_malformed_properties_are_dropped(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for text in ("no separator", "\x01value\x02", "name\x01\x02", "\x02\x02\x02", "a\x01b"):
            answer = await it.peer.send("t", b"x", properties_text=text)
            assert answer.code == ResponseCode.SUCCESS
        stored = [each.properties for each in messages_in(await it.peer.pull("g", "t", 0, 0))]
        assert stored == [STAMPS] * 4 + [{"a": "b"} | STAMPS]
