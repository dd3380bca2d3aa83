"""Where there may be something to pop: indexes that are ready, and a listener at each that is not.

          ┌────────── asked, and it had something ──────────┐
          v                                                 │
        ready ── asked in turn, by whoever receives ────────┤
          ^                                                 │
          └── listened: there is something, or  <── empty ──┘
              nobody knows after a while

A target is a topic on a broker. Ready indexes are asked in turn, so that a busy one does not starve
the others; a listener takes nothing, so one that nobody waits for any more does no harm. Receivers
that find no ready target queue up, and each piece of news wakes one of them, not all.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from tianzhou.client.queues import Queue
from tianzhou.errors import TianzhouError

Listen = Callable[[Queue], Awaitable[bool]]
"""Waits for a message at a target for a while; whether there is one."""

_EMPTY_PAUSE_S, _EMPTY_PAUSE_S_MAX = 0.005, 1.0
"""Others were quicker, or what the broker has is not for us: it must not be asked without end."""
_ERROR_PAUSE_S, _ERROR_PAUSE_S_MAX = 0.1, 3.0


class PollScheduler:
    """The indexes of one consumer."""

    def __init__(self, listen: Listen, name: str) -> None:
        self._listen = listen
        self._name = name
        self._ready: dict[Queue, None] = {}
        self._listeners: dict[Queue, asyncio.Task[None]] = {}
        self._pauses_s: dict[Queue, float] = {}
        """How long a target is left alone next time, if it was asked in vain or failed."""
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def targets(self) -> list[Queue]:
        """All of them, beginning with those whose turn is next."""
        return [*self._ready, *self._listeners]

    def update(self, known: Iterable[Queue]) -> None:
        """These are the indexes now; new ones are ready."""
        wanted = set(known)
        for target in {*self._ready, *self._listeners} - wanted:
            self._forget(target)
        new = sorted(wanted - {*self._ready, *self._listeners})
        # Consumers that start together shall not all begin with the same broker.
        random.shuffle(new)
        for target in new:
            self._make_ready(target)

    def renew(self, topic: str) -> None:
        """The filter of a topic has changed; what its listeners know is old."""
        for target in [each for each in self._listeners if each.topic == topic]:
            self._forget(target)
            self._make_ready(target)

    def _forget(self, target: Queue) -> None:
        self._ready.pop(target, None)
        self._pauses_s.pop(target, None)
        if (listener := self._listeners.pop(target, None)) is not None:
            listener.cancel()

    # -- for those who receive ---------------------------------------------------------------------

    async def next_target(self, timeout_s: float) -> Queue | None:
        """The target to ask next; None if there is none in time, or the scheduler is closed."""
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
        """Wait for news; False if there are none in time."""
        receiver = asyncio.get_running_loop().create_future()
        self._receivers.append(receiver)
        try:
            async with asyncio.timeout(timeout_s):
                await receiver
        except TimeoutError:
            return receiver.done() and not receiver.cancelled()
        except asyncio.CancelledError:
            if receiver.done() and not receiver.cancelled():
                self._wake_one()  # the news are for somebody else, then
            raise
        finally:
            if receiver in self._receivers:
                self._receivers.remove(receiver)
        return True

    def on_messages(self, target: Queue) -> None:
        """A target had something, and may have more."""
        self._pauses_s.pop(target, None)
        if target in self._ready:
            self._wake_one()

    def on_empty(self, target: Queue) -> None:
        """A target had nothing; the scheduler listens there until it has."""
        self._suspend(target, self._pauses_s.get(target, 0), listens=True)

    def on_failure(self, target: Queue) -> None:
        """A target could not be asked; it is left alone for a while."""
        pause_s = self._increase_pause(target, _ERROR_PAUSE_S, _ERROR_PAUSE_S_MAX)
        self._suspend(target, pause_s, listens=False)

    def close(self) -> list[asyncio.Task[None]]:
        """Listen no more and let everybody go; gives the tasks that are about to end."""
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
            return  # another receiver has said so already
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
            has_message = True  # whoever asks the target next meets the same error, and tells it
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
