"""Locks of queues, for consumers that consume in order."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.broker import checks
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups import GroupTable
from tianzhou.broker.locks import QueueLocks, QueueName
from tianzhou.broker.topics import TopicTable
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError
from tianzhou.limits import STRAY_LOCKS_MAX
from tianzhou.protocol.bodies import decode_request as decode_body
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.queues import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.quota.tables import TableLimits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockParts:
    """What these requests need of a broker."""

    settings: LiveSettings[BrokerConfig]
    topics: TopicTable
    groups: GroupTable
    limits: TableLimits
    locks: QueueLocks
    strays: QueueLocks
    """Locks of queues that this broker does not have: few, so that they leave room for others."""
    steady: Clock


def lock_batch(parts: LockParts, _: Connection, request: Command) -> Command:
    """LOCK_BATCH_MQ: the answer lists the queues that are the client's now."""
    told = decode_body(LockBatchRequestBody, request.body)
    config = parts.settings.config
    group, client_id = _owner(told.consumer_group, told.client_id)
    wanted = _names(told.queues)
    is_known = parts.groups.get(group) is not None
    there = [each for each in wanted if is_known and _exists(parts, each)]
    strays = [each for each in wanted if not (is_known and _exists(parts, each))]
    _check_room(parts, "maxQueueLocks", config.max_queue_locks, parts.locks, group, there)
    _check_room(parts, "unknown queues", STRAY_LOCKS_MAX, parts.strays, group, strays)
    now_ms, live_ms = parts.steady(), config.rebalance_lock_max_live_time
    locked = parts.locks.lock(group, client_id, there, now_ms, live_ms)
    locked += parts.strays.lock(group, client_id, strays, now_ms, live_ms)
    if len(locked) < len(wanted):
        log.info(
            "group %s: %s gets %d of %d queues, others hold the rest",
            checks.shorten(group), checks.shorten(client_id), len(locked), len(wanted),
        )  # fmt: skip
    body = LockBatchResponseBody(
        locked=[
            MessageQueue(topic=each.topic, broker_name=each.broker_name, queue_id=each.queue_id)
            for each in locked
        ]
    )
    return Command(code=ResponseCode.SUCCESS, body=encode_body(body))


def unlock_batch(parts: LockParts, _: Connection, request: Command) -> Command:
    """UNLOCK_BATCH_MQ: queues that are not the client's are left alone."""
    told = decode_body(UnlockBatchRequestBody, request.body)
    group, client_id = _owner(told.consumer_group, told.client_id)
    for table in (parts.locks, parts.strays):
        table.unlock(group, client_id, _names(told.queues))
    return Command(code=ResponseCode.SUCCESS)


def is_locked(parts: LockParts, group: str) -> bool:
    """Whether any consumer of the group holds a queue now."""
    now_ms, live_ms = parts.steady(), parts.settings.config.rebalance_lock_max_live_time
    return any(
        table.owner(group, queue, now_ms, live_ms) is not None
        for table in (parts.locks, parts.strays)
        for queue in table.by_group.get(group, {})
    )


def forget_expired(parts: LockParts) -> None:
    """Make room; called now and then."""
    now_ms, live_ms = parts.steady(), parts.settings.config.rebalance_lock_max_live_time
    for table in (parts.locks, parts.strays):
        table.forget_expired(now_ms, live_ms)


def _owner(group: str | None, client_id: str | None) -> tuple[str, str]:
    if not group or not client_id:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "a lock of queues needs consumerGroup and clientId"
        )
    return group, client_id


def _check_room(
    parts: LockParts,
    setting: str,
    limit: int,
    table: QueueLocks,
    group: str,
    queues: list[QueueName],
) -> None:
    """Raises RequestError if a table cannot take the locks that are new."""
    if new_count := table.new_count(group, queues):
        what = f"queue {queues[0].queue_id} of topic {checks.shorten(queues[0].topic)}"
        parts.limits.check(
            setting, limit, len(table) + new_count - 1,
            f"{what} cannot be locked for group {checks.shorten(group)}",
        )  # fmt: skip


def _exists(parts: LockParts, queue: QueueName) -> bool:
    topic = parts.topics.get(queue.topic)
    if topic is None or queue.broker_name != parts.settings.config.broker_name:
        return False
    return 0 <= queue.queue_id < max(topic.read_queue_count, topic.write_queue_count)


def _names(queues: Iterable[MessageQueue]) -> list[QueueName]:
    """Each queue once, as RocketMQ's set of them has it."""
    named = (QueueName(each.topic or "", each.broker_name or "", each.queue_id) for each in queues)
    return list(dict.fromkeys(named))
