"""Reserved names of RocketMQ: topics, groups, prefixes, delay levels, permissions."""

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
"""Where messages for any moment wait (5.x)."""
RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"


def reply_topic(cluster: str) -> str:
    """Where the replies to requests of a cluster are kept."""
    return cluster + REPLY_TOPIC_SUFFIX


# -- nameserver --------------------------------------------------------------------------------

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""KV namespace in which the queue order of ordered topics is kept, one key per topic."""

MASTER_ID = 0

# -- permissions -------------------------------------------------------------------------------

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
