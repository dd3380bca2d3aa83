"""Clusters and brokers registered with the nameserver, and selecting among them."""

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.requests import RequestClient, not_a_nameserver
from tianzhou.errors import AddressError, RequestError, TargetError
from tianzhou.message import Host
from tianzhou.names import MASTER_ID
from tianzhou.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.remoting.address import format_address, is_numeric, parse_address
from tianzhou.remoting.sockets import resolve


class Clusters:
    """Requests about registered brokers."""

    def __init__(self, wire: RequestClient) -> None:
        self._requests = wire

    async def info(self) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO."""
        return await self._requests.read_namesrv(ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO)

    async def info_of(self, namesrv: str) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO of one nameserver of the list."""
        try:
            return await self._requests.read(
                namesrv, ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO
            )
        except RequestError as e:
            if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise not_a_nameserver(namesrv) from e
            raise

    async def brokers(
        self, *, cluster: str | None = None, broker: str | None = None, masters: bool = False
    ) -> list[BrokerRef]:
        """All brokers, or those of a cluster, or those of a name or an address, in order.

        Raises TargetError if none matches.
        """
        return choose(await self.info(), cluster=cluster, broker=broker, masters=masters)

    async def broker_at(self, host: Host) -> BrokerRef:
        """The registered broker with this address. Raises TargetError if there is none.

        For addresses that come from data, such as a message id: a request may be signed, so it is
        sent only to brokers of the cluster.
        """
        all_brokers = [at for at in choose(await self.info()) if _is_address(at.address)]
        for at in all_brokers:
            if parse_address(at.address) == host:
                return at
        for at in all_brokers:
            # Brokers may register by name, but records hold addresses.
            if host in await _resolved(at.address):
                return at
        known = ", ".join(at.address for at in all_brokers)
        raise TargetError(
            f"{format_address(*host)} is not a broker of this cluster, no request was sent to it; "
            f"registered: {known}; if the broker has a new address, pass it with --broker"
        )


async def _resolved(address: str) -> set[Host]:
    """The IP addresses of a broker that is registered by name."""
    name, port = parse_address(address)
    if is_numeric(name):
        return set()
    try:
        return {(found[0], port) for _, found in await resolve(name, port)}
    except OSError:
        return set()  # a name that cannot be resolved does not match


def choose(
    info: ClusterInfo,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    masters: bool = False,
) -> list[BrokerRef]:
    """The matching brokers, sorted by cluster, name and id. Raises TargetError."""
    members = {name: key for key, names in info.clusters.items() for name in names}
    all_brokers = [
        at
        for name, data in info.brokers.items()
        for at in brokers_of(data, cluster=data.cluster or members.get(name, ""), name=name)
    ]
    chosen = [
        at
        for at in sorted(all_brokers, key=lambda at: (at.cluster, at.name, at.broker_id))
        if (cluster is None or at.cluster == cluster)
        and (broker is None or broker in (at.name, at.address))
        and (at.is_master or not masters or broker == at.address)
    ]
    if chosen:
        return chosen
    if broker is not None and _is_address(broker):
        # A broker that is not registered, or under another address, can still be addressed.
        return [BrokerRef(broker, MASTER_ID, broker, cluster or "")]
    raise TargetError(_no_match(info, cluster, broker))


def brokers_of(data: BrokerData, *, cluster: str = "", name: str = "") -> list[BrokerRef]:
    """Master and slaves of one broker name."""
    return [
        BrokerRef(data.broker_name or name, broker_id, address, data.cluster or cluster)
        for broker_id, address in sorted((data.addresses or {}).items())
    ]


def masters_of(route: TopicRouteData) -> list[BrokerRef]:
    """The masters of a topic, or a slave where there is no master."""
    found = (brokers_of(data)[:1] for data in route.brokers)
    return sorted(at for few in found for at in few)


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except AddressError:
        return False
    return True


def _no_match(info: ClusterInfo, cluster: str | None, broker: str | None) -> str:
    if broker is not None:
        known = ", ".join(sorted(info.brokers)) or "none"
        return f"there is no broker {broker!r}; registered: {known}"
    if cluster is not None:
        known = ", ".join(sorted(info.clusters)) or "none"
        return f"there is no cluster {cluster!r}; registered: {known}"
    return (
        "no broker is registered with this nameserver; start one with "
        "`tianzhou broker --namesrv ADDR`, or pass another nameserver"
    )
