"""Concurrent consumption: batches go to any free worker and finish in any order.

A failed message is sent back to the broker, which delivers it again later and finally makes it a
dead letter. If that fails, a copy is sent to the retry topic through any broker; if that fails,
too, the handler is called again here after five seconds. Until one of the three succeeds the
message blocks the progress of its queue, so a crash cannot lose it. Broadcasting has no
redelivery: a failure is logged.
"""

import asyncio
import copy
import logging
from collections.abc import Callable
from itertools import groupby

import msgspec

from tianzhou.client.consumer.callbacks import Later, Outcome
from tianzhou.client.consumer.held_queue import HeldQueue
from tianzhou.client.consumer.process_queue import Batch, ConcurrentQueue
from tianzhou.client.group.broker_calls import BrokerCalls
from tianzhou.client.group.settings import PushSettings
from tianzhou.client.message import ReceivedMessage
from tianzhou.clock import steady_ms
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

MAX_RECONSUME_TIMES = 16
_EXPIRED_DELAY_LEVEL = 3


def again(message: ReceivedMessage) -> ReceivedMessage:
    """A copy of the message with its delivery counter increased."""
    tried = copy.copy(message)
    tried.stored = msgspec.structs.replace(
        message.stored, reconsume_count=message.stored.reconsume_count + 1
    )
    return tried


def cut_by_topic(
    state: ConcurrentQueue,
    messages: list[ReceivedMessage],
    batch_size_of: Callable[[str], int],
) -> list[Batch]:
    """Add messages of a retry topic to its queue, in batches of one original topic each."""
    batches: list[Batch] = []
    for topic, run in groupby(messages, key=lambda each: each.topic):
        batches += state.put(list(run), batch_size_of(topic))
    return batches


class Redelivery:
    """Redelivery of failed messages."""

    def __init__(self, calls: BrokerCalls, settings: PushSettings) -> None:
        self._calls = calls
        times = settings.max_reconsume_times
        self._times_max = MAX_RECONSUME_TIMES if times == -1 else times

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Send a message back; False if neither that nor the copy to the retry topic worked."""
        try:
            await self._calls.send_back(message, delay_level, self._times_max)
        except TianzhouError as error:
            why = error
        else:
            return True
        times = message.reconsume_times
        try:
            await self._calls.resend(message, 3 + times, times + 1, self._times_max)
        except TianzhouError as error:
            log.warning(
                "group %s, message %s: not sent back (%s), not sent to the retry topic (%s)",
                self._calls.group, message.msg_id, why, error,
            )  # fmt: skip
            return False
        return True


async def apply_outcome(
    held: HeldQueue, batch: Batch, outcome: Outcome, redelivery: Redelivery | None
) -> bool:
    """Apply the outcome of a batch; False if a part of it must be retried here.

    Without redelivery (broadcasting) failed messages are dropped.
    """
    state = held.concurrent
    later = outcome.later
    if later is None:
        state.finish(batch, steady_ms())
        return True
    failed = batch.messages[max(later.done_count, 0) :]
    if redelivery is None:
        log.warning("queue %s: %d messages failed and are dropped", held.queue, len(failed))
        state.finish(batch, steady_ms())
        return True
    sent = await asyncio.gather(*(redelivery.send_back(each, later.delay_level) for each in failed))
    rest = [again(each) for each, is_sent in zip(failed, sent, strict=True) if not is_sent]
    if batch.finished or held.state.dropped:
        return True
    state.retain(batch, rest, steady_ms())
    return not rest


async def send_back_overdue(held: HeldQueue, redelivery: Redelivery, timeout_ms: int) -> None:
    """Send back the messages of handlers that run too long, which unblocks the queue."""
    state = held.concurrent
    for batch in state.overdue(steady_ms(), timeout_ms):
        log.warning(
            "queue %s, message %s: the handler runs for over %d ms, the message is sent back",
            held.queue, batch.messages[0].msg_id, timeout_ms,
        )  # fmt: skip
        outcome = Outcome(Later(_EXPIRED_DELAY_LEVEL))
        if not await apply_outcome(held, batch, outcome, redelivery):
            return
