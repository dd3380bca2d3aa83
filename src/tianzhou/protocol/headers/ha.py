"""Headers of broker groups and replication (5.x)."""

from tianzhou.protocol.headers.codec import Header
from tianzhou.protocol.integers import Int64


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
