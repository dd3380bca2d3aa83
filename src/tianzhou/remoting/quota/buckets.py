"""Token buckets, which limit rates.

A bucket holds the tokens of one burst and gains `rate` tokens each second. A request may pass if at
least one token is left, and may spend more than are left: then the balance is negative, and further
requests are refused until a token is left again. So a message larger than the bucket passes,
and the rate still holds on average.

    buckets = Buckets(10_000)
    if buckets.left("orders", rate, now_ms) >= 1:
        buckets.spend("orders", rate, cost, now_ms)
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second, and the length of a burst."""

    per_second: float
    burst_s: float = 1.0

    @property
    def at_once(self) -> float:
        """The capacity of a bucket; at least one, or no request would ever pass."""
        return max(self.per_second * self.burst_s, 1.0)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ms: int


class Buckets:
    """One bucket per key; the bucket of an unknown key is full.

    At most `count_max` are stored; the least recently used is evicted, so it is full again.
    """

    __slots__ = ("_buckets", "_count_max")

    def __init__(self, count_max: int) -> None:
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._buckets)

    def left(self, key: Hashable, rate: Rate, now_ms: int) -> float:
        """The balance in tokens; may be negative."""
        bucket = self._buckets.get(key)
        return rate.at_once if bucket is None else _filled(bucket, rate, now_ms)

    def spend(self, key: Hashable, rate: Rate, cost: float, now_ms: int) -> None:
        """Subtract tokens; the balance may become negative."""
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = _Bucket(rate.at_once - cost, now_ms)
            if len(self._buckets) > self._count_max:
                self._buckets.popitem(last=False)
            return
        bucket.tokens = _filled(bucket, rate, now_ms) - cost
        bucket.at_ms = now_ms
        self._buckets.move_to_end(key)

    def clear(self) -> None:
        """Make all buckets full."""
        self._buckets.clear()


def _filled(bucket: _Bucket, rate: Rate, now_ms: int) -> float:
    gained = (now_ms - bucket.at_ms) * rate.per_second / 1000
    return min(bucket.tokens + gained, rate.at_once)
