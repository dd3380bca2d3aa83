"""Namespaces of 4.x: names of topics and groups with the tenant's name before them.

    orders            in namespace shop  ->  shop%orders
    %RETRY%billing    in namespace shop  ->  %RETRY%shop%billing

Reserved names belong to everybody and stay as they are. A name that carries the namespace already
is left alone, so wrapping twice does no harm.
"""

from tianzhou.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    CHECK_MAX_TOPIC,
    DLQ_TOPIC_PREFIX,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
)

SEPARATOR = "%"

_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_SYSTEM_TOPICS = frozenset((
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, HALF_OP_TOPIC,
    CHECK_MAX_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
))  # fmt: skip


def wrap(namespace: str, name: str) -> str:
    """The name of a topic or group as brokers know it."""
    if not namespace or not name or is_system(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{rest}"


def strip(namespace: str, name: str) -> str:
    """The name as programs of the namespace know it; names of other namespaces stay whole."""
    if not namespace or not name or is_system(name):
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + SEPARATOR)


def is_system(name: str) -> bool:
    """True for topics and groups that RocketMQ reserves for itself."""
    return name in _SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, _SYSTEM_GROUP_PREFIX))


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
