"""Statistics of the timer, as `brokerStatus` of RocketMQ 5.x shows them."""

from collections import deque
from typing import NamedTuple

_WINDOW_MS = 10_000
_SAMPLE_MS = 1000
DUE_COUNTED_MAX = 100_000


class TimerStats(NamedTuple):
    """The state of the timer; all 0 without a timer."""

    read_behind_ms: int = 0
    """For how long the next message to deliver has been due."""
    offset_behind: int = 0
    """Messages of the timer topic that are not indexed."""
    waiting_count: int = 0
    enqueue_rate: float = 0.0
    """Messages indexed per second, over the last 10 s."""
    dequeue_rate: float = 0.0
    """Messages delivered per second, over the last 10 s."""
    index_behind_ms: int = 0
    """For how long the next message to index has been stored."""
    due_count: int = 0
    """Messages due and not delivered, counted up to `DUE_COUNTED_MAX`."""
    enqueued_count: int = 0
    """Messages indexed since the start."""
    dequeued_count: int = 0
    """Messages delivered since the start."""

    def as_runtime_info(self) -> dict[str, str]:
        """Under RocketMQ's names and in its units."""
        return {
            "timerReadBehind": str(self.read_behind_ms // 1000),
            "timerOffsetBehind": str(self.offset_behind),
            "timerCongestNum": str(self.waiting_count),
            "timerEnqueueTps": str(round(self.enqueue_rate, 2)),
            "timerDequeueTps": str(round(self.dequeue_rate, 2)),
        }


class RateMeter:
    """The growth rate of a number, from a sample about every second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def sample(self, now_ms: int, total: int) -> None:
        samples = self._samples
        if samples and now_ms < samples[-1][0]:
            samples.clear()  # The clock was set back.
        if not samples or now_ms - samples[-1][0] >= _SAMPLE_MS:
            samples.append((now_ms, total))
        while len(samples) > 1 and samples[1][0] <= now_ms - _WINDOW_MS:
            samples.popleft()

    def rate(self, now_ms: int, total: int) -> float:
        """Growth per second over the window."""
        self.sample(now_ms, total)
        began_ms, before = self._samples[0]
        return (total - before) * 1000 / max(now_ms - began_ms, _SAMPLE_MS)
