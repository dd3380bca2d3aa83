"""Accounts of 4.9's access control: creating, changing, deleting, versions of their files."""

from tianzhou.admin.fanout import BrokerAt
from tianzhou.admin.requests import Wire
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.auth import AclConfig, PlainAccessConfig
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

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def versions(self, broker: BrokerAt) -> dict[str, DataVersion]:
        """GET_BROKER_CLUSTER_ACL_INFO: the version of each file with accounts."""
        answer = await self._wire.ask(broker.address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        told = headers.decode(GetBrokerAclConfigResponse, answer.fields)
        if told.all_acl_file_version:
            return bodies.decode(dict[str, DataVersion], told.all_acl_file_version.encode())
        return {"": bodies.decode(DataVersion, told.version.encode())}

    async def config(self, broker: BrokerAt) -> AclConfig:
        """GET_BROKER_CLUSTER_ACL_CONFIG: accounts and white list; Apache answers it until 4.9.7."""
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        return await self._wire.read(broker.address, AclConfig, code)

    async def put(self, broker: BrokerAt, account: PlainAccessConfig) -> None:
        """UPDATE_AND_CREATE_ACL_CONFIG; what is None stays as it is."""
        header = CreateAccessConfigRequest(
            access_key=account.access_key or "",
            secret_key=account.secret_key,
            white_remote_address=account.white_remote_address,
            admin=account.admin,
            default_topic_perm=account.default_topic_perm,
            default_group_perm=account.default_group_perm,
            topic_perms=",".join(account.topic_perms) if account.topic_perms else None,
            group_perms=",".join(account.group_perms) if account.group_perms else None,
        )
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        await self._wire.ask(broker.address, code, header)

    async def delete(self, broker: BrokerAt, access_key: str) -> None:
        """DELETE_ACL_CONFIG."""
        header = DeleteAccessConfigRequest(access_key=access_key)
        await self._wire.ask(broker.address, RequestCode.DELETE_ACL_CONFIG, header)

    async def set_white_addresses(
        self, broker: BrokerAt, addresses: str, file: str | None = None
    ) -> None:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: addresses that need no account, by commas."""
        header = UpdateGlobalWhiteAddrsRequest(
            global_white_addrs=addresses, acl_file_full_path=file
        )
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        await self._wire.ask(broker.address, code, header)
