"""Heartbeats, connections and status reports of clients."""

from msgspec import field
from msgspec.structs import force_setattr

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.integers import Int32, Int64

CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
BROADCASTING = "BROADCASTING"
MESSAGE_MODELS = (BROADCASTING, "CLUSTERING", "LITE_SELECTIVE")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)

# -- heartbeats -----------------------------------------------------------------------------------


class ProducerData(Body, frozen=True, kw_only=True):
    """A producer group that has a member in the client."""

    group_name: str | None = None


class ConsumerData(Body, frozen=True, kw_only=True):
    """A consumer group that has a member in the client.

    The three choices are names; clients in C++ send their ordinals, which are turned into names.
    """

    group_name: str | None = None
    consume_type: str | int | None = None
    message_model: str | int | None = None
    consume_from_where: str | int | None = None
    subscriptions: list[SubscriptionData] = field(default=[], name="subscriptionDataSet")
    unit_mode: bool = False

    def __post_init__(self) -> None:
        for attribute, names in _CHOICES:
            ordinal = getattr(self, attribute)
            if isinstance(ordinal, int) and 0 <= ordinal < len(names):
                force_setattr(self, attribute, names[ordinal])


_CHOICES = (
    ("consume_type", CONSUME_TYPES),
    ("message_model", MESSAGE_MODELS),
    ("consume_from_where", CONSUME_FROM_WHERE),
)


class HeartbeatData(Body, frozen=True, kw_only=True):
    """Body of HEART_BEAT, every 30 seconds."""

    client_id: str | None = field(default=None, name="clientID")
    producers: list[ProducerData] = field(default=[], name="producerDataSet")
    consumers: list[ConsumerData] = field(default=[], name="consumerDataSet")
    fingerprint: Int32 | None = field(default=None, name="heartbeatFingerprint")
    """Hash of the whole heartbeat (5.x)."""
    without_subscriptions: bool | None = field(default=None, name="withoutSub")
    """Whether the subscriptions are left out, since nothing has changed (5.x)."""


class CheckClientBody(Body, frozen=True, kw_only=True):
    """Body of CHECK_CLIENT_CONFIG: does the broker accept this subscription?"""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class ConsumerIdList(Body, frozen=True, kw_only=True):
    """Response to GET_CONSUMER_LIST_BY_GROUP: the client ids of a group."""

    consumer_ids: list[str] | None = field(default=None, name="consumerIdList")


# -- connections ----------------------------------------------------------------------------------


class Connection(Body, frozen=True, kw_only=True):
    """A connected client."""

    client_id: str | None = None
    client_addr: str | None = None
    language: str | None = None
    version: Int32 = 0


class SubscriptionDifference(Body, frozen=True, kw_only=True):
    """Two members of a group that subscribe differently to a topic (Tianzhou's)."""

    topic: str | None = None
    client_id: str | None = None
    subscribes: str | None = None
    """For a person: "by TAG 'a || b'", "not at all"."""
    other_client_id: str | None = None
    other_subscribes: str | None = None


class ConsumerConnection(Body, frozen=True, kw_only=True):
    """Response to GET_CONSUMER_CONNECTION_LIST."""

    connections: list[Connection] = field(default=[], name="connectionSet")
    subscriptions: dict[str, SubscriptionData] = field(default={}, name="subscriptionTable")
    """By topic."""
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    differences: list[SubscriptionDifference] | None = field(
        default=None, name="subscriptionDifferences"
    )
    """Differences between the members' subscriptions, if there are any; only Tianzhou sends it."""


class ProducerConnection(Body, frozen=True, kw_only=True):
    """Response to GET_PRODUCER_CONNECTION_LIST."""

    connections: list[Connection] = field(default=[], name="connectionSet")


class ProducerInfo(Body, frozen=True, kw_only=True):
    """A connected producer."""

    client_id: str | None = None
    remote_ip: str | None = field(default=None, name="remoteIP")
    language: str | None = None
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTableInfo(Body, frozen=True, kw_only=True):
    """Response to GET_ALL_PRODUCER_INFO: producers by group."""

    data: dict[str, list[ProducerInfo]] | None = None


# -- status of a consumer -------------------------------------------------------------------------


class ProcessQueueInfo(Body, frozen=True, kw_only=True):
    """A queue in a push consumer."""

    commit_offset: Int64 = 0
    cached_min_offset: Int64 = field(default=0, name="cachedMsgMinOffset")
    cached_max_offset: Int64 = field(default=0, name="cachedMsgMaxOffset")
    cached_count: Int32 = field(default=0, name="cachedMsgCount")
    cached_size_mib: Int32 = field(default=0, name="cachedMsgSizeInMiB")
    transaction_min_offset: Int64 = field(default=0, name="transactionMsgMinOffset")
    transaction_max_offset: Int64 = field(default=0, name="transactionMsgMaxOffset")
    transaction_count: Int32 = field(default=0, name="transactionMsgCount")
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    # RocketMQ misspells this one.
    dropped: bool = field(default=False, name="droped")
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class PopProcessQueueInfo(Body, frozen=True, kw_only=True):
    """A queue in a pop consumer (5.x)."""

    wait_ack_count: Int32 = 0
    dropped: bool = field(default=False, name="droped")
    last_pop_timestamp: Int64 = 0


class ConsumeStatus(Body, frozen=True, kw_only=True):
    """Rates and times of one topic in a consumer."""

    pull_ms: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_ms: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_count: Int64 = field(default=0, name="consumeFailedMsgs")


class ConsumerRunningInfo(Body, frozen=True, kw_only=True):
    """A consumer's response to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str] = field(default={})
    subscriptions: list[SubscriptionData] = field(default=[], name="subscriptionSet")
    queues: dict[MessageQueue, ProcessQueueInfo] = field(default={}, name="mqTable")
    pop_queues: dict[MessageQueue, PopProcessQueueInfo] | None = field(
        default=None, name="mqPopTable"
    )
    statuses: dict[str, ConsumeStatus] = field(default={}, name="statusTable")
    """By topic."""
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body, frozen=True, kw_only=True):
    """A consumer's response to CONSUME_MESSAGE_DIRECTLY."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    """CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL."""
    remark: str | None = None
    spent_time_ms: Int64 = field(default=0, name="spentTimeMills")
