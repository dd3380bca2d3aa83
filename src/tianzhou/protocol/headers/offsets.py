"""Headers of offsets: of consumers, of queues, by time, and their reset."""

from msgspec import field

from tianzhou.protocol.headers.codec import GroupQueueHeader, Header, RpcHeader, TopicHeader
from tianzhou.protocol.integers import Int32, Int64

# -- of consumers ---------------------------------------------------------------------------------


class QueryConsumerOffsetRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """QUERY_CONSUMER_OFFSET."""

    set_zero_if_not_found: bool | None = None


class OffsetResponse(Header, frozen=True, kw_only=True):
    """Response to QUERY_CONSUMER_OFFSET, GET_MAX_OFFSET, GET_MIN_OFFSET and
    SEARCH_OFFSET_BY_TIMESTAMP."""

    queue_offset: Int64 = field(name="offset")


class UpdateConsumerOffsetRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """UPDATE_CONSUMER_OFFSET."""

    commit_offset: Int64


class CloneGroupOffsetRequest(RpcHeader, frozen=True, kw_only=True):
    """CLONE_GROUP_OFFSET: let one group start where another is."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetRequest(TopicHeader, frozen=True, kw_only=True):
    """QUERY_CORRECTION_OFFSET; the response is a `QueryCorrectionOffsetBody`."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class ResetOffsetRequest(TopicHeader, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET and, to consumers, RESET_CONSUMER_CLIENT_OFFSET."""

    topic: str
    group: str
    timestamp: Int64
    """Milliseconds; -1 for the end of the queue, -2 for its beginning."""
    is_force: bool
    queue_id: Int32 = -1
    """The only queue meant (5.x); -1 means all of them."""
    queue_offset: Int64 | None = field(default=None, name="offset")
    """Where to, instead of a time (5.x)."""


class GetConsumerStatusRequest(TopicHeader, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS and, to consumers, GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str
    client_addr: str | None = None


# -- of queues ------------------------------------------------------------------------------------


class QueueRequest(TopicHeader, frozen=True, kw_only=True):
    """GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class GetMaxOffsetRequest(QueueRequest, frozen=True, kw_only=True):
    """GET_MAX_OFFSET."""

    committed: bool = True
    """False to count messages that replicas may still lose (5.x); readers never see those here."""


class GetEarliestMsgStoretimeResponse(Header, frozen=True, kw_only=True):
    timestamp: Int64


class SearchOffsetRequest(QueueRequest, frozen=True, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    lite_topic: str | None = None
    timestamp: Int64
    boundary_type: str | None = None
    """LOWER (the default) or UPPER: which of several messages with that time (5.x)."""
