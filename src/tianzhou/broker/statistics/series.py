"""A series: what one counter did over the last minute, hour and day.

Only steps in which something happened are stored, so memory follows activity.
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from tianzhou.broker.statistics.counters import Counts

K = TypeVar("K", bound=Hashable)

SPAN_MS_MIN = 1000
"""Rates are computed over at least this time."""


class Window(NamedTuple):
    """A period that ends now, divided into steps."""

    step_ms: int
    step_count: int


MINUTE = Window(10_000, 6)
HOUR = Window(600_000, 6)
DAY = Window(3_600_000, 24)
WINDOWS = (MINUTE, HOUR, DAY)

Steps = tuple[int, ...]
"""The number of the current step of each window."""


def steps_at(now_ms: int) -> Steps:
    return tuple(now_ms // window.step_ms for window in WINDOWS)


class Amount(NamedTuple):
    """An amount of messages, bytes, calls and time."""

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0
    took_ms: int = 0


class WindowStats(NamedTuple):
    """One statistic over one window."""

    sum: int
    per_second: float
    per_call: float


class Series:
    """The total of one counter, and its value before each step that added to it."""

    __slots__ = ("_began_ms", "_marks", "_total")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._total = Amount()
        self._marks: tuple[list[tuple[int, Amount]], ...] = tuple([] for _ in WINDOWS)

    def add(self, amount: Amount, steps: Steps) -> None:
        before = self._total
        for number, marks in enumerate(self._marks):
            step = steps[number]
            # After a clock was set back, amounts are added to the newest step.
            if not marks or marks[-1][0] < step:
                oldest = step - WINDOWS[number].step_count
                while marks and marks[0][0] <= oldest:
                    del marks[0]
                marks.append((step, before))
        self._total = Amount(
            before[0] + amount[0], before[1] + amount[1],
            before[2] + amount[2], before[3] + amount[3],
        )  # fmt: skip

    def is_idle(self, steps: Steps) -> bool:
        """Whether it was idle for a day."""
        marks = self._marks[-1]
        return not marks or marks[-1][0] <= steps[-1] - DAY.step_count

    def over(self, window: Window, field: int, now_ms: int) -> WindowStats:
        """The sum of one field of the amounts, its rate, and its mean per call."""
        first_step = now_ms // window.step_ms - window.step_count + 1
        marks = self._marks[WINDOWS.index(window)]
        before = next((total for step, total in marks if step >= first_step), self._total)
        value = self._total[field] - before[field]
        calls = self._total.calls - before.calls
        # As in RocketMQ, a new series counts as begun one step before its first amount.
        began_ms = max(first_step * window.step_ms, self._began_ms - MINUTE.step_ms)
        span_ms = max(now_ms - began_ms, SPAN_MS_MIN)
        return WindowStats(value, value * 1000 / span_ms, value / calls if calls else 0.0)


class TrackedCounter(Generic[K]):
    """A counter, its value when it was read last, and the series that it adds to."""

    __slots__ = ("counts", "is_counted", "key", "seen", "series")

    def __init__(self, key: K, counts: Counts, *, is_counted: bool) -> None:
        self.key = key
        self.counts = counts
        self.is_counted = is_counted
        self.seen = Amount()
        self.series: tuple[Series, ...] | None = None
        """None until it counts something, and after an idle day."""

    def growth(self) -> Amount:
        """What it counted since the last call."""
        counts, seen = self.counts, self.seen
        self.seen = now = Amount(counts.messages, counts.size_bytes, counts.calls, counts.took_ms)
        return Amount(now[0] - seen[0], now[1] - seen[1], now[2] - seen[2], now[3] - seen[3])
