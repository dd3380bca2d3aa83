"""Headers of pulling, queue locks, assignment and queries for messages."""

from msgspec import field

from tianzhou.protocol.headers.codec import Header, TopicHeader
from tianzhou.protocol.integers import Int32, Int64


class PullMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    lite_topic: str | None = None
    queue_id: Int32
    queue_offset: Int64
    max_msg_count: Int32 = field(name="maxMsgNums")
    sys_flag: Int32
    """Bits: 1 commit offset, 2 may be held, 4 subscription is in the header, 8 class filter."""
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    # RocketMQ misspells this one.
    proxy_forward_client_id: str | None = field(default=None, name="proxyFrowardClientId")


class PullMessageResponse(Header, frozen=True, kw_only=True):
    """The records, if there are any, are the body."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    """To add to the queue offsets in the records; they are another queue's (static topics)."""
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


# -- queries for messages -------------------------------------------------------------------------


class QueryMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """QUERY_MESSAGE: messages by key; the answer's body holds their records."""

    topic: str
    key: str
    max_count: Int32 = field(name="maxNum")
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None
    unique_key: bool | None = field(default=None, name="_UNIQUE_KEY_QUERY")
    """Whether `key` is a unique key made by a producer, not a key of the user."""


class QueryMessageResponse(Header, frozen=True, kw_only=True):
    index_last_update_timestamp: Int64
    index_last_update_log_offset: Int64 = field(name="indexLastUpdatePhyoffset")


class ViewMessageRequest(Header, frozen=True, kw_only=True):
    """VIEW_MESSAGE_BY_ID: the record at one place of the log."""

    topic: str | None = None
    log_offset: Int64 = field(name="offset")


class QueryConsumeQueueRequest(TopicHeader, frozen=True, kw_only=True):
    """QUERY_CONSUME_QUEUE: raw queue entries, for `mqadmin queryCq`."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
