"""Holds requests back after the event loop stood still, until it is checked who is the master.

A process that was stopped (SIGSTOP, a paused virtual machine, a disk that hung) finds requests in
its receive buffers, and another broker may be the master by now. Rule R13: after a gap of more than
a third of the lease they are held until the lease was checked. Safety does not depend on it: what
is stored is acknowledged by other replicas or not at all. It saves clients time-outs.

The loop reads the clock with the first request of an iteration, and with a timer while no request
comes. Time in which the machine was suspended counts.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from tianzhou.clock import Clock, boot_ms

_TICKS = 4
"""Of the timer in the longest gap that is allowed."""


class LoopGap:
    """The gaps of one event loop."""

    def __init__(
        self, gap_max_ms: int, check: Callable[[int], Awaitable[None]], clock: Clock = boot_ms
    ) -> None:
        """`check` is called with a longer gap in ms; requests wait until it has ended."""
        self._gap_max_ms = gap_max_ms
        self._check = check
        self._clock = clock
        self._seen_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._held = deque[Callable[[], None]]()

    def start(self) -> None:
        """Watch the running event loop."""
        self._seen_ms = self._clock()
        self._tick()

    async def stop(self) -> None:
        """Watch no more; what is held is handled now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait((self._checking,))

    def _tick(self) -> None:
        self.is_holding()
        wait_s = self._gap_max_ms / _TICKS / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def is_holding(self) -> bool:
        """Whether requests must wait now; called before the first request of a loop iteration."""
        now_ms = self._clock()
        gap_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if gap_ms > self._gap_max_ms and self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._run(gap_ms))
        return self._checking is not None

    def hold(self, handle: Callable[[], None]) -> None:
        """Call this when requests may be handled again, in the order of these calls."""
        self._held.append(handle)

    async def _run(self, gap_ms: int) -> None:
        try:
            await self._check(gap_ms)
        finally:
            self._checking = None
            while self._held:
                self._held.popleft()()
