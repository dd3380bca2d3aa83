"""Headers of the controller of 5.x, which elects masters.

5.1.1 changed most of them: brokers got ids of their own choice instead of being known by address.
Fields of either side of that change are optional.
"""

from tianzhou.protocol.headers.codec import Header
from tianzhou.protocol.integers import Int32, Int64


class AlterSyncStateSetRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_ALTER_SYNC_STATE_SET; the body is a `SyncStateSet`."""

    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    """Until 5.1.0."""
    master_epoch: Int32 | None = None
    invoke_time: Int64 | None = None


class AlterSyncStateSetResponse(Header, frozen=True, kw_only=True):
    new_sync_state_set_epoch: Int32 = 0


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


class GetMetadataResponse(Header, frozen=True, kw_only=True):
    """CONTROLLER_GET_METADATA_INFO."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class GetReplicaInfoRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_GET_REPLICA_INFO."""

    broker_name: str | None = None
    broker_address: str | None = None
    """Until 5.1.0."""


class GetReplicaInfoResponse(Header, frozen=True, kw_only=True):
    """The body is a `SyncStateSet`."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    broker_id: Int64 | None = None
    """Until 5.1.0."""


class GetNextBrokerIdRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerIdResponse(Header, frozen=True, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdResponse(Header, frozen=True, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None


class RegisterBrokerToControllerRequest(Header, frozen=True, kw_only=True):
    """CONTROLLER_REGISTER_BROKER; what follows `invoke_time` was sent until 5.1.0."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    heartbeat_timeout_millis: Int64 | None = None
    confirm_offset: Int64 | None = None
    election_priority: Int32 | None = None


class RegisterBrokerToControllerResponse(Header, frozen=True, kw_only=True):
    """The body is a `SyncStateSet`."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    broker_id: Int64 | None = None
    """Until 5.1.0."""


class CleanControllerBrokerDataRequest(Header, frozen=True, kw_only=True):
    """CLEAN_BROKER_DATA."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    """Ids separated by semicolons; all of the broker name if absent."""
    broker_address: str | None = None
    """Until 5.1.0."""
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


# -- entries of a JRaft controller's log ----------------------------------------------------------


class BrokerCloseChannelRequest(Header, frozen=True, kw_only=True):
    """BROKER_CLOSE_CHANNEL_REQUEST."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None


class CheckNotActiveBrokerRequest(Header, frozen=True, kw_only=True):
    """CHECK_NOT_ACTIVE_BROKER_REQUEST."""

    check_time_millis: Int64 | None = None


class GetBrokerLiveInfoRequest(Header, frozen=True, kw_only=True):
    """GET_BROKER_LIVE_INFO_REQUEST."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None


class GetSyncStateDataRequest(Header, frozen=True, kw_only=True):
    """GET_SYNC_STATE_DATA_REQUEST."""

    invoke_time: Int64 | None = None


class RaftBrokerHeartbeatEventRequest(Header, frozen=True, kw_only=True):
    """RAFT_BROKER_HEART_BEAT_EVENT_REQUEST."""

    cluster_name_identity_info: str | None = None
    broker_name_identity_info: str | None = None
    broker_id_identity_info: Int64 | None = None
    broker_name: str | None = None
    broker_addr: str | None = None
    heartbeat_timeout_millis: Int64 | None = None
    broker_id: Int64 | None = None
    last_update_timestamp: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    election_priority: Int32 | None = None
