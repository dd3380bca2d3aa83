"""Token buckets: how fast something may go.

A bucket holds so many tokens as may be spent at once and gets `rate` more each second. Whoever
finds a whole one in it may spend what he needs, even more than there is: then the bucket owes, and
is shut until the debt is paid. So a single message that is larger than the bucket passes, and on
average the rate holds all the same.

    buckets = Buckets(10_000)
    if buckets.left("orders", rate, now_ms) >= 1:
        buckets.spend("orders", rate, cost, now_ms)
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """So much each second, and so many seconds' worth at once."""

    per_second: float
    burst_s: float = 1.0

    @property
    def at_once(self) -> float:
        """What a full bucket holds; at least one, or nothing would ever pass."""
        return max(self.per_second * self.burst_s, 1.0)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ms: int


class Buckets:
    """One bucket for each key that was seen; a key not seen, or not for long, has a full one.

    At most `count_max` are kept. A flood of new keys makes the one that was used least recently
    full again, which is the best that bounded memory can do.
    """

    __slots__ = ("_buckets", "_count_max")

    def __init__(self, count_max: int) -> None:
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._buckets)

    def left(self, key: Hashable, rate: Rate, now_ms: int) -> float:
        """The tokens that are there; below zero is owed."""
        bucket = self._buckets.get(key)
        return rate.at_once if bucket is None else _filled(bucket, rate, now_ms)

    def spend(self, key: Hashable, rate: Rate, cost: float, now_ms: int) -> None:
        """Take tokens, whether they are there or not."""
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
        """Make all of them full."""
        self._buckets.clear()


def _filled(bucket: _Bucket, rate: Rate, now_ms: int) -> float:
    gained = (now_ms - bucket.at_ms) * rate.per_second / 1000
    return min(bucket.tokens + gained, rate.at_once)
