"""Runs background work of the event loop in short turns.

    work(now_ms) -> when it wants its next turn: now for "there is more", None for "never"

Between two turns whatever else the loop has to do is done. There is one timer for the next moment,
however many things wait for later ones; who learns of an earlier moment calls `wake`. A turn that
fails is logged once and tried again after a pause.
"""

import asyncio
import logging
from collections.abc import Callable

from tianzhou.clock import Clock
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

Work = Callable[[int], int | None]

TURN_S = 0.0005
"""How long one turn should take at most."""
_PAUSE_MS = 1000
_SLEEP_MS_MAX = 1000
"""A timer of the loop knows nothing of a wall clock that is set forward, so it looks this often."""


class Pump:
    """Turns of one kind of work."""

    def __init__(self, name: str, work: Work, clock: Clock) -> None:
        self._name = name
        self._work = work
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._next_ms: int | None = None
        self._failing = False

    def start(self) -> None:
        """The first turn comes at once."""
        self._loop = asyncio.get_running_loop()
        self.wake(self._clock())

    def stop(self) -> None:
        """No turn from here on."""
        self._loop = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def wake(self, at_ms: int) -> None:
        """Have a turn at that time, or earlier if one is planned for earlier."""
        if self._loop is None or (self._next_ms is not None and self._next_ms <= at_ms):
            return
        self._plan(at_ms)

    def wake_now(self) -> None:
        """Have a turn at once, whatever was planned."""
        self._plan(self._clock())

    def _plan(self, at_ms: int) -> None:
        if self._loop is None:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._next_ms = at_ms
        wait_ms = min(at_ms - self._clock(), _SLEEP_MS_MAX)
        if wait_ms <= 0:
            self._handle = self._loop.call_soon(self._turn)
        else:
            self._handle = self._loop.call_later(wait_ms / 1000, self._turn)

    def _turn(self) -> None:
        self._handle = self._next_ms = None
        now_ms = self._clock()
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
        if next_ms is not None:
            self.wake(next_ms)
