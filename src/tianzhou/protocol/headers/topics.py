"""Headers of topic administration."""

from msgspec import field

from tianzhou.protocol.headers.codec import Header, TopicHeader
from tianzhou.protocol.integers import Int32


class CreateTopicRequest(TopicHeader, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC and, with mappings as body, UPDATE_AND_CREATE_STATIC_TOPIC."""

    topic: str
    default_topic: str
    read_queue_count: Int32 = field(name="readQueueNums")
    write_queue_count: Int32 = field(name="writeQueueNums")
    perm: Int32
    filter_type: str = field(name="topicFilterType")
    topic_sys_flag: Int32 | None = None
    order: bool
    attributes: str | None = None
    """Changes of attributes, "+message.type=FIFO,-cleanup.policy" (5.x)."""
    force: bool | None = None


class TopicRequest(TopicHeader, frozen=True, kw_only=True):
    """DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG (5.x; the response is a `TopicConfigAndMapping`),
    GET_TOPIC_STATS_INFO (`TopicStatsTable`), QUERY_TOPIC_CONSUME_BY_WHO (`GroupList`), and
    REGISTER_TOPIC_IN_NAMESRV (5.x; the body is a `TopicRouteData` whose queues are added)."""

    topic: str


class GetAllTopicConfigRequest(Header, frozen=True, kw_only=True):
    """GET_ALL_TOPIC_CONFIG; releases after 5.3 read the table in pages, with these fields."""

    topic_seq: Int32 | None = None
    """How many topics the pages before had."""
    data_version: str | None = None
    """JSON of the `DataVersion` of the first page; empty for the first page."""
    max_topic_count: Int32 | None = field(default=None, name="maxTopicNum")


class GetAllTopicConfigResponse(Header, frozen=True, kw_only=True):
    """GET_ALL_TOPIC_CONFIG, a page: how many topics all pages have together."""

    total_topic_count: Int32 | None = field(default=None, name="totalTopicNum")


class QuerySubscriptionByConsumerRequest(TopicHeader, frozen=True, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (5.x); the response is a `QuerySubscriptionBody`."""

    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequest(TopicHeader, frozen=True, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN; the response is a `QueryConsumeTimeSpanBody`."""

    topic: str
    group: str
