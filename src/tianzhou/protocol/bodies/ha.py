"""Replication and sets of in-sync replicas (5.x)."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.route import BrokerMemberGroup
from tianzhou.protocol.integers import Int32, Int64

# -- replication ----------------------------------------------------------------------------------


class HAConnectionInfo(Body, frozen=True, kw_only=True):
    """A slave, as its master sees it."""

    addr: str | None = None
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_bytes_per_second: Int64 = field(default=0, name="transferredByteInSecond")
    transfer_from_where: Int64 = 0


class HAClientInfo(Body, frozen=True, kw_only=True):
    """The master, as its slave sees it."""

    master_addr: str | None = None
    transferred_bytes_per_second: Int64 = field(default=0, name="transferredByteInSecond")
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0


class HARuntimeInfo(Body, frozen=True, kw_only=True):
    """Response to GET_BROKER_HA_STATUS."""

    master: bool = False
    master_max_offset: Int64 = field(default=0, name="masterCommitLogMaxOffset")
    in_sync_slave_count: Int32 = field(default=0, name="inSyncSlaveNums")
    connections: list[HAConnectionInfo] = field(default=[], name="haConnectionInfo")
    client: HAClientInfo = field(default_factory=HAClientInfo, name="haClientRuntimeInfo")


class EpochEntry(Body, frozen=True, kw_only=True):
    """The stretch of the log that one master wrote."""

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


# -- controller -----------------------------------------------------------------------------------


class SyncStateSet(Body, frozen=True, kw_only=True):
    """Brokers whose logs are as long as the master's; by id, until 5.1.0 by address."""

    members: list[Int64 | str] | None = field(default=None, name="syncStateSet")
    epoch: Int32 = field(default=0, name="syncStateSetEpoch")


class ElectMasterBody(Body, frozen=True, kw_only=True):
    """Response to CONTROLLER_ELECT_MASTER."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[Int64 | str] | None = None


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
