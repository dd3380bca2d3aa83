"""Headers between brokers and clients: heartbeats, members, what a broker asks of a client."""

from msgspec import field

from tianzhou.protocol.headers.codec import RpcHeader, TopicHeader
from tianzhou.protocol.integers import Int32


class UnregisterClientRequest(RpcHeader, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupRequest(RpcHeader, frozen=True, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (the response is a `ConsumerIdList`), GET_CONSUMER_CONNECTION_LIST
    (`ConsumerConnection`), and NOTIFY_CONSUMER_IDS_CHANGED, broker to consumers: rebalance now."""

    consumer_group: str


class GetProducerConnectionListRequest(RpcHeader, frozen=True, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST; the response is a `ProducerConnection`."""

    producer_group: str


class GetConsumerRunningInfoRequest(RpcHeader, frozen=True, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO, passed on by the broker to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyRequest(TopicHeader, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY, passed on by the broker to the client with the record as body."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
