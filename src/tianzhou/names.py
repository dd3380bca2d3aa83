"""Reserved names of RocketMQ: topics, groups, prefixes, delay levels, permissions.

The lists of system topics are here and nowhere else.
"""

# -- topics ------------------------------------------------------------------------------------

AUTO_CREATE_TOPIC = "TBW102"
"""Template topic: a broker that lists it creates unknown topics from it."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"

SYSTEM_TOPIC_PREFIX = "rmq_sys_"
TIMER_TOPIC = SYSTEM_TOPIC_PREFIX + "wheel_timer"
"""Holds messages with a delivery time until they are due (5.x)."""
RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"


SYSTEM_TOPICS = frozenset((
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, HALF_OP_TOPIC,
    CHECK_MAX_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
))  # fmt: skip
"""System topics with a fixed name; requests cannot create, change or delete them."""
UNSENDABLE_TOPICS = frozenset((
    SCHEDULE_TOPIC, HALF_TOPIC, HALF_OP_TOPIC, CHECK_MAX_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
    TIMER_TOPIC,
))  # fmt: skip
"""Topics that clients cannot send to."""
INTERNAL_TOPIC_PREFIXES = (SYSTEM_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX.upper())
"""Prefixes of topics that hold messages of other topics, or data of the broker."""


def is_system_topic(topic: str) -> bool:
    """Whether the topic is one of RocketMQ's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def reply_topic(cluster: str) -> str:
    """The topic that holds the replies of a cluster's request-reply messages."""
    return cluster + REPLY_TOPIC_SUFFIX


# -- groups ------------------------------------------------------------------------------------

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_INTERNAL_GROUPS = frozenset((
    "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER",
    "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_C_GROUP", "SELF_TEST_P_GROUP",
    "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL",
    "CID_SYS_RMQ_TRANS", "CID_DefaultHeartBeatSyncerTopic",
))  # fmt: skip


def is_internal_group(group: str) -> bool:
    """Whether a group belongs to RocketMQ's own brokers and tools, so that tools hide it."""
    return group in _INTERNAL_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


# -- nameserver --------------------------------------------------------------------------------

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""KV namespace of the queue order of ordered topics, one key per topic."""

MASTER_ID = 0

# -- permissions -------------------------------------------------------------------------------

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
