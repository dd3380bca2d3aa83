"""Headers of consumer group administration."""

from msgspec import field

from tianzhou.protocol.headers.codec import Header, RpcHeader, TopicHeader
from tianzhou.protocol.integers import Int32


class DeleteSubscriptionGroupRequest(RpcHeader, frozen=True, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP. The wish to drop the offsets too has two names: 4.9's and 5.x's."""

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None


class GetAllSubscriptionGroupRequest(Header, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG; releases after 5.3 read the table in pages."""

    group_seq: Int32 | None = None
    """How many groups the pages before had."""
    data_version: str | None = None
    """JSON of the `DataVersion` of the first page; empty for the first page."""
    max_group_count: Int32 | None = field(default=None, name="maxGroupNum")


class GetAllSubscriptionGroupResponse(Header, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG, a page: how many groups all pages have together."""

    total_group_count: Int32 | None = field(default=None, name="totalGroupNum")


class GroupRequest(RpcHeader, frozen=True, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (5.x; the response is a `SubscriptionGroupConfig`) and
    QUERY_TOPICS_BY_CONSUMER (5.x; `TopicList`)."""

    group: str


class UpdateGroupForbiddenRequest(TopicHeader, frozen=True, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (5.x); the response is a `GroupForbidden`."""

    group: str
    topic: str
    readable: bool | None = None


class GetConsumeStatsRequest(TopicHeader, frozen=True, kw_only=True):
    """GET_CONSUME_STATS; the response is a `ConsumeStats`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    """Topics separated by semicolons (5.3)."""

    @property
    def listed_topics(self) -> list[str]:
        return [topic for topic in (self.topic_list or "").split(";") if topic]
