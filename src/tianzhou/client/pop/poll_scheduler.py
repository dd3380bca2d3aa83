"""Schedules the polling of targets: ready ones in turn, empty ones when they have messages again.

          ┌──────────── polled, had messages ───────────────┐
          v                                                 │
        ready ── polled in turn, by the receivers ──────────┤
          ^                                                 │
          └── notified, or after a time-out  <── empty ─────┘

A target is a topic on a broker. Ready targets are polled in turn, so that a busy one does not
starve the others; a listener pops no messages, so it needs no receiver. Receivers
that find no ready target queue up, and each target that becomes ready wakes one of them.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from tianzhou.client.queues import Queue
from tianzhou.errors import TianzhouError

Listen = Callable[[Queue], Awaitable[bool]]
"""Waits for a message at a target; returns whether there is one."""

_EMPTY_PAUSE_S, _EMPTY_PAUSE_S_MAX = 0.005, 1.0
"""After notifications without messages: other consumers were faster, or the filter differs."""
_ERROR_PAUSE_S, _ERROR_PAUSE_S_MAX = 0.1, 3.0


class PollScheduler:
    """The targets of one consumer."""

    def __init__(self, listen: Listen, name: str) -> None:
        self._listen = listen
        self._name = name
        self._ready: dict[Queue, None] = {}
        self._listeners: dict[Queue, asyncio.Task[None]] = {}
        self._pauses_s: dict[Queue, float] = {}
        """The next pause of a target that was empty or failed."""
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def targets(self) -> list[Queue]:
        """All targets, the next ones first."""
        return [*self._ready, *self._listeners]

    def update(self, known: Iterable[Queue]) -> None:
        """Set the targets; new ones are ready."""
        wanted = set(known)
        for target in {*self._ready, *self._listeners} - wanted:
            self._forget(target)
        new = sorted(wanted - {*self._ready, *self._listeners})
        # Consumers that start together should not all begin with the same broker.
        random.shuffle(new)
        for target in new:
            self._make_ready(target)

    def renew(self, topic: str) -> None:
        """The filter of a topic has changed: poll its targets again."""
        for target in [each for each in self._listeners if each.topic == topic]:
            self._forget(target)
            self._make_ready(target)

    def _forget(self, target: Queue) -> None:
        self._ready.pop(target, None)
        self._pauses_s.pop(target, None)
        if (listener := self._listeners.pop(target, None)) is not None:
            listener.cancel()

    # -- for receivers -----------------------------------------------------------------------------

    async def next_target(self, timeout_s: float) -> Queue | None:
        """The target to poll next; None after the time-out, or once the scheduler is closed."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        while not self._ready:
            if self._closed or not await self._wait_ready(ends_s - loop.time()):
                return None
        target = next(iter(self._ready))
        del self._ready[target]
        self._ready[target] = None
        return target

    async def _wait_ready(self, timeout_s: float) -> bool:
        """Wait for a wake-up; False after the time-out."""
        receiver = asyncio.get_running_loop().create_future()
        self._receivers.append(receiver)
        try:
            async with asyncio.timeout(timeout_s):
                await receiver
        except TimeoutError:
            return receiver.done() and not receiver.cancelled()
        except asyncio.CancelledError:
            if receiver.done() and not receiver.cancelled():
                self._wake_one()  # pass the wake-up on to another receiver
            raise
        finally:
            if receiver in self._receivers:
                self._receivers.remove(receiver)
        return True

    def on_messages(self, target: Queue) -> None:
        """A target had messages, and may have more."""
        self._pauses_s.pop(target, None)
        if target in self._ready:
            self._wake_one()

    def on_empty(self, target: Queue) -> None:
        """A target was empty; listen until it has messages."""
        self._suspend(target, self._pauses_s.get(target, 0), listens=True)

    def on_failure(self, target: Queue) -> None:
        """Polling a target failed; it is suspended for a while."""
        pause_s = self._increase_pause(target, _ERROR_PAUSE_S, _ERROR_PAUSE_S_MAX)
        self._suspend(target, pause_s, listens=False)

    def close(self) -> list[asyncio.Task[None]]:
        """Stop listening and wake all receivers; returns the cancelled tasks."""
        self._closed = True
        self._ready.clear()
        listeners = list(self._listeners.values())
        for listener in listeners:
            listener.cancel()
        for receiver in self._receivers:
            if not receiver.done():
                receiver.set_result(None)
        return listeners

    # -- listening ---------------------------------------------------------------------------------

    def _suspend(self, target: Queue, pause_s: float, *, listens: bool) -> None:
        if target not in self._ready or self._closed:
            return  # another receiver has reported it
        del self._ready[target]
        self._listeners[target] = asyncio.get_running_loop().create_task(
            self._watch(target, pause_s, listens),
            name=f"listen {self._name} {target.topic}@{target.broker_name}",
        )

    async def _watch(self, target: Queue, pause_s: float, listens: bool) -> None:
        await asyncio.sleep(pause_s)
        if listens:
            await self._await_message(target)
        # Not after a cancellation: then the target is forgotten, or ready already.
        del self._listeners[target]
        self._make_ready(target)

    async def _await_message(self, target: Queue) -> None:
        try:
            has_message = await self._listen(target)
        except TianzhouError:
            has_message = True  # the next poll meets the same error and reports it
        if has_message:
            self._increase_pause(target, _EMPTY_PAUSE_S, _EMPTY_PAUSE_S_MAX)
        else:
            self._pauses_s.pop(target, None)

    def _increase_pause(self, target: Queue, least_s: float, most_s: float) -> float:
        pause_s = min(max(self._pauses_s.get(target, 0) * 2, least_s), most_s)
        self._pauses_s[target] = pause_s
        return pause_s

    def _make_ready(self, target: Queue) -> None:
        if not self._closed:
            self._ready[target] = None
            self._wake_one()

    def _wake_one(self) -> None:
        while self._receivers:
            receiver = self._receivers.popleft()
            if not receiver.done():
                receiver.set_result(None)
                return
