"""Offsets: how far groups are, and where queues begin and end."""

import asyncio
import logging
from dataclasses import dataclass

from tianzhou.broker import checks
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups import GroupTable
from tianzhou.broker.offsets import NOT_FOUND, OffsetTable
from tianzhou.broker.topics import QUEUE_COUNT_MAX, TopicTable
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import Header, decode, encode
from tianzhou.protocol.headers.offsets import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateConsumerOffsetRequest,
)
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import Boundary

log = logging.getLogger(__name__)

_NO_TIME = -1


@dataclass(frozen=True, slots=True)
class OffsetParts:
    """What these requests need of a broker."""

    settings: LiveSettings[BrokerConfig]
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    store: MessageStore


# -- of groups -------------------------------------------------------------------------------------


def query_consumer_offset(parts: OffsetParts, _: Connection, request: Command) -> Command:
    """QUERY_CONSUMER_OFFSET."""
    header = decode(QueryConsumerOffsetRequest, request.fields)
    found = parts.offsets.find(header.consumer_group, header.topic, header.queue_id)
    if found != NOT_FOUND:
        return _found(QueryConsumerOffsetResponse(queue_offset=found))
    # A group that is new to a short queue begins at its beginning, wherever its client would: it
    # would otherwise miss the messages that were sent while it was being set up.
    may_begin_at_zero = header.set_zero_if_not_found is not False
    if may_begin_at_zero and _is_whole_in_memory(parts, header.topic, header.queue_id):
        return _found(QueryConsumerOffsetResponse(queue_offset=0))
    raise RequestError(
        ResponseCode.QUERY_NOT_FOUND,
        f"group {checks.shorten(header.consumer_group)} has committed no offset in topic "
        f"{checks.shorten(header.topic)} queue {header.queue_id}",
    )


def _is_whole_in_memory(parts: OffsetParts, topic: str, queue_id: int) -> bool:
    if parts.store.min_offset(topic, queue_id) > 0:
        return False
    return parts.store.read(topic, queue_id, 0, 1).behind_bytes <= parts.store.memory_bytes


def update_consumer_offset(parts: OffsetParts, connection: Connection, request: Command) -> Command:
    """UPDATE_CONSUMER_OFFSET."""
    header = decode(UpdateConsumerOffsetRequest, request.fields)
    group, topic = header.consumer_group, header.topic
    if parts.topics.get(topic) is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic {checks.shorten(topic)} does not exist"
        )
    if not 0 <= header.queue_id < QUEUE_COUNT_MAX or header.commit_offset < 0:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queue id {header.queue_id} and offset {header.commit_offset} cannot be committed",
        )
    auto_create = parts.settings.config.auto_create_subscription_group
    if parts.groups.find(group, auto_create=auto_create) is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {checks.shorten(group)} does not exist",
        )
    before = parts.offsets.commit(group, topic, header.queue_id, header.commit_offset)
    if before is not None:
        log.info(
            "group %s: %s takes its offset in topic %s queue %d back from %d to %d",
            group, connection.peer, topic, header.queue_id, before, header.commit_offset,
        )  # fmt: skip
    return Command(code=ResponseCode.SUCCESS)


# -- of queues -------------------------------------------------------------------------------------


def get_max_offset(parts: OffsetParts, _: Connection, request: Command) -> Command:
    """GET_MAX_OFFSET."""
    header = decode(GetMaxOffsetRequest, request.fields)
    found = parts.store.max_offset(header.topic, header.queue_id)
    return _found(GetMaxOffsetResponse(queue_offset=found))


def get_min_offset(parts: OffsetParts, _: Connection, request: Command) -> Command:
    """GET_MIN_OFFSET."""
    header = decode(GetMinOffsetRequest, request.fields)
    found = parts.store.min_offset(header.topic, header.queue_id)
    return _found(GetMinOffsetResponse(queue_offset=found))


async def search_offset_by_timestamp(
    parts: OffsetParts, _: Connection, request: Command
) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP; reads old messages, so it is done beside the event loop."""
    header = decode(SearchOffsetRequest, request.fields)
    upper = (header.boundary_type or "").upper() == "UPPER"
    boundary = Boundary.UPPER if upper else Boundary.LOWER
    found = await asyncio.to_thread(
        parts.store.offset_by_time, header.topic, header.queue_id, header.timestamp, boundary
    )
    return _found(SearchOffsetResponse(queue_offset=found))


def get_earliest_store_time(parts: OffsetParts, _: Connection, request: Command) -> Command:
    """GET_EARLIEST_MSG_STORETIME."""
    header = decode(GetEarliestMsgStoretimeRequest, request.fields)
    found = parts.store.earliest_time(header.topic, header.queue_id)
    timestamp = _NO_TIME if found is None else found
    return _found(GetEarliestMsgStoretimeResponse(timestamp=timestamp))


def _found(header: Header) -> Command:
    return Command(code=ResponseCode.SUCCESS, ext_fields=encode(header))
