"""What brokers say to the registry of a nameserver, and what it answers."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tianzhou.protocol.bodies.route import TopicQueueMappingInfo
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig

Address = tuple[str, str]
"""Cluster and address: what tells brokers apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """What a broker says of itself in every registration."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str
    zone: str | None = None
    acting_master: bool | None = None
    """Whether a slave may act as master; None from brokers before 5.0."""
    timeout_ms: int | None = None
    """After how long a silence the broker wants to be dropped, if it has a wish."""

    @property
    def address(self) -> Address:
        return (self.cluster, self.addr)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopics:
    """What a broker says of its topics; `filter_servers` None leaves those known as they are."""

    version: DataVersion
    topics: Mapping[str, TopicConfig]
    mappings: Mapping[str, TopicQueueMappingInfo]
    filter_servers: list[str] | None = None


# -- what comes out -------------------------------------------------------------------------------


class MinIdNotice(NamedTuple):
    """The lowest id of a group has changed; `targets` are the addresses to notify."""

    min_id: int
    min_addr: str
    offline_addr: str | None
    ha_addr: str | None
    targets: tuple[str, ...]


class Registered(NamedTuple):
    """The answer to a registration: where a slave finds its master, and whom to tell about it.

    An `ignored` broker has lost against another one that claims its id; a `new` one was unknown.
    `displaced` is the address of a broker that had the name and id until now, and still lives.
    """

    master_addr: str | None = None
    ha_addr: str | None = None
    notice: MinIdNotice | None = None
    ignored: bool = False
    new: bool = False
    displaced: str | None = None


class Dropped(NamedTuple):
    """A broker that is gone: closed or silent."""

    broker: BrokerIdentity
    connection: Hashable
    silent_ms: int
    notice: MinIdNotice | None
