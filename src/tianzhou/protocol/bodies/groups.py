"""Consumer groups: their configuration and lists of them."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.integers import Int32, Int64


class ExponentialRetryPolicy(Body, frozen=True, kw_only=True):
    """Delays before redelivery that grow by a factor (5.x)."""

    initial_ms: Int64 = field(default=5_000, name="initial")
    max_ms: Int64 = field(default=7_200_000, name="max")
    multiplier: Int64 = 2


_DEFAULT_DELAYS_SECONDS = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip


class CustomizedRetryPolicy(Body, frozen=True, kw_only=True):
    """Delays before redelivery, one after the other (5.x)."""

    next_ms: list[Int64] = field(
        default_factory=lambda: [1000 * seconds for seconds in _DEFAULT_DELAYS_SECONDS],
        name="next",
    )


class GroupRetryPolicy(Body, frozen=True, kw_only=True):
    """EXPONENTIAL or CUSTOMIZED (5.x)."""

    kind: str = field(default="CUSTOMIZED", name="type")
    exponential: ExponentialRetryPolicy | None = field(default=None, name="exponentialRetryPolicy")
    customized: CustomizedRetryPolicy | None = field(default=None, name="customizedRetryPolicy")


class SimpleSubscription(Body, frozen=True, kw_only=True):
    """A subscription that the group is configured with (5.x)."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: Int64 = 0


class SubscriptionGroupConfig(Body, frozen=True, kw_only=True):
    """One consumer group on one broker: body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""

    group_name: str | None = None
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_orderly: bool | None = field(default=None, name="consumeMessageOrderly")
    retry_queue_count: Int32 = field(default=1, name="retryQueueNums")
    retry_max_times: Int32 = 16
    retry_policy: GroupRetryPolicy | None = field(default=None, name="groupRetryPolicy")
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 | None = None
    consume_timeout_minutes: Int32 | None = field(default=None, name="consumeTimeoutMinute")
    subscriptions: list[SimpleSubscription] | None = field(default=None, name="subscriptionDataSet")
    attributes: dict[str, str] | None = None


class SubscriptionGroupTable(Body, frozen=True, kw_only=True):
    """Response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    groups: dict[str, SubscriptionGroupConfig] = field(default={}, name="subscriptionGroupTable")
    forbidden: dict[str, dict[str, Int32]] | None = field(default=None, name="forbiddenTable")
    """Forbidden operations by group, then by topic (5.x)."""
    data_version: DataVersion = field(default_factory=DataVersion)


class SubscriptionGroupList(Body, frozen=True, kw_only=True):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (5.3)."""

    groups: list[SubscriptionGroupConfig] | None = field(default=None, name="groupConfigList")


class GroupForbidden(Body, frozen=True, kw_only=True):
    """Response to UPDATE_AND_GET_GROUP_FORBIDDEN (5.x)."""

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


class GroupList(Body, frozen=True, kw_only=True):
    """Names of groups."""

    groups: list[str] = field(default=[], name="groupList")


class QuerySubscriptionBody(Body, frozen=True, kw_only=True):
    """Response to QUERY_SUBSCRIPTION_BY_CONSUMER (5.x)."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None
