"""Runs background work of the event loop in ticks, each a short slice.

    work(now_ms) -> when to tick next: now if there is more to do, None for never

Ticks are slices of `yielding.py`: the loop serves requests between them, and while clients send
there is a rest after some of them.

One timer waits for the next tick; code that learns of an earlier deadline calls `wake`. A tick that
fails is logged once and retried after a second.
"""

import asyncio
import logging
from collections.abc import Callable

from tianzhou.broker.background.yielding import SliceScheduler
from tianzhou.clock import Clock
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

Work = Callable[[int], int | None]

TICK_S = 0.0005
"""Budget of a tick of work with much to do before it can begin."""
_RETRY_MS = 1000
_SLEEP_MS_MAX = 1000
"""A timer does not notice that the wall clock is set forward, so it fires this often."""


class Ticker:
    """The ticks of one kind of work."""

    def __init__(self, name: str, work: Work, clock: Clock, slices: SliceScheduler) -> None:
        self._slices = slices
        self._name = name
        self._work = work
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_ms: int | None = None
        self._failing = False

    def start(self) -> None:
        """Tick for the first time at once."""
        self._loop = asyncio.get_running_loop()
        self.wake(self._clock())

    def stop(self) -> None:
        """Tick no more."""
        self._loop = None
        self._cancel()

    def wake(self, at_ms: int) -> None:
        """Tick at that time, or earlier if an earlier tick is scheduled."""
        if self._loop is None or (self._next_ms is not None and self._next_ms <= at_ms):
            return
        self._schedule(at_ms)

    def wake_now(self) -> None:
        """Tick at once, whatever is scheduled."""
        self._schedule(self._clock())

    def _schedule(self, at_ms: int, least_s: float = 0.0) -> None:
        if self._loop is None:
            return
        self._cancel()
        self._next_ms = at_ms
        wait_s = max(min(at_ms - self._clock(), _SLEEP_MS_MAX) / 1000, least_s)
        if wait_s <= 0:
            self._slices.schedule(self._tick)
        else:
            self._timer = self._loop.call_later(wait_s, self._slices.schedule, self._tick)

    def _cancel(self) -> None:
        self._slices.cancel(self._tick)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._next_ms = None
        now_ms = self._clock()
        self._slices.begin()
        try:
            next_ms = self._work(now_ms)
            self._failing = False
        except Exception as e:
            # A bug must not end all further ticks; a full disk is temporary.
            if not self._failing:
                known = isinstance(e, TianzhouError | OSError)
                log.error("%s: trying again: %s", self._name, e, exc_info=not known)  # noqa: TRY400 - see known
            self._failing = True
            next_ms = now_ms + _RETRY_MS
        self._slices.pause()
        rest_s = self._slices.end()
        if next_ms is None:
            return
        if next_ms <= now_ms:
            self._schedule(now_ms, rest_s)
        else:
            self.wake(next_ms)
