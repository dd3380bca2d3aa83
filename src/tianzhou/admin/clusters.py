"""Clusters and brokers as the nameserver knows them, and which of them a request is for."""

from tianzhou.admin.fanout import BrokerAt
from tianzhou.admin.wire import Wire
from tianzhou.errors import AddressError, TargetError
from tianzhou.names import MASTER_ID
from tianzhou.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.address import parse_address


class Clusters:
    """Where the brokers are."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def info(self) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO."""
        return await self._wire.read_namesrv(ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO)

    async def info_of(self, namesrv: str) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO of one nameserver of the list."""
        return await self._wire.read(namesrv, ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO)

    async def brokers(
        self, *, cluster: str | None = None, broker: str | None = None, masters: bool = False
    ) -> list[BrokerAt]:
        """All brokers, or those of a cluster, or those of a name or an address, in order.

        Raises TargetError if there is none like that.
        """
        return choose(await self.info(), cluster=cluster, broker=broker, masters=masters)


def choose(
    info: ClusterInfo,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    masters: bool = False,
) -> list[BrokerAt]:
    """The brokers that are meant, sorted by cluster, name and id. Raises TargetError."""
    members = {name: key for key, names in info.clusters.items() for name in names}
    everyone = [
        at
        for name, data in info.brokers.items()
        for at in brokers_of(data, cluster=data.cluster or members.get(name, ""), name=name)
    ]
    chosen = [
        at
        for at in sorted(everyone, key=lambda at: (at.cluster, at.name, at.broker_id))
        if (cluster is None or at.cluster == cluster)
        and (broker is None or broker in (at.name, at.address))
        and (at.is_master or not masters or broker == at.address)
    ]
    if chosen:
        return chosen
    if broker is not None and _is_address(broker):
        # A broker that is not registered, or only under another address, can still be asked.
        return [BrokerAt(broker, MASTER_ID, broker, cluster or "")]
    raise TargetError(_nobody(info, cluster, broker))


def brokers_of(data: BrokerData, *, cluster: str = "", name: str = "") -> list[BrokerAt]:
    """Master and slaves of one broker name."""
    return [
        BrokerAt(data.broker_name or name, broker_id, address, data.cluster or cluster)
        for broker_id, address in sorted((data.addresses or {}).items())
    ]


def masters_of(route: TopicRouteData) -> list[BrokerAt]:
    """The brokers to ask about a topic: its masters, or a slave where there is no master."""
    found = (brokers_of(data)[:1] for data in route.brokers)
    return sorted(at for few in found for at in few)


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except AddressError:
        return False
    return True


def _nobody(info: ClusterInfo, cluster: str | None, broker: str | None) -> str:
    if broker is not None:
        known = ", ".join(sorted(info.brokers)) or "none"
        return f"there is no broker {broker!r}; registered are: {known}"
    if cluster is not None:
        known = ", ".join(sorted(info.clusters)) or "none"
        return f"there is no cluster {cluster!r}; the nameserver knows: {known}"
    return "no broker is registered with this nameserver"
