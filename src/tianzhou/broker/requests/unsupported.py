"""Requests of RocketMQ that this broker does not serve, each with its reason.

The reason is part of the remark of the response, so it is written for the user of the command: what
is missing, and what to use instead if there is something.
"""

from collections.abc import Mapping

from tianzhou.protocol.codes import RequestCode

_CODES_BY_REASON: Mapping[str, str] = {
    "there is no RocksDB here, the store has RocketMQ's plain files only": (
        "CHECK_ROCKSDB_CQ_WRITE_PROGRESS EXPORT_ROCKSDB_CONFIG_TO_JSON"
    ),
    "there are no static topics here, queues belong to the broker that has them": (
        "UPDATE_AND_CREATE_STATIC_TOPIC"
    ),
    "there is no RocketMQ controller here": """
        CONTROLLER_ALTER_SYNC_STATE_SET CONTROLLER_REGISTER_BROKER CONTROLLER_GET_REPLICA_INFO
        NOTIFY_BROKER_ROLE_CHANGED UPDATE_CONTROLLER_CONFIG
        GET_CONTROLLER_CONFIG CLEAN_BROKER_DATA CONTROLLER_GET_NEXT_BROKER_ID
        CONTROLLER_APPLY_BROKER_ID BROKER_CLOSE_CHANNEL_REQUEST CHECK_NOT_ACTIVE_BROKER_REQUEST
        GET_BROKER_LIVE_INFO_REQUEST GET_SYNC_STATE_DATA_REQUEST
        RAFT_BROKER_HEART_BEAT_EVENT_REQUEST
    """,
    "there is no broker container here, each broker is a process of its own": (
        "ADD_BROKER REMOVE_BROKER"
    ),
    "timed messages are stored in one way here, without RocksDB": "SWITCH_TIMER_ENGINE",
    "no slave acts as a master here": "EXCHANGE_BROKER_HA_INFO NOTIFY_MIN_BROKER_ID_CHANGE",
    "users and policies of 5.x are not supported, access control uses plain_acl.yml": """
        AUTH_CREATE_USER AUTH_UPDATE_USER AUTH_DELETE_USER AUTH_GET_USER AUTH_LIST_USER
        AUTH_CREATE_ACL AUTH_UPDATE_ACL AUTH_DELETE_ACL AUTH_GET_ACL AUTH_LIST_ACL
    """,
    "RocketMQ has removed filter servers as well, use SQL92 filters": (
        "REGISTER_FILTER_SERVER REGISTER_MESSAGE_FILTER_CLASS"
    ),
    "there are no lite topics here": """
        POP_LITE_MESSAGE LITE_SUBSCRIPTION_CTL ACK_LITE_MESSAGE GET_BROKER_LITE_INFO
        GET_PARENT_TOPIC_INFO GET_LITE_TOPIC_INFO GET_LITE_CLIENT_INFO GET_LITE_GROUP_INFO
        TRIGGER_LITE_DISPATCH
    """,
    "a nameserver serves it, not a broker": """
        PUT_KV_CONFIG GET_KV_CONFIG DELETE_KV_CONFIG REGISTER_BROKER UNREGISTER_BROKER
        GET_ROUTEINFO_BY_TOPIC GET_BROKER_CLUSTER_INFO WIPE_WRITE_PERM_OF_BROKER
        ADD_WRITE_PERM_OF_BROKER GET_ALL_TOPIC_LIST_FROM_NAMESERVER DELETE_TOPIC_IN_NAMESRV
        REGISTER_TOPIC_IN_NAMESRV GET_KVLIST_BY_NAMESPACE GET_TOPICS_BY_CLUSTER
        GET_SYSTEM_TOPIC_LIST_FROM_NS GET_UNIT_TOPIC_LIST GET_HAS_UNIT_SUB_TOPIC_LIST
        GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST UPDATE_NAMESRV_CONFIG GET_NAMESRV_CONFIG
        QUERY_DATA_VERSION GET_BROKER_MEMBER_GROUP BROKER_HEARTBEAT
    """,
    "a client serves it, not a broker": """
        CHECK_TRANSACTION_STATE NOTIFY_CONSUMER_IDS_CHANGED RESET_CONSUMER_CLIENT_OFFSET
        GET_CONSUMER_STATUS_FROM_CLIENT PUSH_REPLY_MESSAGE_TO_CLIENT NOTIFY_UNSUBSCRIBE_LITE
    """,
    "no broker of RocketMQ 4.9 or later serves it either": """
        QUERY_BROKER_OFFSET GET_TOPIC_CONFIG_LIST GET_TOPIC_NAME_LIST TRIGGER_DELETE_FILES
        GET_CLIENT_CONFIG SUSPEND_CONSUMER RESUME_CONSUMER RESET_CONSUMER_OFFSET_IN_CONSUMER
        RESET_CONSUMER_OFFSET_IN_BROKER ADJUST_CONSUMER_THREAD_POOL WHO_CONSUME_THE_MESSAGE
    """,
}

REFUSED: Mapping[int, str] = {
    RequestCode[name]: why for why, names in _CODES_BY_REASON.items() for name in names.split()
}
"""The reason for each request code."""
