"""Stays awake for a moment after a request of someone who asks again at once.

Going to sleep and being woken takes a system longer than serving one request, on a virtual machine
several times as long; a client that waits for each answer before it asks again pays for that with
every request. So if such a client asked a moment ago the loop keeps looking for its next request
for as long as that may take, and then sleeps as always. It stops doing so for a while when it has
looked in vain, and never begins where the client would need the processor that it looks with.
"""

import os
from collections.abc import Callable
from time import perf_counter

WATCH_S = 0.0002
"""For how long it looks for the next request."""
SOON_S = 0.0004
"""Who asks again within this asks at once, given that we may have slept."""
VAIN_PAUSE_COUNT = 32
"""So many requests are served without looking for the next, once that was in vain."""


class BusyPoll:
    """Keeps one event loop awake; `soon` is what that calls in its next turn."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float] = perf_counter,
        processor_count: int | None = None,
    ) -> None:
        self._soon = soon
        self._now_s = now_s
        if processor_count is None:
            processor_count = usable_processor_count()
        self._is_worth_it = processor_count > 1
        self._asked_s = self._until_s = 0.0
        self._pause_count = 0
        self._is_awake = False

    def asked(self) -> None:
        """A client that seems to be alone was answered."""
        if not self._is_worth_it:
            return
        now_s = self._now_s()
        gap_s, self._asked_s = now_s - self._asked_s, now_s
        if gap_s > SOON_S:
            return
        if self._pause_count:
            self._pause_count -= 1
            return
        self._until_s = now_s + WATCH_S
        if not self._is_awake:
            self._is_awake = True
            self._soon(self._look)

    def _look(self) -> None:
        """While this is called again and again the loop does not sleep."""
        if self._now_s() < self._until_s:
            self._soon(self._look)
        else:
            self._is_awake = False
            self._pause_count = VAIN_PAUSE_COUNT


def usable_processor_count() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
