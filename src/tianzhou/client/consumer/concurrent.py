"""Consuming in any order: batches go to whichever handler is free, and are finished as they end.

What a handler was not happy with is sent back to the broker, which delivers it again later, and in
the end makes it a dead letter. If the broker does not take it back, a copy is sent to the retry
topic by any broker; if that fails, too, the handler gets it again here after five seconds. Until
one of the three has worked the message blocks the queue's progress, so a crash cannot lose it.
Broadcasting knows no second try: a failure is told and that is all.
"""

import asyncio
import copy
import logging
from collections.abc import Callable
from itertools import groupby
from typing import cast

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

State = ConcurrentQueue[ReceivedMessage]
Work = tuple[HeldQueue, Batch[ReceivedMessage]]


def again(message: ReceivedMessage) -> ReceivedMessage:
    """The same message, tried once more."""
    tried = copy.copy(message)
    tried.stored = msgspec.structs.replace(
        message.stored, reconsume_count=message.stored.reconsume_count + 1
    )
    return tried


def state_of(held: HeldQueue) -> State:
    return cast("State", held.state)


def cut_by_topic(
    state: State, messages: list[ReceivedMessage], batch_size_of: Callable[[str], int]
) -> list[Batch[ReceivedMessage]]:
    """Put what a retry topic brought into its queue, in batches of one topic each."""
    batches: list[Batch[ReceivedMessage]] = []
    for topic, run in groupby(messages, key=lambda each: each.topic):
        batches += state.put(list(run), batch_size_of(topic))
    return batches


class Redelivery:
    """The ways back for messages that were not consumed."""

    def __init__(self, calls: BrokerCalls, settings: PushSettings) -> None:
        self._calls = calls
        times = settings.max_reconsume_times
        self._times_max = MAX_RECONSUME_TIMES if times == -1 else times

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether the message will be delivered again (or has become a dead letter)."""
        try:
            await self._calls.send_back(message, delay_level, self._times_max)
        except TianzhouError as error:
            return await self._resend(message, error)
        return True

    async def _resend(self, message: ReceivedMessage, why: TianzhouError) -> bool:
        try:
            await self._calls.resend(
                message,
                delay_level=3 + message.reconsume_times,
                reconsume_count=message.reconsume_times + 1,
                max_reconsume_times=self._times_max,
            )
        except TianzhouError as error:
            log.warning(
                "group %s, message %s: neither sent back (%s) nor sent anew (%s), tried again here",
                self._calls.group, message.msg_id, why, error,
            )  # fmt: skip
            return False
        return True

    async def send_back_all(
        self, messages: list[ReceivedMessage], delay_level: int
    ) -> list[ReceivedMessage]:
        """Send all back; gives those for which nothing worked."""
        results = await asyncio.gather(*(self.send_back(each, delay_level) for each in messages))
        return [each for each, sent in zip(messages, results, strict=True) if not sent]


async def apply_outcome(
    held: HeldQueue,
    batch: Batch[ReceivedMessage],
    outcome: Outcome,
    redelivery: Redelivery | None,
) -> bool:
    """Do with a batch what its handler said; False if something of it must be tried again here.

    Without redelivery (broadcasting) what failed is given up.
    """
    state = state_of(held)
    later = outcome.later
    if later is None:
        state.finish(batch, steady_ms())
        return True
    failed = batch.messages[max(later.done_count, 0) :]
    if redelivery is None:
        log.warning("queue %s: %d messages failed and are given up", held.queue, len(failed))
        state.finish(batch, steady_ms())
        return True
    rest = await redelivery.send_back_all(failed, later.delay_level)
    if batch.finished or held.state.dropped:
        return True
    state.retain(batch, [again(each) for each in rest], steady_ms())
    return not rest


async def send_back_overdue(held: HeldQueue, redelivery: Redelivery, timeout_ms: int) -> None:
    """Free the queue of handlers that take too long: their messages are delivered again."""
    state = state_of(held)
    for batch in state.overdue(steady_ms(), timeout_ms):
        log.warning(
            "queue %s, message %s: its handler runs for over %d ms, it is sent back",
            held.queue, batch.messages[0].msg_id, timeout_ms,
        )  # fmt: skip
        outcome = Outcome(Later(_EXPIRED_DELAY_LEVEL))
        if not await apply_outcome(held, batch, outcome, redelivery):
            return
