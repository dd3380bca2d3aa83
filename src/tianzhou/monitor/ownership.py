"""Which tenant a topic or consumer group belongs to. Pure functions.

    PAY_orders                 tenant PAY, if it exists
    %RETRY%PAY_billing         that of the group, like %DLQ%PAY_billing
    shop%PAY_orders            a namespace of 4.x does not count
    legacy-orders              the tenant that an administrator has assigned it to, or none
    TBW102, rmq_sys_...        none: system topics, which are the platform's

A name without a tenant belongs to the platform: only administrators see it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    INTERNAL_TOPIC_PREFIXES,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    is_internal_group,
)

_TENANT_CODE = re.compile(r"[A-Z][A-Z0-9]{1,15}", re.ASCII)
_POP_RETRY_SEPARATOR = "+"
"""Between the group and the topic in the retry topics of pop consumers (5.x)."""


def is_tenant_code(text: str) -> bool:
    """Whether a text may be the code of a tenant; the first underscore of a name ends its code."""
    return _TENANT_CODE.fullmatch(text) is not None


def owner_of(name: str, codes: Collection[str], assigned: Mapping[str, str]) -> str | None:
    """The code of the tenant that a topic or group belongs to, None for the platform.

    `codes` are the codes of all tenants; `assigned` maps names without prefix and namespace to the
    tenant that an administrator has given them to.
    """
    base = base_name(name)
    if is_of_the_platform(base):
        return None
    code, underscore, _ = base.partition("_")
    if underscore and code in codes:
        return code
    tenant = assigned.get(base)
    return tenant if tenant in codes else None


def base_name(name: str) -> str:
    """A name without the prefix of retry and dead-letter topics, and without its namespace."""
    prefix = prefix_of(name)
    base = name[len(prefix) :].rpartition("%")[2]
    # The older form, GROUP_TOPIC, is ambiguous: it could be the name of a group.
    return base.partition(_POP_RETRY_SEPARATOR)[0] if prefix else base


def prefix_of(name: str) -> str:
    """The prefix of a retry or dead-letter topic, else nothing."""
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix
    return ""


def is_of_the_platform(name: str) -> bool:
    """Whether a name is RocketMQ's own, whatever its prefix looks like."""
    return (
        name in SYSTEM_TOPICS
        or name.startswith(INTERNAL_TOPIC_PREFIXES)
        or name.endswith(REPLY_TOPIC_SUFFIX)
        or is_internal_group(name)
    )


@dataclass(frozen=True, slots=True)
class Ownership:
    """All that decides which tenant owns which name of one cluster."""

    codes: frozenset[str] = frozenset()
    topics: Mapping[str, str] = field(default_factory=dict[str, str])
    """Assigned topics: name to tenant."""
    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    """Assigned groups: name to tenant."""
    system: frozenset[str] = frozenset()
    """Topics that brokers create for themselves: the names of the cluster and its brokers."""

    def of_topic(self, name: str) -> str | None:
        """The tenant of a topic; that of a retry or dead-letter topic is the group's."""
        if prefix_of(name):
            return self.of_group(name)
        return None if name in self.system else owner_of(name, self.codes, self.topics)

    def of_group(self, name: str) -> str | None:
        """The tenant of a consumer group."""
        return owner_of(name, self.codes, self.groups)
