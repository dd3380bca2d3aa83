"""Administration of access control: accounts and the global white list."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tianzhou.broker.acl.files import AclFiles
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import success
from tianzhou.errors import ConfigError, RequestError
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.auth import AclConfig, PlainAccessConfig
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.auth import (
    CreateAccessConfigRequest,
    DeleteAccessConfigRequest,
    GetBrokerAclConfigResponse,
    UpdateGlobalWhiteAddrsRequest,
)
from tianzhou.remoting.connection import Connection


def _files(deps: Deps, code: int) -> AclFiles:
    if deps.acl_files is None:
        raise RequestError(code, "access control is off on this broker: aclEnable is false")
    return deps.acl_files


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [piece.strip() for piece in text.split(",") if piece.strip()]


async def _change(deps: Deps, failed: int, change: Callable[[AclFiles], None]) -> Command:
    """Rewrite a file, in a thread. Raises RequestError with the code `failed`."""
    files = _files(deps, failed)
    async with deps.acl_lock:
        try:
            await asyncio.to_thread(change, files)
        except (ConfigError, OSError) as e:
            raise RequestError(failed, str(e)) from e
    return Command(code=ResponseCode.SUCCESS)


async def put_account(deps: Deps, _: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_ACL_CONFIG."""
    header = decode(CreateAccessConfigRequest, request.fields)
    account = PlainAccessConfig(
        access_key=header.access_key,
        secret_key=header.secret_key,
        white_remote_address=header.white_remote_address,
        admin=header.admin,
        default_topic_perm=header.default_topic_perm,
        default_group_perm=header.default_group_perm,
        topic_perms=_split(header.topic_perms),
        group_perms=_split(header.group_perms),
    )
    failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    return await _change(deps, failed, lambda files: files.put_account(account))


async def remove_account(deps: Deps, _: Connection, request: Command) -> Command:
    """DELETE_ACL_CONFIG."""
    header = decode(DeleteAccessConfigRequest, request.fields)
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    return await _change(deps, failed, lambda files: files.remove_account(header.access_key))


async def set_white_addresses(deps: Deps, _: Connection, request: Command) -> Command:
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG."""
    header = decode(UpdateGlobalWhiteAddrsRequest, request.fields)
    path = Path(header.acl_file_full_path) if header.acl_file_full_path else None
    patterns = _split(header.global_white_addrs) or []
    failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    return await _change(deps, failed, lambda files: files.set_white(patterns, path))


def get_versions(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_BROKER_CLUSTER_ACL_INFO."""
    files = _files(deps, ResponseCode.SYSTEM_ERROR)
    versions = {
        str(path): (content.data_version or [DataVersion()])[0]
        for path, content in files.contents.items()
    }
    own = versions.get(str(files.file), DataVersion())
    config = deps.settings.config
    header = GetBrokerAclConfigResponse(
        version=encode_body(own, standard=True).decode(),
        all_acl_file_version=encode_body(versions, standard=True).decode(),
        broker_name=config.broker_name,
        broker_addr=deps.address,
        cluster_name=config.broker_cluster_name,
    )
    return success(header)


def get_accounts(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_BROKER_CLUSTER_ACL_CONFIG: everything, secrets included, as in RocketMQ."""
    files = _files(deps, ResponseCode.SYSTEM_ERROR)
    contents = files.contents.values()
    body = AclConfig(
        global_white_addrs=[
            pattern for each in contents for pattern in each.global_white_remote_addresses or ()
        ],
        accounts=[account for each in contents for account in each.accounts or ()],
    )
    return Command(code=ResponseCode.SUCCESS, body=encode_body(body))
