"""Busy-polls briefly after a request from a client that sends its next one immediately.

To sleep and to be woken takes a system longer than to serve one request, on a virtual machine
several times as long; a client that waits for each response before it sends the next request pays
for that with every request. So after such a request the loop polls for the next one for as long as
that may take, and then sleeps as usual. After a poll that found nothing it pauses for some
requests. With one processor it never polls, because the client needs the processor.
"""

import os
from collections.abc import Callable
from time import perf_counter

POLL_S = 0.0002
"""How long to poll for the next request."""
IMMEDIATE_S = 0.0004
"""A request this soon after the last counts as immediate, since the loop may have slept."""
PAUSE_REQUESTS = 32
"""Requests that are served without polling after a poll that found none."""


class BusyPoll:
    """Busy-polls on one event loop; `call_soon` is the loop's."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float] = perf_counter,
        processor_count: int | None = None,
    ) -> None:
        self._call_soon = call_soon
        self._now_s = now_s
        if processor_count is None:
            processor_count = usable_processor_count()
        self._is_useful = processor_count > 1
        self._answered_s = self._until_s = 0.0
        self._pause_count = 0
        self._is_polling = False

    def answered(self) -> None:
        """A client that seems to be the only active one was answered."""
        if not self._is_useful:
            return
        now_s = self._now_s()
        gap_s, self._answered_s = now_s - self._answered_s, now_s
        if gap_s > IMMEDIATE_S:
            return
        if self._pause_count:
            self._pause_count -= 1
            return
        self._until_s = now_s + POLL_S
        if not self._is_polling:
            self._is_polling = True
            self._call_soon(self._poll)

    def _poll(self) -> None:
        """Schedule itself again until the time is up: meanwhile the loop does not sleep."""
        if self._now_s() < self._until_s:
            self._call_soon(self._poll)
        else:
            self._is_polling = False
            self._pause_count = PAUSE_REQUESTS


def usable_processor_count() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
