"""What a request needs, by its code: permissions on topics and groups, or an administrator.

A request that is not in the table needs an administrator, so a new one is closed until it is
opened here. Each request is read by the decoder and into the type that its handler uses; what
cannot be read is refused.

    %RETRY%group, %DLQ%group      belong to the group in their name
    RMQ_SYS_TRACE_TOPIC           every client may write it; reading needs a permission by name
    cluster_REPLY_TOPIC           writing needs PUB, reading an administrator
    other topics of the broker    an administrator: they hold messages of all topics
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from tianzhou.broker.acl.accounts import Permission
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    INTERNAL_TOPIC_PREFIXES,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    TRACE_TOPIC,
    UNSENDABLE_TOPICS,
)
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.clients import CheckClientBody, HeartbeatData
from tianzhou.protocol.bodies.queues import (
    BatchAckMessageBody,
    QueryAssignmentRequestBody,
    QueueLockBody,
)
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import Header
from tianzhou.protocol.headers import clients as client_headers
from tianzhou.protocol.headers import groups as group_headers
from tianzhou.protocol.headers import offsets as offset_headers
from tianzhou.protocol.headers import pop as pop_headers
from tianzhou.protocol.headers import pull as pull_headers
from tianzhou.protocol.headers import send as send_headers
from tianzhou.protocol.headers import topics as topic_headers
from tianzhou.protocol.records.receipts import origin_topic
from tianzhou.remoting.scheduler import Steps

PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.PUB | Permission.SUB


class Kind(StrEnum):
    """What a permission is for."""

    TOPIC = "topic"
    TOPIC_BY_NAME = "topic by name"
    """Of a topic to which `defaultTopicPerm` does not apply."""
    GROUP = "group"
    RETRIES = "retries"
    """The retry topic of a group; see `rights`."""
    POP_RETRIES = "retries of a pop"
    """The retry topics that a pop also reads. The name is "group/topic"."""
    ADMINISTRATOR = "administrator"


class Need(NamedTuple):
    """One permission that the account must have; of ANY one is enough."""

    kind: Kind
    name: str
    permission: Permission
    is_looked_up: bool = False
    """The name is from the store, not from the request: a refusal must not show it."""


def topic_need(topic: str, permission: Permission) -> Need:
    """The permission for a topic, or for the group whose retry or dead-letter topic it is."""
    # An account that may consume for a group may send back for it.
    if topic.startswith(RETRY_TOPIC_PREFIX):
        need = group_need(topic.removeprefix(RETRY_TOPIC_PREFIX))
        return need._replace(kind=Kind.RETRIES) if need.kind is Kind.GROUP else need
    if topic.startswith(DLQ_TOPIC_PREFIX):
        return group_need(topic.removeprefix(DLQ_TOPIC_PREFIX))
    return Need(_kind_of(topic, permission), topic, permission)


def _kind_of(topic: str, permission: Permission) -> Kind:
    if topic == TRACE_TOPIC:
        return Kind.TOPIC_BY_NAME
    if topic in UNSENDABLE_TOPICS or topic.startswith(INTERNAL_TOPIC_PREFIXES):
        return Kind.ADMINISTRATOR
    if topic.endswith(REPLY_TOPIC_SUFFIX) and permission != PUB:
        return Kind.ADMINISTRATOR
    return Kind.TOPIC


def group_need(group: str) -> Need:
    is_internal = group.startswith(SYSTEM_GROUP_PREFIX)
    return Need(Kind.ADMINISTRATOR if is_internal else Kind.GROUP, group, SUB)


# -- messages named by their log offset -----------------------------------------------------------


class MessageTopic(NamedTuple):
    """The topic of a message that a request names by its log offset."""

    topic: str
    real_topic: str
    """For the half of a transaction, its real topic; else the same."""


TopicAt = Callable[[int], MessageTopic | None]
"""The topic of the message at a log offset; None if no message begins there."""


def _message_need(topic: str | None, log_offset: int, permission: Permission) -> Need:
    """The permission for the topic of a message.

    Without a message the request is refused: one may be stored there before a request that has to
    wait is handled.
    """
    if topic is None:
        name = f"of what log offset {log_offset} will hold"
        return Need(Kind.ADMINISTRATOR, name, permission, is_looked_up=True)
    return topic_need(topic, permission)._replace(is_looked_up=True)


def _send_back(header: send_headers.ConsumerSendMsgBackRequest, topic_at: TopicAt) -> list[Need]:
    # Without the second permission a group could read any topic by sending its messages back.
    retries = topic_need(RETRY_TOPIC_PREFIX + header.group, SUB)
    return [retries, _read_need(header.log_offset, topic_at)]


def _view(header: pull_headers.ViewMessageRequest, topic_at: TopicAt) -> list[Need]:
    return [_read_need(header.log_offset, topic_at)]


def _read_need(log_offset: int, topic_at: TopicAt) -> Need:
    message = topic_at(log_offset)
    return _message_need(None if message is None else message.topic, log_offset, SUB)


def _end_transaction(header: send_headers.EndTransactionRequest, topic_at: TopicAt) -> list[Need]:
    message = topic_at(header.log_offset)
    return [_message_need(None if message is None else message.real_topic, header.log_offset, PUB)]


# -- headers and bodies ----------------------------------------------------------------------------


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


class _OfGroup(Protocol):
    @property
    def consumer_group(self) -> str: ...


class _Consuming(_OfTopic, _OfGroup, Protocol):
    pass


def _publishing(header: _OfTopic) -> list[Need]:
    return [topic_need(header.topic, PUB)]


def _reading(header: _OfTopic) -> list[Need]:
    return [topic_need(header.topic, SUB)]


def _asking(header: _OfTopic) -> list[Need]:
    return [topic_need(header.topic, ANY)]


def _of_group(header: _OfGroup) -> list[Need]:
    return [group_need(header.consumer_group)]


def _consuming(header: _Consuming) -> list[Need]:
    return [topic_need(header.topic, SUB), group_need(header.consumer_group)]


def _popping(header: _Consuming) -> list[Need]:
    """A pop reads the retry topic of its group and topic, too."""
    retries = Need(Kind.POP_RETRIES, f"{header.consumer_group}/{header.topic}", SUB)
    return [*_consuming(header), retries]


def _popped(header: _Consuming) -> list[Need]:
    return _popped_from(header.topic, header.consumer_group)


def _popped_from(topic: str, group: str) -> list[Need]:
    """As for popping: a message in a retry topic still counts as one of its original topic."""
    return [topic_need(origin_topic(group, topic), SUB), group_need(group)]


def _progress(header: group_headers.GetConsumeStatsRequest) -> Iterable[Need]:
    """The request may name topics that the group does not consume."""
    yield group_need(header.consumer_group)
    for topic in header.listed_topics:
        yield topic_need(topic, ANY)
    if header.topic:
        yield topic_need(header.topic, ANY)


def _unregister(header: client_headers.UnregisterClientRequest) -> list[Need]:
    return [group_need(header.consumer_group)] if header.consumer_group else []


def _heartbeat(body: HeartbeatData) -> Iterable[Need]:
    """Producer groups need no permission: requests to producers are checked when they are sent."""
    for consumer in body.consumers:
        yield group_need(consumer.group_name or "")
        for subscription in consumer.subscriptions:
            if subscription.topic:
                yield topic_need(subscription.topic, SUB)


def _check_client(body: CheckClientBody) -> Iterable[Need]:
    yield group_need(body.group or "")
    if body.subscription_data is not None:
        yield topic_need(body.subscription_data.topic or "", SUB)


def _locks(body: QueueLockBody) -> Iterable[Need]:
    yield group_need(body.consumer_group or "")


def _batch_ack(body: BatchAckMessageBody) -> Iterable[Need]:
    for ack in body.acks or ():
        yield from _popped_from(ack.topic or "", ack.consumer_group or "")


def _assignment(body: QueryAssignmentRequestBody) -> Iterable[Need]:
    yield topic_need(body.topic or "", SUB)
    yield group_need(body.consumer_group or "")


# -- the table -------------------------------------------------------------------------------------

H = TypeVar("H", bound=Header)
B = TypeVar("B", bound=bodies.Body)
NeedsOf = Callable[[Command, TopicAt], Iterable[Need]]


def _header(kind: type[H], needs: Callable[[H], Iterable[Need]]) -> NeedsOf:
    return lambda request, _: needs(headers.decode(kind, request.fields))


def _by_offset(kind: type[H], needs: Callable[[H, TopicAt], Iterable[Need]]) -> NeedsOf:
    return lambda request, topic_at: needs(headers.decode(kind, request.fields), topic_at)


def _body(
    kind: type[B], needs: Callable[[B], Iterable[Need]]
) -> Callable[[bytes], Steps[Iterable[Need]]]:
    def steps(data: bytes) -> Steps[Iterable[Need]]:
        body = yield from bodies.decode_request_steps(kind, data)
        yield
        return needs(body)

    return steps


_BY_HEADER: dict[int, NeedsOf] = {
    RequestCode.SEND_MESSAGE: _header(send_headers.SendMessageRequest, _publishing),
    RequestCode.SEND_MESSAGE_V2: _header(send_headers.SendMessageRequestV2, _publishing),
    RequestCode.SEND_BATCH_MESSAGE: _header(send_headers.SendMessageRequestV2, _publishing),
    RequestCode.SEND_REPLY_MESSAGE: _header(send_headers.SendMessageRequest, _publishing),
    RequestCode.SEND_REPLY_MESSAGE_V2: _header(send_headers.SendMessageRequestV2, _publishing),
    RequestCode.RECALL_MESSAGE: _header(send_headers.RecallMessageRequest, _publishing),
    RequestCode.END_TRANSACTION: _by_offset(send_headers.EndTransactionRequest, _end_transaction),
    RequestCode.CONSUMER_SEND_MSG_BACK: _by_offset(
        send_headers.ConsumerSendMsgBackRequest, _send_back
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: _by_offset(pull_headers.ViewMessageRequest, _view),
    RequestCode.QUERY_MESSAGE: _header(pull_headers.QueryMessageRequest, _reading),
    RequestCode.PULL_MESSAGE: _header(pull_headers.PullMessageRequest, _consuming),
    RequestCode.LITE_PULL_MESSAGE: _header(pull_headers.PullMessageRequest, _consuming),
    RequestCode.PEEK_MESSAGE: _header(pop_headers.PeekMessageRequest, _popping),
    RequestCode.POP_MESSAGE: _header(pop_headers.PopMessageRequest, _popping),
    RequestCode.NOTIFICATION: _header(pop_headers.NotificationRequest, _popping),
    RequestCode.POLLING_INFO: _header(pop_headers.PollingInfoRequest, _consuming),
    RequestCode.ACK_MESSAGE: _header(pop_headers.AckMessageRequest, _popped),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _header(
        pop_headers.ChangeInvisibleTimeRequest, _popped
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: _header(
        offset_headers.UpdateConsumerOffsetRequest, _consuming
    ),
    RequestCode.QUERY_CONSUMER_OFFSET: _header(
        offset_headers.QueryConsumerOffsetRequest, _consuming
    ),
    RequestCode.GET_MAX_OFFSET: _header(offset_headers.GetMaxOffsetRequest, _asking),
    RequestCode.GET_MIN_OFFSET: _header(offset_headers.QueueRequest, _asking),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _header(offset_headers.SearchOffsetRequest, _asking),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _header(offset_headers.QueueRequest, _asking),
    RequestCode.GET_TOPIC_STATS_INFO: _header(topic_headers.TopicRequest, _asking),
    RequestCode.GET_TOPIC_CONFIG: _header(topic_headers.TopicRequest, _asking),
    RequestCode.UNREGISTER_CLIENT: _header(client_headers.UnregisterClientRequest, _unregister),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _header(client_headers.ConsumerGroupRequest, _of_group),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _header(
        client_headers.ConsumerGroupRequest, _of_group
    ),
    RequestCode.GET_CONSUME_STATS: _header(group_headers.GetConsumeStatsRequest, _progress),
}
_BY_BODY: dict[int, Callable[[bytes], Steps[Iterable[Need]]]] = {
    RequestCode.BATCH_ACK_MESSAGE: _body(BatchAckMessageBody, _batch_ack),
    RequestCode.HEART_BEAT: _body(HeartbeatData, _heartbeat),
    RequestCode.CHECK_CLIENT_CONFIG: _body(CheckClientBody, _check_client),
    RequestCode.QUERY_ASSIGNMENT: _body(QueryAssignmentRequestBody, _assignment),
    RequestCode.LOCK_BATCH_MQ: _body(QueueLockBody, _locks),
    RequestCode.UNLOCK_BATCH_MQ: _body(QueueLockBody, _locks),
}

OPEN_CODES = frozenset((*_BY_HEADER, *_BY_BODY))
"""Requests that do not need an administrator."""


def needs_of(request: Command, topic_at: TopicAt) -> Steps[Iterable[Need] | None]:
    """What the request needs; None if only an administrator may make it.

    Raises ProtocolError for a header or a body that cannot be read.
    """
    needs = _BY_HEADER.get(request.code)
    if needs is not None:
        return needs(request, topic_at)
    decode = _BY_BODY.get(request.code)
    return None if decode is None else (yield from decode(request.body))
