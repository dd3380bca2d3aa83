"""The state of replication as plain data, for requests, metrics and tools.

`Deps.replication_status` returns it, read when it is called.
"""

from dataclasses import dataclass, field

from tianzhou.broker.config import BrokerRole
from tianzhou.protocol.bodies.ha import FOLLOWING as FOLLOWING


@dataclass(frozen=True, slots=True)
class SlaveRow:
    """A slave, as its master sees it."""

    name: str
    """"id:1" for a broker of Tianzhou; the address without port for one of Apache's."""
    address: str
    """Where its connection comes from, host and port."""
    acknowledged: int
    """The log offset up to which it has the log."""
    behind_bytes: int
    behind_ms: int | None
    """How long the first byte that it lacks has been in the log; 0 if it lacks none, None if that
    is not known."""
    in_sync: bool
    """It counts for SYNC_MASTER."""
    bytes_per_second: int
    position: int
    """The log offset up to which the log was sent to it."""
    problem: str | None = None
    """Why it does not follow."""
    is_connected: bool = True
    """False for a slave that was refused of late. `behind_bytes` compares the end of its log then;
    below 0 it is ahead."""


@dataclass(frozen=True, slots=True)
class MasterRow:
    """The master, as its slave sees it."""

    address: str | None
    """Its listen address, if known."""
    ha_address: str | None
    """Its HA address; None while no master is known."""
    state: str
    """FOLLOWING, or what is done instead, in few words."""
    is_ours: bool
    """A broker of Tianzhou."""
    bytes_per_second: int
    master_end: int | None
    """The end of its log, if known."""
    behind_bytes: int | None
    last_read_ms: int
    """When the last byte arrived, in ms since 1970; 0 for never."""
    problem: str | None = None
    """Why the log is not followed."""
    last_write_ms: int = 0
    """When the last report was sent; 0 for never."""

    @property
    def is_following(self) -> bool:
        return self.state == FOLLOWING


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """A broker and the brokers that it is connected to."""

    role: BrokerRole
    end_offset: int
    """The end of its own log."""
    slaves: list[SlaveRow] = field(default_factory=list[SlaveRow])
    """Empty for a slave."""
    master: MasterRow | None = None
    """None for a master."""
    epoch: int = 0
    """Of the master of this log; 0 if none was ever promoted."""

    @property
    def connected_count(self) -> int:
        return sum(slave.is_connected for slave in self.slaves)

    @property
    def in_sync_count(self) -> int:
        return sum(slave.in_sync for slave in self.slaves)
