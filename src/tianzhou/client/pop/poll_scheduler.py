"""Where there may be something to pop: places that are ready, and a listener at each that is not.

          ┌────────── asked, and it had something ──────────┐
          v                                                 │
        ready ── asked in turn, by whoever receives ────────┤
          ^                                                 │
          └── listened: there is something, or  <── empty ──┘
              nobody knows after a while

A place is a topic on a broker. Ready places are asked in turn, so that a busy one does not starve
the others; a listener takes nothing, so one that nobody waits for any more does no harm. Receivers
that find no ready place queue up, and each piece of news wakes one of them, not all.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from tianzhou.client.queues import Queue
from tianzhou.errors import TianzhouError

Listen = Callable[[Queue], Awaitable[bool]]
"""Waits for a message at a place for a while; whether there is one."""

_VAIN_PAUSE_S, _VAIN_PAUSE_S_MAX = 0.005, 1.0
"""Others were quicker, or what the broker has is not for us: it must not be asked without end."""
_ERROR_PAUSE_S, _ERROR_PAUSE_S_MAX = 0.1, 3.0


class Lookout:
    """The places of one consumer."""

    def __init__(self, listen: Listen, name: str) -> None:
        self._listen = listen
        self._name = name
        self._ready: dict[Queue, None] = {}
        self._listeners: dict[Queue, asyncio.Task[None]] = {}
        self._pauses_s: dict[Queue, float] = {}
        """How long a place is left alone next time, if it was asked in vain or failed."""
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def places(self) -> list[Queue]:
        """All of them, beginning with those whose turn is next."""
        return [*self._ready, *self._listeners]

    def update(self, known: Iterable[Queue]) -> None:
        """These are the places now; new ones are ready."""
        wanted = set(known)
        for place in {*self._ready, *self._listeners} - wanted:
            self._forget(place)
        new = sorted(wanted - {*self._ready, *self._listeners})
        # Consumers that start together shall not all begin with the same broker.
        random.shuffle(new)
        for place in new:
            self._make_ready(place)

    def renew(self, topic: str) -> None:
        """The filter of a topic has changed; what its listeners know is old."""
        for place in [each for each in self._listeners if each.topic == topic]:
            self._forget(place)
            self._make_ready(place)

    def _forget(self, place: Queue) -> None:
        self._ready.pop(place, None)
        self._pauses_s.pop(place, None)
        if (listener := self._listeners.pop(place, None)) is not None:
            listener.cancel()

    # -- for those who receive ---------------------------------------------------------------------

    async def take(self, timeout_s: float) -> Queue | None:
        """The place to ask next; None if there is none in time, or the lookout is closed."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        while not self._ready:
            if self._closed or not await self._news(ends_s - loop.time()):
                return None
        place = next(iter(self._ready))
        del self._ready[place]
        self._ready[place] = None
        return place

    async def _news(self, timeout_s: float) -> bool:
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

    def found(self, place: Queue) -> None:
        """A place had something, and may have more."""
        self._pauses_s.pop(place, None)
        if place in self._ready:
            self._wake_one()

    def empty(self, place: Queue) -> None:
        """A place had nothing; the lookout listens there until it has."""
        self._leave_alone(place, self._pauses_s.get(place, 0), listens=True)

    def failed(self, place: Queue) -> None:
        """A place could not be asked; it is left alone for a while."""
        pause_s = self._longer_pause(place, _ERROR_PAUSE_S, _ERROR_PAUSE_S_MAX)
        self._leave_alone(place, pause_s, listens=False)

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

    def _leave_alone(self, place: Queue, pause_s: float, *, listens: bool) -> None:
        if place not in self._ready or self._closed:
            return  # another receiver has said so already
        del self._ready[place]
        self._listeners[place] = asyncio.get_running_loop().create_task(
            self._watch(place, pause_s, listens),
            name=f"listen {self._name} {place.topic}@{place.broker_name}",
        )

    async def _watch(self, place: Queue, pause_s: float, listens: bool) -> None:
        await asyncio.sleep(pause_s)
        if listens:
            await self._await_message(place)
        # Not after a cancellation: then the place is forgotten, or ready already.
        del self._listeners[place]
        self._make_ready(place)

    async def _await_message(self, place: Queue) -> None:
        try:
            is_told = await self._listen(place)
        except TianzhouError:
            is_told = True  # whoever asks the place next meets the same error, and tells it
        if is_told:
            self._longer_pause(place, _VAIN_PAUSE_S, _VAIN_PAUSE_S_MAX)
        else:
            self._pauses_s.pop(place, None)

    def _longer_pause(self, place: Queue, least_s: float, most_s: float) -> float:
        pause_s = min(max(self._pauses_s.get(place, 0) * 2, least_s), most_s)
        self._pauses_s[place] = pause_s
        return pause_s

    def _make_ready(self, place: Queue) -> None:
        if not self._closed:
            self._ready[place] = None
            self._wake_one()

    def _wake_one(self) -> None:
        while self._receivers:
            receiver = self._receivers.popleft()
            if not receiver.done():
                receiver.set_result(None)
                return
