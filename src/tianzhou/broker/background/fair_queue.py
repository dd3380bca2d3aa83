"""Lets through for a moment at a time, so that a storm of requests can neither hold up the event
loop nor take all of it.

Requests that cost much and can wait a moment ask `admits`. Those that are not admitted wait in
line, each owner (a connection) in one of its own; the lines take turns, so an owner with thousands
in line does not keep others waiting for all of them.

A turn is a slice (`yielding.py`) that is over when its time is, however many got through; at
least one does, so every line comes to its end. Answers are gathered while their owner has more to
ask, which is not long, and leave together: each time they do it wakes another process and brings
new requests, and sending them one by one cost as much as the work itself.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Protocol

from tianzhou.broker.background.yielding import SliceScheduler

GATHERED_S = 0.005
"""No answer waits longer than about this for others."""

Work = Callable[[], None]
"""What someone in line came for; it raises nothing."""


class Owner(Hashable, Protocol):
    """Whoever sends requests; see `remoting.connection.Connection`."""

    @property
    def has_unread(self) -> bool: ...
    def gather(self) -> None: ...
    def let_go(self) -> None: ...


class FairQueue:
    """The lines of one kind of requests."""

    def __init__(self, slices: SliceScheduler, now_s: Callable[[], float] = perf_counter) -> None:
        self._slices = slices
        self._now_s = now_s
        self._ends_s = 0.0
        """When the turn ends that somebody was admitted to; 0 if nobody was yet."""
        self._is_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        """For answers that are gathered when no turn is planned."""
        self._lines: OrderedDict[Owner, deque[Work]] = OrderedDict()
        self._gathered: dict[Owner, float] = {}
        """Whose answers wait, and since when."""
        self.waiting_count = 0
        """How many are in line."""

    def admits(self, owner: Owner) -> bool:
        """Whether one may go on at once; who does says `passed` when done."""
        if self._ends_s:
            if self._lines or self._now_s() >= self._ends_s:
                return False
        elif self._is_planned:
            return False  # the turn before is over, the next has not begun
        else:
            self._ends_s = self._now_s() + self._slices.begin()
            self._plan(self._end_admission)
        self._gather(owner)
        return True

    def passed(self) -> None:
        """One who was admitted has done what it came for."""
        self._slices.pause()

    def wait(self, owner: Owner, work: Work) -> None:
        """Have the work done when it is one's turn."""
        self._lines.setdefault(owner, deque()).append(work)
        self.waiting_count += 1
        if not self._is_planned:
            self._plan(self._turn)

    def close(self) -> None:
        """Nobody gets through any more; who is in line is forgotten."""
        self._lines.clear()
        self.waiting_count = 0
        self._slices.forget(self._turn)
        self._slices.forget(self._end_admission)
        for timer in (self._timer, self._late):
            if timer is not None:
                timer.cancel()
        self._is_planned, self._ends_s = False, 0.0
        for owner in self._gathered:
            owner.let_go()
        self._gathered.clear()

    # -- turns -------------------------------------------------------------------------------------

    def _plan(self, work: Work) -> None:
        self._is_planned = True
        self._slices.soon(work)

    def _end_admission(self) -> None:
        self._ends_s = 0.0
        self._go_on()

    def _go_on(self) -> None:
        """Have another turn if somebody waits, after a rest if others are there."""
        rest_s = self._slices.end()
        self._let_go()
        if rest_s:
            self._is_planned = True
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(rest_s, self._plan, self._turn)
        elif self._lines:
            self._plan(self._turn)
        else:
            self._is_planned = False

    def _turn(self) -> None:
        self._is_planned = False
        if not self._lines:
            return
        ends_s = self._now_s() + self._slices.begin()
        try:
            while self._lines:
                self._take()()
                if self._now_s() >= ends_s:
                    break
        finally:
            self._slices.pause()
            self._go_on()

    def _take(self) -> Work:
        """The first of the line whose turn it is."""
        owner, line = self._lines.popitem(last=False)
        work = line.popleft()
        if line:
            self._lines[owner] = line
        self.waiting_count -= 1
        self._gather(owner)
        return work

    # -- answers -----------------------------------------------------------------------------------

    def _gather(self, owner: Owner) -> None:
        if owner not in self._gathered:
            owner.gather()
            self._gathered[owner] = self._now_s()

    def _let_go(self) -> None:
        """Send the answers of all who have nothing more to ask, or wait for them long enough."""
        now_s = self._now_s()
        ready = [
            owner
            for owner, since_s in self._gathered.items()
            if now_s - since_s >= GATHERED_S or not (owner in self._lines or owner.has_unread)
        ]
        for owner in ready:
            del self._gathered[owner]
            owner.let_go()
        if self._gathered and self._late is None:
            self._late = asyncio.get_running_loop().call_later(GATHERED_S, self._look_late)

    def _look_late(self) -> None:
        self._late = None
        self._let_go()
