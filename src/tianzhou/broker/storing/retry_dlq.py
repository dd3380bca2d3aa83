"""Retries of messages that a consumer could not process, and the dead-letter queue.

    failed           ->  %RETRY%group, delayed: level 3, 4, 5 ... or by the group's retry policy
    failed too often ->  %DLQ%group

Values in, values out. Stock consumers rely on these properties: RETRY_TOPIC is the original topic
of the message, ORIGIN_MESSAGE_ID its id there. The reconsume count is incremented.
"""

import random
from typing import NamedTuple

from tianzhou.broker.storing.redraft import redraft
from tianzhou.message import Host
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol import properties
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.store.message_store import Draft

DLQ_QUEUE_COUNT = 1
_STALE = (
    properties.DELAY_LEVEL, properties.TIMER_OUT_MS, properties.TIMER_DEL_UNIQKEY,
    properties.POP_CK, *properties.TIMER_REQUESTS,
)  # fmt: skip
"""Properties of the previous delay, and of a pop by an older broker."""
_FIRST_LEVEL = 3
_EXPONENT_MAX = 32
"""RocketMQ's limit for the exponent of a policy."""


class RetryDecision(NamedTuple):
    """Where a failed message goes."""

    dead: bool
    level: int = 0
    """The delay level, unless `delay_ms` is set."""
    delay_ms: int | None = None


def decide_retry(
    group: SubscriptionGroupConfig, times: int, times_max: int, asked_level: int
) -> RetryDecision:
    """Where a message goes that was redelivered `times` times.

    `asked_level` is set by the consumer: below 0 it gives up, 0 leaves the delay to the broker.
    """
    if asked_level < 0 or times >= times_max:
        return RetryDecision(dead=True)
    if asked_level > 0:
        return RetryDecision(dead=False, level=asked_level)
    delay_ms = policy_delay_ms(group, times)
    return RetryDecision(dead=False, level=_FIRST_LEVEL + times, delay_ms=delay_ms)


def policy_delay_ms(group: SubscriptionGroupConfig, times: int) -> int | None:
    """The delay of the group's retry policy; None without a policy."""
    policy = group.retry_policy
    if policy is None:
        return None
    times = min(max(times, 0), _EXPONENT_MAX)
    if policy.kind == "EXPONENTIAL" and policy.exponential is not None:
        growing = policy.exponential
        factor = int(growing.multiplier**times)
        return max(min(growing.max_ms, growing.initial_ms * factor), 0)
    if policy.kind == "CUSTOMIZED" and policy.customized is not None:
        # RocketMQ begins with the third, as the first retry by delay levels does.
        delays_ms = policy.customized.next_ms
        return max(delays_ms[min(times + 2, len(delays_ms) - 1)], 0) if delays_ms else None
    return None


def topic_of(group: str, *, dead: bool) -> str:
    return (DLQ_TOPIC_PREFIX if dead else RETRY_TOPIC_PREFIX) + group


def sent_back(
    fields: RecordFields,
    group: str,
    what: RetryDecision,
    queue_count: int,
    store_host: Host,
    wait: dict[str, str],
) -> tuple[Draft, dict[str, str]]:
    """The draft for the retry topic or the dead-letter queue, and its properties.

    `wait` are the properties of its delay.
    """
    props = dict(fields[2])
    props.setdefault(properties.RETRY_TOPIC, fields[0])
    if not props.get(properties.ORIGIN_MESSAGE_ID, "").strip():
        props[properties.ORIGIN_MESSAGE_ID] = encode_offset_id(fields[11], fields[5])
    for stale in _STALE:
        props.pop(stale, None)
    if wait:
        # These are set again by the redirect of the delay.
        props.pop(properties.REAL_TOPIC, None)
        props.pop(properties.REAL_QUEUE_ID, None)
        props |= wait
    queue_id = random.randrange(queue_count) if queue_count > 1 else 0  # noqa: S311 - spreads load only
    draft = redraft(
        fields, topic_of(group, dead=what.dead), queue_id, props, fields[12] + 1, store_host
    )
    return draft, props


def wait_of(what: RetryDecision, levels_ms: tuple[int, ...], timer_max_ms: int) -> dict[str, str]:
    """The properties of a delay; `timer_max_ms` is 0 without a timer."""
    if what.dead:
        return {}
    level = what.level
    if what.delay_ms is not None:
        exact = levels_ms.index(what.delay_ms) + 1 if what.delay_ms in levels_ms else None
        if exact is None and what.delay_ms <= timer_max_ms:
            return {properties.TIMER_DELAY_MS: str(what.delay_ms)}
        level = exact or nearest_level(what.delay_ms, levels_ms)
    return {properties.DELAY_LEVEL: str(level)}


def nearest_level(delay_ms: int, levels_ms: tuple[int, ...]) -> int:
    """The shortest level with at least this delay, else the last."""
    enough = [level for level, ms in enumerate(levels_ms, 1) if ms >= delay_ms]
    return min(enough, key=lambda level: levels_ms[level - 1], default=len(levels_ms))
