"""Which attributes, flags and settings of topics and groups are supported.

RocketMQ 5.x has kinds of topics and groups that this broker does not support. A request for one is
rejected with the reason, because a value that is accepted and ignored seems to work. Tables that
RocketMQ has written are loaded unchanged; unsupported values are logged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from tianzhou.limits import TOPIC_QUEUES_MAX
from tianzhou.names import PERM_INHERIT, PERM_READ, PERM_WRITE
from tianzhou.protocol.bodies.groups import GroupRetryPolicy, SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig

Check = Callable[[str], str | None]
"""Given a value: why it is not supported; None if it is."""

MIXED = "MIXED"
_PERM_ALL = PERM_INHERIT | PERM_WRITE | PERM_READ
_UNIT_FLAGS = 3
"""FLAG_UNIT and FLAG_UNIT_SUB of TopicSysFlag."""
_CONSUME_TIMEOUT_MINUTES = 15
_SHOWN = 80

_NO_LITE = "there are no lite topics here"
_NO_PRIORITY = "there are no priority topics here, messages of a queue keep their order"
_RETENTION = "messages of all topics are kept for fileReservedTime hours"


def _one_of(works: Iterable[str], missing: Mapping[str, str]) -> Check:
    """Some values are supported, others of RocketMQ are not, each for a reason."""
    working = tuple(works)

    def check(value: str) -> str | None:
        if value in working:
            return None
        return missing.get(value, f"{', '.join(working)} are possible")

    return check


def _only(default: str, why: str) -> Check:
    return lambda value: None if value == default else why


TOPIC_ATTRIBUTES: Mapping[str, Check] = {
    "queue.type": _one_of(
        ["SimpleCQ"],
        {
            "BatchCQ": "there are no queues of inner batches here, batches are stored one by one",
            "RocksDBCQ": "there is no RocksDB here",
        },
    ),
    "cleanup.policy": _one_of(
        ["DELETE"], {"COMPACTION": f"there are no compacted topics here, {_RETENTION}"}
    ),
    "message.type": _one_of(
        ["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED],
        {"PRIORITY": _NO_PRIORITY, "LITE": _NO_LITE},
    ),
    "reserve.time": _only("-1", f"topics have no retention of their own here, {_RETENTION}"),
    "lite.topic.expiration": _only("-1", _NO_LITE),
}
"""TopicAttributes of 5.5."""

GROUP_ATTRIBUTES: Mapping[str, Check] = {
    "priority.factor": _only("100", _NO_PRIORITY),
    **dict.fromkeys(
        (
            "lite.bind.topic",
            "lite.sub.model",
            "lite.sub.reset.offset.exclusive",
            "lite.sub.reset.offset.unsubscribe",
            "lite.sub.client.quota",
            "lite.sub.client.max.event.cnt",
            "lite.sub.wildcard",
        ),
        lambda _: _NO_LITE,
    ),
}
"""SubscriptionGroupAttributes of 5.5."""


def added(changes: Mapping[str, str] | None) -> dict[str, str]:
    """The attributes that signed changes set; removals are left out."""
    return {name[1:]: value for name, value in (changes or {}).items() if name.startswith("+")}


def topic_problems(topic: TopicConfig, attributes: Mapping[str, str]) -> Iterator[str]:
    """The unsupported values of a topic with these attributes, and why."""
    yield from _attribute_problems(TOPIC_ATTRIBUTES, attributes)
    if topic.perm & ~_PERM_ALL:
        yield (
            f"perm is {topic.perm}: 2 is for writing, 4 for reading, 1 for topics that others are "
            f"created from; priorities (8) do not exist here"
        )
    if topic.topic_sys_flag & ~_UNIT_FLAGS:
        yield (
            f"topicSysFlag is {topic.topic_sys_flag}: 1 (unit) and 2 (unit subscription) are known"
        )


def group_problems(group: SubscriptionGroupConfig, attributes: Mapping[str, str]) -> Iterator[str]:
    """The unsupported values of a group with these attributes, and why.

    `consumeFromMinEnable` is stored and shown; no version of RocketMQ reads it, but its tools
    always send it. `consumeMessageOrderly` is read by proxies.
    """
    yield from _attribute_problems(GROUP_ATTRIBUTES, attributes)
    if not 0 <= group.retry_queue_count <= TOPIC_QUEUES_MAX:
        yield f"retryQueueNums is {group.retry_queue_count}, 0 to {TOPIC_QUEUES_MAX} are possible"
    if group.retry_max_times < -1:
        yield f"retryMaxTimes is {group.retry_max_times}, -1 is the least"
    if group.broker_id < 0 or group.which_broker_when_consume_slowly < 0:
        yield (
            f"brokerId is {group.broker_id} and whichBrokerWhenConsumeSlowly is "
            f"{group.which_broker_when_consume_slowly}, ids of brokers begin at 0"
        )
    if group.group_sys_flag:
        yield f"groupSysFlag is {group.group_sys_flag}: no flag of a group has an effect here"
    if group.consume_timeout_minutes not in (None, _CONSUME_TIMEOUT_MINUTES):
        yield (
            f"consumeTimeoutMinute is {group.consume_timeout_minutes}: no consumer asks for it, "
            f"set consumeTimeout of the consumer"
        )
    if group.subscriptions:
        yield "subscriptionDataSet is given: subscriptions are what consumers tell by heartbeats"
    if group.retry_policy is not None:
        yield from _policy_problems(group.retry_policy)


def _policy_problems(policy: GroupRetryPolicy) -> Iterator[str]:
    if policy.kind not in ("EXPONENTIAL", "CUSTOMIZED"):
        kind = policy.kind[:_SHOWN]
        yield f"groupRetryPolicy has the type {kind!r}, EXPONENTIAL and CUSTOMIZED are possible"
    growing, listed = policy.exponential, policy.customized
    if growing is not None and (
        growing.initial_ms < 0 or growing.max_ms < 0 or growing.multiplier < 1
    ):
        yield (
            f"exponentialRetryPolicy has initial {growing.initial_ms}, max {growing.max_ms} and "
            f"multiplier {growing.multiplier}: 0, 0 and 1 are the least"
        )
    if listed is not None and any(delay_ms < 0 for delay_ms in listed.next_ms):
        yield "customizedRetryPolicy has a delay below 0"


def _attribute_problems(known: Mapping[str, Check], attributes: Mapping[str, str]) -> Iterator[str]:
    for name, value in attributes.items():
        check = known.get(name)
        shown = f"attribute {name[:_SHOWN]}={value[:_SHOWN]}"
        if check is None:
            yield f"{shown} is not known: {', '.join(sorted(known))} are"
            continue
        why = check(value)
        if why is not None:
            yield f"{shown} has no effect: {why}"
