"""Runs background work in slices that yield to clients which send.

Messages sent back and messages that fall due are written to the same log as ordinary sends, by the
same event loop. This work is done in slices, one slice per loop iteration, so that the loop serves
requests between two slices. Growth of the log between two slices comes from clients: comparing two
numbers shows whether clients send, and costs them nothing.

While clients send, slices are shorter, each begins with a yield of the processor, and there is a
rest after some of them. A response wakes the sending process, and Linux lets it wait for the
processor of the process that woke it, which it expects to sleep soon: if the broker goes on with
other work, one sender in ten waits until the broker rests. And a process that never sleeps is
scheduled late itself. A rest is always followed by work, so the work makes progress.
"""

import asyncio
import os
from collections.abc import Callable
from time import perf_counter

SLICE_S = 0.0004
"""How long a slice may hold the loop."""
SHARED_SLICE_S = 0.00015
"""The same while clients send: a few messages."""
BURST_S = 0.0006
"""Work between two rests, while clients send."""
REST_S = 0.001
"""The shortest time that the timers of the loop can measure."""
_RECENT_S = 1.0
"""Clients count as sending for so long after a message."""

Slice = Callable[[], None]


def _no_yield() -> None:
    """For systems that cannot yield the processor."""


_yield_processor: Callable[[], None] = getattr(os, "sched_yield", _no_yield)


class SliceScheduler:
    """The slices of all background work on one log."""

    def __init__(
        self, written: Callable[[], int], now_s: Callable[[], float] = perf_counter
    ) -> None:
        self._written = written
        self._now_s = now_s
        self._known = written()
        self._seen_s = self._began_s = self._rest_until_s = now_s() - _RECENT_S
        self._worked_s = 0.0
        """Since the last rest."""
        self._ready: dict[Slice, None] = {}
        self._handle: asyncio.Handle | None = None
        self.slice_s = SLICE_S
        """Budget of the slice that began last."""

    # -- loop iterations ---------------------------------------------------------------------------

    def schedule(self, work: Slice) -> None:
        """Run a slice in one of the next loop iterations, as the only slice of the iteration."""
        self._ready[work] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._run_one)

    def cancel(self, work: Slice) -> None:
        """Do not run a scheduled slice. Harmless if it is not scheduled."""
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
        """A slice begins; returns its budget in seconds."""
        self.slice_s = SLICE_S
        if self._clients_send():
            self.slice_s = SHARED_SLICE_S
            _yield_processor()
        self._began_s = self._now_s()
        return self.slice_s

    def pause(self) -> None:
        """Note that the growth of the log since `begin` or the last `pause` is the slice's own."""
        self._known = self._written()
        now_s = self._now_s()
        self._worked_s += now_s - self._began_s
        self._began_s = now_s

    def end(self) -> float:
        """The slice is over; returns how long to rest before the next, mostly 0."""
        if not self._clients_send():
            self._worked_s = 0.0
            return 0.0
        now_s = self._now_s()
        if self._worked_s >= BURST_S:
            self._worked_s = 0.0
            self._rest_until_s = now_s + REST_S
        return REST_S if now_s < self._rest_until_s else 0.0

    def _clients_send(self) -> bool:
        """Whether a client has sent in the last second."""
        written = self._written()
        now_s = self._now_s()
        if written != self._known:
            self._known = written
            self._seen_s = now_s
        return now_s - self._seen_s < _RECENT_S
