"""Pending pops, and the release of messages whose receiver was cancelled.

A pop cannot be cancelled: its messages are invisible to other consumers once the broker responds.
So a pop continues when its receiver is cancelled or the consumer is closed; its messages are then
released, and others get them immediately.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tianzhou.client.group.subscriptions import Subscription
from tianzhou.client.pop.calls import PopCalls, PopLimits
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.queues import Queue
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

_Pop = asyncio.Task[list[PoppedMessage]]


class PendingPops:
    """The pending pops of one consumer."""

    def __init__(self, calls: PopCalls, name: str) -> None:
        self._calls = calls
        self._name = name
        self._pops: set[_Pop] = set()
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
            self._run(self._release_result(pop))
            raise

    async def close(self) -> None:
        """Wait for all pending pops; none takes longer than its time-out."""
        self._closing = True
        for tasks in (self._pops, self._cleanups):
            if tasks:
                await asyncio.wait(tuple(tasks))

    async def _pop(
        self, target: Queue, subscription: Subscription, limits: PopLimits
    ) -> list[PoppedMessage]:
        found = await self._calls.pop(target, subscription, limits)
        if found and self._closing:
            await self._release(found)
            return []
        # Brokers compare hashes of tags; messages with another tag of the same hash are acked.
        unmatched = [each for each in found if not subscription.passes(each.stored)]
        if not unmatched:
            return found
        self._run(self._ack_unmatched(unmatched))
        return [each for each in found if subscription.passes(each.stored)]

    async def _release_result(self, pop: _Pop) -> None:
        """Release the messages of a pop whose receiver was cancelled."""
        try:
            messages = await pop
        except TianzhouError as error:
            log.info("group %s: a pop without a receiver failed: %s", self._name, error)
        else:
            if messages:
                await self._release(messages)

    async def _release(self, messages: list[PoppedMessage]) -> None:
        """Make messages visible; if that fails, their invisible time ends later."""
        results = await asyncio.gather(
            *(self._calls.change_invisible(each, 0) for each in messages), return_exceptions=True
        )
        done_count = sum(each is None for each in results)
        log.info(
            "group %s: %d messages had no receiver any more, %d are released",
            self._name, len(messages), done_count,
        )  # fmt: skip

    async def _ack_unmatched(self, unmatched: list[PoppedMessage]) -> None:
        failures = [each for each in await self._calls.ack_many(unmatched) if each is not None]
        if failures:
            log.info(
                "group %s: %d messages of other tags will be delivered again: %s",
                self._name, len(failures), failures[0],
            )  # fmt: skip

    def _run(self, cleanup: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(cleanup, name=f"pop cleanup {self._name}")
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
