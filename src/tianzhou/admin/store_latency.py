"""Store latency of brokers between two samples of their cumulative counts.

A broker reports how many messages it stored within which time ("[<=0ms]:9 [0~10ms]:2 ..."): ours
since its start, Apache's since the last full minute. The difference of two samples is the latency
in between; if a count has fallen, counting was restarted, and the later sample is used alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tianzhou.admin.rates import BrokerRates

_ENDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Upper bound of each bucket; the last bucket has none."""

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PutTimes:
    """Percentiles as upper bounds of buckets; None for the last bucket."""

    p99_ms: int | None
    max_ms: int | None


def between(before: Counts | None, after: Counts) -> Counts:
    """The counts between two samples."""
    if (
        before is None
        or len(before) != len(after)
        or any(now < was for was, now in zip(before, after, strict=True))
    ):
        return after
    return tuple(now - was for was, now in zip(before, after, strict=True))


def put_times(counts: Sequence[int]) -> PutTimes | None:
    """None if nothing was stored."""
    total = sum(counts)
    if not total:
        return None
    reached, p99, slowest = 0, -1, 0
    for step, count in enumerate(counts):
        reached += count
        if p99 < 0 and reached * 100 >= total * 99:
            p99 = step
        if count:
            slowest = step
    return PutTimes(_end_ms(p99), _end_ms(slowest))


def _end_ms(step: int) -> int | None:
    return _ENDS_MS[step] if step < len(_ENDS_MS) else None


class StoreLatencyWindow:
    """Keeps the last sample of each broker."""

    def __init__(self) -> None:
        self._before: Mapping[str, Counts] = {}
        self.has_previous = False
        """Whether figures are since the last sample, not since the start of the brokers."""

    def update(self, brokers: Sequence[BrokerRates]) -> list[BrokerRates]:
        """The brokers with latency since the last sample; the first time as they report it."""
        counts = {each.address: each.put_counts for each in brokers if each.put_counts is not None}
        before, self._before = self._before, counts
        if not self.has_previous:
            self.has_previous = True
            return list(brokers)
        return [_since_previous(each, before.get(each.address)) for each in brokers]


def _since_previous(each: BrokerRates, before: Counts | None) -> BrokerRates:
    if each.put_counts is None:
        return each
    times = put_times(between(before, each.put_counts))
    if times is None:
        return replace(each, put_p99_ms=None, put_max_ms=None)
    # In the last bucket only the broker itself knows the maximum.
    slowest_ms = each.put_max_ms if times.max_ms is None else times.max_ms
    p99_ms = slowest_ms if times.p99_ms is None else times.p99_ms
    return replace(each, put_p99_ms=p99_ms, put_max_ms=slowest_ms)
