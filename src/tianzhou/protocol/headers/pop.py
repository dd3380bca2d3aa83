"""Headers of pop consumption (5.x): the broker keeps the offsets and the messages in flight."""

from msgspec import field

from tianzhou.protocol.headers.codec import Header, TopicHeader
from tianzhou.protocol.integers import Int32, Int64


class PopMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """POP_MESSAGE: messages of any queue, hidden from others for `invisible_time_ms`."""

    consumer_group: str
    topic: str
    queue_id: Int32
    """-1 for any queue."""
    max_msg_count: Int32 = field(name="maxMsgNums")
    invisible_time_ms: Int64 = field(name="invisibleTime")
    poll_time_ms: Int64 = field(name="pollTime")
    born_time_ms: Int64 = field(name="bornTime")
    init_mode: Int32
    expression_type: str | None = field(default=None, name="expType")
    expression: str | None = field(default=None, name="exp")
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponse(Header, frozen=True, kw_only=True):
    """Response to POP_MESSAGE and PEEK_MESSAGE; the records are the body."""

    pop_time_ms: Int64 = field(name="popTime")
    invisible_time_ms: Int64 = field(name="invisibleTime")
    revive_queue_id: Int32 = field(name="reviveQid")
    rest_count: Int64 = field(name="restNum")
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """ACK_MESSAGE; `extra_info` is the receipt handle that came with the message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64 = field(name="offset")
    lite_topic: str | None = None


class ChangeInvisibleTimeRequest(TopicHeader, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64 = field(name="offset")
    invisible_time_ms: Int64 = field(name="invisibleTime")
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponse(Header, frozen=True, kw_only=True):
    pop_time_ms: Int64 = field(name="popTime")
    invisible_time_ms: Int64 = field(name="invisibleTime")
    revive_queue_id: Int32 = field(name="reviveQid")


class PeekMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """PEEK_MESSAGE: reads without hiding the messages."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_count: Int32 = field(name="maxMsgNums")


class NotificationRequest(TopicHeader, frozen=True, kw_only=True):
    """NOTIFICATION: wait until there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time_ms: Int64 = field(name="pollTime")
    born_time_ms: Int64 = field(name="bornTime")
    order: bool | None = None
    attempt_id: str | None = None
    expression_type: str | None = field(default=None, name="expType")
    expression: str | None = field(default=None, name="exp")


class NotificationResponse(Header, frozen=True, kw_only=True):
    has_msg: bool
    polling_full: bool = False


class PollingInfoRequest(TopicHeader, frozen=True, kw_only=True):
    """POLLING_INFO: how many requests wait for messages."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponse(Header, frozen=True, kw_only=True):
    polling_count: Int32 = field(name="pollingNum")
