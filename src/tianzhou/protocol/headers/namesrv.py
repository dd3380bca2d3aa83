"""Headers of requests to the nameserver: brokers, routes, write permission, KV configuration."""

import msgspec

from tianzhou.protocol.headers.codec import Header, TopicHeader
from tianzhou.protocol.integers import Int32, Int64

# -- brokers --------------------------------------------------------------------------------------


class BrokerRequest(Header, frozen=True, kw_only=True):
    """UNREGISTER_BROKER, and QUERY_DATA_VERSION: is a registration needed? (The body is the
    broker's `DataVersion`.)"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBrokerRequest(BrokerRequest, frozen=True, kw_only=True):
    """REGISTER_BROKER, sent every 30 seconds; the body is a `RegisterBrokerBody`."""

    ha_server_addr: str
    heartbeat_timeout_millis: Int64 | None = None
    """After how long a silence the nameserver drops this broker (5.x)."""
    enable_acting_master: bool | None = None
    compressed: bool = False
    """Whether the body is in the binary form."""
    body_crc32: Int32 | None = None
    """CRC-32 of the body with the top bit cleared; 0 and None mean unchecked."""
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponse(Header, frozen=True, kw_only=True):
    """Where the master is; None for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    state_version: Int64 | None = None
    """Of the broker for which this registration was ignored (Tianzhou's)."""


class BrokerHeartbeatRequest(Header, frozen=True, kw_only=True):
    """BROKER_HEARTBEAT, to the nameserver (first four fields) and to the controller."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    # RocketMQ misspells this one.
    heartbeat_timeout_millis: Int64 | None = msgspec.field(
        default=None, name="heartbeatTimeoutMills"
    )
    election_priority: Int32 | None = None


class QueryDataVersionResponse(Header, frozen=True, kw_only=True):
    """The body holds the nameserver's `DataVersion` if it has one."""

    changed: bool


class GetBrokerMemberGroupRequest(Header, frozen=True, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (5.x); the response is a `BrokerMemberGroup`."""

    cluster_name: str
    broker_name: str


class BrokerNameRequest(Header, frozen=True, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class WipeWritePermResponse(Header, frozen=True, kw_only=True):
    wipe_topic_count: Int32


class AddWritePermResponse(Header, frozen=True, kw_only=True):
    add_topic_count: Int32


# -- routes and topics ----------------------------------------------------------------------------


class GetRouteInfoRequest(TopicHeader, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC; the response is a `TopicRouteData`."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")
    """Own zone of a 5.x client in zone mode: it wants the brokers of that zone only."""
    zone_mode: bool | None = msgspec.field(default=None, name="__ZONE_MODE")


class GetTopicsByClusterRequest(Header, frozen=True, kw_only=True):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class DeleteTopicFromNamesrvRequest(TopicHeader, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV; without a cluster the topic goes everywhere."""

    topic: str
    cluster_name: str | None = None


# -- KV configuration -----------------------------------------------------------------------------


class GetKVListRequest(Header, frozen=True, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE; the response is a `KVTable`."""

    namespace: str


class KVConfigRequest(GetKVListRequest, frozen=True, kw_only=True):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    key: str


class PutKVConfigRequest(KVConfigRequest, frozen=True, kw_only=True):
    """PUT_KV_CONFIG."""

    value: str


class GetKVConfigResponse(Header, frozen=True, kw_only=True):
    value: str | None = None
