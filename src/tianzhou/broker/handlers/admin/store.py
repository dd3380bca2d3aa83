"""Store administration: clean-up, raw queue entries, progress for slaves."""

import asyncio
import logging

import msgspec

from tianzhou.broker import validation
from tianzhou.broker.handlers.admin.topics import delete_queues
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.heartbeat import subscription_body
from tianzhou.broker.tables.clients import Subscription
from tianzhou.errors import RequestError, StoreError
from tianzhou.names import (
    is_system_topic,
)
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.queues import ConsumeQueueData, QueryConsumeQueueBody
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.pull import QueryConsumeQueueRequest
from tianzhou.remoting import scheduler
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps
from tianzhou.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

_ENTRIES_MAX = 1024
"""Entries in one response at most."""


# -- cleaning up -----------------------------------------------------------------------------------


async def delete_expired_log(deps: Deps, connection: Connection, _: Command) -> Command:
    """DELETE_EXPIRED_COMMITLOG: delete expired files now, whatever `deleteWhen` says."""
    try:
        count = await asyncio.to_thread(deps.store.expire, now=True)
    except StoreError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
    log.info("store: %d expired log files removed, by %s", count, connection.peer)
    return Command(code=ResponseCode.SUCCESS)


async def clean_unused_topics(deps: Deps, connection: Connection, _: Command) -> Command:
    """CLEAN_UNUSED_TOPIC: delete queues of topics that are no longer in the table.

    A slave's table may be behind its log, so a queue whose topic is missing may be a new one.
    """
    if deps.settings.config.is_slave:
        return Command(
            code=ResponseCode.SUCCESS,
            remark="this broker is a slave: it deletes no queues, as topics come from its master",
        )
    unused = [
        topic
        for topic in sorted(deps.store.queues.by_topic)
        if deps.topics.get(topic) is None and not is_system_topic(topic)
    ]
    for topic in unused:
        await delete_queues(deps.store, list(deps.store.queues.by_topic.get(topic, {}).values()))
        deps.history.forget_topic(topic, deps.clock())
        log.info("topic %s: its queues are removed as unused, by %s", topic, connection.peer)
    return Command(code=ResponseCode.SUCCESS)


async def clean_expired_queues(deps: Deps, connection: Connection, _: Command) -> Command:
    """CLEAN_EXPIRED_CONSUMEQUEUE: delete queues without messages that no topic has.

    RocketMQ deletes every queue whose messages have all expired, and a topic in use then starts
    again at offset 0, below the committed offsets of its groups. So a queue that its topic still
    has is retained; its files except the last are deleted with the log anyway.
    """
    expired = await scheduler.finish(_expired_queues(deps))
    for queue in expired:
        log.info(
            "queue %s/%d: removed as expired, by %s", queue.topic, queue.queue_id, connection.peer
        )
    await delete_queues(deps.store, expired)
    return Command(code=ResponseCode.SUCCESS)


def _expired_queues(deps: Deps) -> Steps[list[ConsumeQueue]]:
    expired: list[ConsumeQueue] = []
    for queue in deps.store.queues.all():
        yield
        topic = deps.topics.get(queue.topic)
        queue_count = max(topic.read_queue_count, topic.write_queue_count) if topic else 0
        if queue.queue_id < queue_count or is_system_topic(queue.topic):
            continue
        if _is_expired(queue, deps.store.first_log_offset):
            expired.append(queue)
    return expired


def _is_expired(queue: ConsumeQueue, first_log_offset: int) -> bool:
    last = queue.entry(queue.next_offset - 1) if queue.next_offset else None
    return last is not None and last[0] < first_log_offset


# -- reading queues -------------------------------------------------------------------------------


def query_consume_queue(deps: Deps, _: Connection, request: Command) -> Command:
    """QUERY_CONSUME_QUEUE: raw entries of a queue, and which of them a group's filter selects.

    An index that does not exist gives no entries; RocketMQ sends no body then, and its own tool
    fails.
    """
    header = decode(QueryConsumeQueueRequest, request.fields)
    topic = header.topic or ""
    queue = deps.store.queues.get(topic, header.queue_id)
    if queue is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"{header.queue_id}@{validation.shorten(topic)} is not exist!",
        )
    subscription = filter_data = None
    if header.consumer_group:
        subscription = deps.consumers.subscription(header.consumer_group, topic)
        filter_data = _filter_data(header.consumer_group, topic, subscription)
    low = deps.store.min_offset(topic, header.queue_id)
    high = deps.store.max_offset(topic, header.queue_id)
    entries: list[ConsumeQueueData] = []
    remark = None
    if 0 <= header.index < high:
        count = min(max(header.count, 0), _ENTRIES_MAX, high - header.index)
        for log_offset, size_bytes, tags_code in queue.entries(header.index, count):
            entries.append(_entry(log_offset, size_bytes, tags_code, subscription))
    else:
        remark = (
            f"Index {header.index} of {header.queue_id}@{validation.shorten(topic)} is not exist!"
        )
    body = QueryConsumeQueueBody(
        subscription_data=None if subscription is None else subscription_body(subscription),
        filter_data=filter_data,
        entries=entries,
        max_queue_index=high,
        min_queue_index=low,
    )
    return Command(code=ResponseCode.SUCCESS, remark=remark, body=encode_body(body))


def _entry(
    log_offset: int, size_bytes: int, tags_code: int, subscription: Subscription | None
) -> ConsumeQueueData:
    matches = subscription is not None and (
        not subscription.is_by_tags or subscription.tags.matches(tags_code)
    )
    return ConsumeQueueData(
        log_offset=log_offset, size_bytes=size_bytes, tags_code=tags_code, matches=matches
    )


def _filter_data(group: str, topic: str, subscription: Subscription | None) -> str:
    """RocketMQ's filter data of an expression; a group that filters by tags has none."""
    if subscription is None:
        return f"{validation.shorten(group)}@{validation.shorten(topic)} is not online!"
    if subscription.is_by_tags:
        return "null"
    data = {
        "consumerGroup": group, "topic": topic, "expression": subscription.expression,
        "expressionType": subscription.expression_type, "clientVersion": subscription.version,
        "problem": subscription.problem,
    }  # fmt: skip
    return msgspec.json.encode(data).decode()
