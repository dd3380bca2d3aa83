"""What the requests about topics and about consumer groups have in common: their settings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from tianzhou.admin.clusters import Clusters
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.requests import RequestClient
from tianzhou.errors import RequestError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers import Header

C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)


class SettingsRequests(ABC, Generic[C]):
    """Requests that read and write the settings of topics or groups."""

    def __init__(self, requests: RequestClient, clusters: Clusters) -> None:
        self._requests = requests
        self._clusters = clusters

    @abstractmethod
    async def all_configs(self, broker: BrokerRef) -> dict[str, C]:
        """Every topic or group of a broker."""

    async def config(self, broker: BrokerRef, name: str) -> C | None:
        return (await self.all_configs(broker)).get(name)

    @abstractmethod
    async def put(self, broker: BrokerRef, config: C) -> None:
        """Create or change one."""

    @abstractmethod
    def _list_request(self, configs: list[C]) -> tuple[RequestCode, Header | None, object]:
        """Code, header and body of the request that writes several (5.x)."""

    async def put_all(self, broker: BrokerRef, configs: Sequence[C]) -> None:
        """Write several in one request; one by one on a broker too old for it."""
        code, header, body = self._list_request([as_change(each) for each in configs])
        data = bodies.encode(body, standard=True)
        try:
            await self._requests.request(broker, code, header, data)
        except RequestError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            for config in configs:
                await self.put(broker, config)


def as_change(config: C) -> C:
    """Settings as a broker accepts them, also those that were read from a broker."""
    return msgspec.structs.replace(config, attributes=signed(config.attributes))


def signed(attributes: Mapping[str, str] | None) -> dict[str, str] | None:
    """Attribute changes (5.x): a name without a sign is added or changed, one with "-" removed."""
    if attributes is None:
        return None
    return {
        name if name.startswith(("+", "-")) else f"+{name}": value
        for name, value in attributes.items()
    }
