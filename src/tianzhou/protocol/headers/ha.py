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


class NotifyBrokerRoleChangedRequest(Header, frozen=True, kw_only=True):
    """NOTIFY_BROKER_ROLE_CHANGED, controller to brokers; the body is a `SyncStateSet`."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None
    broker_id: Int64 | None = None
    """Until 5.1.0: the id of the receiving broker."""


class ElectMasterRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_ELECT_MASTER."""

    cluster_name: str
    broker_name: str
    broker_id: Int64 | None = None
    broker_address: str | None = None
    """Until 5.1.0."""
    designate_elect: bool | None = None
    invoke_time: Int64 | None = None


class ElectMasterResponse(Header, frozen=True, kw_only=True):
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    new_master_address: str | None = None
    """Until 5.1.0."""
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
