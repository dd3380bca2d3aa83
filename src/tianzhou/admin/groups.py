"""Consumer groups: settings, members, running info of members, progress; producers."""

from collections.abc import Iterable

from tianzhou.admin.fanout import BrokerRef, Gathered, gather
from tianzhou.admin.topic_group_configs import SettingsRequests, as_change
from tianzhou.errors import RequestError
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.clients import (
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerTableInfo,
)
from tianzhou.protocol.bodies.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from tianzhou.protocol.bodies.queues import MessageRequestModeTable, SetMessageRequestModeBody
from tianzhou.protocol.bodies.stats import ConsumeStats
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers import Header
from tianzhou.protocol.headers.clients import (
    ConsumeMessageDirectlyRequest,
    ConsumerGroupRequest,
    GetConsumerRunningInfoRequest,
    GetProducerConnectionListRequest,
)
from tianzhou.protocol.headers.groups import (
    DeleteSubscriptionGroupRequest,
    GetConsumeStatsRequest,
    GroupRequest,
)
from tianzhou.protocol.headers.topics import TopicRequest

_NO_MEMBERS = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


class Groups(SettingsRequests[SubscriptionGroupConfig]):
    """Requests about consumer groups and connected producers."""

    # -- settings ----------------------------------------------------------------------------------

    async def all_configs(self, broker: BrokerRef) -> dict[str, SubscriptionGroupConfig]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: every group of a broker."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return (await self._requests.read(broker, SubscriptionGroupTable, code)).groups

    async def config(self, broker: BrokerRef, name: str) -> SubscriptionGroupConfig | None:
        """GET_SUBSCRIPTIONGROUP_CONFIG; from the whole table on a broker older than 5.0."""
        header = GroupRequest(group=name)
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        try:
            return await self._requests.read(broker, SubscriptionGroupConfig, code, header)
        except RequestError as e:
            if e.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        return await super().config(broker, name)

    async def put(self, broker: BrokerRef, config: SubscriptionGroupConfig) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        body = bodies.encode(as_change(config), standard=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._requests.request(broker, code, body=body)

    def _list_request(
        self, configs: list[SubscriptionGroupConfig]
    ) -> tuple[RequestCode, Header | None, object]:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return code, None, SubscriptionGroupList(groups=configs)

    async def delete(
        self, group: str, brokers: Iterable[BrokerRef], *, offsets_too: bool
    ) -> Gathered[None]:
        """`delete_on` each broker."""
        return await gather(brokers, lambda at: self.delete_on(at, group, offsets_too=offsets_too))

    async def delete_on(self, broker: BrokerRef, group: str, *, offsets_too: bool) -> None:
        """DELETE_SUBSCRIPTIONGROUP; then its retry and dead-letter topics, as `mqadmin` does."""
        header = DeleteSubscriptionGroupRequest(
            group_name=group, remove_offset=offsets_too, clean_offset=offsets_too
        )
        await self._requests.request(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
            derived = TopicRequest(topic=prefix + group)
            await self._requests.request(broker, RequestCode.DELETE_TOPIC_IN_BROKER, derived)

    async def modes(self, broker: BrokerRef) -> dict[str, dict[str, SetMessageRequestModeBody]]:
        """GET_ALL_MESSAGE_REQUEST_MODE (5.x): by topic, then by group."""
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        return (await self._requests.read(broker, MessageRequestModeTable, code)).modes

    async def set_mode(self, broker: BrokerRef, mode: SetMessageRequestModeBody) -> None:
        """SET_MESSAGE_REQUEST_MODE (5.x): whether a group pulls or pops a topic."""
        body = bodies.encode(mode, standard=True)
        await self._requests.request(broker, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)

    # -- members -----------------------------------------------------------------------------------

    async def connection(self, broker: BrokerRef, group: str) -> ConsumerConnection | None:
        """GET_CONSUMER_CONNECTION_LIST: members and subscriptions; None if no member is online."""
        header = ConsumerGroupRequest(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            return await self._requests.read(broker, ConsumerConnection, code, header)
        except RequestError as e:
            if e.code in _NO_MEMBERS:
                return None
            raise

    async def running_info(
        self, broker: BrokerRef, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """GET_CONSUMER_RUNNING_INFO: the state of a member, requested through a broker."""
        header = GetConsumerRunningInfoRequest(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return await self._requests.read(broker, ConsumerRunningInfo, code, header)

    async def consume_directly(
        self, broker: BrokerRef, group: str, client_id: str, offset_id: str
    ) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY: have a member consume one message now."""
        header = ConsumeMessageDirectlyRequest(
            consumer_group=group, client_id=client_id, msg_id=offset_id, broker_name=broker.name
        )
        return await self._requests.read(
            broker,
            ConsumeMessageDirectlyResult,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_ms=self._requests.timeout_ms * 3,
        )

    # -- progress ----------------------------------------------------------------------------------

    async def progress_on(
        self, broker: BrokerRef, group: str, topic: str | None = None
    ) -> ConsumeStats:
        """GET_CONSUME_STATS: the offsets of a group on one broker."""
        header = GetConsumeStatsRequest(consumer_group=group, topic=topic)
        code = RequestCode.GET_CONSUME_STATS
        return await self._requests.read(broker, ConsumeStats, code, header)

    async def progress(self, group: str, topic: str | None = None) -> Gathered[ConsumeStats]:
        """GET_CONSUME_STATS of every master."""
        brokers = await self._clusters.brokers(masters=True)
        return await gather(brokers, lambda at: self.progress_on(at, group, topic))

    # -- producers ---------------------------------------------------------------------------------

    async def producers(self, broker: BrokerRef) -> ProducerTableInfo:
        """GET_ALL_PRODUCER_INFO: the producers connected to a broker, by group."""
        code = RequestCode.GET_ALL_PRODUCER_INFO
        return await self._requests.read(broker, ProducerTableInfo, code)

    async def producers_of(self, broker: BrokerRef, group: str) -> list[Connection]:
        """GET_PRODUCER_CONNECTION_LIST: the members of a producer group; none if it is unknown."""
        header = GetProducerConnectionListRequest(producer_group=group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        try:
            return (await self._requests.read(broker, ProducerConnection, code, header)).connections
        except RequestError as e:
            # A group without members is reported as a failure.
            if e.code == ResponseCode.SYSTEM_ERROR:
                return []
            raise
