"""Arguments and results of the registry: registrations of brokers, and notices."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tianzhou.protocol.bodies.route import TopicQueueMappingInfo
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig

Address = tuple[str, str]
"""Cluster and address, which identify a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """How a broker describes itself in every registration."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str
    zone: str | None = None
    acting_master: bool | None = None
    """Whether a slave may act as master; None from brokers before 5.0."""
    timeout_ms: int | None = None
    """How long the broker may be silent before it is dropped; None for the default."""

    @property
    def address(self) -> Address:
        return (self.cluster, self.addr)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTopics:
    """The topics that a broker registers; `filter_servers` None leaves the known ones unchanged."""

    version: DataVersion
    topics: Mapping[str, TopicConfig]
    mappings: Mapping[str, TopicQueueMappingInfo]
    filter_servers: list[str] | None = None


# -- results --------------------------------------------------------------------------------------


class MinIdNotice(NamedTuple):
    """The lowest id of a group has changed; `targets` are the addresses to notify."""

    min_id: int
    min_addr: str
    offline_addr: str | None
    ha_addr: str | None
    targets: tuple[str, ...]


class Registered(NamedTuple):
    """The result of a registration: the master of a slave, and the notice to send, if any.

    An `ignored` broker has the id of another one with a higher state version, the `newer_version`;
    a `new` one was unknown. `displaced` is the address of a broker, still registered, that had the
    name and id.
    """

    master_addr: str | None = None
    ha_addr: str | None = None
    notice: MinIdNotice | None = None
    ignored: bool = False
    newer_version: int | None = None
    new: bool = False
    displaced: str | None = None


class Dropped(NamedTuple):
    """A broker that was removed: unregistered, disconnected or silent."""

    broker: BrokerIdentity
    connection: Hashable
    silent_ms: int
    notice: MinIdNotice | None
