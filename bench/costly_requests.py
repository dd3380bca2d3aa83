"""The most expensive valid request of every code, and servers with large tables for them.

The table has two users: `test_request_cost.py` bounds the cost of each on the event loop, and
`bench_stalls.py` measures how long other requests wait meanwhile. A code without an entry fails the
test. Requests that change state can be sent once, in this order.

Longer than 500 lines: one table with an entry for every request code.
"""

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.support.brokers import Peer, pull_fields, send_fields

from tianzhou.broker.server import Broker
from tianzhou.broker.tables.clients import Client as ClientEntry
from tianzhou.broker.tables.clients import ConsumerHeartbeat, make_subscription
from tianzhou.errors import ConnectionClosed
from tianzhou.limits import (
    ACKED_BITS_MAX,
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    CLIENT_BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    LIST_BODY_BYTES_MAX,
    LOOSE_JSON_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    SETTINGS_BODY_BYTES_MAX,
    TOPIC_QUEUES_MAX,
)
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records import batch
from tianzhou.protocol.version import CURRENT_VERSION

TOPICS = GROUPS = 10_000
WIDE_QUEUES = TOPIC_QUEUES_MAX
"""Queues of the topic `wide`."""
MESSAGES = 2_000
"""Messages in the one queue of the topic `deep`, each with many properties."""
DOOMED_QUEUES = 256
"""Queues with messages of each of the topics that are deleted."""
CLIENTS = 500
"""Producers and consumers that are added to the tables of the broker, without connections."""

SETTINGS: dict[str, object] = {
    "maxMessageSize": 4 * 1024 * 1024,
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "timerWheelEnable": "true",
    "maxIndexNum": 200_000,
    "maxHashSlotNum": 50_000,
    "slowRequestThresholdMills": 0,
    "enablePropertyFilter": "true",
}
"""Settings of the broker."""

OK = frozenset((int(ResponseCode.SUCCESS),))
_ANY = frozenset[int]()
_OR_NOTHING = OK | {
    ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT,
    ResponseCode.POLLING_FULL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Costly:
    """One request, and the valid response codes; empty for any."""

    code: int
    what: str
    fields: dict[str, str] | None = None
    body: bytes = b""
    answers: frozenset[int] = OK

    def command(self) -> Command:
        return Command(
            code=self.code, ext_fields=self.fields, body=self.body, version=CURRENT_VERSION
        )


@dataclass(frozen=True, slots=True)
class World:
    """Values of the broker that requests need."""

    first_log_offset: int
    """Of a message in the topic `deep`."""
    message_id: str


# -- a broker with large tables --------------------------------------------------------------------


class _Gone:
    """Stands in for a connection in the tables of clients."""

    peer = "192.0.2.1:1"
    closed = True

    def oneway(self, _: Command) -> None:
        """Nothing is sent."""

    async def request(self, _: Command, __: int) -> Command:
        raise ConnectionClosed("there is no connection")

    def close(self, _: str) -> None:
        """There is nothing to close."""


async def fill(broker: Broker, peer: Peer) -> World:
    """Fill all tables, and store some messages."""
    for number in range(TOPICS):
        broker.topics.put(TopicConfig(topic_name=topic(number)))
    wide = TopicConfig(
        topic_name="wide", read_queue_count=WIDE_QUEUES, write_queue_count=WIDE_QUEUES
    )
    broker.topics.put(wide)
    for name in ("doomed", "unused"):
        doomed = TopicConfig(
            topic_name=name, read_queue_count=DOOMED_QUEUES, write_queue_count=DOOMED_QUEUES
        )
        broker.topics.put(doomed)
    broker.topics.put(TopicConfig(topic_name="deep", read_queue_count=1, write_queue_count=1))
    for number in range(GROUPS):
        broker.groups.put(SubscriptionGroupConfig(group_name=group(number)))
        # One group reads every topic, and one topic is read by every group.
        for queue_id in range(4):
            broker.offsets.commit("g0", topic(number), queue_id, 1)
        broker.offsets.commit(group(number), "wide", 0, 1)
    for queue_id in range(WIDE_QUEUES):
        broker.offsets.commit("g0", "wide", queue_id, 1)
    _fill_clients(broker)
    world = await _fill_store(peer)
    broker.topics.remove("unused")
    return world


def topic(number: int) -> str:
    return f"topic-of-this-broker-{number}"


def group(number: int) -> str:
    return f"g{number}"


def _fill_clients(broker: Broker) -> None:
    now_ms = int(time.time() * 1000)
    wanted = tuple(make_subscription(topic(each), "*", "TAG", 1) for each in range(200))
    for number in range(CLIENTS):
        gone = _Gone()
        for each in range(20):
            client = ClientEntry(f"client-{number}", 0, CURRENT_VERSION, now_ms)
            broker.producers.heartbeat(gone, client, f"p{each}")  # type: ignore[arg-type]
        client = ClientEntry(f"client-{number}", 0, CURRENT_VERSION, now_ms)
        heartbeat = ConsumerHeartbeat(
            group="g1", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
            consume_from="CONSUME_FROM_LAST_OFFSET", subscriptions=wanted,
        )  # fmt: skip
        broker.consumers.heartbeat(gone, client, heartbeat)  # type: ignore[arg-type]


async def _fill_store(peer: Peer) -> World:
    text = "".join(f"name{number}\x01value{number}\x02" for number in range(60))
    message = batch.BatchItem(body=b"x" * 100, properties_text=f"KEYS\x01k\x02{text}")
    many = batch.encode([message] * (MESSAGES // 10))
    stored = None
    for _ in range(10):
        fields = send_fields("deep", queue_id=0, batch=True)
        stored = await peer.expect(RequestCode.SEND_BATCH_MESSAGE, fields, many)
    assert stored is not None
    for queue_id in range(DOOMED_QUEUES):
        for doomed in ("doomed", "unused"):
            fields = send_fields(doomed, queue_id=queue_id)
            await peer.expect(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    message_id = stored.fields["msgId"].split(",")[0]
    return World(int(message_id[16:], 16), message_id)


# -- requests to a broker --------------------------------------------------------------------------


def sql(terms: int = 480) -> str:
    """A filter that matches nothing, after evaluating each of its terms."""
    return " OR ".join(f"name{number}='no'" for number in range(terms))


def _properties() -> str:
    text = "".join(f"p{number}\x01x\x02" for number in range(PROPERTIES_BYTES_MAX // 8 - 100))
    return text[: PROPERTIES_BYTES_MAX - 300].rpartition("\x02")[0] + "\x02"


def _loose(key: str) -> bytes:
    """A body of non-strict JSON of the maximum length, under an unknown key."""
    before, after = b"{%s:{" % key.encode(), b"}}"
    unit = b"{a:1}:1,"
    count = (LOOSE_JSON_BYTES_MAX - len(before) - len(after)) // len(unit)
    return before + unit * count + after


def _json_list(before: bytes, unit: Callable[[int], bytes], after: bytes, size_bytes: int) -> bytes:
    units: list[bytes] = []
    left = size_bytes - len(before) - len(after)
    number = 0
    while (left := left - len(following := unit(number)) - 1) >= 0:
        units.append(following)
        number += 1
    return before + b",".join(units) + after


def _sends() -> Iterator[Costly]:
    many = batch.encode([batch.BatchItem(body=b"", properties_text="")] * BATCH_MESSAGES_MAX)
    keyed = batch.BatchItem(body=b"x" * 100, properties_text="KEYS\x01a b c d\x02TAGS\x01t\x02")
    keyed_many = batch.encode([keyed] * BATCH_MESSAGES_MAX)
    long_fields = {
        "producerGroup": "p", "topic": topic(1), "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0",
        "flag": "0", "properties": _properties(), "reconsumeTimes": "0", "unitMode": "false",
        "batch": "false",
    }  # fmt: skip
    text = _properties()
    body = b"x" * (4 * 1024 * 1024)
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE):
        fields = send_fields(topic(1), properties_text=text)
        fields = fields if code == RequestCode.SEND_MESSAGE_V2 else long_fields
        yield Costly(code, "most properties", fields)
    yield Costly(RequestCode.SEND_MESSAGE_V2, "longest body", send_fields(topic(1)), body)
    tags = "TAGS\x01" + "t" * (PROPERTIES_BYTES_MAX - 500) + "\x02"
    yield Costly(
        RequestCode.SEND_MESSAGE_V2, "longest tags", send_fields(topic(1), properties_text=tags)
    )
    keys = "KEYS\x01" + "k " * (PROPERTIES_BYTES_MAX // 2 - 300) + "\x02"
    yield Costly(
        RequestCode.SEND_MESSAGE_V2, "most keys", send_fields(topic(1), properties_text=keys)
    )
    delayed = send_fields(topic(1), properties_text=f"DELAY\x013\x02{text}")
    yield Costly(RequestCode.SEND_MESSAGE_V2, "delayed", delayed, body)
    half = send_fields(topic(1), properties_text=f"TRAN_MSG\x01true\x02PGROUP\x01p\x02{text}")
    half["f"] = "4"
    yield Costly(RequestCode.SEND_MESSAGE_V2, "half message", half, body)
    for what, full in (("most messages", many), ("most messages with keys", keyed_many)):
        fields = send_fields(topic(1), batch=True)
        yield Costly(RequestCode.SEND_BATCH_MESSAGE, what, fields, full)
    correlated = f"CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01client-1\x02{text}"
    yield Costly(
        RequestCode.SEND_REPLY_MESSAGE, "most properties",
        long_fields | {"properties": correlated}, body, _ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.SEND_REPLY_MESSAGE_V2, "most properties",
        send_fields(topic(1), properties_text=correlated), body, _ANY,
    )  # fmt: skip


def _messages(world: World) -> Iterator[Costly]:
    at = str(world.first_log_offset)
    yield from _sends()
    yield Costly(
        RequestCode.CONSUMER_SEND_MSG_BACK, "a message",
        {"offset": at, "group": "g0", "delayLevel": "1", "originMsgId": world.message_id,
         "originTopic": "deep", "maxReconsumeTimes": "16"},
    )  # fmt: skip
    yield Costly(
        RequestCode.RECALL_MESSAGE, "a longest handle",
        {"topic": topic(1), "recallHandle": "x" * BODY_BYTES_MAX}, answers=_ANY,
    )  # fmt: skip
    everything = pull_fields("g0", "deep", 0, 0, count=MESSAGES)
    for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        yield Costly(code, "most messages", everything, answers=_OR_NOTHING)
        filtered = pull_fields(
            "g0", "deep", 0, 0, count=MESSAGES, subscription=sql(), expression_type="SQL92"
        )
        yield Costly(code, "longest filter that matches nothing", filtered, answers=_OR_NOTHING)
        tags = " || ".join(f"tag{number}" for number in range(8_000))
        tagged = pull_fields("g0", "deep", 0, 0, count=MESSAGES, subscription=tags)
        yield Costly(code, "most tags", tagged, answers=_OR_NOTHING)
    yield Costly(
        RequestCode.QUERY_MESSAGE, "a frequent key",
        {"topic": "deep", "key": "k", "maxNum": str(2**31 - 1), "beginTimestamp": "0",
         "endTimestamp": str(2**62)},
    )  # fmt: skip
    yield Costly(
        RequestCode.QUERY_MESSAGE, "a frequent key of another kind",
        {"topic": "deep", "key": "k", "maxNum": str(2**31 - 1), "beginTimestamp": "0",
         "endTimestamp": str(2**62), "indexType": "U"}, answers=_ANY,
    )  # fmt: skip
    yield Costly(RequestCode.VIEW_MESSAGE_BY_ID, "a message", {"offset": at})
    yield Costly(
        RequestCode.END_TRANSACTION, "no half message",
        {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": at,
         "commitOrRollback": "8", "msgId": "m" * 10_000}, answers=_ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, "no half message",
        {"topic": "deep", "msgId": world.message_id}, answers=_ANY,
    )  # fmt: skip


def _pops(world: World) -> Iterator[Costly]:
    del world
    now = str(int(time.time() * 1000))
    pop = {
        "consumerGroup": "g2", "topic": "wide", "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": "60000", "pollTime": "0", "bornTime": now, "initMode": "0",
    }  # fmt: skip
    yield Costly(RequestCode.POP_MESSAGE, "all queues, none has any", pop, answers=_OR_NOTHING)
    deep = pop | {"topic": "deep", "exp": sql(), "expType": "SQL92"}
    yield Costly(RequestCode.POP_MESSAGE, "longest filter", deep, answers=_OR_NOTHING)
    yield Costly(RequestCode.POP_MESSAGE, "most messages", pop | {"topic": "deep"})
    handle = f"0 {now} 60000 0 0 broker-a 0 0"
    fields = {"consumerGroup": "g2", "topic": "deep", "queueId": "0", "offset": "0"}
    yield Costly(RequestCode.ACK_MESSAGE, "a message", fields | {"extraInfo": handle})
    yield Costly(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, "a message",
        fields | {"extraInfo": handle, "invisibleTime": "1000"}, answers=_ANY,
    )  # fmt: skip
    yield from _batch_acks()
    yield Costly(
        RequestCode.PEEK_MESSAGE, "all queues, none has any",
        {"consumerGroup": "g2", "topic": "wide", "queueId": "-1", "maxMsgNums": "32"}, answers=_ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.PEEK_MESSAGE, "most messages",
        {"consumerGroup": "g2", "topic": "deep", "queueId": "-1", "maxMsgNums": "32"}, answers=_ANY,
    )  # fmt: skip
    notified = {
        "consumerGroup": "g2",
        "topic": "wide",
        "queueId": "-1",
        "pollTime": "0",
        "bornTime": now,
    }
    yield Costly(RequestCode.NOTIFICATION, "all queues, none has any", notified)
    yield Costly(
        RequestCode.NOTIFICATION, "longest filter",
        notified | {"topic": "deep", "exp": sql(), "expType": "SQL92"}, answers=_ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.POLLING_INFO, "all queues",
        {"consumerGroup": "g2", "topic": "wide", "queueId": "-1"},
    )  # fmt: skip


def _batch_acks() -> Iterator[Costly]:
    def ack(bits: bytes, number: int) -> bytes:
        return b'{"c":"g2","t":"deep","r":"0","so":%d,"q":0,"rq":0,"pt":1,"it":60000,"b":"%s"}' % (
            number,
            base64.b64encode(bits),
        )

    code, before, after = RequestCode.BATCH_ACK_MESSAGE, b'{"acks":[', b"]}"
    for what, bits in (("bits", b"\xff" * 64), ("acks", b"\x01")):
        body = _json_list(before, partial(ack, bits), after, CLIENT_BODY_BYTES_MAX // 4)
        yield Costly(code, f"too many {what}", None, body, _ANY)
    bits = b"\xff" * 16
    count = ACKED_BITS_MAX // (len(base64.b64encode(bits)) * 6)
    body = before + b",".join(ack(bits, number) for number in range(count)) + after
    yield Costly(code, "most bits", None, body)
    one = before + ack(b"\xff" * (CLIENT_BODY_BYTES_MAX * 3 // 4 - 1024), 0) + after
    yield Costly(code, "longest set of bits", None, one, _ANY)
    yield Costly(code, "loose JSON", None, _loose("acks2"), _ANY)


def _queues(world: World) -> Iterator[Costly]:
    del world

    def queue(number: int) -> bytes:
        return b'{"topic":"wide","brokerName":"broker-a","queueId":%d}' % number

    before = b'{"consumerGroup":"g0","clientId":"c","mqSet":['
    body = _json_list(before, queue, b"]}", CLIENT_BODY_BYTES_MAX)
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        yield Costly(code, "most queues", None, body, _ANY)
        yield Costly(code, "loose JSON", None, _loose("mqSet2"), _ANY)
    assigned = (
        b'{"topic":"wide","consumerGroup":"g1","clientId":"client-1","strategyName":"AVG",'
        b'"messageModel":"CLUSTERING"}'
    )
    yield Costly(RequestCode.QUERY_ASSIGNMENT, "most queues and clients", None, assigned)
    broadcast = assigned.replace(b"CLUSTERING", b"BROADCASTING")
    yield Costly(RequestCode.QUERY_ASSIGNMENT, "most queues", None, broadcast)
    yield Costly(
        RequestCode.SET_MESSAGE_REQUEST_MODE, "a mode", None,
        b'{"topic":"wide","consumerGroup":"g1","mode":"POP","popShareQueueNum":0}',
    )  # fmt: skip
    yield Costly(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, "all", None)


def _offsets(world: World) -> Iterator[Costly]:
    del world
    fields = {"consumerGroup": "g0", "topic": "deep", "queueId": "0"}
    yield Costly(RequestCode.QUERY_CONSUMER_OFFSET, "a queue", fields)
    yield Costly(RequestCode.UPDATE_CONSUMER_OFFSET, "a queue", fields | {"commitOffset": "5"})
    for code in (
        RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ):  # fmt: skip
        yield Costly(code, "a queue", fields)
    yield Costly(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "a queue", fields | {"timestamp": "5"})
    yield Costly(
        RequestCode.CLONE_GROUP_OFFSET, "all topics", {"srcGroup": "g0", "destGroup": "cloned"}
    )
    yield Costly(
        RequestCode.QUERY_CORRECTION_OFFSET, "most groups and queues",
        {"topic": "wide", "compareGroup": "g0", "filterGroups": "x," * 8_000},
    )  # fmt: skip


def _heartbeat(
    unit: Callable[[int], bytes], kind: str, size_bytes: int = CLIENT_BODY_BYTES_MAX
) -> bytes:
    before = b'{"clientID":"costly","%sDataSet":[' % kind.encode()
    return _json_list(before, unit, b"]}", size_bytes)


def _subscription(topic_name: bytes, expression: bytes, kind: bytes) -> bytes:
    return (
        b'{"topic":"%s","subString":"%s","expressionType":"%s","subVersion":1,"tagsSet":[],'
        b'"codeSet":[],"classFilterMode":false}' % (topic_name, expression, kind)
    )


def _consumer(name: bytes, subscriptions: bytes) -> bytes:
    return (
        b'{"groupName":"%s","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[%s],'
        b'"unitMode":false}' % (name, subscriptions)
    )


def _clients(world: World) -> Iterator[Costly]:
    del world
    code = RequestCode.HEART_BEAT
    yield Costly(
        code, "most consumer groups", None,
        _heartbeat(lambda n: _consumer(b"h%d" % n, _subscription(b"t%d" % n, b"*", b"TAG")),
                   "consumer"),
    )  # fmt: skip
    filters = [sql(10).replace("no", f"n{n}").encode() for n in range(20_000)]
    yield Costly(
        code, "many filters", None,
        _heartbeat(
            lambda n: _consumer(b"f%d" % n, _subscription(b"t", filters[n], b"SQL92")), "consumer",
            CLIENT_BODY_BYTES_MAX // 8,
        ),
    )  # fmt: skip
    longest = [sql().replace("no", f"n{n}").encode() for n in range(400)]
    yield Costly(
        code, "many of the longest filters", None,
        _heartbeat(
            lambda n: _consumer(b"l%d" % n, _subscription(b"t", longest[n], b"SQL92")), "consumer",
            CLIENT_BODY_BYTES_MAX // 8,
        ),
    )  # fmt: skip
    one = _json_list(
        b"", lambda n: _subscription(b"t%d" % n, b"*", b"TAG"), b"", CLIENT_BODY_BYTES_MAX - 500
    )
    body = b'{"clientID":"costly","consumerDataSet":[%s]}' % _consumer(b"wide", one)
    yield Costly(code, "one group with most subscriptions", None, body, _ANY)
    retries = _json_list(
        b"", lambda n: _subscription(b"%%RETRY%%%d%s" % (n, b"_" * 500), b"*", b"TAG"), b"",
        CLIENT_BODY_BYTES_MAX - 500,
    )  # fmt: skip
    body = b'{"clientID":"costly","consumerDataSet":[%s]}' % _consumer(b"wide", retries)
    yield Costly(code, "names that can be split in many ways", None, body, _ANY)
    long = b'{"clientID":"costly","consumerDataSet":[%s]}' % _consumer(
        b"wide", _subscription(b"%RETRY%" + b"_" * (CLIENT_BODY_BYTES_MAX - 1_000), b"*", b"TAG")
    )
    yield Costly(code, "the longest name", None, long, _ANY)
    producers = _heartbeat(lambda n: b'{"groupName":"q%d"}' % n, "producer")
    yield Costly(code, "most producer groups", None, producers, _ANY)
    yield Costly(code, "the same again", None, producers, _ANY)
    yield Costly(code, "broken at its end", None, producers[:-1], _ANY)
    yield Costly(code, "loose JSON", None, _loose("z")[:-1] + b",clientID:'c'}", _ANY)
    yield Costly(
        RequestCode.UNREGISTER_CLIENT, "of a large group",
        {"clientID": "costly", "producerGroup": "q1", "consumerGroup": "wide"},
    )  # fmt: skip
    checked = b'{"clientId":"c","group":"g0","subscriptionData":%s}'
    yield Costly(
        RequestCode.CHECK_CLIENT_CONFIG, "longest filter", None,
        checked % _subscription(b"t", sql().encode(), b"SQL92"),
    )  # fmt: skip
    members = {"consumerGroup": "g1", "producerGroup": "p1"}
    for code in (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
    ):  # fmt: skip
        yield Costly(code, "a large group", members)
    yield Costly(RequestCode.GET_ALL_PRODUCER_INFO, "all", None)
    yield Costly(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, "a topic", {"group": "g1", "topic": topic(1)}
    )


def _topics(world: World) -> Iterator[Costly]:
    del world
    created = {
        "topic": "created", "defaultTopic": "TBW102", "readQueueNums": str(WIDE_QUEUES),
        "writeQueueNums": str(WIDE_QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    yield Costly(RequestCode.UPDATE_AND_CREATE_TOPIC, "most queues", created)
    attributes = {"attributes": ",".join(f"+name{n}=value{n}" for n in range(10_000))}
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    yield Costly(code, "most attributes", created | attributes, answers=_ANY)

    def listed(number: int) -> bytes:
        return (
            b'{"topicName":"listed%d","readQueueNums":4,"writeQueueNums":4,"perm":6,'
            b'"topicFilterType":"SINGLE_TAG","topicSysFlag":0,"order":false}' % number
        )

    body = _json_list(b'{"topicConfigList":[', listed, b"]}", LIST_BODY_BYTES_MAX)
    yield Costly(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "most topics", None, body, _ANY)
    yield Costly(RequestCode.GET_ALL_TOPIC_CONFIG, "all", None, answers=_ANY)
    for code in (
        RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    ):  # fmt: skip
        yield Costly(code, "the widest topic", {"topic": "wide"})
    yield Costly(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "all", None)
    yield Costly(RequestCode.QUERY_TOPICS_BY_CONSUMER, "a group of all topics", {"group": "g0"})
    yield Costly(RequestCode.DELETE_TOPIC_IN_BROKER, "the widest topic", {"topic": "doomed"})


def _groups(world: World) -> Iterator[Costly]:
    del world
    attributes = b",".join(b'"+name%d":"value%d"' % (n, n) for n in range(20_000))
    one = b'{"groupName":"created","attributes":{%s}}' % attributes
    assert len(one) < SETTINGS_BODY_BYTES_MAX
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    yield Costly(code, "most attributes", None, one, _ANY)
    yield Costly(code, "a group", None, b'{"groupName":"created"}')

    def listed(number: int) -> bytes:
        return b'{"groupName":"listed%d","retryQueueNums":1,"retryMaxTimes":16}' % number

    body = _json_list(b'{"groupConfigList":[', listed, b"]}", LIST_BODY_BYTES_MAX)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    yield Costly(code, "most groups", None, body, _ANY)
    yield Costly(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "all", None, answers=_ANY)
    yield Costly(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "the largest", {"group": "created"})
    yield Costly(RequestCode.GET_ALL_CONSUMER_OFFSET, "all", None)
    forbidden = {"group": "g0", "topic": "deep", "readable": "true"}
    yield Costly(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, "a group", forbidden)
    yield Costly(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, "a group of all topics",
        {"groupName": "cloned", "cleanOffset": "true"},
    )  # fmt: skip


def _statistics(world: World) -> Iterator[Costly]:
    at = str(world.first_log_offset)
    code = RequestCode.GET_CONSUME_STATS
    yield Costly(code, "a group of all topics", {"consumerGroup": "g0"}, answers=_ANY)
    repeated = {"consumerGroup": "g0", "topicList": "wide;" * 10_000}
    yield Costly(code, "one topic many times", repeated, answers=_ANY)
    most = {"consumerGroup": "g0", "topicList": "x;" * (HEADER_BYTES_MAX // 2 - 500)}
    yield Costly(code, "most topics", most, answers=_ANY)
    yield Costly(RequestCode.GET_BROKER_CONSUME_STATS, "all", {"isOrder": "false"}, answers=_ANY)
    yield Costly(
        RequestCode.QUERY_CONSUME_TIME_SPAN, "the widest topic", {"topic": "wide", "group": "g0"}
    )
    yield Costly(
        RequestCode.VIEW_BROKER_STATS_DATA, "a statistic",
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": "deep"}, answers=_ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.QUERY_CONSUME_QUEUE, "most entries",
        {"topic": "deep", "queueId": "0", "index": "0", "count": "100000", "consumerGroup": "g1"},
    )  # fmt: skip
    fields = {"consumerGroup": "g0", "clientId": "nobody"}
    yield Costly(
        RequestCode.GET_CONSUMER_RUNNING_INFO, "of an unknown client", fields, answers=_ANY
    )
    yield Costly(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, "by an unknown client",
        fields | {"msgId": world.message_id, "topic": "deep", "offset": at}, answers=_ANY,
    )  # fmt: skip
    group_of_topic = {"group": "g1", "topic": "wide"}
    yield Costly(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, "of an unknown client",
        {"group": "g9", "topic": "wide"}, answers=_ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "the widest topic",
        group_of_topic | {"timestamp": "-2", "isForce": "true"},
    )  # fmt: skip


def _failover() -> Iterator[Costly]:
    """Of groups whose master is elected; this broker refuses them after it has read them."""
    for code in (
        RequestCode.HA_GROUP, RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.GET_BROKER_EPOCH_CACHE,
    ):  # fmt: skip
        yield Costly(code, "all", None, answers=_ANY)
    command = {"command": "switch", "replicaId": "64", "by": "x" * 30_000}
    yield Costly(RequestCode.HA_GROUP_COMMAND, "by a long name", command, answers=_ANY)
    names = json.dumps(["broker-a"] * 5_000).encode()
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    yield Costly(code, "most names", None, names, _ANY)
    elect = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "2"}
    yield Costly(RequestCode.CONTROLLER_ELECT_MASTER, "one", elect, answers=_ANY)


def _store(world: World) -> Iterator[Costly]:
    del world
    yield Costly(RequestCode.CLEAN_UNUSED_TOPIC, "all", None)
    yield Costly(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "all", None)
    yield Costly(RequestCode.DELETE_EXPIRED_COMMITLOG, "all", None)
    for code in (
        RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS, RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO,
    ):  # fmt: skip
        yield Costly(code, "all", None, answers=_ANY)
    epochs = ",".join(f"{number}-{number}" for number in range(1, 1001))
    yield Costly(
        RequestCode.HA_HELLO, "most epochs",
        {"cluster": "DefaultCluster", "brokerName": "broker-a", "brokerId": "1",
         "storeId": "0" * 32, "endOffset": "1000", "epochs": epochs, "logFileBytes": "4194304"},
        answers=_ANY,
    )  # fmt: skip
    yield Costly(
        RequestCode.CHANGE_BROKER_ROLE, "to a long role", {"role": "x" * 10_000}, answers=_ANY
    )
    yield from _failover()
    lines = b"".join(b"unknownSetting%d=1\n" % n for n in range(900))
    assert len(lines) < SETTINGS_BODY_BYTES_MAX
    yield Costly(RequestCode.UPDATE_BROKER_CONFIG, "most settings", None, lines, _ANY)
    thresholds = b"".join(b"group%d=1\n" % n for n in range(900))
    code = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    yield Costly(code, "most thresholds", None, thresholds, _ANY)
    yield Costly(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, "all", None)
    yield Costly(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, "one", None, b"group1")
    yield Costly(
        RequestCode.SET_COMMITLOG_READ_MODE, "the default", {"READ_AHEAD_MODE": "0"}, answers=_ANY
    )
    yield Costly(RequestCode.POP_ROLLBACK, "all", None)
    perms = ",".join(f"topic{n}=PUB" for n in range(3_000))
    account = {
        "accessKey": "costly-account", "secretKey": "costly-secret", "admin": "false",
        "topicPerms": perms, "groupPerms": perms,
    }  # fmt: skip
    yield Costly(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, "most rules", account, answers=_ANY)
    addresses = {"globalWhiteAddrs": ",".join(f"192.0.2.{n % 256}" for n in range(3_000))}
    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    yield Costly(code, "most addresses", addresses, answers=_ANY)
    yield Costly(
        RequestCode.DELETE_ACL_CONFIG, "an account", {"accessKey": "costly-account"}, answers=_ANY
    )
    for code in (
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
    ):  # fmt: skip
        yield Costly(code, "all", None, answers=_ANY)


def broker_requests(world: World) -> list[Costly]:
    """The most expensive legal requests to a broker, in the order in which to send them."""
    makers = (
        _messages, _pops, _queues, _offsets, _clients, _topics, _groups, _statistics, _store,
    )  # fmt: skip
    return [request for make in makers for request in make(world)]


# -- requests to a nameserver ----------------------------------------------------------------------


def _registration(number: int, size_bytes: int) -> bytes:
    def config(each: int) -> bytes:
        return (
            b'"n%d-%d":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
            b'"topicName":"n%d-%d","topicSysFlag":3,"writeQueueNums":4}'
            % (number, each, number, each)
        )

    before = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":%d,'
        b'"timestamp":1},"topicConfigTable":{' % number
    )
    return _json_list(before, config, b"}}}", size_bytes)


def deflated_registration(topics: int, prefix: str = "z") -> bytes:
    """In the binary format, with short and similar names."""

    def section(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    lines = b"".join(
        section(f"{prefix}{number} 4 4 6 SINGLE_TAG".encode()) for number in range(topics)
    )
    parts = [
        section(b'{"counter":1,"timestamp":1}'), topics.to_bytes(4, "big"), lines, section(b"[]"),
        (0).to_bytes(4, "big"),
    ]  # fmt: skip
    return zlib.compress(b"".join(parts), 1)


def namesrv_requests(registered_topics: int) -> list[Costly]:
    """The most expensive legal requests to a nameserver, in the order in which to send them."""

    def broker(number: int) -> dict[str, str]:
        return {
            "brokerName": f"b{number}", "brokerAddr": f"192.0.2.{number}:1", "clusterName": "c",
            "haServerAddr": f"192.0.2.{number}:2", "brokerId": "0", "compressed": "false",
        }  # fmt: skip

    code = RequestCode.REGISTER_BROKER
    compressed = {"compressed": "true"}
    requests = [
        Costly(code, "longest JSON", broker(1), _registration(1, 16 * 1024 * 1024 - 2048)),
        Costly(code, "the same again", broker(1), _registration(1, 16 * 1024 * 1024 - 2048)),
        Costly(code, "changed", broker(1), _registration(2, 16 * 1024 * 1024 - 2048)),
        Costly(
            code, "most topics, deflated", broker(2) | compressed,
            deflated_registration(registered_topics),
        ),
        Costly(code, "loose JSON", broker(3), _loose("z"), _ANY),
        Costly(RequestCode.GET_ROUTEINFO_BY_TOPIC, "a topic", {"topic": "n1-1"}),
        Costly(RequestCode.BROKER_HEARTBEAT, "a broker", broker(1)),
        Costly(
            RequestCode.QUERY_DATA_VERSION, "a broker", broker(1), b'{"counter":1,"timestamp":1}'
        ),
        Costly(
            RequestCode.GET_BROKER_MEMBER_GROUP, "a broker",
            {"clusterName": "c", "brokerName": "b1"},
        ),
        Costly(RequestCode.GET_BROKER_CLUSTER_INFO, "all", None),
        Costly(RequestCode.WIPE_WRITE_PERM_OF_BROKER, "most topics", {"brokerName": "b1"}),
        Costly(RequestCode.ADD_WRITE_PERM_OF_BROKER, "most topics", {"brokerName": "b1"}),
        Costly(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "all", None, answers=_ANY),
        Costly(RequestCode.GET_TOPICS_BY_CLUSTER, "all", {"cluster": "c"}, answers=_ANY),
        Costly(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, "all", None),
        Costly(RequestCode.GET_UNIT_TOPIC_LIST, "all", None, answers=_ANY),
        Costly(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, "all", None, answers=_ANY),
        Costly(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, "all", None, answers=_ANY),
        Costly(
            RequestCode.REGISTER_TOPIC_IN_NAMESRV, "most queues", {"topic": "registered"},
            _json_list(
                b'{"queueDatas":[',
                lambda _: b'{"brokerName":"b1","readQueueNums":4,"writeQueueNums":4,"perm":6}',
                b"]}", SETTINGS_BODY_BYTES_MAX,
            ),
        ),
        Costly(RequestCode.DELETE_TOPIC_IN_NAMESRV, "a topic", {"topic": "n1-2"}),
    ]  # fmt: skip
    requests += [
        Costly(
            RequestCode.PUT_KV_CONFIG, "the longest value",
            {"namespace": "n", "key": f"k{number}", "value": "v" * 60_000},
        )
        for number in range(20)
    ]  # fmt: skip
    requests += [
        Costly(RequestCode.GET_KV_CONFIG, "a key", {"namespace": "n", "key": "k1"}),
        Costly(RequestCode.GET_KVLIST_BY_NAMESPACE, "all", {"namespace": "n"}),
        Costly(RequestCode.DELETE_KV_CONFIG, "a key", {"namespace": "n", "key": "k1"}),
        Costly(
            RequestCode.UPDATE_NAMESRV_CONFIG, "most settings", None,
            b"".join(b"unknownSetting%d=1\n" % n for n in range(900)), _ANY,
        ),
        Costly(RequestCode.GET_NAMESRV_CONFIG, "all", None),
        Costly(RequestCode.UNREGISTER_BROKER, "most topics", broker(1)),
        Costly(RequestCode.UNREGISTER_BROKER, "most topics again", broker(2)),
    ]  # fmt: skip
    return requests


# -- requests above the limits ---------------------------------------------------------------------


def attacks_on_a_broker() -> list[Costly]:
    """Requests that are rejected, and whose rejection was expensive."""
    refused = frozenset((
        int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.MESSAGE_ILLEGAL),
        int(ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ))  # fmt: skip
    long = "".join(f"p{number}\x01x\x02" for number in range(600_000))
    many = {f"f{number}": "x" for number in range(600_000)}
    terms = " OR ".join(f"a{number}=1" for number in range(5_000))
    bits = base64.b64encode(b"\xff" * 1_000_000)
    ack = b'{"acks":[{"c":"g2","t":"deep","r":"0","so":0,"q":0,"pt":1,"it":1,"b":"%s"}]}' % bits
    code = RequestCode.SEND_MESSAGE_V2
    keyed = {"i": "KEYS\x01" + "k " * 7_000_000}
    return [
        Costly(code, "properties of 13 MB", send_fields("t") | {"i": long}, answers=refused),
        Costly(code, "tags of 14 MB", send_fields("t") | {"i": "TAGS\x01" + "x" * 14_000_000},
               answers=refused),
        Costly(code, "keys of 14 MB", send_fields("t") | keyed, answers=refused),
        Costly(code, "properties of 200 KB", send_fields("t") | {"i": long[:200_000]},
               answers=refused),
        Costly(RequestCode.GET_MAX_OFFSET, "600,000 ext fields", many, answers=refused),
        Costly(
            RequestCode.PULL_MESSAGE, "a filter of 5,000 terms",
            pull_fields("g0", "deep", 0, 0, subscription=terms, expression_type="SQL92"),
            answers=refused,
        ),
        Costly(RequestCode.BATCH_ACK_MESSAGE, "8,000,000 bits", None, ack, refused),
        Costly(RequestCode.HEART_BEAT, "loose JSON of 256 KiB", None,
               b"{clientID:'c',z:{" + b"{a:1}:1," * 32_000 + b"}}", refused),
    ]  # fmt: skip


def attacks_on_a_namesrv() -> list[Costly]:
    """The same for a nameserver."""
    refused = frozenset((int(ResponseCode.SYSTEM_ERROR),))
    fields = {
        "brokerName": "b9", "brokerAddr": "192.0.2.9:1", "clusterName": "c", "brokerId": "0",
        "haServerAddr": "192.0.2.9:2", "compressed": "true",
    }  # fmt: skip
    code = RequestCode.REGISTER_BROKER
    bomb = zlib.compress(b"\0\0\0\2{}" + b"\0" * (1 << 30), 1)
    return [
        Costly(code, "2,300,000 topics, deflated", fields, deflated_registration(2_300_000),
               refused),
        Costly(code, "a gibibyte, deflated", fields, bomb[: 15 * 1024 * 1024], refused),
        Costly(code, "loose JSON of 15 MiB", fields | {"compressed": "false"},
               b"{z:{" + b"{a:1}:1," * (15 * 1024 * 128) + b"}}", refused),
    ]  # fmt: skip
