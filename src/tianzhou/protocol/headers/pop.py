"""Headers of pop consumption (5.x): the broker manages the offsets and the messages in flight."""

from msgspec import field

from tianzhou.protocol.headers.codec import GroupQueueHeader, Header
from tianzhou.protocol.integers import Int32, Int64


class NotificationRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """NOTIFICATION: wait until there is something to pop; queue -1 means any queue."""

    poll_time_ms: Int64 = field(name="pollTime")
    born_time_ms: Int64 = field(name="bornTime")
    order: bool | None = None
    attempt_id: str | None = None
    expression_type: str | None = field(default=None, name="expType")
    expression: str | None = field(default=None, name="exp")


class PopMessageRequest(NotificationRequest, frozen=True, kw_only=True):
    """POP_MESSAGE: messages of any queue, hidden from others for `invisible_time_ms`."""

    max_msg_count: Int32 = field(name="maxMsgNums")
    invisible_time_ms: Int64 = field(name="invisibleTime")
    init_mode: Int32


class ChangeInvisibleTimeResponse(Header, frozen=True, kw_only=True):
    pop_time_ms: Int64 = field(name="popTime")
    invisible_time_ms: Int64 = field(name="invisibleTime")
    revive_queue_id: Int32 = field(name="reviveQid")


class PopMessageResponse(ChangeInvisibleTimeResponse, frozen=True, kw_only=True):
    """Response to POP_MESSAGE and PEEK_MESSAGE; the records are the body."""

    rest_count: Int64 = field(name="restNum")
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """ACK_MESSAGE; `extra_info` is the receipt handle that came with the message."""

    extra_info: str
    queue_offset: Int64 = field(name="offset")
    lite_topic: str | None = None


class ChangeInvisibleTimeRequest(AckMessageRequest, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    invisible_time_ms: Int64 = field(name="invisibleTime")
    suspend: bool = False


class PeekMessageRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """PEEK_MESSAGE: reads without hiding the messages."""

    max_msg_count: Int32 = field(name="maxMsgNums")


class NotificationResponse(Header, frozen=True, kw_only=True):
    has_msg: bool
    polling_full: bool = False


class PollingInfoRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """POLLING_INFO: how many requests wait for messages."""


class PollingInfoResponse(Header, frozen=True, kw_only=True):
    polling_count: Int32 = field(name="pollingNum")
