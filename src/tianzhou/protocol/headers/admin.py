"""Headers of broker administration: configuration, statistics, stores, broker containers."""

from tianzhou.protocol.headers.codec import Header


class GetBrokerConfigResponse(Header, frozen=True, kw_only=True):
    """GET_BROKER_CONFIG: the body holds properties, this the JSON of their `DataVersion`."""

    version: str


class GetConsumeStatsInBrokerRequest(Header, frozen=True, kw_only=True):
    """GET_BROKER_CONSUME_STATS; the response is a `ConsumeStatsList`."""

    is_order: bool


class ViewBrokerStatsDataRequest(Header, frozen=True, kw_only=True):
    """VIEW_BROKER_STATS_DATA; the response is a `BrokerStatsData`."""

    stats_name: str
    stats_key: str
