"""Looks again at pulls that wait: when messages have arrived, when a time is up, and in a sweep.

Those who wait for a queue are looked at when the turn of the loop is over in which a message came,
some of them at a time: thousands must not hold up everybody else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls, QueueKey
from tianzhou.clock import Clock

_WAKES_A_TURN = 256
_RING_MS_MIN, _RING_MS_MAX = 10, 1000
"""Never longer, so that a shorter wait that came later is kept, too."""

W = TypeVar("W")
T = TypeVar("T")


class PullWaker(Generic[W, T]):
    """The timer and the queue of those who are to be looked at."""

    def __init__(
        self,
        parked: ParkedPulls[W, T],
        steady: Clock,
        look: Callable[[Parked[W, T]], None],
        answer_due: Callable[[int], None],
    ) -> None:
        """`look` answers one if there is something for it, `answer_due` all whose time is up."""
        self._parked = parked
        self._steady = steady
        self._look = look
        self._answer_due = answer_due
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
        """Look at all who wait for these queues."""
        is_idle = not self._to_wake
        for key in keys:
            self._to_wake.extend(self._parked.waiting(key))
        if is_idle:
            self._wake_some()

    def _wake_some(self) -> None:
        to_wake = self._to_wake
        for _ in range(min(len(to_wake), _WAKES_A_TURN)):
            self._look(to_wake.popleft())
        if to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)

    # -- time --------------------------------------------------------------------------------------

    def arm(self, _: int) -> None:
        """Somebody waits until that time: have the timer run."""
        if self._timer is None:
            self._set_timer()

    def expire_due(self) -> None:
        """Answer those whose time is up; the clock may have jumped."""
        self.cancel()
        self._answer_due(self._steady())
        self._set_timer()

    def cancel(self) -> None:
        """Nobody's time is watched any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        deadline_ms = self._parked.next_deadline_ms()
        self._timer = None
        if deadline_ms is not None:
            delay_ms = min(max(deadline_ms - self._steady(), _RING_MS_MIN), _RING_MS_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.expire_due)
