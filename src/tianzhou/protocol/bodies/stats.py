"""Statistics: of topics, of groups, of brokers, of timers."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.integers import Int64

# -- topics and groups ----------------------------------------------------------------------------


class TopicOffset(Body, frozen=True, kw_only=True):
    """The extent of a queue."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(Body, frozen=True, kw_only=True):
    """Response to GET_TOPIC_STATS_INFO."""

    offsets: dict[MessageQueue, TopicOffset] = field(default={}, name="offsetTable")
    put_tps: float | None = field(default=None, name="topicPutTps")


class ConsumeOffsets(Body, frozen=True, kw_only=True):
    """How far a group is in a queue."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 | None = None
    last_timestamp: Int64 = 0


class ConsumeStats(Body, frozen=True, kw_only=True):
    """Response to GET_CONSUME_STATS."""

    offsets: dict[MessageQueue, ConsumeOffsets] = field(default={}, name="offsetTable")
    consume_tps: float = 0.0


class ConsumeStatsList(Body, frozen=True, kw_only=True):
    """Response to GET_BROKER_CONSUME_STATS: each element maps groups to their statistics."""

    stats: list[dict[str, list[ConsumeStats]]] = field(default=[], name="consumeStatsList")
    broker_addr: str | None = None
    total_diff: Int64 = 0
    total_inflight_diff: Int64 | None = None


class QueueTimeSpan(Body, frozen=True, kw_only=True):
    """Times of the messages in a queue, and of the one a group is at.

    The three texts repeat the times for people, as "2024-01-31#23:59:59:999" in the zone of the
    broker; readers ignore them.
    """

    queue: MessageQueue | None = field(default=None, name="messageQueue")
    min_timestamp: Int64 = field(default=0, name="minTimeStamp")
    min_timestamp_text: str | None = field(default=None, name="minTimeStampStr")
    max_timestamp: Int64 = field(default=0, name="maxTimeStamp")
    max_timestamp_text: str | None = field(default=None, name="maxTimeStampStr")
    consume_timestamp: Int64 = field(default=0, name="consumeTimeStamp")
    consume_timestamp_text: str | None = field(default=None, name="consumeTimeStampStr")
    delay_time_ms: Int64 = field(default=0, name="delayTime")


class QueryConsumeTimeSpanBody(Body, frozen=True, kw_only=True):
    """Response to QUERY_CONSUME_TIME_SPAN."""

    spans: list[QueueTimeSpan] = field(default=[], name="consumeTimeSpanSet")


# -- brokers --------------------------------------------------------------------------------------


class BrokerStatsItem(Body, frozen=True, kw_only=True):
    """Sum, rate and mean of one statistic over some time."""

    sum: Int64 = 0
    tps: float = 0.0
    average: float = field(default=0.0, name="avgpt")


class BrokerStatsData(Body, frozen=True, kw_only=True):
    """Response to VIEW_BROKER_STATS_DATA."""

    minute: BrokerStatsItem | None = field(default=None, name="statsMinute")
    hour: BrokerStatsItem | None = field(default=None, name="statsHour")
    day: BrokerStatsItem | None = field(default=None, name="statsDay")


class ColdReadAccount(Body, frozen=True, kw_only=True):
    """Cold reads of a group."""

    cold_acc: Int64 = 0
    last_cold_read_time_ms: Int64 = field(default=0, name="lastColdReadTimeMills")
    create_time_ms: Int64 = field(default=0, name="createTimeMills")


class ColdDataFlowInfo(Body, frozen=True, kw_only=True):
    """Response to GET_COLD_DATA_FLOW_CTR_INFO (5.x)."""

    runtime: dict[str, ColdReadAccount] = field(default={}, name="runtimeTable")
    thresholds: dict[str, Int64] = field(default={}, name="configTable")
    group_threshold: Int64 = field(default=0, name="cgColdReadThreshold")
    global_threshold: Int64 = field(default=0, name="globalColdReadThreshold")
    global_acc: Int64 = 0


class TimerMetric(Body, frozen=True, kw_only=True):
    """Pending timed messages of a topic."""

    count: Int64 = 0
    changed_ms: Int64 = field(default=0, name="timeStamp")


class TimerMetricsTable(Body, frozen=True, kw_only=True):
    """Response to GET_TIMER_METRICS (5.x): by topic."""

    timing_count: dict[str, TimerMetric] = field(default={})
    data_version: DataVersion = field(default_factory=DataVersion)
