"""Wakes parked pulls: when messages arrive, when a time is up, and in a sweep.

The pulls of a queue are served in the loop iteration after a message arrived, some at a time:
thousands at once would block the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls, QueueKey
from tianzhou.clock import Clock

_WAKES_PER_SLICE = 256
_TIMER_MS_MIN, _TIMER_MS_MAX = 10, 1000
"""Bounded, so that a shorter wait that is parked later is on time, too."""

W = TypeVar("W")
T = TypeVar("T")


class PullWaker(Generic[W, T]):
    """The timer, and the queue of pulls to serve."""

    def __init__(
        self,
        parked: ParkedPulls[W, T],
        steady: Clock,
        serve: Callable[[Parked[W, T]], None],
        serve_due: Callable[[int], None],
    ) -> None:
        """`serve` responds to a pull if there are messages, `serve_due` to all whose time is up."""
        self._parked = parked
        self._steady = steady
        self._serve = serve
        self._serve_due = serve_due
        self._arrived: dict[QueueKey, None] = {}
        self._to_wake: deque[Parked[W, T]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # -- messages ----------------------------------------------------------------------------------

    def subscribe(self, arrivals: Arrivals, is_enabled: Callable[[], bool]) -> None:
        """Learn of every message that arrives; while not enabled pulls end by time-out only."""
        self._is_enabled = is_enabled
        arrivals.subscribe(self._on_arrival)

    def _on_arrival(self, topic: str, queue_id: int, _: int) -> None:
        key = (topic, queue_id)
        if self._parked.has(key) and self._is_enabled():
            if not self._arrived:
                asyncio.get_running_loop().call_soon(self._wake_arrived)
            self._arrived[key] = None

    def _wake_arrived(self) -> None:
        arrived, self._arrived = self._arrived, {}
        self.wake(arrived)

    def wake(self, keys: Iterable[QueueKey]) -> None:
        """Serve the parked pulls of these queues."""
        is_idle = not self._to_wake
        for key in keys:
            self._to_wake.extend(self._parked.waiting(key))
        if is_idle:
            self._wake_some()

    def _wake_some(self) -> None:
        to_wake = self._to_wake
        for _ in range(min(len(to_wake), _WAKES_PER_SLICE)):
            self._serve(to_wake.popleft())
        if to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)

    # -- time --------------------------------------------------------------------------------------

    def arm(self, _: int) -> None:
        """A pull was parked: start the timer."""
        if self._timer is None:
            self._set_timer()

    def expire_due(self) -> None:
        """Respond to pulls whose time is up."""
        self.cancel()
        self._serve_due(self._steady())
        self._set_timer()

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        deadline_ms = self._parked.next_deadline_ms()
        self._timer = None
        if deadline_ms is not None:
            delay_ms = min(max(deadline_ms - self._steady(), _TIMER_MS_MIN), _TIMER_MS_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.expire_due)
