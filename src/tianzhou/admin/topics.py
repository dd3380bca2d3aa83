"""Topics: names, routes, settings, queue offsets, consumer groups."""

import asyncio
from collections.abc import Iterable

from tianzhou.admin.clusters import choose, masters_of
from tianzhou.admin.fanout import BrokerRef, Gathered, gather
from tianzhou.admin.topic_group_configs import SettingsRequests, signed
from tianzhou.errors import RequestError, TargetError
from tianzhou.names import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from tianzhou.protocol.bodies.groups import GroupList
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.bodies.stats import TopicOffset, TopicStatsTable
from tianzhou.protocol.bodies.topics import (
    SINGLE_TAG,
    CreateTopicListBody,
    TopicConfig,
    TopicConfigAndMapping,
    TopicConfigTable,
    TopicList,
)
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers import Header
from tianzhou.protocol.headers.namesrv import (
    DeleteTopicFromNamesrvRequest,
    GetRouteInfoRequest,
    GetTopicsByClusterRequest,
)
from tianzhou.protocol.headers.topics import CreateTopicRequest, TopicRequest

QUEUE_COUNT = 8
"""Default number of queues per broker of a new topic, as in `mqadmin`."""

_ROUTE_WAIT_S = 3.0
_ROUTE_POLL_S = 0.02


class Topics(SettingsRequests[TopicConfig]):
    """Requests about topics."""

    # -- lists -------------------------------------------------------------------------------------

    async def names(self) -> list[str]:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all topics, retry and dead-letter included."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return sorted((await self._requests.read_namesrv(TopicList, code)).topics)

    async def names_of_cluster(self, cluster: str) -> list[str]:
        """GET_TOPICS_BY_CLUSTER."""
        header = GetTopicsByClusterRequest(cluster=cluster)
        code = RequestCode.GET_TOPICS_BY_CLUSTER
        return sorted((await self._requests.read_namesrv(TopicList, code, header)).topics)

    async def system_names(self) -> list[str]:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS and _FROM_BROKER: RocketMQ's system topics."""
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
        names = set((await self._requests.read_namesrv(TopicList, code)).topics)
        brokers = await self._clusters.brokers(masters=True)
        ask = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        gathered = await gather(brokers, lambda at: self._requests.read(at, TopicList, ask))
        return sorted(names.union(*(each.topics for each in gathered.responses.values())))

    # -- routes ------------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRouteData:
        """GET_ROUTEINFO_BY_TOPIC. Raises TargetError if no broker has the topic."""
        header = GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
        try:
            return await self._requests.read_namesrv(
                TopicRouteData, RequestCode.GET_ROUTEINFO_BY_TOPIC, header
            )
        except RequestError as e:
            if e.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            if not (await self._clusters.info()).brokers:
                await self._clusters.brokers()  # raises TargetError with advice
            raise TargetError(f"there is no topic {topic!r} on any broker") from e

    async def brokers(self, topic: str, through: str | None = None) -> list[BrokerRef]:
        """The masters that have a topic.

        `through` is a cluster or another topic whose brokers are used: a topic within a topic (LMQ)
        has no route.
        """
        if through is not None:
            info = await self._clusters.info()
            if through in info.clusters:
                return choose(info, cluster=through, masters=True)
        return masters_of(await self.route(through or topic))

    async def await_route(self, topic: str, brokers: Iterable[BrokerRef]) -> set[str]:
        """Wait until the nameserver has the route of a topic on these brokers, up to 3 s.

        Returns the names of the brokers still missing in the route.
        """
        wanted = {at.name for at in brokers}
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ROUTE_WAIT_S
        while True:
            try:
                late = wanted - {at.name for at in await self.brokers(topic)}
            except TargetError:
                late = wanted
            if not late or loop.time() > deadline_s:
                return late
            await asyncio.sleep(_ROUTE_POLL_S)

    # -- settings ----------------------------------------------------------------------------------

    async def all_configs(self, broker: BrokerRef) -> dict[str, TopicConfig]:
        """GET_ALL_TOPIC_CONFIG: every topic of a broker."""
        # Without fields a broker of any release responds with all topics at once.
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return (await self._requests.read(broker, TopicConfigTable, code)).topics

    async def config(self, broker: BrokerRef, name: str) -> TopicConfig | None:
        """GET_TOPIC_CONFIG; from the whole table on a broker older than 5.0."""
        header = TopicRequest(topic=name)
        code = RequestCode.GET_TOPIC_CONFIG
        try:
            return await self._requests.read(broker, TopicConfigAndMapping, code, header)
        except RequestError as e:
            if e.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        return await super().config(broker, name)

    async def configs(self, topic: str, through: str | None = None) -> Gathered[TopicConfig | None]:
        """The settings of a topic on every broker that has it."""
        return await gather(await self.brokers(topic, through), lambda at: self.config(at, topic))

    async def put(self, broker: BrokerRef, config: TopicConfig) -> None:
        """UPDATE_AND_CREATE_TOPIC."""
        attributes = signed(config.attributes)
        header = CreateTopicRequest(
            topic=config.topic_name or "",
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_count=config.read_queue_count,
            write_queue_count=config.write_queue_count,
            perm=config.perm,
            filter_type=config.filter_type or SINGLE_TAG,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(
                f"{name}={value}" if name.startswith("+") else name
                for name, value in attributes.items()
            )
            if attributes
            else None,
        )
        await self._requests.request(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def _list_request(
        self, configs: list[TopicConfig]
    ) -> tuple[RequestCode, Header | None, object]:
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        return code, None, CreateTopicListBody(topics=configs)

    async def delete(self, topic: str, brokers: Iterable[BrokerRef]) -> Gathered[None]:
        """`delete_on` each broker, then `delete_route` on each nameserver."""
        gathered = await gather(brokers, lambda at: self.delete_on(at, topic))
        for cluster in {at.cluster for at in gathered.responses}:
            for namesrv in list(self._requests.namesrvs):
                await self.delete_route(namesrv, topic, cluster)
        return gathered

    async def delete_on(self, broker: BrokerRef, topic: str) -> None:
        """DELETE_TOPIC_IN_BROKER: the topic with its messages."""
        header = TopicRequest(topic=topic)
        await self._requests.request(broker, RequestCode.DELETE_TOPIC_IN_BROKER, header)

    async def delete_route(self, namesrv: str, topic: str, cluster: str) -> None:
        """DELETE_TOPIC_IN_NAMESRV: its routes to the brokers of a cluster."""
        header = DeleteTopicFromNamesrvRequest(topic=topic, cluster_name=cluster or None)
        await self._requests.request(namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    # -- queues and consumers ----------------------------------------------------------------------

    async def stats(self, topic: str, through: str | None = None) -> Gathered[TopicStatsTable]:
        """GET_TOPIC_STATS_INFO of every broker that has the topic."""
        return await gather(await self.brokers(topic, through), lambda at: self.stats_on(at, topic))

    async def stats_on(self, broker: BrokerRef, topic: str) -> TopicStatsTable:
        """GET_TOPIC_STATS_INFO: the offsets of each queue."""
        header = TopicRequest(topic=topic)
        code = RequestCode.GET_TOPIC_STATS_INFO
        return await self._requests.read(broker, TopicStatsTable, code, header)

    async def groups(self, topic: str, through: str | None = None) -> list[str]:
        """QUERY_TOPIC_CONSUME_BY_WHO: the groups that consume a topic."""
        header = TopicRequest(topic=topic)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        gathered = await gather(
            await self.brokers(topic, through),
            lambda at: self._requests.read(at, GroupList, code, header),
        )
        return sorted({group for each in gathered.responses.values() for group in each.groups})


def extents(stats: Gathered[TopicStatsTable]) -> list[tuple[MessageQueue, TopicOffset]]:
    """All queues of a topic with their offsets, by broker and id."""
    found = [pair for table in stats.responses.values() for pair in table.offsets.items()]
    return sorted(found, key=lambda pair: (pair[0].broker_name or "", pair[0].queue_id))


def perm_text(perm: int) -> str:
    """ "RW", "R-", "-W" or "--"."""
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")
