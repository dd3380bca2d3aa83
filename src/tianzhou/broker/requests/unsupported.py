"""Requests of RocketMQ that this broker does not serve, each with its reason.

The reason is part of the remark of the response, so it is written for the user of the command: what
is missing, and what to use instead if there is something.
"""

from collections.abc import Mapping

from tianzhou.protocol.codes import RequestCode

_ROCKSDB = "there is no RocksDB here, the store has RocketMQ's plain files only"
_STATIC = "there are no static topics here, queues belong to the broker that has them"
_CONTROLLER = "there is no RocketMQ controller here"
_CONTAINER = "there is no broker container here, each broker is a process of its own"
_TIMER = "timed messages are stored in one way here, without RocksDB"
_TIMER_COUNTS = (
    "timed messages are counted for all topics together here, see GET_BROKER_RUNTIME_INFO"
)
_NO_REPLICATION = "this version does not replicate"
_ACTING_MASTER = "no slave acts as a master here"
_ACL_5 = "users and policies of 5.x are not supported, access control uses plain_acl.yml"
_FILTER_SERVER = "RocketMQ has removed filter servers as well, use SQL92 filters"
_NAMESERVER = "a nameserver serves it, not a broker"
_CLIENT = "a client serves it, not a broker"
_NEVER = "no broker of RocketMQ 4.9 or later serves it either"
_LITE = "there are no lite topics here"

REFUSED: Mapping[int, str] = {
    **dict.fromkeys(
        (
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        ),
        _ROCKSDB,
    ),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _STATIC,
    **dict.fromkeys(
        (
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            RequestCode.CONTROLLER_GET_METADATA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.GET_BROKER_EPOCH_CACHE,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            RequestCode.UPDATE_CONTROLLER_CONFIG,
            RequestCode.GET_CONTROLLER_CONFIG,
            RequestCode.CLEAN_BROKER_DATA,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
            RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
            RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
            RequestCode.GET_SYNC_STATE_DATA_REQUEST,
            RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        ),
        _CONTROLLER,
    ),
    **dict.fromkeys((RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER), _CONTAINER),
    RequestCode.SWITCH_TIMER_ENGINE: _TIMER,
    RequestCode.GET_TIMER_METRICS: _TIMER_COUNTS,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _NO_REPLICATION,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _ACTING_MASTER,
    **dict.fromkeys(
        (
            RequestCode.AUTH_CREATE_USER,
            RequestCode.AUTH_UPDATE_USER,
            RequestCode.AUTH_DELETE_USER,
            RequestCode.AUTH_GET_USER,
            RequestCode.AUTH_LIST_USER,
            RequestCode.AUTH_CREATE_ACL,
            RequestCode.AUTH_UPDATE_ACL,
            RequestCode.AUTH_DELETE_ACL,
            RequestCode.AUTH_GET_ACL,
            RequestCode.AUTH_LIST_ACL,
        ),
        _ACL_5,
    ),
    **dict.fromkeys(
        (RequestCode.REGISTER_FILTER_SERVER, RequestCode.REGISTER_MESSAGE_FILTER_CLASS),
        _FILTER_SERVER,
    ),
    **dict.fromkeys(
        (
            RequestCode.POP_LITE_MESSAGE,
            RequestCode.LITE_SUBSCRIPTION_CTL,
            RequestCode.ACK_LITE_MESSAGE,
            RequestCode.GET_BROKER_LITE_INFO,
            RequestCode.GET_PARENT_TOPIC_INFO,
            RequestCode.GET_LITE_TOPIC_INFO,
            RequestCode.GET_LITE_CLIENT_INFO,
            RequestCode.GET_LITE_GROUP_INFO,
            RequestCode.TRIGGER_LITE_DISPATCH,
        ),
        _LITE,
    ),
    **dict.fromkeys(
        (
            RequestCode.PUT_KV_CONFIG,
            RequestCode.GET_KV_CONFIG,
            RequestCode.DELETE_KV_CONFIG,
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.GET_BROKER_CLUSTER_INFO,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            RequestCode.GET_TOPICS_BY_CLUSTER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            RequestCode.UPDATE_NAMESRV_CONFIG,
            RequestCode.GET_NAMESRV_CONFIG,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.GET_BROKER_MEMBER_GROUP,
            RequestCode.BROKER_HEARTBEAT,
        ),
        _NAMESERVER,
    ),
    **dict.fromkeys(
        (
            RequestCode.CHECK_TRANSACTION_STATE,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
        ),
        _CLIENT,
    ),
    **dict.fromkeys(
        (
            RequestCode.QUERY_BROKER_OFFSET,
            RequestCode.GET_TOPIC_CONFIG_LIST,
            RequestCode.GET_TOPIC_NAME_LIST,
            RequestCode.TRIGGER_DELETE_FILES,
            RequestCode.GET_CLIENT_CONFIG,
            RequestCode.SUSPEND_CONSUMER,
            RequestCode.RESUME_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
            RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
            RequestCode.ADJUST_CONSUMER_THREAD_POOL,
            RequestCode.WHO_CONSUME_THE_MESSAGE,
        ),
        _NEVER,
    ),
}
"""The reason for each request code."""
