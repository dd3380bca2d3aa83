"""Offsets: committed offsets of groups, and the first and last offsets of queues."""

import asyncio
import logging

from tianzhou.broker import validation
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import find_group, find_topic
from tianzhou.broker.handlers.responses import saved, success, success_with
from tianzhou.broker.tables.clients import ConsumerGroup
from tianzhou.broker.tables.offsets import NOT_FOUND
from tianzhou.errors import RequestError
from tianzhou.limits import TOPIC_QUEUES_MAX
from tianzhou.protocol.bodies.offsets import QueryCorrectionOffsetBody
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.offsets import (
    CloneGroupOffsetRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueryCorrectionOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.remoting import scheduler
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, sliced
from tianzhou.store.reading import Boundary

log = logging.getLogger(__name__)

_NO_TIME = -1
INT64_MAX = 2**63 - 1


# -- of groups -------------------------------------------------------------------------------------


def query_consumer_offset(deps: Deps, _: Connection, request: Command) -> Command:
    """QUERY_CONSUMER_OFFSET."""
    header = decode(QueryConsumerOffsetRequest, request.fields)
    committed = deps.offsets.find(header.consumer_group, header.topic, header.queue_id)
    if committed != NOT_FOUND:
        return success(OffsetResponse(queue_offset=committed))
    if not deps.has_offsets():
        # Otherwise the consumer would begin anew, at either end of the queue.
        raise RequestError(
            ResponseCode.SYSTEM_BUSY,
            "this slave has not copied the offsets of its master yet; ask again later",
        )
    # A group that is new to a short queue starts at its beginning, whatever its client prefers:
    # otherwise it would miss messages that were sent while it was being set up.
    may_begin_at_zero = header.set_zero_if_not_found is not False
    if may_begin_at_zero and _is_whole_in_memory(deps, header.topic, header.queue_id):
        return success(OffsetResponse(queue_offset=0))
    raise RequestError(
        ResponseCode.QUERY_NOT_FOUND,
        f"group {validation.shorten(header.consumer_group)} has committed no offset in topic "
        f"{validation.shorten(header.topic)} queue {header.queue_id}",
    )


def _is_whole_in_memory(deps: Deps, topic: str, queue_id: int) -> bool:
    if deps.store.min_offset(topic, queue_id) > 0:
        return False
    return deps.store.read(topic, queue_id, 0, 1).behind_bytes <= deps.store.memory_bytes


def update_consumer_offset(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_CONSUMER_OFFSET."""
    header = decode(UpdateConsumerOffsetRequest, request.fields)
    group, topic = header.consumer_group, header.topic
    _check_queue(deps, find_topic(deps, topic), header.queue_id)
    if header.commit_offset < 0:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"offset {header.commit_offset} cannot be committed"
        )
    find_group(deps, group)
    if deps.offsets.is_reset(group, topic, header.queue_id):
        return Command(code=ResponseCode.SUCCESS, remark="Offset has been previously reset")
    if not deps.offsets.has(group, topic, header.queue_id):
        _check_capacity(deps, deps.offsets.count, group, topic)
    before = deps.offsets.commit(group, topic, header.queue_id, header.commit_offset)
    if before is not None:
        log.info(
            "group %s: %s decreased its offset in topic %s queue %d from %d to %d",
            group, connection.peer, topic, header.queue_id, before, header.commit_offset,
        )  # fmt: skip
    return Command(code=ResponseCode.SUCCESS)


def _check_queue(deps: Deps, topic: TopicConfig, queue_id: int) -> None:
    """Raises RequestError for an unknown queue; a queue with messages of earlier times is known."""
    name, count = topic.topic_name or "", max(topic.read_queue_count, topic.write_queue_count)
    exists = 0 <= queue_id < count or (
        count <= queue_id < TOPIC_QUEUES_MAX and deps.store.max_offset(name, queue_id) > 0
    )
    if not exists:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queue {queue_id} of topic {name} does not exist, the topic has "
            f"{count} queues: the offset is not committed",
        )


def _check_capacity(deps: Deps, count: int, group: str, topic: str) -> None:
    deps.limits.check(
        "maxConsumerOffsets", deps.settings.config.max_consumer_offsets, count,
        f"no further offset of group {group} can be committed in topic {topic}",
    )  # fmt: skip


async def clone_group_offset(deps: Deps, connection: Connection, request: Command) -> Command:
    """CLONE_GROUP_OFFSET: copy the offsets of a group to another, of one topic or of all.

    RocketMQ copies nothing if no topic is named, by an oversight; here all are copied.
    """
    header = decode(CloneGroupOffsetRequest, request.fields)
    source, target = header.src_group, header.dest_group
    validation.check_group_name(target)
    find_group(deps, target)
    online = None if header.offline else deps.consumers.get(source)
    await scheduler.finish(_copy_steps(deps, connection, header, online))
    return await saved(deps)


def _copy_steps(
    deps: Deps,
    connection: Connection,
    header: CloneGroupOffsetRequest,
    online: ConsumerGroup[Connection] | None,
) -> Steps[None]:
    source, target = header.src_group, header.dest_group
    topics = {header.topic} if header.topic else (yield from deps.offsets.topics_of(source))
    for topic in sorted(topics):
        yield
        if deps.topics.get(topic) is None:
            log.warning("group %s: not copied in topic %s, which does not exist", target, topic)
        elif online is not None and online.has_left(topic):
            log.warning("group %s: not copied in topic %s, %s left it", target, topic, source)
        else:
            more = len(deps.offsets.of_topic_and_group(topic, source))
            _check_capacity(deps, deps.offsets.count + more - 1, target, topic)
            deps.offsets.copy(source, target, topic)
            log.info("group %s: has the offsets of %s in %s, by %s",
                     target, source, topic, connection.peer)  # fmt: skip


@sliced
def query_correction_offset(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """QUERY_CORRECTION_OFFSET: the lowest offset of all groups in each queue of a topic.

    Groups in `filterGroups` are left out. Where the group to compare with has a lower offset, the
    result is the largest integer. RocketMQ deletes the offsets of the filtered groups with this
    request; that is not copied.
    """
    header = decode(QueryCorrectionOffsetRequest, request.fields)
    left_out = {group for group in (header.filter_groups or "").split(",") if group}
    lowest: dict[int, int] = {}
    for group in (yield from deps.offsets.groups_of(header.topic)) - left_out:
        yield
        for queue_id, committed in deps.offsets.of_topic_and_group(header.topic, group).items():
            if committed >= deps.store.min_offset(header.topic, queue_id):
                lowest[queue_id] = min(committed, lowest.get(queue_id, committed))
    compared = deps.offsets.of_topic_and_group(header.topic, header.compare_group)
    for queue_id, committed in compared.items():
        if lowest.get(queue_id, INT64_MAX) > committed:
            lowest[queue_id] = INT64_MAX
    return (yield from success_with(QueryCorrectionOffsetBody(offsets=lowest)))


# -- of queues -------------------------------------------------------------------------------------


def get_max_offset(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_MAX_OFFSET."""
    header = decode(GetMaxOffsetRequest, request.fields)
    offset = deps.store.max_offset(header.topic, header.queue_id)
    return success(OffsetResponse(queue_offset=offset))


def get_min_offset(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_MIN_OFFSET."""
    header = decode(QueueRequest, request.fields)
    offset = deps.store.min_offset(header.topic, header.queue_id)
    return success(OffsetResponse(queue_offset=offset))


async def search_offset_by_timestamp(deps: Deps, _: Connection, request: Command) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP; reads old messages, so it runs in a thread."""
    header = decode(SearchOffsetRequest, request.fields)
    upper = (header.boundary_type or "").upper() == "UPPER"
    boundary = Boundary.UPPER if upper else Boundary.LOWER
    offset = await asyncio.to_thread(
        deps.store.offset_by_time, header.topic, header.queue_id, header.timestamp, boundary
    )
    return success(OffsetResponse(queue_offset=offset))


def get_earliest_store_time(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_EARLIEST_MSG_STORETIME."""
    header = decode(QueueRequest, request.fields)
    earliest_ms = deps.store.earliest_time(header.topic, header.queue_id)
    timestamp = _NO_TIME if earliest_ms is None else earliest_ms
    return success(GetEarliestMsgStoretimeResponse(timestamp=timestamp))
