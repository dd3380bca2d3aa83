"""Headers of sending: messages, batches, replies, messages sent back, transactions, recalls."""

from msgspec import field

from tianzhou.protocol.headers.codec import Header, RpcHeader, TopicHeader
from tianzhou.protocol.integers import Int32, Int64


class SendMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE; the body is the message's."""

    producer_group: str
    topic: str
    default_topic: str
    """Template for a topic that the broker has to create, usually TBW102."""
    default_topic_queue_count: Int32 = field(name="defaultTopicQueueNums")
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


class SendMessageRequestV2(TopicHeader, frozen=True, kw_only=True):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2: the same in single letters."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_count: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: Int32 | None = field(default=None, name="j")
    unit_mode: bool | None = field(default=None, name="k")
    max_reconsume_times: Int32 | None = field(default=None, name="l")
    batch: bool | None = field(default=None, name="m")
    broker_name: str | None = field(default=None, name="n")


class SendMessageResponse(Header, frozen=True, kw_only=True):
    """The message is stored; the response code reports weaker durability."""

    msg_id: str
    """Store host and log offset: what RocketMQ calls the offset message id."""
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = field(default=None, name="MSG_REGION")
    trace_on: bool | None = field(default=None, name="TRACE_ON")


class PushReplyMessageRequest(SendMessageRequest, frozen=True, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: a broker hands a reply to the producer that waits for it."""

    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


class ConsumerSendMsgBackRequest(RpcHeader, frozen=True, kw_only=True):
    """CONSUMER_SEND_MSG_BACK: deliver the message at this log offset again, later."""

    log_offset: Int64 = field(name="offset")
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


# -- transactions ---------------------------------------------------------------------------------


class EndTransactionRequest(RpcHeader, frozen=True, kw_only=True):
    """END_TRANSACTION: commit, roll back or leave open a half message."""

    topic: str | None = None
    producer_group: str
    queue_offset: Int64 = field(name="tranStateTableOffset")
    """Queue offset of the half message."""
    log_offset: Int64 = field(name="commitLogOffset")
    commit_or_rollback: Int32
    """The transaction bits of a sys flag: 8 commit, 12 roll back, 0 not known yet."""
    from_transaction_check: bool | None = None
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionStateRequest(RpcHeader, frozen=True, kw_only=True):
    """CHECK_TRANSACTION_STATE: a broker asks a producer; the body is the half message's record."""

    topic: str | None = None
    queue_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequest(Header, frozen=True, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE: check a half message again whose checks had ended."""

    topic: str | None = None
    msg_id: str | None = None


# -- recall (5.3) ---------------------------------------------------------------------------------


class RecallMessageRequest(TopicHeader, frozen=True, kw_only=True):
    """RECALL_MESSAGE: recall a delayed message."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponse(Header, frozen=True, kw_only=True):
    msg_id: str
    region_id: str | None = field(default=None, name="MSG_REGION")
