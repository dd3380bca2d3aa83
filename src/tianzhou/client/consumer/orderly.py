"""Ordered consumption: one batch of a queue at a time, by the holder of the broker's lock.

The lock of a queue is acquired before the queue is claimed, renewed every 20 s, and checked before
every call of a handler; one that was not renewed for 30 s counts as lost, before the broker lets
it expire (60 s). A failed message is retried here after a pause, while the queue waits; after the
last retry it becomes a dead letter. A released queue is unlocked when its running handler has
ended, so the next owner begins where this one stopped.
"""

import asyncio
import logging
from collections.abc import Iterable

from tianzhou.client.consumer.callbacks import Decision, Later, Outcome
from tianzhou.client.consumer.concurrent import again
from tianzhou.client.consumer.held_queue import HeldQueue
from tianzhou.client.group.broker_calls import BrokerCalls
from tianzhou.client.group.settings import PushSettings
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.queues import Queue
from tianzhou.clock import steady_ms
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

NO_LIMIT = 2**31 - 1
_SUSPEND_MIN_MS, _SUSPEND_MAX_MS = 10, 30_000


def pause_ms(later: Later | None, settings: PushSettings) -> int:
    """The pause of a queue after a failure."""
    wanted = settings.suspend_ms
    if later is not None and later.suspend_ms is not None:
        wanted = later.suspend_ms
    return min(max(wanted, _SUSPEND_MIN_MS), _SUSPEND_MAX_MS)


async def apply_outcome(
    held: HeldQueue,
    messages: list[ReceivedMessage],
    outcome: Outcome,
    calls: BrokerCalls,
    settings: PushSettings,
) -> bool:
    """Apply the outcome of the last messages; returns whether the next may be handled."""
    state = held.ordered
    if outcome.later is not None:
        failed = messages[max(outcome.later.done_count, 0) :]
        rest = await _to_retry(failed, calls, settings)
        state.give_back(len(failed), rest)
        if settings.auto_commit:
            state.commit()
        return not rest
    if settings.auto_commit or outcome.decision is Decision.COMMIT:
        state.commit()
    elif outcome.decision is Decision.ROLLBACK:
        state.roll_back()
        return False
    return True


async def _to_retry(
    failed: list[ReceivedMessage], calls: BrokerCalls, settings: PushSettings
) -> list[ReceivedMessage]:
    """The messages to retry, with increased counters; the others become dead letters."""
    times = settings.max_reconsume_times
    times_max = NO_LIMIT if times == -1 else times
    return [
        again(message)
        for message in failed
        if message.reconsume_times < times_max or not await _send_to_dlq(message, calls, times_max)
    ]


async def _send_to_dlq(message: ReceivedMessage, calls: BrokerCalls, times_max: int) -> bool:
    try:
        await calls.resend(message, 0, message.reconsume_times, times_max)
    except TianzhouError as error:
        log.warning(
            "group %s, message %s: not sent to the dead-letter queue: %s",
            calls.group, message.msg_id, error,
        )  # fmt: skip
        return False
    log.info("group %s, message %s: sent to the dead-letter queue", calls.group, message.msg_id)
    return True


# -- locks -----------------------------------------------------------------------------------------


async def lock_one(calls: BrokerCalls, queue: Queue) -> bool:
    """Lock a queue; False if it is locked by another client, or on an error."""
    try:
        return queue in await calls.lock((queue,))
    except TianzhouError as error:
        log.warning("group %s, queue %s: not locked: %s", calls.group, queue, error)
        return False


async def renew(calls: BrokerCalls, helds: Iterable[HeldQueue]) -> None:
    """Renew the locks of all queues; a refused lock is lost, one that failed expires later."""
    await asyncio.gather(*(_renew_at(calls, group) for group in _by_broker(helds)))


async def _renew_at(calls: BrokerCalls, helds: list[HeldQueue]) -> None:
    try:
        locked = await calls.lock([held.queue for held in helds])
    except TianzhouError as error:
        log.warning("group %s: locks not renewed: %s", calls.group, error)
        return
    now_ms = steady_ms()
    for held in helds:
        if held.state.locked and held.queue not in locked:
            log.warning("group %s, queue %s: lock lost", calls.group, held.queue)
        held.state.set_lock(held.queue in locked, now_ms)


async def unlock(calls: BrokerCalls, helds: Iterable[HeldQueue]) -> None:
    """Unlock queues; if it fails, the locks expire."""
    await asyncio.gather(*(_unlock_at(calls, group) for group in _by_broker(helds)))


async def _unlock_at(calls: BrokerCalls, helds: list[HeldQueue]) -> None:
    for held in helds:
        held.state.locked = False
    try:
        await calls.unlock([held.queue for held in helds])
    except TianzhouError as error:
        log.info("group %s: queues not unlocked: %s", calls.group, error)


def _by_broker(helds: Iterable[HeldQueue]) -> Iterable[list[HeldQueue]]:
    groups: dict[str, list[HeldQueue]] = {}
    for held in helds:
        groups.setdefault(held.queue.broker_name, []).append(held)
    return groups.values()
