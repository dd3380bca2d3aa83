"""Wakes parked requests: when messages arrive, when a time is up, and in a sweep.

The requests of a queue are served in the loop iteration after a message arrived, some at a time:
thousands at once would block the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls, QueueKey
from tianzhou.clock import Clock

_TRIED_PER_SLICE = 256
_TIMER_MS_MIN, _TIMER_MS_MAX = 10, 1000
"""Bounded, so that a shorter wait that is parked later is on time, too."""

W = TypeVar("W")
T = TypeVar("T")

Serve = Callable[[Parked[W, T], bool], bool]
"""Tries to respond to a request; the flag says that its time is up. Returns whether it did."""


class Waker(Generic[W, T]):
    """The timer, and the queue of requests to serve."""

    def __init__(
        self,
        parked: ParkedPulls[W, T],
        steady: Clock,
        serve: Serve[W, T],
        is_enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        """While not `is_enabled`, arriving messages wake no request."""
        self._parked = parked
        self._steady = steady
        self._serve = serve
        self._is_enabled = is_enabled
        self._loop = asyncio.get_running_loop()
        self._arrived: dict[QueueKey, None] = {}
        self._to_try: deque[Parked[W, T]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    # -- messages ----------------------------------------------------------------------------------

    def subscribe(self, arrivals: Arrivals) -> None:
        """Learn of every message that arrives."""
        arrivals.subscribe(self._on_arrival)

    def _on_arrival(self, topic: str, queue_id: int, _: int) -> None:
        key = (topic, queue_id)
        if self._parked.has(key) and self._is_enabled():
            self.wake((key,))

    def wake(self, keys: Iterable[QueueKey]) -> None:
        """Try the parked requests of these queues in the next loop iteration."""
        for key in keys:
            if self._parked.has(key):
                if not self._arrived:
                    self._loop.call_soon(self._wake_arrived)
                self._arrived[key] = None

    def _wake_arrived(self) -> None:
        arrived, self._arrived = self._arrived, {}
        is_idle = not self._to_try
        for key in arrived:
            self._to_try.extend(self._parked.waiting(key))
        if is_idle:
            self._try_some()

    def _try_some(self) -> None:
        tried_count = 0
        while self._to_try and tried_count < _TRIED_PER_SLICE:
            parked = self._to_try.popleft()
            tried_count += parked in self._parked and self._try(parked)
        if self._to_try:
            self._loop.call_soon(self._try_some)

    def _try(self, parked: Parked[W, T]) -> bool:
        """Serve a request; False if it was left out."""
        self._serve(parked, False)
        return True

    # -- time --------------------------------------------------------------------------------------

    def arm(self) -> None:
        """A request was parked: start the timer."""
        if self._timer is None:
            self._set_timer()

    def expire_due(self) -> None:
        """Respond to requests whose time is up."""
        for parked in self._parked.take_due(self._steady()):
            self._serve(parked, True)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        deadline_ms = self._parked.next_deadline_ms()
        if deadline_ms is not None and self._is_open:
            wait_ms = min(max(deadline_ms - self._steady(), _TIMER_MS_MIN), _TIMER_MS_MAX)
            self._timer = self._loop.call_later(wait_ms / 1000, self.expire_due)

    def close(self) -> None:
        """Respond to all requests, with or without messages: the broker stops."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for parked in self._parked.take_all():
            self._serve(parked, True)
