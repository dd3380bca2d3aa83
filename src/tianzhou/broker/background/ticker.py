"""Runs background work of the event loop in short turns.

    work(now_ms) -> when it wants its next turn: now for "there is more", None for "never"

Between two turns whatever else the loop has to do is done. While others write to the log
(`yielding.py`) the next turn comes after a short rest: whoever shares the loop, and the processor,
is not to wait behind work that can wait. Otherwise turn follows turn.

There is one timer for the next moment, however many things wait for later ones; who learns of an
earlier moment calls `wake`. A turn that fails is logged once and tried again after a pause.
"""

import asyncio
import logging
from collections.abc import Callable

from tianzhou.broker.background.yielding import SliceScheduler
from tianzhou.clock import Clock
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

Work = Callable[[int], int | None]

TURN_S = 0.0005
"""How long one turn should take at most, of work that has much to do before it can begin."""
_PAUSE_MS = 1000
_SLEEP_MS_MAX = 1000
"""A timer of the loop knows nothing of a wall clock that is set forward, so it looks this often."""


class Ticker:
    """Turns of one kind of work."""

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
        """The first turn comes at once."""
        self._loop = asyncio.get_running_loop()
        self.wake(self._clock())

    def stop(self) -> None:
        """No turn from here on."""
        self._loop = None
        self._cancel()

    def wake(self, at_ms: int) -> None:
        """Have a turn at that time, or earlier if one is planned for earlier."""
        if self._loop is None or (self._next_ms is not None and self._next_ms <= at_ms):
            return
        self._plan(at_ms)

    def wake_now(self) -> None:
        """Have a turn at once, whatever was planned."""
        self._plan(self._clock())

    def _plan(self, at_ms: int, least_s: float = 0.0) -> None:
        if self._loop is None:
            return
        self._cancel()
        self._next_ms = at_ms
        wait_s = max(min(at_ms - self._clock(), _SLEEP_MS_MAX) / 1000, least_s)
        if wait_s <= 0:
            self._slices.soon(self._turn)
        else:
            self._timer = self._loop.call_later(wait_s, self._slices.soon, self._turn)

    def _cancel(self) -> None:
        self._slices.forget(self._turn)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = self._next_ms = None
        now_ms = self._clock()
        self._slices.begin()
        try:
            next_ms = self._work(now_ms)
            self._failing = False
        except Exception as e:
            # A bug must not end all turns to come; a full disk is over some time.
            if not self._failing:
                known = isinstance(e, TianzhouError | OSError)
                log.error("%s: trying again: %s", self._name, e, exc_info=not known)  # noqa: TRY400 - see known
            self._failing = True
            next_ms = now_ms + _PAUSE_MS
        self._slices.pause()
        rest_s = self._slices.end()
        if next_ms is None:
            return
        if next_ms <= now_ms:
            self._plan(now_ms, rest_s)
        else:
            self.wake(next_ms)
