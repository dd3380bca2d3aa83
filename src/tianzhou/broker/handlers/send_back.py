"""CONSUMER_SEND_MSG_BACK: a consumer failed to process a message and wants it again later.

    header -> group, permission -> the message in the log -> retry or dead letter (`retry_dlq`)
    -> store -> response

A client that sends such a message to %RETRY%group itself is served by `send.py`.
"""

import logging
from collections.abc import Awaitable
from functools import partial

import msgspec

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import Answer
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import broker_forbids, find_group, topic_forbids
from tianzhou.broker.handlers.responses import when_stored
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.storing import retry_dlq
from tianzhou.errors import RecordError, RequestError, StoreError
from tianzhou.names import (
    PERM_WRITE,
    UNSENDABLE_TOPICS,
)
from tianzhou.protocol import properties
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.send import ConsumerSendMsgBackRequest
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.remoting.connection import PARKED, Connection
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_UNIT_SUBSCRIPTION = 2
_WAITING_MAX = 65_536
"""Queued requests, of all connections together."""


def send_back(deps: Deps, connection: Connection, request: Command) -> Answer:
    """CONSUMER_SEND_MSG_BACK."""
    fair_queue = deps.send_backs
    if fair_queue.admits(connection):
        try:
            return _send_back(deps, request)
        finally:
            fair_queue.passed()
    # Thousands at a time must not delay ordinary sends.
    if fair_queue.waiting_count >= _WAITING_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_BUSY,
            f"system busy: {fair_queue.waiting_count} messages sent back are queued already",
        )
    fair_queue.wait(
        connection, partial(connection.defer(request), partial(_send_back, deps, request))
    )
    return PARKED


def _send_back(deps: Deps, request: Command) -> Command | Awaitable[Command]:
    header = decode(ConsumerSendMsgBackRequest, request.fields)
    config = deps.settings.config
    group = find_group(deps, header.group)
    if not config.broker_permission & PERM_WRITE:
        raise broker_forbids(config, "accepts")
    if group.retry_queue_count <= 0:
        return Command(code=ResponseCode.SUCCESS)
    fields = _message(deps.store, header.log_offset)
    times_max = header.max_reconsume_times
    if times_max is None:
        times_max = group.retry_max_times
    what = retry_dlq.decide_retry(group, fields[12], times_max, header.delay_level)
    is_new, topic = _topic(deps, group, what, unit_mode=header.unit_mode)
    wait = retry_dlq.wait_of(what, config.delay_levels_ms, timer_max_ms(config))
    count = retry_dlq.DLQ_QUEUE_COUNT if what.dead else group.retry_queue_count
    draft, props = retry_dlq.sent_back(
        fields, header.group, what, min(count, topic.write_queue_count), deps.store_host, wait
    )
    deps.crash_point("retry: before the message is stored")
    try:
        appended = deps.writer.append(draft, props)
    except RecordError as e:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
    except StoreError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
    deps.crash_point("retry: the message is stored")
    _count(deps.stats, fields, header.group, dead=what.dead)
    answer = Command(code=ResponseCode.SUCCESS)
    return when_stored(deps, answer, appended.end_log_offset, is_new_topic=is_new)


def timer_max_ms(config: BrokerConfig) -> int:
    """The longest delay of the timer; 0 if it is off."""
    return config.timer_max_delay_sec * 1000 if config.timer_wheel_enable else 0


def _message(store: MessageStore, log_offset: int) -> RecordFields:
    fields = store.log.decode(log_offset, read_body=True) if log_offset >= 0 else None
    if fields is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {log_offset}: no message begins there; the log holds "
            f"{store.first_log_offset} to {store.end_log_offset}",
        )
    # No consumer receives messages of these topics, so none can send one back.
    if fields[0] in UNSENDABLE_TOPICS:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {log_offset}: the message is not delivered yet",
        )
    return fields


def _topic(
    deps: Deps,
    group: SubscriptionGroupConfig,
    what: retry_dlq.RetryDecision,
    *,
    unit_mode: bool,
) -> tuple[bool, TopicConfig]:
    """The retry or dead-letter topic, and whether it was created now. Raises RequestError."""
    assert group.group_name is not None, "a group in the table has a name"
    name = retry_dlq.topic_of(group.group_name, dead=what.dead)
    known = deps.topics.get(name)
    if known is None:
        count = retry_dlq.DLQ_QUEUE_COUNT if what.dead else group.retry_queue_count
        sys_flag = _UNIT_SUBSCRIPTION if unit_mode and not what.dead else 0
        topic = deps.topics.create_for_group(name, count)
        if sys_flag:
            topic = msgspec.structs.replace(topic, topic_sys_flag=sys_flag)
            deps.topics.put(topic)
        return True, topic
    if not known.perm & PERM_WRITE:
        raise topic_forbids(known, "accepts")
    return False, known


def _count(stats: Stats, fields: RecordFields, group: str, *, dead: bool) -> None:
    key = (fields[2].get(properties.RETRY_TOPIC, fields[0]), group)
    stats.sent_back[key] += 1
    if dead:
        stats.dead[key] += 1
        log.debug("group %s: message %s of topic %s is a dead letter", group, fields[5], key[0])
