"""Headers of broker administration: configuration, statistics, stores, broker containers."""

from tianzhou.protocol.headers.codec import Header, TopicHeader
from tianzhou.protocol.integers import Int32, Int64


class GetBrokerConfigResponse(Header, frozen=True, kw_only=True):
    """GET_BROKER_CONFIG: the body holds properties, this the JSON of their `DataVersion`."""

    version: str


class GetConsumeStatsInBrokerRequest(Header, frozen=True, kw_only=True):
    """GET_BROKER_CONSUME_STATS; the answer is a `ConsumeStatsList`."""

    is_order: bool


class ViewBrokerStatsDataRequest(Header, frozen=True, kw_only=True):
    """VIEW_BROKER_STATS_DATA; the answer is a `BrokerStatsData`."""

    stats_name: str
    stats_key: str


class GetAllProducerInfoRequest(Header, frozen=True, kw_only=True):
    """GET_ALL_PRODUCER_INFO; the answer is a `ProducerTableInfo`."""


class StatisticsMessagesRequest(TopicHeader, frozen=True, kw_only=True):
    """Known to 5.x, bound to no code."""

    consumer_group: str
    topic: str
    queue_id: Int32
    from_time: Int64 = 0
    to_time: Int64 = 0


# -- RocksDB stores (5.3) -------------------------------------------------------------------------


class CheckRocksdbCqWriteProgressRequest(Header, frozen=True, kw_only=True):
    """CHECK_ROCKSDB_CQ_WRITE_PROGRESS."""

    topic: str
    check_store_time: Int64 = 0


class ExportRocksDBConfigToJsonRequest(Header, frozen=True, kw_only=True):
    """EXPORT_ROCKSDB_CONFIG_TO_JSON; config types are separated by semicolons."""

    config_type: str


# -- broker containers (5.x) ----------------------------------------------------------------------


class AddBrokerRequest(Header, frozen=True, kw_only=True):
    """ADD_BROKER: start a broker in a container; the body may hold its properties."""

    config_path: str | None = None


class RemoveBrokerRequest(Header, frozen=True, kw_only=True):
    """REMOVE_BROKER."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Int64
