"""Topics over the wire: creating, changing, deleting, listing, and how full their queues are."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tianzhou.broker import checks
from tianzhou.broker.clients import ConsumerTable
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.offsets import OffsetTable
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics import TopicTable, check_queue_counts
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError, StoreError
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.groups import GroupList
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import TopicOffset, TopicStatsTable
from tianzhou.protocol.bodies.topics import MULTI_TAG, SINGLE_TAG, TopicConfig, TopicList
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.topics import (
    CreateTopicRequest,
    DeleteTopicRequest,
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    QueryTopicConsumeByWhoRequest,
)
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_PERM_MAX = 7


@dataclass(frozen=True, slots=True)
class TopicParts:
    """What these requests need of a broker."""

    settings: LiveSettings[BrokerConfig]
    topics: TopicTable
    consumers: ConsumerTable[Connection]
    offsets: OffsetTable
    store: MessageStore
    stats: Stats
    saved: Callable[[], Awaitable[bool]]
    """Waits until the tables are on disk."""


async def create_topic(parts: TopicParts, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_TOPIC."""
    header = decode(CreateTopicRequest, request.fields)
    checks.check_topic_name(header.topic)
    checks.check_changeable(header.topic)
    if header.topic in parts.topics.system_names:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic {header.topic} is a system topic of this broker and cannot be changed",
        )
    check_queue_counts(header.read_queue_count, header.write_queue_count)
    if not 0 <= header.perm <= _PERM_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"perm is {header.perm}, it must be 2, 4 or 6"
        )
    if header.filter_type not in (SINGLE_TAG, MULTI_TAG):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"topicFilterType is {checks.shorten(header.filter_type)}, "
            f"it must be {SINGLE_TAG} or {MULTI_TAG}",
        )
    before = parts.topics.get(header.topic)
    topic = TopicConfig(
        topic_name=header.topic,
        read_queue_count=header.read_queue_count,
        write_queue_count=header.write_queue_count,
        perm=header.perm,
        filter_type=header.filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=_attributes(before.attributes if before else None, header.attributes),
    )
    if parts.topics.put(topic):
        log.info(
            "topic %s: %s, %d read and %d write queues, permission %s, by %s",
            header.topic, "changed" if before else "created", topic.read_queue_count,
            topic.write_queue_count, checks.describe_permission(topic.perm), connection.peer,
        )  # fmt: skip
    await _save(parts)
    return Command(code=ResponseCode.SUCCESS)


def _attributes(before: dict[str, str] | None, changes: str | None) -> dict[str, str] | None:
    """Apply changes such as "+message.type=FIFO,-cleanup.policy" (5.x). Raises RequestError."""
    if not changes:
        return before
    attributes = dict(before or {})
    for change in changes.split(","):
        sign, name = change[:1], change[1:]
        key, _, value = name.partition("=")
        if sign == "+" and key and value:
            attributes[key] = value
        elif sign == "-" and name:
            attributes.pop(name, None)
        else:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"attribute {checks.shorten(change)} is neither +name=value nor -name",
            )
    return attributes


async def delete_topic(parts: TopicParts, connection: Connection, request: Command) -> Command:
    """DELETE_TOPIC_IN_BROKER: the topic, its queues and the offsets of groups in it."""
    header = decode(DeleteTopicRequest, request.fields)
    if not header.topic.strip():
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the topic is blank")
    checks.check_changeable(header.topic)
    if header.topic in parts.topics.system_names:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic {header.topic} is a system topic of this broker and cannot be deleted",
        )
    if parts.topics.remove(header.topic):
        log.info("topic %s: deleted by %s", header.topic, connection.peer)
    parts.offsets.remove_topic(header.topic)
    parts.stats.forget_topic(header.topic)
    try:
        parts.store.delete_topic(header.topic)
    except StoreError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
    await _save(parts)
    return Command(code=ResponseCode.SUCCESS)


async def _save(parts: TopicParts) -> None:
    if not await parts.saved():
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "the change counts now, but it cannot be saved: see the broker's log",
        )


# -- listing ---------------------------------------------------------------------------------------


def get_all_topic_config(parts: TopicParts, _: Connection, __: Command) -> Command:
    """GET_ALL_TOPIC_CONFIG."""
    return Command(code=ResponseCode.SUCCESS, body=encode_body(parts.topics.as_body()))


def get_topic_config(parts: TopicParts, _: Connection, request: Command) -> Command:
    """GET_TOPIC_CONFIG (5.x)."""
    header = decode(GetTopicConfigRequest, request.fields)
    topic = parts.topics.get(header.topic)
    if topic is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic {checks.shorten(header.topic)} does not exist"
        )
    return Command(code=ResponseCode.SUCCESS, body=encode_body(topic))


def get_system_topics(parts: TopicParts, _: Connection, __: Command) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = sorted(parts.topics.system_names | checks.SYSTEM_TOPICS)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(TopicList(topics=names)))


def query_topic_consume_by_who(parts: TopicParts, _: Connection, request: Command) -> Command:
    """QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to a topic or have offsets in it."""
    header = decode(QueryTopicConsumeByWhoRequest, request.fields)
    groups = parts.consumers.groups_of_topic(header.topic) | parts.offsets.groups_of(header.topic)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(GroupList(groups=sorted(groups))))


def get_topic_stats(parts: TopicParts, _: Connection, request: Command) -> Command:
    """GET_TOPIC_STATS_INFO: where each queue of a topic begins and ends."""
    header = decode(GetTopicStatsInfoRequest, request.fields)
    topic = parts.topics.get(header.topic)
    if topic is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic {checks.shorten(header.topic)} does not exist"
        )
    broker_name = parts.settings.config.broker_name
    queue_count = max(topic.read_queue_count, topic.write_queue_count)
    table = {
        MessageQueue(topic=header.topic, broker_name=broker_name, queue_id=queue_id): _queue_stats(
            parts.store, header.topic, queue_id
        )
        for queue_id in range(queue_count)
    }
    return Command(code=ResponseCode.SUCCESS, body=encode_body(TopicStatsTable(offsets=table)))


def _queue_stats(store: MessageStore, topic: str, queue_id: int) -> TopicOffset:
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    newest_ms = store.store_time(topic, queue_id, high - 1) if high > low else None
    return TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=newest_ms or 0)
