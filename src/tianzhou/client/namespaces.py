"""Namespaces of 4.x: a prefix of the names of topics and groups, one per tenant.

    orders            in namespace shop  ->  shop%orders
    %RETRY%billing    in namespace shop  ->  %RETRY%shop%billing

Reserved names have no namespace. Wrapping is idempotent: a name that has the prefix is unchanged.
"""

from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)

SEPARATOR = "%"


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
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
