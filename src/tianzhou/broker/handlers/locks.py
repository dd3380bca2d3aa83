"""Locks of queues, for consumers that consume in order."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.broker import checks
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.locks import QueueLocks, QueueName
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockParts:
    """What these requests need of a broker."""

    settings: LiveSettings[BrokerConfig]
    locks: QueueLocks
    steady: Clock


def lock_batch(parts: LockParts, _: Connection, request: Command) -> Command:
    """LOCK_BATCH_MQ: the answer lists the queues that are the client's now."""
    told = decode_body(LockBatchRequestBody, request.body)
    group, client_id = _owner(told.consumer_group, told.client_id)
    wanted = _names(told.queues)
    locked = parts.locks.lock(
        group, client_id, wanted, parts.steady(), parts.settings.config.rebalance_lock_max_live_time
    )
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
    parts.locks.unlock(group, client_id, _names(told.queues))
    return Command(code=ResponseCode.SUCCESS)


def is_locked(parts: LockParts, group: str) -> bool:
    """Whether any consumer of the group holds a queue now."""
    now_ms, live_ms = parts.steady(), parts.settings.config.rebalance_lock_max_live_time
    return any(
        parts.locks.owner(group, queue, now_ms, live_ms) is not None
        for queue in parts.locks.by_group.get(group, {})
    )


def forget_expired(parts: LockParts) -> None:
    """Make room; called now and then."""
    parts.locks.forget_expired(parts.steady(), parts.settings.config.rebalance_lock_max_live_time)


def _owner(group: str | None, client_id: str | None) -> tuple[str, str]:
    if not group or not client_id:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "a lock of queues needs consumerGroup and clientId"
        )
    return group, client_id


def _names(queues: Iterable[MessageQueue]) -> list[QueueName]:
    """Each queue once, as RocketMQ's set of them has it."""
    named = (QueueName(each.topic or "", each.broker_name or "", each.queue_id) for each in queues)
    return list(dict.fromkeys(named))
