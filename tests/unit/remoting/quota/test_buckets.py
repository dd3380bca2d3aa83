"""Token buckets, with values for the clock."""

import pytest

from tianzhou.remoting.quota.buckets import Buckets, Rate


def passes(buckets: Buckets, rate: Rate, now_ms: int, cost: float = 1.0, key: str = "k") -> bool:
    if buckets.left(key, rate, now_ms) < 1:
        return False
    buckets.spend(key, rate, cost, now_ms)
    return True


def test_a_full_bucket_is_spent_and_refills() -> None:
    buckets, rate = Buckets(8), Rate(10)
    assert [passes(buckets, rate, 0) for _ in range(11)] == [True] * 10 + [False]
    assert not passes(buckets, rate, 0)
    assert passes(buckets, rate, 100)
    assert not passes(buckets, rate, 100)
    assert sum(passes(buckets, rate, 60_000) for _ in range(50)) == 10, "no more than full"


@pytest.mark.parametrize("step_ms", [1, 7, 100, 333])
def test_the_average_rate_does_not_depend_on_the_interval(step_ms: int) -> None:
    buckets, rate = Buckets(8), Rate(50, burst_s=0.5)
    passed = sum(passes(buckets, rate, now_ms) for now_ms in range(0, 20_000, step_ms)
                 for _ in range(60))  # fmt: skip
    # The burst of the beginning, and one that goes into debt at each end.
    assert 50 * 20 * 0.9 <= passed <= 50 * 20 + 25 + 1


def test_a_cost_above_the_capacity_passes_and_makes_the_balance_negative() -> None:
    buckets, rate = Buckets(8), Rate(100)
    assert passes(buckets, rate, 0, cost=1000)
    assert buckets.left("k", rate, 0) == -900
    assert not passes(buckets, rate, 9_000)
    assert passes(buckets, rate, 9_020)


def test_one_request_passes_at_slow_rates() -> None:
    buckets, rate = Buckets(8), Rate(0.1)
    assert passes(buckets, rate, 0)
    assert not passes(buckets, rate, 9_900)
    assert passes(buckets, rate, 10_001)


def test_keys_are_independent() -> None:
    buckets, rate = Buckets(8), Rate(1)
    assert passes(buckets, rate, 0, key="a")
    assert not passes(buckets, rate, 0, key="a")
    assert passes(buckets, rate, 0, key="b")


def test_the_least_recently_used_keys_are_evicted() -> None:
    buckets, rate = Buckets(100), Rate(1)
    for number in range(10_000):
        buckets.spend(number, rate, 1, 0)
    assert len(buckets) == 100
    assert buckets.left(9_999, rate, 0) == 0
    assert buckets.left(0, rate, 0) == 1
    buckets.clear()
    assert len(buckets) == 0
