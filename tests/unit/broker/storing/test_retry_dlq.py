"""Retries of failed messages, and the dead-letter queue."""

import pytest

from tianzhou.broker.storing import retry_dlq
from tianzhou.broker.storing.retry_dlq import RetryDecision, decide_retry, policy_delay_ms, wait_of
from tianzhou.protocol.bodies.groups import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)

PLAIN = SubscriptionGroupConfig(group_name="g")
LEVELS_MS = (1000, 5000, 10_000, 30_000)


def with_policy(policy: GroupRetryPolicy) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name="g", retry_policy=policy)


@pytest.mark.parametrize(
    ("times", "times_max", "asked_level", "expected"),
    [
        (0, 16, 0, RetryDecision(dead=False, level=3)),
        (4, 16, 0, RetryDecision(dead=False, level=7)),
        (4, 16, 2, RetryDecision(dead=False, level=2)),
        (15, 16, 0, RetryDecision(dead=False, level=18)),
        (16, 16, 0, RetryDecision(dead=True)),
        (17, 16, 5, RetryDecision(dead=True)),
        (0, 16, -1, RetryDecision(dead=True)),
        (0, 0, 0, RetryDecision(dead=True)),
    ],
)
def test_retry_decisions(
    times: int, times_max: int, asked_level: int, expected: RetryDecision
) -> None:
    assert decide_retry(PLAIN, times, times_max, asked_level) == expected


@pytest.mark.parametrize(
    ("policy", "delays_ms"),
    [
        (GroupRetryPolicy(kind="EXPONENTIAL", exponential=ExponentialRetryPolicy()),
         [5000, 10_000, 20_000, 40_000]),
        (GroupRetryPolicy(kind="EXPONENTIAL", exponential=ExponentialRetryPolicy(
            initial_ms=10, max_ms=35, multiplier=2)), [10, 20, 35, 35]),
        (GroupRetryPolicy(customized=CustomizedRetryPolicy()), [10_000, 30_000, 60_000, 120_000]),
        (GroupRetryPolicy(customized=CustomizedRetryPolicy(next_ms=[7])), [7, 7, 7, 7]),
        (GroupRetryPolicy(customized=CustomizedRetryPolicy(next_ms=[])), [None] * 4),
        (GroupRetryPolicy(), [None] * 4),
        (GroupRetryPolicy(kind="EXPONENTIAL"), [None] * 4),
        (GroupRetryPolicy(kind="OTHER"), [None] * 4),
    ],
)  # fmt: skip
def test_policies(policy: GroupRetryPolicy, delays_ms: list[int | None]) -> None:
    group = with_policy(policy)
    assert [policy_delay_ms(group, times) for times in range(4)] == delays_ms


def test_the_delay_of_a_policy_is_limited() -> None:
    group = with_policy(
        GroupRetryPolicy(kind="EXPONENTIAL", exponential=ExponentialRetryPolicy(multiplier=1000))
    )
    assert policy_delay_ms(group, 10**6) == 7_200_000
    assert policy_delay_ms(group, -5) == 5000


@pytest.mark.parametrize(
    ("what", "timer_max_ms", "expected"),
    [
        (RetryDecision(dead=True), 10**9, {}),
        (RetryDecision(dead=False, level=4), 10**9, {"DELAY": "4"}),
        (RetryDecision(dead=False, level=4, delay_ms=1000), 10**9, {"DELAY": "1"}),
        (RetryDecision(dead=False, level=4, delay_ms=1001), 10**9, {"TIMER_DELAY_MS": "1001"}),
        (RetryDecision(dead=False, level=4, delay_ms=1001), 0, {"DELAY": "2"}),
        (RetryDecision(dead=False, level=4, delay_ms=40_000), 39_999, {"DELAY": "4"}),
    ],
)
def test_properties_of_the_delay(
    what: RetryDecision, timer_max_ms: int, expected: dict[str, str]
) -> None:
    assert wait_of(what, LEVELS_MS, timer_max_ms) == expected


def test_the_nearest_level_is_long_enough_if_there_is_one() -> None:
    assert retry_dlq.nearest_level(2000, (9000, 3000, 1000)) == 2
    assert retry_dlq.nearest_level(99_000, (9000, 3000, 1000)) == 3
