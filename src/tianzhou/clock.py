"""Clocks, passed as functions to the code that needs the time.

There are two kinds:

    wall_ms     the time of day: stamps in messages and files, delivery at a given time
    steady_ms   monotonic: how long something took, when a lease, lock or time-out is over

An operator or NTP may set the time of day forward or back at any moment, so durations are never
measured by it. Sans-IO code gets `now_ms` as a value; tests pass their own functions.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

Clock = Callable[[], int]

_JUMP_MS = 1000
"""A larger change of the distance between the clocks is a jump; a smaller one is drift."""
_SPANS_MAX = 64


def wall_ms() -> int:
    """Milliseconds since the epoch, as RocketMQ stamps messages and heartbeats."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds of a clock that is never set; only differences of it mean something."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """As `steady_ms`, and it also runs while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def anchored(wall: Clock, steady: Clock) -> Clock:
    """The time of day that ignores jumps: the wall clock now, plus the steady time from here on."""
    began_ms = wall() - steady()
    return lambda: began_ms + steady()


class Moment(NamedTuple):
    """One moment by both clocks."""

    wall_ms: int
    steady_ms: int

    def end_ms(self, began_ms: int, for_ms: int) -> int:
        """The end, by steady time, of a duration that began at a time of day.

        A begin in the future means that the clock was set back: then it begins now.
        """
        return self.steady_ms + min(began_ms - self.wall_ms, 0) + for_ms


class _Span(NamedTuple):
    """A time without a jump, by steady time, and by how much the wall clock was ahead in it."""

    began_ms: int
    ended_ms: int
    ahead_ms: int


class Ages:
    """How old a time stamp of the wall clock is, by steady time: jumps since then do not count.

    Between two jumps the clocks differ by a constant. These spans are stored, so that a stamp is
    converted by the span in which it was made. Time before the start of this process, and stamps of
    other machines, are only known by the wall clock.
    """

    def __init__(self, wall: Clock, steady: Clock) -> None:
        self._wall = wall
        self._steady = steady
        self._seen_ms = steady()
        self._spans = [_Span(self._seen_ms, self._seen_ms, wall() - self._seen_ms)]

    def detect_jump(self) -> None:
        """Record a jump, if there was one; called every few seconds and before stamps are used."""
        now_ms = self._steady()
        ahead_ms = self._wall() - now_ms
        self._spans[-1] = self._spans[-1]._replace(ended_ms=now_ms)
        if abs(ahead_ms - self._spans[-1].ahead_ms) > _JUMP_MS:
            # It was at any moment since the last call, so the two spans overlap.
            self._spans.append(_Span(self._seen_ms, now_ms, ahead_ms))
            del self._spans[:-_SPANS_MAX]
        self._seen_ms = now_ms

    def age_ms(self, stamp_ms: int) -> int:
        """How long ago that was; below 0 for a stamp from the future.

        Where two moments had the same time of day, because the clock was set back in between, the
        later one is meant. A time of day that was jumped over counts as the moment of the jump.
        """
        self.detect_jump()
        spans, now_ms = self._spans, self._seen_ms
        for index in range(len(spans) - 1, -1, -1):
            began_ms, ended_ms, ahead_ms = spans[index]
            at_ms = stamp_ms - ahead_ms
            if at_ms <= ended_ms:
                if index == 0 or at_ms >= began_ms:
                    return now_ms - at_ms
                before = spans[index - 1]
                if stamp_ms - before.ahead_ms > before.ended_ms:
                    return now_ms - before.ended_ms
        return now_ms + spans[-1].ahead_ms - stamp_ms
