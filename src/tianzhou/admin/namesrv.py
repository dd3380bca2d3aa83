"""Nameservers: settings, KV pairs, write permission. KV changes are made on all of them."""

from collections.abc import Mapping

from tianzhou.admin.brokers import read_settings, write_settings
from tianzhou.admin.requests import RequestClient
from tianzhou.errors import RequestError
from tianzhou.protocol import headers
from tianzhou.protocol.bodies.topics import KVTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers.namesrv import (
    AddWritePermResponse,
    BrokerNameRequest,
    GetKVConfigResponse,
    GetKVListRequest,
    KVConfigRequest,
    PutKVConfigRequest,
    WipeWritePermResponse,
)


class Namesrv:
    """Requests to nameservers, which do not communicate with each other."""

    def __init__(self, wire: RequestClient) -> None:
        self._requests = wire

    @property
    def addresses(self) -> list[str]:
        return sorted(self._requests.namesrvs)

    async def settings(self, address: str) -> dict[str, str]:
        """GET_NAMESRV_CONFIG."""
        response = await self._requests.request(address, RequestCode.GET_NAMESRV_CONFIG)
        return read_settings(response.body, address)

    async def change_settings(self, address: str, changes: Mapping[str, str]) -> None:
        """UPDATE_NAMESRV_CONFIG."""
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        await self._requests.request(address, code, body=write_settings(changes))

    # -- KV pairs ----------------------------------------------------------------------------------

    async def pairs(self, namespace: str) -> dict[str, str]:
        """GET_KVLIST_BY_NAMESPACE; empty if there is no such namespace."""
        header = GetKVListRequest(namespace=namespace)
        try:
            code = RequestCode.GET_KVLIST_BY_NAMESPACE
            return (await self._requests.read_namesrv(KVTable, code, header)).table
        except RequestError as e:
            if e.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise

    async def pairs_of(self, address: str, namespace: str) -> dict[str, str]:
        """The same from one nameserver of the list."""
        header = GetKVListRequest(namespace=namespace)
        try:
            code = RequestCode.GET_KVLIST_BY_NAMESPACE
            return (await self._requests.read(address, KVTable, code, header)).table
        except RequestError as e:
            if e.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise

    async def value(self, namespace: str, key: str) -> str | None:
        """GET_KV_CONFIG."""
        header = KVConfigRequest(namespace=namespace, key=key)
        try:
            response = await self._requests.request_namesrv(RequestCode.GET_KV_CONFIG, header)
        except RequestError as e:
            if e.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return headers.decode(GetKVConfigResponse, response.fields).value

    async def put(self, namespace: str, key: str, value: str) -> None:
        """PUT_KV_CONFIG on every nameserver."""
        header = PutKVConfigRequest(namespace=namespace, key=key, value=value)
        for address in self.addresses:
            await self._requests.request(address, RequestCode.PUT_KV_CONFIG, header)

    async def remove(self, namespace: str, key: str) -> None:
        """DELETE_KV_CONFIG on every nameserver."""
        header = KVConfigRequest(namespace=namespace, key=key)
        for address in self.addresses:
            await self._requests.request(address, RequestCode.DELETE_KV_CONFIG, header)

    # -- write permission --------------------------------------------------------------------------

    async def wipe_write_permission(self, address: str, broker_name: str) -> int:
        """WIPE_WRITE_PERM_OF_BROKER on one nameserver; returns how many topics it changed."""
        header = BrokerNameRequest(broker_name=broker_name)
        response = await self._requests.read_header(
            address, WipeWritePermResponse, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header
        )
        return response.wipe_topic_count

    async def add_write_permission(self, address: str, broker_name: str) -> int:
        """ADD_WRITE_PERM_OF_BROKER on one nameserver; returns how many topics it changed."""
        header = BrokerNameRequest(broker_name=broker_name)
        response = await self._requests.read_header(
            address, AddWritePermResponse, RequestCode.ADD_WRITE_PERM_OF_BROKER, header
        )
        return response.add_topic_count
