"""Options and arguments that many commands share: topic, group, cluster, broker, pattern."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef
from tianzhou.cli.shared.command import OptionGroup, Session
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import ConfigError
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    PERM_READ,
    PERM_WRITE,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    is_system_topic,
)

Topic = Annotated[str, argument("TOPIC", "The topic.", show_default=False)]
Group = Annotated[str, argument("GROUP", "The group.", show_default=False)]
TopicOption = Annotated[str | None, option("--topic, -t TOPIC", "Only this topic.")]
ClusterOption = Annotated[str | None, option("--cluster, -c NAME", "Only this cluster.")]
BrokerOption = Annotated[str | None, option("--broker, -b NAME|ADDR", "Only this broker.")]
Through = Annotated[
    str | None,
    option(
        "--through CLUSTER|TOPIC",
        "Use the brokers of this cluster or topic, for a topic without a route (LMQ).",
    ),
]
Pattern = Annotated[
    str | None, argument("[PATTERN]", "Only names that match: 'order*'.", show_default=False)
]
KeyPattern = Annotated[str | None, argument("[PATTERN]", "Only keys that match: 'flush*'.")]
Changes = Annotated[
    list[str] | None, option("--set KEY=VALUE", "Change a setting; may be repeated.")
]

_PERMS = {
    "r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE, "none": 0,
    "4": PERM_READ, "2": PERM_WRITE, "6": PERM_READ | PERM_WRITE,
}  # fmt: skip


async def masters(
    session: Session, cluster: str | None = None, broker: str | None = None
) -> list[BrokerRef]:
    """The masters of a cluster or with a broker name; all masters if neither is given."""
    return await session.admin.clusters.brokers(cluster=cluster, broker=broker, masters=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(OptionGroup):
    """The brokers of a command; all by default."""

    cluster: ClusterOption = None
    broker: BrokerOption = None

    async def masters(self, session: Session) -> list[BrokerRef]:
        return await masters(session, self.cluster, self.broker)


EVERYWHERE = Where()


async def resolve_brokers(
    session: Session, text: str, *, only_masters: bool = False
) -> list[BrokerRef]:
    """The brokers with this name or address, or those of the cluster with this name."""
    info = await session.admin.clusters.info()
    if text in info.clusters and text not in info.brokers:
        return choose(info, cluster=text, masters=only_masters)
    return choose(info, broker=text, masters=only_masters)


def parse_perm(text: str) -> int:
    """The permission bits of "rw", "r", "w", "none" or RocketMQ's number. Raises ConfigError."""
    try:
        return _PERMS[text.lower()]
    except KeyError:
        raise ConfigError(f"permission {text!r} is not one of: rw, r, w, none") from None


def kind_of_topic(name: str, clusters: Iterable[str] = (), brokers: Iterable[str] = ()) -> str:
    """normal, retry, dead letters or system."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if name.startswith(DLQ_TOPIC_PREFIX):
        return "dead letters"
    # A broker has a topic named like itself, one like its cluster, and one for replies.
    of_the_cluster = name in {*clusters, *brokers} or name.endswith(REPLY_TOPIC_SUFFIX)
    return "system" if is_system_topic(name) or of_the_cluster else "normal"


def matching_names(names: Iterable[str], pattern: str | None) -> list[str]:
    """The names that match a shell pattern, sorted."""
    return sorted(fnmatch.filter(names, pattern) if pattern else names)


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """Parse "key=value" texts. Raises ConfigError."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{text!r}: write KEY=VALUE")
        pairs[key.strip()] = value
    return pairs
