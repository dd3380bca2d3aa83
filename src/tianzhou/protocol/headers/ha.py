"""Headers of broker groups, replication and the election of masters (5.x)."""

from tianzhou.protocol.headers.codec import Header
from tianzhou.protocol.integers import Int32, Int64


class NotifyMinBrokerIdChangeRequest(Header, frozen=True, kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE, nameserver to brokers: another broker acts as master."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeHAInfoRequest(Header, frozen=True, kw_only=True):
    """EXCHANGE_BROKER_HA_INFO."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHAInfoResponse(ExchangeHAInfoRequest, frozen=True, kw_only=True):
    """The same fields, of the other side."""


class ResetMasterFlushOffsetRequest(Header, frozen=True, kw_only=True):
    """RESET_MASTER_FLUSH_OFFSET."""

    master_flush_offset: Int64


class HelloRequest(Header, frozen=True, kw_only=True):
    """HA_HELLO, a slave to its master before it connects to the HA port."""

    cluster: str
    broker_name: str
    broker_id: Int64
    store_id: str
    """Random, made with the store: a slave whose disk was replaced has another."""
    end_offset: Int64
    """The end of the slave's log."""
    epochs: str
    """Entries "EPOCH-START" of its epoch file, separated by commas; empty for none."""
    log_file_bytes: Int64
    """mappedFileSizeCommitLog; master and slave need the same."""
    is_flushed: bool = False
    """The slave acknowledges what is on its disk (SYNC_FLUSH)."""
    version: str = ""
    tail_bytes: Int64 = 0
    """So many bytes at the end of the slave's log have the CRC-32 `tail_crc`; 0: not given."""
    tail_crc: Int64 = 0
    group: str | None = None
    """Of a slave whose master is elected, like the next two: the random id of its group."""
    incarnation: Int64 | None = None
    """Of the slave's process."""
    followed_epoch: Int64 | None = None
    """The largest epoch that it led or reported to."""


class HelloResponse(Header, frozen=True, kw_only=True):
    """The master's answer; a refusal is a response with another code and the reason."""

    token: str
    """Hexadecimal, for one connection within ten seconds; empty: the slave must cut its log first,
    as an elected master tells from the epochs."""
    ha_port: Int64
    epoch: Int64
    """The newest of `epochs`, which an elected master began with its election."""
    epochs: str
    end_offset: Int64
    first_offset: Int64
    log_file_bytes: Int64
    group: str | None = None
    """Of an elected master, like the next one."""
    confirm_offset: Int64 | None = None
    """Up to where every later master has the log."""
    ha_tls: str = "disabled"
    """Whether connections to the HA port begin with TLS: disabled, permissive or enforcing."""


class ChangeBrokerRoleRequest(Header, frozen=True, kw_only=True):
    """CHANGE_BROKER_ROLE: make a slave the master (`tianzhou broker promote`)."""

    role: str
    """ASYNC_MASTER or SYNC_MASTER."""
    force: bool = False
    """Even if the nameserver shows a living master."""


# -- elections -------------------------------------------------------------------------------------


class GroupCommandRequest(Header, frozen=True, kw_only=True):
    """HA_GROUP_COMMAND: what an operator asks of a group whose master is elected."""

    command: str
    """switch, pause, resume, retire, init, elect or resync."""
    replica_id: Int32 | None = None
    """The replica that is meant; switch: None for the best one."""
    accept_loss: bool = False
    """elect: without it no election is forced."""
    by: str = ""
    """Who asks, for the history of the group; the account, if there is one, comes first."""


class GroupCommandResponse(Header, frozen=True, kw_only=True):
    """The remark says what was done."""

    epoch: Int32 = 0
    master_id: Int32 | None = None
    master_address: str | None = None


class GetMetadataResponse(Header, frozen=True, kw_only=True):
    """CONTROLLER_GET_METADATA_INFO (5.x)."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class ElectMasterRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_ELECT_MASTER (5.x)."""

    cluster_name: str
    broker_name: str
    broker_id: Int64
    designate_elect: bool | None = None
    invoke_time: Int64 | None = None


class ElectMasterResponse(Header, frozen=True, kw_only=True):
    """CONTROLLER_ELECT_MASTER (5.x); the body that tools read is a `BrokerMemberGroup`."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


# -- tables ----------------------------------------------------------------------------------------


class TableRequest(Header, frozen=True, kw_only=True):
    """What a slave of Tianzhou adds to requests for tables (`tianzhou/ha/tables.py`)."""

    known_version: str | None = None
    """The `table_version` that it has; empty for none. Slaves of RocketMQ do not send it."""


class TableResponse(Header, frozen=True, kw_only=True):
    """What a master of Tianzhou adds to a table if the request has `known_version`.

    If the versions are equal the body is empty.
    """

    table_version: str | None = None
    """Any text; equal versions mean equal tables."""
    master_end_offset: Int64 | None = None
    """The end of the master's log, not before the table was read."""
    has_more: bool | None = None
    """Offsets only: further changes are requested with the `table_version` of this response."""
