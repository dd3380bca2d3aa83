"""Queue locks, for consumers that process messages in order."""

import logging
from collections.abc import Iterator
from typing import TypeVar

from tianzhou.broker import validation
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import success_with
from tianzhou.broker.tables.queue_locks import QueueLocks, QueueName
from tianzhou.errors import RequestError
from tianzhou.limits import STRAY_LOCKS_MAX
from tianzhou.protocol.bodies import decode_request_steps
from tianzhou.protocol.bodies.queues import LockBatchResponseBody, MessageQueue, QueueLockBody
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, sliced

log = logging.getLogger(__name__)

T = TypeVar("T")
_TOGETHER = 256


@sliced
def lock_batch(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """LOCK_BATCH_MQ: the response lists the queues that the client holds now."""
    sent = yield from decode_request_steps(QueueLockBody, request.body)
    config = deps.settings.config
    group, client_id = _owner(sent.consumer_group, sent.client_id)
    wanted = yield from _names(sent.queues)
    is_known = deps.groups.get(group) is not None
    existing: list[QueueName] = []
    strays: list[QueueName] = []
    for some in _some(wanted):
        for each in some:
            (existing if is_known and _exists(deps, each) else strays).append(each)
        yield
    _check_capacity(deps, "maxQueueLocks", config.max_queue_locks, deps.locks, group, existing)
    yield
    _check_capacity(deps, "unknown queues", STRAY_LOCKS_MAX, deps.stray_locks, group, strays)
    live_ms = config.rebalance_lock_max_live_time
    locked: list[QueueName] = []
    for table, queues in ((deps.locks, existing), (deps.stray_locks, strays)):
        for some in _some(queues):
            locked += table.lock(group, client_id, some, deps.steady(), live_ms)
            yield
    if len(locked) < len(wanted):
        log.info(
            "group %s: %s locked %d of %d queues, other clients hold the rest",
            validation.shorten(group), validation.shorten(client_id), len(locked), len(wanted),
        )  # fmt: skip
    shown: list[MessageQueue] = []
    for some in _some(locked):
        shown += [
            MessageQueue(topic=each.topic, broker_name=each.broker_name, queue_id=each.queue_id)
            for each in some
        ]
        yield
    return (yield from success_with(LockBatchResponseBody(locked=shown)))


@sliced
def unlock_batch(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """UNLOCK_BATCH_MQ: queues that the client does not hold are ignored."""
    sent = yield from decode_request_steps(QueueLockBody, request.body)
    group, client_id = _owner(sent.consumer_group, sent.client_id)
    wanted = yield from _names(sent.queues)
    for some in _some(wanted):
        for table in (deps.locks, deps.stray_locks):
            table.unlock(group, client_id, some)
        yield
    return Command(code=ResponseCode.SUCCESS)


def is_locked(deps: Deps, group: str) -> bool:
    """Whether any consumer of the group holds a queue now."""
    now_ms, live_ms = deps.steady(), deps.settings.config.rebalance_lock_max_live_time
    return any(
        table.owner(group, queue, now_ms, live_ms) is not None
        for table in (deps.locks, deps.stray_locks)
        for queue in table.by_group.get(group, {})
    )


def remove_expired(deps: Deps) -> None:
    """Drop expired locks; called periodically."""
    now_ms, live_ms = deps.steady(), deps.settings.config.rebalance_lock_max_live_time
    for table in (deps.locks, deps.stray_locks):
        table.remove_expired(now_ms, live_ms)


def _owner(group: str | None, client_id: str | None) -> tuple[str, str]:
    if not group or not client_id:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "a lock of queues needs consumerGroup and clientId"
        )
    return group, client_id


def _check_capacity(
    deps: Deps,
    setting: str,
    limit: int,
    table: QueueLocks,
    group: str,
    queues: list[QueueName],
) -> None:
    """Raises RequestError if the new locks exceed the limit of a table."""
    if new_count := table.new_count(group, queues):
        what = f"queue {queues[0].queue_id} of topic {validation.shorten(queues[0].topic)}"
        deps.limits.check(
            setting, limit, len(table) + new_count - 1,
            f"{what} cannot be locked for group {validation.shorten(group)}",
        )  # fmt: skip


def _exists(deps: Deps, queue: QueueName) -> bool:
    topic = deps.topics.get(queue.topic)
    if topic is None or queue.broker_name != deps.settings.config.broker_name:
        return False
    return 0 <= queue.queue_id < max(topic.read_queue_count, topic.write_queue_count)


def _names(queues: list[MessageQueue]) -> Steps[list[QueueName]]:
    """The queues without duplicates, as in RocketMQ's set."""
    named: dict[QueueName, None] = {}
    for some in _some(queues):
        for each in some:
            named[QueueName(each.topic or "", each.broker_name or "", each.queue_id)] = None
        yield
    return list(named)


def _some(items: list[T]) -> Iterator[list[T]]:
    """Split a list into pieces that take a fraction of a millisecond each."""
    return (items[at : at + _TOGETHER] for at in range(0, len(items), _TOGETHER))
