"""The state of replication, and sets of in-sync replicas (5.x).

Fields marked as Tianzhou's are absent in the responses of RocketMQ, whose tools ignore them.
"""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.integers import Int32, Int64

FOLLOWING = "following"
"""`HAClientInfo.state` of a slave that is connected and receives the log."""


class HAConnectionInfo(Body, frozen=True, kw_only=True):
    """A slave, as its master sees it."""

    addr: str | None = None
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_bytes_per_second: Int64 = field(default=0, name="transferredByteInSecond")
    transfer_from_where: Int64 = 0

    slave_name: str | None = None
    """Tianzhou's: "id:1", or the address without port of a slave of Apache's."""
    behind_ms: Int64 | None = None
    """Tianzhou's: how long the first byte that it lacks has been in the log."""
    problem: str | None = None
    """Tianzhou's: why it does not follow."""


class HAClientInfo(Body, frozen=True, kw_only=True):
    """The master, as its slave sees it."""

    master_addr: str | None = None
    """The HA address."""
    transferred_bytes_per_second: Int64 = field(default=0, name="transferredByteInSecond")
    max_offset: Int64 = 0
    """The end of the slave's log."""
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0

    broker_addr: str | None = None
    """Tianzhou's: the listen address of the master."""
    state: str | None = None
    """Tianzhou's: "following", or what is done instead."""
    is_tianzhou: bool | None = field(default=None, name="tianzhou")
    """Tianzhou's: the master is one of Tianzhou's."""
    master_max_offset: Int64 | None = None
    """Tianzhou's: the end of the master's log, if known."""
    behind_bytes: Int64 | None = None
    """Tianzhou's: the distance to it."""
    problem: str | None = None
    """Tianzhou's: why the slave does not follow."""


class HARuntimeInfo(Body, frozen=True, kw_only=True):
    """Response to GET_BROKER_HA_STATUS."""

    master: bool = False
    master_max_offset: Int64 = field(default=0, name="masterCommitLogMaxOffset")
    in_sync_slave_count: Int32 = field(default=0, name="inSyncSlaveNums")
    connections: list[HAConnectionInfo] = field(default=[], name="haConnectionInfo")
    client: HAClientInfo = field(default_factory=HAClientInfo, name="haClientRuntimeInfo")

    role: str | None = None
    """Tianzhou's: brokerRole."""
    epoch: Int64 | None = None
    """Tianzhou's: raised by each promotion; 0 before the first."""


class EpochEntry(Body, frozen=True, kw_only=True):
    """The part of the log that one master wrote."""

    epoch: Int32 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 2**63 - 1


class EpochEntryCache(Body, frozen=True, kw_only=True):
    """Response to GET_BROKER_EPOCH_CACHE."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 = 0
    epochs: list[EpochEntry] = field(default=[], name="epochList")
    max_offset: Int64 = 0


class ReplicaIdentity(Body, frozen=True, kw_only=True):
    """One replica."""

    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    alive: bool | None = None


class ReplicasInfo(Body, frozen=True, kw_only=True):
    """The replicas of one broker name."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    in_sync: list[ReplicaIdentity] | None = field(default=None, name="inSyncReplicas")
    not_in_sync: list[ReplicaIdentity] | None = field(default=None, name="notInSyncReplicas")


class BrokerReplicasInfo(Body, frozen=True, kw_only=True):
    """Response to CONTROLLER_GET_SYNC_STATE_DATA: replicas by broker name."""

    replicas: dict[str, ReplicasInfo] = field(default={}, name="replicasInfoTable")
