"""Request and response codes of the remoting protocol: one table for RocketMQ 4.9 and 5.x.

The names are RocketMQ's own, so that they can be looked up in its documentation. A request number
has meant one thing in every release from 4.9.0 on; a few response numbers have not, and say so
where they stand. Codes that only previews of 5.0 knew are left out. Numbers not listed here are
legal on the wire: a server answers them with REQUEST_CODE_NOT_SUPPORTED, a client reports them as
they came.
"""

from enum import IntEnum


class RequestCode(IntEnum):
    """What a request asks for, ordered by number, cut by subject."""

    # -- messages, offsets, topics and clients; asked of a broker ---------------------------------
    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18  # 5.3
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39  # broker to producer
    NOTIFY_CONSUMER_IDS_CHANGED = 40  # broker to consumer
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47  # 5.0

    # -- access control of 4.9, gone in 5.3 -------------------------------------------------------
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54  # gone in 4.9.8 already

    # -- timer of 5.x -----------------------------------------------------------------------------
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61

    # -- nameserver -------------------------------------------------------------------------------
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106

    # -- administration ---------------------------------------------------------------------------
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205  # nameserver
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206  # nameserver
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216  # nameserver
    REGISTER_TOPIC_IN_NAMESRV = 217  # nameserver, 5.0
    GET_KVLIST_BY_NAMESPACE = 219  # nameserver
    RESET_CONSUMER_CLIENT_OFFSET = 220  # broker to consumer
    GET_CONSUMER_STATUS_FROM_CLIENT = 221  # broker to consumer
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224  # nameserver
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225  # 5.3
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304  # nameserver
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307  # also broker to consumer
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309  # also broker to consumer
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311  # nameserver
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312  # nameserver
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313  # nameserver
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318  # nameserver
    GET_NAMESRV_CONFIG = 319  # nameserver
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322  # nameserver
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326  # broker to client
    ADD_WRITE_PERM_OF_BROKER = 327  # nameserver
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343  # 5.0
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345  # 5.0
    GET_TOPIC_CONFIG = 351  # 5.0
    GET_SUBSCRIPTIONGROUP_CONFIG = 352  # 5.0
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353  # 5.0
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354  # 5.3
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355  # 5.3

    # -- consumption in 5.x -----------------------------------------------------------------------
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513

    # -- broker groups and replication in 5.x -----------------------------------------------------
    GET_BROKER_MEMBER_GROUP = 901  # nameserver
    ADD_BROKER = 902  # broker container
    REMOVE_BROKER = 903  # broker container
    BROKER_HEARTBEAT = 904  # nameserver and controller
    NOTIFY_MIN_BROKER_ID_CHANGE = 905  # nameserver to broker
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908

    # -- controller of 5.x ------------------------------------------------------------------------
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007  # asked of a broker
    NOTIFY_BROKER_ROLE_CHANGED = 1008  # controller to broker
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    # What a controller on JRaft writes to its own log.
    BROKER_CLOSE_CHANNEL_REQUEST = 1014
    CHECK_NOT_ACTIVE_BROKER_REQUEST = 1015
    GET_BROKER_LIVE_INFO_REQUEST = 1016
    GET_SYNC_STATE_DATA_REQUEST = 1017
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = 1018

    # -- cold data of 5.x -------------------------------------------------------------------------
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004

    # -- access control of 5.3 --------------------------------------------------------------------
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010

    SWITCH_TIMER_ENGINE = 5001  # after 5.3

    # -- pop consumption of 5.x; these do not fit the 16 bits of a binary header ------------------
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    POP_ROLLBACK = 200056

    # -- lite topics of 5.5 -----------------------------------------------------------------------
    POP_LITE_MESSAGE = 200070
    LITE_SUBSCRIPTION_CTL = 200071
    ACK_LITE_MESSAGE = 200072
    NOTIFY_UNSUBSCRIBE_LITE = 200073  # broker to client
    GET_BROKER_LITE_INFO = 200074
    GET_PARENT_TOPIC_INFO = 200075
    GET_LITE_TOPIC_INFO = 200076
    GET_LITE_CLIENT_INFO = 200077
    GET_LITE_GROUP_INFO = 200078
    TRIGGER_LITE_DISPATCH = 200079

    BATCH_ACK_MESSAGE = 200151

    # -- Tianzhou's own, between its brokers and its tools; others refuse them --------------------
    HA_HELLO = 770_001
    CHANGE_BROKER_ROLE = 770_002
    HA_GROUP = 770_003
    HA_GROUP_COMMAND = 770_004


class ResponseCode(IntEnum):
    """How a request ended.

    Where one number has two names the second is an alias, and the comment says who means what.
    """

    # -- never on the wire: 5.x reports a missing response to its own caller ----------------------
    RPC_TIME_OUT = -1006
    RPC_SEND_TO_CHANNEL_FAILED = -1004
    RPC_ADDR_IS_NULL = -1002
    RPC_UNKNOWN = -1000

    # -- any request ------------------------------------------------------------------------------
    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4

    # -- sending, pulling, subscribing ------------------------------------------------------------
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29  # 5.3

    # -- transactions, consumers ------------------------------------------------------------------
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    # 209, 210 and 211 answer pop and broker group requests in 5.x, access control requests in 4.9
    # and until 5.2: the request code decides which.
    POLLING_FULL = 209
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    POLLING_TIMEOUT = 210
    DELETE_ACL_CONFIG_FAILED = 210
    BROKER_NOT_EXIST = 211
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501  # static topics
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500  # the server is about to close this connection; sent to clients after 5.3.1 only

    # -- controller -------------------------------------------------------------------------------
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    # 5.0.0 and 5.1.0 numbered the next ones otherwise: 2010 ALTER_SYNC_STATE_SET_FAILED,
    # 2011 ELECT_MASTER_FAILED, 2012 REGISTER_BROKER_FAILED.
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016

    # -- lite topics of 5.5 -----------------------------------------------------------------------
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018

    # -- access control of 5.3 --------------------------------------------------------------------
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002
