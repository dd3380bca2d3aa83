"""Measurements of the demonstration: messages per second and latency."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Interval:
    """Rates and latency within a short interval."""

    at_s: float
    """The middle of the interval, since the load began."""
    sent_per_s: float
    received_per_s: float
    median_ms: float | None
    """From producer to consumer; None if nothing arrived."""
    p99_ms: float | None


@dataclass(slots=True)
class Measurements:
    """Every message of the load, by seconds since it began."""

    sent_s: list[float] = field(default_factory=list[float])
    received: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Arrival time, and latency in milliseconds."""

    def between(self, begin_s: float, end_s: float) -> Interval:
        """Rates and latency of an interval."""
        took_ms = sorted(ms for at_s, ms in self.received if begin_s <= at_s < end_s)
        sent_count = sum(begin_s <= at_s < end_s for at_s in self.sent_s)
        width_s = end_s - begin_s
        return Interval(
            (begin_s + end_s) / 2,
            sent_count / width_s,
            len(took_ms) / width_s,
            percentile(took_ms, 0.5),
            percentile(took_ms, 0.99),
        )

    def intervals(self, width_s: float) -> list[Interval]:
        """Everything, cut into intervals of one length."""
        last_s = max([*self.sent_s, *(at_s for at_s, _ in self.received)], default=0.0)
        edges = [number * width_s for number in range(int(last_s / width_s) + 2)]
        return [self.between(*span) for span in pairwise(edges)]


def percentile(values: Sequence[float], part: float) -> float | None:
    """The value that this fraction of the sorted values does not exceed."""
    if not values:
        return None
    return values[min(len(values) - 1, int(len(values) * part))]
