"""Admits expensive requests for a slice at a time, fairly between connections.

A flood of such requests must neither block the event loop nor use all of it. They ask `admits`.
Those that are not admitted are queued, in one queue per connection; the queues are served
round-robin, so a connection with thousands of requests does not delay others for all of them.

A slice (`yielding.py`) ends when its time is up, however many requests it served; it serves at
least one, so every queue becomes empty. Responses are held back while their connection has further
requests, for a few milliseconds, and sent together: each write wakes another process and brings new
requests, and sending them one by one cost as much as the work itself.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Protocol

from tianzhou.broker.background.yielding import SliceScheduler

HELD_S_MAX = 0.005
"""A response is held back for about so long at most."""

Work = Callable[[], None]
"""A queued request; it must not raise."""


class Owner(Hashable, Protocol):
    """A connection; see `remoting.connection.Connection`."""

    @property
    def has_unread(self) -> bool: ...
    def gather(self) -> None: ...
    def let_go(self) -> None: ...


class FairQueue:
    """The queues of one kind of requests, one per connection."""

    def __init__(self, slices: SliceScheduler, now_s: Callable[[], float] = perf_counter) -> None:
        self._slices = slices
        self._now_s = now_s
        self._ends_s = 0.0
        """End of the slice that admits requests now; 0 without one."""
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        """Sends responses that are held back while no slice is scheduled."""
        self._queues: OrderedDict[Owner, deque[Work]] = OrderedDict()
        self._held: dict[Owner, float] = {}
        """Connections whose responses are held back, and since when."""
        self.waiting_count = 0
        """Queued requests."""

    def admits(self, owner: Owner) -> bool:
        """Whether a request may run at once; then call `passed` when it is done."""
        if self._ends_s:
            if self._queues or self._now_s() >= self._ends_s:
                return False
        elif self._is_scheduled:
            return False  # between two slices
        else:
            self._ends_s = self._now_s() + self._slices.begin()
            self._schedule(self._end_admission)
        self._hold(owner)
        return True

    def passed(self) -> None:
        """An admitted request is done."""
        self._slices.pause()

    def wait(self, owner: Owner, work: Work) -> None:
        """Queue a request."""
        self._queues.setdefault(owner, deque()).append(work)
        self.waiting_count += 1
        if not self._is_scheduled:
            self._schedule(self._run_slice)

    def close(self) -> None:
        """Drop all queued requests, and admit no more."""
        self._queues.clear()
        self.waiting_count = 0
        self._slices.cancel(self._run_slice)
        self._slices.cancel(self._end_admission)
        for timer in (self._timer, self._late):
            if timer is not None:
                timer.cancel()
        self._is_scheduled, self._ends_s = False, 0.0
        for owner in self._held:
            owner.let_go()
        self._held.clear()

    # -- slices ------------------------------------------------------------------------------------

    def _schedule(self, work: Work) -> None:
        self._is_scheduled = True
        self._slices.schedule(work)

    def _end_admission(self) -> None:
        self._ends_s = 0.0
        self._go_on()

    def _go_on(self) -> None:
        """Schedule the next slice if requests are queued, after a rest while clients send."""
        rest_s = self._slices.end()
        self._send_held()
        if rest_s:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(rest_s, self._schedule, self._run_slice)
        elif self._queues:
            self._schedule(self._run_slice)
        else:
            self._is_scheduled = False

    def _run_slice(self) -> None:
        self._is_scheduled = False
        if not self._queues:
            return
        ends_s = self._now_s() + self._slices.begin()
        try:
            while self._queues:
                self._next()()
                if self._now_s() >= ends_s:
                    break
        finally:
            self._slices.pause()
            self._go_on()

    def _next(self) -> Work:
        """The oldest request of the connection that is next."""
        owner, queue = self._queues.popitem(last=False)
        work = queue.popleft()
        if queue:
            self._queues[owner] = queue
        self.waiting_count -= 1
        self._hold(owner)
        return work

    # -- responses ---------------------------------------------------------------------------------

    def _hold(self, owner: Owner) -> None:
        if owner not in self._held:
            owner.gather()
            self._held[owner] = self._now_s()

    def _send_held(self) -> None:
        """Send held-back responses of connections without further requests, or held for long."""
        now_s = self._now_s()
        ready = [
            owner
            for owner, since_s in self._held.items()
            if now_s - since_s >= HELD_S_MAX or not (owner in self._queues or owner.has_unread)
        ]
        for owner in ready:
            del self._held[owner]
            owner.let_go()
        if self._held and self._late is None:
            self._late = asyncio.get_running_loop().call_later(HELD_S_MAX, self._send_late)

    def _send_late(self) -> None:
        self._late = None
        self._send_held()
