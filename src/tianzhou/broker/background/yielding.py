"""How work that can wait gives way to those who send.

Messages that are given back and messages that fall due are written to the same log as plain sends,
by the same event loop. They are worked on in slices, one slice in a turn of the loop whoever's it
is, so that between two of them the loop serves whoever came meanwhile. What the log has grown by
since a slice ended is others': so it is known at the cost of comparing two numbers whether others
send, and those who do pay nothing for it.

While others are there slices are shorter, each begins by giving way on the processor, and after
some of them there is a rest. An answer wakes whoever sent, and Linux has him wait for the processor
of the one who woke him, who is expected to sleep soon: if the broker goes on with other work, one
sender in ten waits until it rests. And one who never sleeps gets the processor late himself. A rest
is followed by work in any case, so whatever waits comes to its end.
"""

import asyncio
import os
from collections.abc import Callable
from time import perf_counter

SLICE_S = 0.0004
"""How long work that can wait may hold the loop."""
SHARED_SLICE_S = 0.00015
"""The same while others are there: a few messages."""
BURST_S = 0.0006
"""After so much work there is a rest, while others are there."""
REST_S = 0.001
"""The shortest that the loop's timers know."""
_LATELY_S = 1.0
"""Whoever sends once a second is somebody to give way to."""

Slice = Callable[[], None]


def _nobody_else() -> None:
    """Where no way is known to give way on the processor."""


_give_way: Callable[[], None] = getattr(os, "sched_yield", _nobody_else)


class SliceScheduler:
    """What others write to one log; all who give way to them share this."""

    def __init__(
        self, written: Callable[[], int], now_s: Callable[[], float] = perf_counter
    ) -> None:
        self._written = written
        self._now_s = now_s
        self._known = written()
        self._seen_s = self._began_s = self._rest_until_s = now_s() - _LATELY_S
        self._worked_s = 0.0
        """Since the last rest."""
        self._ready: dict[Slice, None] = {}
        self._handle: asyncio.Handle | None = None
        self.slice_s = SLICE_S
        """How long the slice may take that began last."""

    # -- turns of the loop -------------------------------------------------------------------------

    def soon(self, work: Slice) -> None:
        """Have a slice of work done in one of the next turns of the loop, alone in it."""
        self._ready[work] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._run_one)

    def forget(self, work: Slice) -> None:
        """Do not have it done."""
        self._ready.pop(work, None)

    def _run_one(self) -> None:
        self._handle = None
        if not self._ready:
            return
        work = next(iter(self._ready))
        del self._ready[work]
        if self._ready:
            self._handle = asyncio.get_running_loop().call_soon(self._run_one)
        work()

    # -- slices ------------------------------------------------------------------------------------

    def begin(self) -> float:
        """A slice begins; how long it may take."""
        self.slice_s = SLICE_S
        if self._is_lively():
            self.slice_s = SHARED_SLICE_S
            _give_way()
        self._began_s = self._now_s()
        return self.slice_s

    def pause(self) -> None:
        """What was written since the slice began, or went on, is the work's own."""
        self._known = self._written()
        now_s = self._now_s()
        self._worked_s += now_s - self._began_s
        self._began_s = now_s

    def end(self) -> float:
        """The slice is over; how long to rest before the next, which is mostly not at all."""
        if not self._is_lively():
            self._worked_s = 0.0
            return 0.0
        now_s = self._now_s()
        if self._worked_s >= BURST_S:
            self._worked_s = 0.0
            self._rest_until_s = now_s + REST_S
        return REST_S if now_s < self._rest_until_s else 0.0

    def _is_lively(self) -> bool:
        """Whether others have written lately."""
        written = self._written()
        now_s = self._now_s()
        if written != self._known:
            self._known = written
            self._seen_s = now_s
        return now_s - self._seen_s < _LATELY_S
