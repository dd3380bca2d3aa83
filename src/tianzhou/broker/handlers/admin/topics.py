"""Topic administration: create, change, delete, list, and the offsets of their queues."""

import asyncio
import logging

import msgspec

from tianzhou.broker import validation
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import find_topic
from tianzhou.broker.handlers.responses import saved, success_with
from tianzhou.broker.tables.supported_attributes import MIXED, added, topic_problems
from tianzhou.broker.tables.topics import check_queue_counts
from tianzhou.errors import RequestError, StoreError
from tianzhou.names import (
    SYSTEM_TOPICS,
)
from tianzhou.protocol.bodies import decode_request_steps
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.groups import GroupList
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import TopicOffset, TopicStatsTable
from tianzhou.protocol.bodies.topics import (
    MULTI_TAG,
    SINGLE_TAG,
    CreateTopicListBody,
    TopicConfig,
    TopicList,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.groups import GroupRequest
from tianzhou.protocol.headers.topics import CreateTopicRequest, TopicRequest
from tianzhou.remoting import scheduler
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, sliced
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)


async def create_topic(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_TOPIC."""
    header = decode(CreateTopicRequest, request.fields)
    topic = TopicConfig(
        topic_name=header.topic,
        read_queue_count=header.read_queue_count,
        write_queue_count=header.write_queue_count,
        perm=header.perm,
        filter_type=header.filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=_parse_attributes(header.attributes),
    )
    return await _put_topics(deps, connection, [topic])


async def create_topic_list(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_TOPIC_LIST (5.3): all, or none if one is invalid."""
    body = await scheduler.finish(decode_request_steps(CreateTopicListBody, request.body))
    return await _put_topics(deps, connection, body.topics or [])


async def _put_topics(deps: Deps, connection: Connection, topics: list[TopicConfig]) -> Command:
    """Check all, then create or change each; `attributes` are changes of signed names."""
    await scheduler.finish(_put_steps(deps, connection, topics))
    return await saved(deps)


def _put_steps(deps: Deps, connection: Connection, topics: list[TopicConfig]) -> Steps[None]:
    for topic in topics:
        _check_topic(deps, topic)
        yield
    deps.topics.check_capacity(topic.topic_name or "" for topic in topics)
    for topic in topics:
        yield
        name = topic.topic_name or ""
        before = deps.topics.get(name)
        attributes = apply_attributes(before.attributes if before else None, topic.attributes)
        if deps.topics.put(msgspec.structs.replace(topic, attributes=attributes)):
            log.info(
                "topic %s: %s, %d read and %d write queues, permission %s, by %s",
                name, "changed" if before else "created", topic.read_queue_count,
                topic.write_queue_count, validation.describe_permission(topic.perm),
                connection.peer,
            )  # fmt: skip


def _check_topic(deps: Deps, topic: TopicConfig) -> None:
    """Raises RequestError for an invalid topic."""
    name = topic.topic_name or ""
    validation.check_topic_name(name)
    _check_changeable(deps, name)
    check_queue_counts(topic.read_queue_count, topic.write_queue_count)
    if topic.filter_type not in (SINGLE_TAG, MULTI_TAG):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"topicFilterType is {validation.shorten(topic.filter_type)}, "
            f"it must be {SINGLE_TAG} or {MULTI_TAG}",
        )
    apply_attributes(None, topic.attributes)
    wanted = added(topic.attributes)
    for problem in topic_problems(topic, wanted):
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {name} is refused: {problem}")
    if wanted.get("message.type") == MIXED and not deps.settings.config.enable_mixed_message_type:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            "MIXED message type is not supported, enableMixedMessageType is false",
        )


def _check_changeable(deps: Deps, name: str) -> None:
    validation.check_changeable(name)
    if name in deps.topics.system_names:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic {name} is a system topic of this broker and cannot be changed or deleted",
        )


def _parse_attributes(text: str | None) -> dict[str, str] | None:
    """Changes of attributes, "+message.type=FIFO,-cleanup.policy", by signed name (5.x)."""
    if not text:
        return None
    changes: dict[str, str] = {}
    for change in text.split(","):
        key, equals, value = change.partition("=")
        if (key.startswith("+") and not value) or (key.startswith("-") and equals):
            raise _wrong_attribute(change)
        changes[key] = value
    return changes


def apply_attributes(
    before: dict[str, str] | None, changes: dict[str, str] | None
) -> dict[str, str] | None:
    """Attributes after changes of signed names, + or -. Raises RequestError."""
    if not changes:
        return before
    attributes = dict(before or {})
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign == "+" and name:
            attributes[name] = value
        elif sign == "-" and name:
            attributes.pop(name, None)
        else:
            raise _wrong_attribute(signed)
    return attributes


def _wrong_attribute(change: str) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"attribute {validation.shorten(change)} is neither +name=value nor -name",
    )


async def delete_topic(deps: Deps, connection: Connection, request: Command) -> Command:
    """DELETE_TOPIC_IN_BROKER: deletes the topic, its queues and the offsets of groups in it."""
    header = decode(TopicRequest, request.fields)
    if not header.topic.strip():
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the topic is blank")
    _check_changeable(deps, header.topic)
    if deps.topics.remove(header.topic):
        log.info("topic %s: deleted by %s", header.topic, connection.peer)
    await scheduler.finish(deps.offsets.remove_topic(header.topic))
    deps.history.forget_topic(header.topic, deps.clock())
    await delete_queues(deps.store, list(deps.store.queues.by_topic.get(header.topic, {}).values()))
    return await saved(deps)


async def delete_queues(store: MessageStore, queues: list[ConsumeQueue]) -> None:
    """Delete queues, a few at a time; returns when the deletion is durable."""
    try:
        await scheduler.finish(_delete_steps(store, queues))
        # A recovery from an earlier checkpoint would create the queues again.
        await asyncio.to_thread(store.flush)
    except StoreError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e


def _delete_steps(store: MessageStore, queues: list[ConsumeQueue]) -> Steps[None]:
    for queue in queues:
        store.remove_queues([queue])
        yield


# -- listing ---------------------------------------------------------------------------------------


def get_topic_config(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_TOPIC_CONFIG (5.x)."""
    header = decode(TopicRequest, request.fields)
    topic = find_topic(deps, header.topic)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(topic))


def get_system_topics(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = sorted(deps.topics.system_names | SYSTEM_TOPICS)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(TopicList(topics=names)))


@sliced
def query_topic_consume_by_who(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to a topic or have offsets in it."""
    header = decode(TopicRequest, request.fields)
    groups = deps.consumers.groups_of_topic(header.topic)
    groups |= yield from deps.offsets.groups_of(header.topic)
    return (yield from success_with(GroupList(groups=sorted(groups))))


@sliced
def query_topics_by_consumer(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """QUERY_TOPICS_BY_CONSUMER (5.x): topics in which a group has offsets."""
    header = decode(GroupRequest, request.fields)
    topics = sorted((yield from deps.offsets.topics_of(header.group)))
    return (yield from success_with(TopicList(topics=topics, broker_addr=deps.address)))


@sliced
def get_topic_stats(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_TOPIC_STATS_INFO: first and last offset of each queue of a topic."""
    header = decode(TopicRequest, request.fields)
    topic = find_topic(deps, header.topic)
    broker_name = deps.settings.config.broker_name
    queue_count = max(topic.read_queue_count, topic.write_queue_count)
    table: dict[MessageQueue, TopicOffset] = {}
    for queue_id in range(queue_count):
        queue = MessageQueue(topic=header.topic, broker_name=broker_name, queue_id=queue_id)
        table[queue] = _queue_stats(deps.store, header.topic, queue_id)
        yield
    put_tps = deps.history.per_second("TOPIC_PUT_NUMS", header.topic, deps.clock())
    return (yield from success_with(TopicStatsTable(offsets=table, put_tps=put_tps)))


def _queue_stats(store: MessageStore, topic: str, queue_id: int) -> TopicOffset:
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    newest_ms = store.store_time(topic, queue_id, high - 1) if high > low else None
    return TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=newest_ms or 0)
