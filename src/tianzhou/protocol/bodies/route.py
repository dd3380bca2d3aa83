"""Routes, brokers and clusters of the nameserver; mappings of static topics."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.integers import Int32, Int64


class QueueData(Body, frozen=True, kw_only=True):
    """The queues of a topic on one broker."""

    broker_name: str | None = None
    read_queue_count: Int32 = field(default=0, name="readQueueNums")
    write_queue_count: Int32 = field(default=0, name="writeQueueNums")
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(Body, frozen=True, kw_only=True):
    """A master and its slaves, which share one broker name."""

    cluster: str | None = None
    broker_name: str | None = None
    addresses: dict[Int64, str] | None = field(default=None, name="brokerAddrs")
    """Addresses by broker id; 0 is the master."""
    zone_name: str | None = None
    enable_acting_master: bool | None = None
    """5.x writes it always, 4.9 does not know it."""


class TopicQueueMappingInfo(Body, frozen=True, kw_only=True):
    """Which logical queues of a static topic live on one broker (5.x)."""

    topic: str | None = None
    scope: str = "__global__"
    queue_count: Int32 = field(default=0, name="totalQueues")
    broker_name: str | None = field(default=None, name="bname")
    epoch: Int64 = 0
    dirty: bool = False
    current_ids: dict[Int32, Int32] = field(default={}, name="currIdMap")
    """Physical queue id by logical queue id."""


class LogicQueueMappingItem(Body, frozen=True, kw_only=True):
    """One generation of a logical queue: the stretch of offsets it has on one broker (5.x)."""

    generation: Int32 = field(default=0, name="gen")
    queue_id: Int32 = 0
    broker_name: str | None = field(default=None, name="bname")
    logic_offset: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = -1
    start_time_ms: Int64 = field(default=-1, name="timeOfStart")
    end_time_ms: Int64 = field(default=-1, name="timeOfEnd")


class TopicQueueMappingDetail(TopicQueueMappingInfo, frozen=True, kw_only=True):
    """The mapping with its history, as brokers store it (5.x)."""

    hosted_queues: dict[Int32, list[LogicQueueMappingItem]] = field(default={})


class TopicRouteData(Body, frozen=True, kw_only=True):
    """Where the queues of a topic are: the response to GET_ROUTEINFO_BY_TOPIC."""

    order_conf: str | None = field(default=None, name="orderTopicConf")
    """Queue order of an ordered topic, "broker-a:4;broker-b:4"."""
    queues: list[QueueData] = field(default=[], name="queueDatas")
    brokers: list[BrokerData] = field(default=[], name="brokerDatas")
    filter_servers: dict[str, list[str]] = field(default={}, name="filterServerTable")
    """Filter servers by broker address; retired, but always written."""
    mappings: dict[str, TopicQueueMappingInfo] | None = field(
        default=None, name="topicQueueMappingByBroker"
    )
    """Mappings of a static topic by broker name (5.x)."""


class ClusterInfo(Body, frozen=True, kw_only=True):
    """All brokers and clusters: the response to GET_BROKER_CLUSTER_INFO."""

    brokers: dict[str, BrokerData] = field(default={}, name="brokerAddrTable")
    clusters: dict[str, list[str]] = field(default={}, name="clusterAddrTable")
    """Broker names by cluster name."""


class BrokerMemberGroup(Body, frozen=True, kw_only=True):
    """Master and slaves of one broker name (5.x)."""

    cluster: str | None = None
    broker_name: str | None = None
    addresses: dict[Int64, str] = field(default={}, name="brokerAddrs")


class GetBrokerMemberGroupBody(Body, frozen=True, kw_only=True):
    """The response to GET_BROKER_MEMBER_GROUP (5.x)."""

    broker_member_group: BrokerMemberGroup | None = None
