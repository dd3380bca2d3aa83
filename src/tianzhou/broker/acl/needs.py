"""What a request needs, by its code: permissions on topics and groups, or an administrator.

A request that is not in the table needs an administrator, so a new one is closed until it is
opened here. A retry or dead letter topic belongs to the group in its name.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tianzhou.broker.acl.accounts import Permission
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.clients import CheckClientBody, HeartbeatData
from tianzhou.protocol.bodies.queues import (
    BatchAckMessageBody,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
)
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.receipts import origin_topic

PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.PUB | Permission.SUB


class Need(NamedTuple):
    """One permission that must be there; of ANY one is enough."""

    is_group: bool
    name: str
    permission: Permission
    is_looked_up: bool = False
    """The broker found the name, the request did not say it: whoever is refused may not learn."""


def topic_need(topic: str, permission: Permission) -> Need:
    """Of a topic, or of the group that it belongs to."""
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if topic.startswith(prefix):
            # Whoever may consume for the group may send back for it.
            return group_need(topic.removeprefix(prefix))
    return Need(False, topic, permission)


def group_need(group: str) -> Need:
    return Need(True, group, SUB)


NeedsOf = Callable[[Command], Iterable[Need]]


def _topic(permission: Permission, name: str = "topic") -> NeedsOf:
    return lambda request: [topic_need(_field(request.fields, name), permission)]


def _group(name: str = "consumerGroup") -> NeedsOf:
    return lambda request: [group_need(_field(request.fields, name))]


def _topic_and_group(request: Command) -> list[Need]:
    fields = request.fields
    return [
        topic_need(_field(fields, "topic"), SUB),
        group_need(_field(fields, "consumerGroup")),
    ]


def _popped(request: Command) -> list[Need]:
    """As for popping: what came back to a group is still a message of its topic."""
    group = _field(request.fields, "consumerGroup")
    topic = origin_topic(group, _field(request.fields, "topic"))
    return [topic_need(topic, SUB), group_need(group)]


def _field(fields: Mapping[str, str], name: str) -> str:
    # A missing field is refused by the handler in better words; nobody is granted the empty name.
    return fields.get(name) or ""


def _heartbeat(request: Command) -> Iterable[Need]:
    for consumer in decode(HeartbeatData, request.body).consumers:
        yield group_need(consumer.group_name or "")
        for subscription in consumer.subscriptions:
            yield topic_need(subscription.topic or "", SUB)


def _check_client(request: Command) -> Iterable[Need]:
    told = decode(CheckClientBody, request.body)
    yield group_need(told.group or "")
    if told.subscription_data is not None:
        yield topic_need(told.subscription_data.topic or "", SUB)


def _unregister(request: Command) -> Iterable[Need]:
    group = request.fields.get("consumerGroup")
    if group:
        yield group_need(group)


def _locks(request: Command) -> Iterable[Need]:
    yield group_need(decode(LockBatchRequestBody, request.body).consumer_group or "")


def _batch_ack(request: Command) -> Iterable[Need]:
    for ack in decode(BatchAckMessageBody, request.body).acks or ():
        yield group_need(ack.consumer_group or "")
        yield topic_need(ack.topic or "", SUB)


def _assignment(request: Command) -> Iterable[Need]:
    told = decode(QueryAssignmentRequestBody, request.body)
    yield topic_need(told.topic or "", SUB)
    yield group_need(told.consumer_group or "")


def _nothing(_: Command) -> Iterable[Need]:
    return ()


_TABLE: dict[int, NeedsOf] = {
    RequestCode.SEND_MESSAGE: _topic(PUB),
    RequestCode.SEND_MESSAGE_V2: _topic(PUB, "b"),
    RequestCode.SEND_BATCH_MESSAGE: _topic(PUB, "b"),
    RequestCode.RECALL_MESSAGE: _topic(PUB),
    RequestCode.END_TRANSACTION: _nothing,
    # A reply goes to whoever asked, by an id that only those two know.
    RequestCode.SEND_REPLY_MESSAGE: _nothing,
    RequestCode.SEND_REPLY_MESSAGE_V2: _nothing,
    RequestCode.CONSUMER_SEND_MSG_BACK: _group("group"),
    RequestCode.PULL_MESSAGE: _topic_and_group,
    RequestCode.LITE_PULL_MESSAGE: _topic_and_group,
    RequestCode.PEEK_MESSAGE: _topic_and_group,
    RequestCode.POP_MESSAGE: _topic_and_group,
    RequestCode.ACK_MESSAGE: _popped,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _popped,
    RequestCode.NOTIFICATION: _topic_and_group,
    RequestCode.POLLING_INFO: _topic_and_group,
    RequestCode.UPDATE_CONSUMER_OFFSET: _topic_and_group,
    RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group,
    RequestCode.QUERY_MESSAGE: _topic(SUB),
    RequestCode.VIEW_MESSAGE_BY_ID: _nothing,
    RequestCode.GET_MAX_OFFSET: _topic(ANY),
    RequestCode.GET_MIN_OFFSET: _topic(ANY),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(ANY),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic(ANY),
    RequestCode.GET_TOPIC_STATS_INFO: _topic(ANY),
    RequestCode.GET_TOPIC_CONFIG: _topic(ANY),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group(),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group(),
    RequestCode.GET_CONSUME_STATS: _group(),
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
}


_BY_PLACE: dict[int, tuple[str, Permission]] = {
    RequestCode.END_TRANSACTION: ("commitLogOffset", PUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: ("offset", SUB),
    RequestCode.VIEW_MESSAGE_BY_ID: ("offset", SUB),
}
"""Requests that name a message by its place in the log, and what its topic must allow.

Without this a group could read a topic that it was not granted, by sending its messages back.
"""

TopicAt = Callable[[int], str | None]
"""The topic of the message at a log offset, the real one for the half of a transaction."""


def needs_of(request: Command, topic_at: TopicAt) -> list[Need] | None:
    """What the request needs; None if only an administrator may make it.

    Raises ProtocolError for a body that cannot be read.
    """
    needs_by_code, place = _TABLE.get(request.code), _BY_PLACE.get(request.code)
    if needs_by_code is None:
        return None
    needs = list(needs_by_code(request))
    if place is not None:
        topic = _topic_at(request, place[0], topic_at)
        if topic is not None:
            needs.append(topic_need(topic, place[1])._replace(is_looked_up=True))
    return needs


def _topic_at(request: Command, name: str, topic_at: TopicAt) -> str | None:
    try:
        return topic_at(int(request.fields.get(name, "-1")))
    except ValueError:
        return None  # the handler says what is wrong with the number
