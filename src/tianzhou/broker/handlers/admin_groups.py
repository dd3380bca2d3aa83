"""Consumer groups over the wire: creating, changing, deleting, listing, and how far they are."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tianzhou.broker import checks
from tianzhou.broker.clients import ConsumerTable
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups import GroupTable, is_system_group
from tianzhou.broker.offsets import NOT_FOUND, OffsetTable
from tianzhou.broker.topics import TopicTable
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import ConsumeOffsets, ConsumeStats
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.groups import (
    DeleteSubscriptionGroupRequest,
    GetConsumeStatsRequest,
    GetSubscriptionGroupConfigRequest,
)
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupParts:
    """What these requests need of a broker."""

    settings: LiveSettings[BrokerConfig]
    topics: TopicTable
    groups: GroupTable
    consumers: ConsumerTable[Connection]
    offsets: OffsetTable
    store: MessageStore
    saved: Callable[[], Awaitable[bool]]
    """Waits until the tables are on disk."""


async def update_group(parts: GroupParts, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    group = decode_body(SubscriptionGroupConfig, request.body)
    name = group.group_name or ""
    checks.check_group_name(name)
    if group.retry_queue_count < 0 or group.retry_max_times < -1:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"retryQueueNums is {group.retry_queue_count} and retryMaxTimes is "
            f"{group.retry_max_times}, neither can be below 0",
        )
    is_new = parts.groups.get(name) is None
    if parts.groups.put(group):
        log.info("group %s: %s by %s", name, "created" if is_new else "changed", connection.peer)
    await _save(parts)
    return Command(code=ResponseCode.SUCCESS)


async def delete_group(parts: GroupParts, connection: Connection, request: Command) -> Command:
    """DELETE_SUBSCRIPTIONGROUP: the group, and its offsets if that is wished."""
    header = decode(DeleteSubscriptionGroupRequest, request.fields)
    if is_system_group(header.group_name):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"consumer group {header.group_name} is the system's and cannot be deleted",
        )
    if parts.groups.remove(header.group_name):
        log.info("group %s: deleted by %s", header.group_name, connection.peer)
    if header.clean_offset or header.remove_offset:
        parts.offsets.remove_group(header.group_name)
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        parts.topics.remove(prefix + header.group_name)
    await _save(parts)
    return Command(code=ResponseCode.SUCCESS)


async def _save(parts: GroupParts) -> None:
    if not await parts.saved():
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "the change counts now, but it cannot be saved: see the broker's log",
        )


def get_all_groups(parts: GroupParts, _: Connection, __: Command) -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return Command(code=ResponseCode.SUCCESS, body=encode_body(parts.groups.as_body()))


def get_group(parts: GroupParts, _: Connection, request: Command) -> Command:
    """GET_SUBSCRIPTIONGROUP_CONFIG (5.x)."""
    header = decode(GetSubscriptionGroupConfigRequest, request.fields)
    group = parts.groups.get(header.group)
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {checks.shorten(header.group)} does not exist",
        )
    return Command(code=ResponseCode.SUCCESS, body=encode_body(group))


def get_all_offsets(parts: GroupParts, _: Connection, __: Command) -> Command:
    """GET_ALL_CONSUMER_OFFSET."""
    table = ConsumerOffsetTable(offsets=parts.offsets.by_key)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(table))


def get_consume_stats(parts: GroupParts, _: Connection, request: Command) -> Command:
    """GET_CONSUME_STATS: where a group stands in every queue of its topics."""
    header = decode(GetConsumeStatsRequest, request.fields)
    group = header.consumer_group
    topics = {header.topic} if header.topic else parts.offsets.topics_of(group)
    table: dict[MessageQueue, ConsumeOffsets] = {}
    for name in sorted(topics):
        topic = parts.topics.get(name)
        for queue_id in range(topic.read_queue_count if topic else 0):
            queue = MessageQueue(
                topic=name, broker_name=parts.settings.config.broker_name, queue_id=queue_id
            )
            table[queue] = _queue_stats(parts, group, name, queue_id)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(ConsumeStats(offsets=table)))


def _queue_stats(parts: GroupParts, group: str, topic: str, queue_id: int) -> ConsumeOffsets:
    committed = parts.offsets.find(group, topic, queue_id)
    place = 0 if committed == NOT_FOUND else committed
    last_ms = parts.store.store_time(topic, queue_id, place - 1) if place > 0 else None
    return ConsumeOffsets(
        broker_offset=parts.store.max_offset(topic, queue_id),
        consumer_offset=place,
        last_timestamp=last_ms or 0,
    )
