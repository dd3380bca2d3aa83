"""Queues: their names, which are map keys, their entries, their locks and their consumers."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.integers import Int32, Int64


class MessageQueue(Body, frozen=True, kw_only=True):
    """The name of a queue in a cluster."""

    topic: str | None = None
    broker_name: str | None = None
    queue_id: Int32 = 0


# -- entries of a queue, for QUERY_CONSUME_QUEUE --------------------------------------------------


class ConsumeQueueData(Body, frozen=True, kw_only=True):
    """One entry of a queue, and whether a filter accepts it."""

    log_offset: Int64 = field(default=0, name="physicOffset")
    size_bytes: Int32 = field(default=0, name="physicSize")
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    matches: bool = field(default=False, name="eval")
    msg: str | None = None


class QueryConsumeQueueBody(Body, frozen=True, kw_only=True):
    """Response to QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    entries: list[ConsumeQueueData] | None = field(default=None, name="queueData")
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


# -- locks of orderly consumers -------------------------------------------------------------------


class QueueLockBody(Body, frozen=True, kw_only=True):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str | None = None
    client_id: str | None = None
    only_this_broker: bool | None = None
    """Whether the other replicas need not lock too (5.x)."""
    queues: list[MessageQueue] = field(default=[], name="mqSet")


class LockBatchResponseBody(Body, frozen=True, kw_only=True):
    """Queues that are locked now."""

    locked: list[MessageQueue] = field(default=[], name="lockOKMQSet")


# -- assignment and pop (5.x) ---------------------------------------------------------------------


class QueryAssignmentRequestBody(Body, frozen=True, kw_only=True):
    """Body of QUERY_ASSIGNMENT: which queues shall this client consume?"""

    topic: str | None = None
    consumer_group: str | None = None
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: str | None = None


class MessageQueueAssignment(Body, frozen=True, kw_only=True):
    """A queue to consume, by PULL or POP."""

    queue: MessageQueue | None = field(default=None, name="messageQueue")
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body, frozen=True, kw_only=True):
    """Response to QUERY_ASSIGNMENT."""

    assignments: list[MessageQueueAssignment] | None = field(
        default=None, name="messageQueueAssignments"
    )


class SetMessageRequestModeBody(Body, frozen=True, kw_only=True):
    """Body of SET_MESSAGE_REQUEST_MODE: whether a group pulls or pops a topic."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: str = "PULL"
    pop_share_queue_count: Int32 = field(default=0, name="popShareQueueNum")


class MessageRequestModeTable(Body, frozen=True, kw_only=True):
    """Response to GET_ALL_MESSAGE_REQUEST_MODE: modes by topic, then by group."""

    modes: dict[str, dict[str, SetMessageRequestModeBody]] = field(
        default={},
        name="messageRequestModeMap",
    )


class BatchAck(Body, frozen=True, kw_only=True):
    """Several acknowledgements of one pop; RocketMQ shortens the names."""

    consumer_group: str | None = field(default=None, name="c")
    topic: str | None = field(default=None, name="t")
    retry: str | None = field(default=None, name="r")
    start_offset: Int64 = field(default=0, name="so")
    queue_id: Int32 = field(default=0, name="q")
    revive_queue_id: Int32 = field(default=0, name="rq")
    pop_time_ms: Int64 = field(default=0, name="pt")
    invisible_time_ms: Int64 = field(default=0, name="it")
    bit_set: str | None = field(default=None, name="b")
    """Base64 of the bits of the offsets from `start_offset` on, lowest bit first."""


class BatchAckMessageBody(Body, frozen=True, kw_only=True):
    """Body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] | None = None
