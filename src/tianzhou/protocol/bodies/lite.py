"""Lite topics (5.5): many small topics inside one."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.stats import ConsumeOffsets, TopicOffset
from tianzhou.protocol.integers import Int32, Int64


class OffsetOption(Body, frozen=True, kw_only=True):
    """Where a new subscription starts."""

    kind: str | None = field(default=None, name="type")
    value: Int64 = 0


class LiteSubscription(Body, frozen=True, kw_only=True):
    """A change of the lite topics that a client consumes."""

    action: str | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topics: list[str] | None = field(default=None, name="liteTopicSet")
    offset_option: OffsetOption | None = None
    version: Int64 = 0


class LiteSubscriptionCtlBody(Body, frozen=True, kw_only=True):
    """Body of LITE_SUBSCRIPTION_CTL."""

    subscriptions: list[LiteSubscription] | None = field(default=None, name="subscriptionSet")


class BrokerLiteInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_LITE_INFO."""

    store_type: str | None = None
    max_lmq_count: Int32 = field(default=0, name="maxLmqNum")
    current_lmq_count: Int32 = field(default=0, name="currentLmqNum")
    lite_subscription_count: Int32 = 0
    order_info_count: Int32 = 0
    cq_table_size: Int32 = 0
    offset_table_size: Int32 = 0
    event_map_size: Int32 = 0
    topic_meta: dict[str, Int32] | None = None
    group_meta: dict[str, list[str]] | None = None


class ParentTopicInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_PARENT_TOPIC_INFO."""

    topic: str | None = None
    ttl: Int32 = 0
    groups: list[str] | None = None
    lmq_count: Int32 = field(default=0, name="lmqNum")
    lite_topic_count: Int32 = 0


class ClientGroup(Body, frozen=True, kw_only=True):
    """A client and the group it is in."""

    client_id: str | None = None
    group: str | None = None


class LiteTopicInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_LITE_TOPIC_INFO."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscribers: list[ClientGroup] | None = field(default=None, name="subscriber")
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = False


class LiteClientInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_LITE_CLIENT_INFO."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time_ms: Int64 = field(default=0, name="lastAccessTime")
    last_consume_time_ms: Int64 = field(default=0, name="lastConsumeTime")
    lite_topic_count: Int32 = 0
    lite_topics: list[str] | None = field(default=None, name="liteTopicSet")


class LiteLag(Body, frozen=True, kw_only=True):
    """How far a group is behind in one lite topic."""

    lite_topic: str | None = None
    lag_count: Int64 = 0
    earliest_unconsumed_timestamp: Int64 = -1


class LiteGroupInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_LITE_GROUP_INFO."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: Int64 = -1
    total_lag_count: Int64 = 0
    offsets: ConsumeOffsets | None = field(default=None, name="liteTopicOffsetWrapper")
    largest_lags: list[LiteLag] | None = field(default=None, name="lagCountTopK")
    oldest_lags: list[LiteLag] | None = field(default=None, name="lagTimestampTopK")
