"""The state of replication (5.x)."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.integers import Int32, Int64


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
