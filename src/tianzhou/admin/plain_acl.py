"""Accounts of 4.9's access control: create, change, delete, versions of the ACL files."""

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.requests import RequestClient
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.auth import AclConfig
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.headers.auth import (
    CreateAccessConfigRequest,
    DeleteAccessConfigRequest,
    GetBrokerAclConfigResponse,
    UpdateGlobalWhiteAddrsRequest,
)


class Acl:
    """Requests about access control."""

    def __init__(self, wire: RequestClient) -> None:
        self._requests = wire

    async def versions(self, broker: BrokerRef) -> dict[str, DataVersion]:
        """GET_BROKER_CLUSTER_ACL_INFO: the version of each ACL file."""
        response = await self._requests.request(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        fields = headers.decode(GetBrokerAclConfigResponse, response.fields)
        if fields.all_acl_file_version:
            return bodies.decode(dict[str, DataVersion], fields.all_acl_file_version.encode())
        return {"": bodies.decode(DataVersion, fields.version.encode())}

    async def config(self, broker: BrokerRef) -> AclConfig:
        """GET_BROKER_CLUSTER_ACL_CONFIG: accounts and white list; Apache serves it until 4.9.7."""
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        return await self._requests.read(broker, AclConfig, code)

    async def put(self, broker: BrokerRef, account: CreateAccessConfigRequest) -> None:
        """UPDATE_AND_CREATE_ACL_CONFIG; fields that are None stay as they are."""
        await self._requests.request(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)

    async def delete(self, broker: BrokerRef, access_key: str) -> None:
        """DELETE_ACL_CONFIG."""
        header = DeleteAccessConfigRequest(access_key=access_key)
        await self._requests.request(broker, RequestCode.DELETE_ACL_CONFIG, header)

    async def set_white_addresses(
        self, broker: BrokerRef, addresses: str, file: str | None = None
    ) -> None:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: addresses that need no account, comma-separated."""
        header = UpdateGlobalWhiteAddrsRequest(
            global_white_addrs=addresses, acl_file_full_path=file
        )
        await self._requests.request(broker, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
