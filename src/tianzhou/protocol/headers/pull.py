"""Headers of pulling, queue locks, assignment and queries for messages."""

from msgspec import field

from tianzhou.protocol.filter.tags import TAG_TYPE
from tianzhou.protocol.headers.codec import GroupQueueHeader, Header, TopicHeader
from tianzhou.protocol.integers import Int32, Int64

COMMIT_OFFSET, MAY_SUSPEND, HAS_SUBSCRIPTION = 1, 2, 4
"""Bits of the system flag of a pull."""


class PullMessageRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    lite_topic: str | None = None
    queue_offset: Int64
    max_msg_count: Int32 = field(name="maxMsgNums")
    sys_flag: Int32
    """COMMIT_OFFSET, MAY_SUSPEND, HAS_SUBSCRIPTION; 8 is the class filter of old releases."""
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    # RocketMQ misspells this one.
    proxy_forward_client_id: str | None = field(default=None, name="proxyFrowardClientId")


def pull_request(
    *,
    group: str,
    topic: str,
    queue_id: int,
    queue_offset: int,
    max_count: int,
    max_bytes: int | None = None,
    suspend_ms: int = 0,
    commit_offset: int | None = None,
    expression: str | None = None,
    expression_type: str | None = TAG_TYPE,
    sub_version: int = 0,
    broker_name: str | None = None,
) -> PullMessageRequest:
    """The header of a pull.

    `suspend_ms` over 0 lets the broker park the request until a message arrives. `commit_offset`
    commits the progress of the group. `expression` is the filter; without one the broker uses the
    subscription of the group's heartbeat.
    """
    return PullMessageRequest(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_count=max_count,
        max_msg_bytes=max_bytes,
        sys_flag=(
            (COMMIT_OFFSET if commit_offset is not None else 0)
            | (MAY_SUSPEND if suspend_ms else 0)
            | (HAS_SUBSCRIPTION if expression is not None else 0)
        ),
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms,
        subscription=expression,
        sub_version=sub_version,
        expression_type=expression_type,
        target_broker=broker_name,
    )


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
    """QUERY_MESSAGE: messages by key; the body of the response holds their records."""

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
    """VIEW_MESSAGE_BY_ID: the record at one log offset."""

    topic: str | None = None
    log_offset: Int64 = field(name="offset")


class QueryConsumeQueueRequest(TopicHeader, frozen=True, kw_only=True):
    """QUERY_CONSUME_QUEUE: raw queue entries, for `mqadmin queryCq`."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
