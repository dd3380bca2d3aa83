"""Pops under way, and what becomes of messages that nobody waits for any more.

A pop cannot be called off: its messages are hidden from everybody else from the moment the broker
answers. So a pop runs on when its receiver is cancelled, and when the consumer is being closed;
whatever it brings then is given back, for others to have at once.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tianzhou.client.group.subscriptions import Subscription
from tianzhou.client.pop.calls import PopCalls, PopLimits
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.queues import Queue

log = logging.getLogger(__name__)

_Pop = asyncio.Task[list[PoppedMessage]]


class PendingPops:
    """The pops of one consumer."""

    def __init__(self, calls: PopCalls, name: str) -> None:
        self._calls = calls
        self._name = name
        self._pops: set[_Pop] = set()
        self._abandoned: set[_Pop] = set()
        """Those whose receivers have gone."""
        self._cleanups: set[asyncio.Task[None]] = set()
        self._closing = False

    async def pop(
        self, target: Queue, subscription: Subscription, limits: PopLimits
    ) -> list[PoppedMessage]:
        """What a target has for the subscription now. Raises what `PopCalls.pop` raises."""
        pop = asyncio.create_task(
            self._pop(target, subscription, limits), name=f"pop {self._name} {target.topic}"
        )
        self._pops.add(pop)
        pop.add_done_callback(self._pops.discard)
        try:
            return await asyncio.shield(pop)
        except asyncio.CancelledError:
            self._abandon(pop)
            raise

    async def close(self) -> None:
        """Wait for what is under way; no pop takes longer than its time-out."""
        self._closing = True
        for tasks in (self._pops, self._cleanups):
            if tasks:
                await asyncio.wait(tuple(tasks))

    async def _pop(
        self, target: Queue, subscription: Subscription, limits: PopLimits
    ) -> list[PoppedMessage]:
        found = await self._calls.pop(target, subscription, limits)
        if found and (self._closing or asyncio.current_task() in self._abandoned):
            await self._release(found)
            return []
        # Brokers compare hashes of tags; what only has the same hash is nobody's in this group.
        unmatched = [each for each in found if not subscription.passes(each.stored)]
        if not unmatched:
            return found
        self._run(self._ack_unmatched(unmatched))
        return [each for each in found if subscription.passes(each.stored)]

    def _abandon(self, pop: _Pop) -> None:
        if not pop.done():
            self._abandoned.add(pop)
            pop.add_done_callback(self._abandoned_ended)
        elif not pop.cancelled() and pop.exception() is None and pop.result():
            # It has ended in the same turn of the loop in which its receiver was cancelled.
            self._run(self._release(pop.result()))

    def _abandoned_ended(self, pop: _Pop) -> None:
        self._abandoned.discard(pop)
        if not pop.cancelled() and (error := pop.exception()) is not None:
            log.info("group %s: a pop that nobody waited for failed: %s", self._name, error)

    async def _release(self, messages: list[PoppedMessage]) -> None:
        """Let others have messages at once; where that fails they come when their time is up."""
        told = await asyncio.gather(
            *(self._calls.change_invisible(each, 0) for each in messages), return_exceptions=True
        )
        done_count = sum(each is None for each in told)
        log.info(
            "group %s: nobody waited for %d messages any more, %d are given back",
            self._name, len(messages), done_count,
        )  # fmt: skip

    async def _ack_unmatched(self, unmatched: list[PoppedMessage]) -> None:
        failures = [each for each in await self._calls.ack_many(unmatched) if each is not None]
        if failures:
            log.info(
                "group %s: %d messages of other tags will come again: %s",
                self._name, len(failures), failures[0],
            )  # fmt: skip

    def _run(self, cleanup: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(cleanup, name=f"pop cleanup {self._name}")
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
