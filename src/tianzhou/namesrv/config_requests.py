"""Settings over the wire: reading and changing them while the nameserver runs (`mqadmin`)."""

import asyncio

from tianzhou.config.live import save_pairs
from tianzhou.config.properties import decode_text, parse_properties
from tianzhou.errors import ConfigError, RequestError, SettingRefused
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.handlers import Parts, success
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.quota.bodies import check_settings_count

_ALWAYS_FIXED = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")


def fixed_keys(config: NamesrvConfig) -> frozenset[str]:
    """Keys that no request may change: RocketMQ's four, and those of the configuration."""
    listed = (key.strip() for key in config.config_black_list.split(";"))
    return frozenset(key for key in (*_ALWAYS_FIXED, *listed) if key)


def get_config(parts: Parts, _: Connection, __: Command) -> Command:
    return success(parts.settings.as_properties().encode())


async def update_config(parts: Parts, connection: Connection, request: Command) -> Command:
    """Check, save, then apply; what RocketMQ passes over in silence (a bad value) is refused."""
    check_settings_count(request.body)
    text, _ = decode_text(request.body)
    by = f"request of {connection.peer}"
    try:
        properties = parse_properties(text, by)
    except ConfigError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from e
    async with parts.settings_lock:
        before = parts.settings.config
        try:
            prepared = parts.settings.prepare(
                properties, by, black_list=parts.fixed_keys, has_accounts=parts.has_accounts
            )
            if prepared.pairs:
                await asyncio.to_thread(save_pairs, before.config_store_path, prepared.pairs)
        except SettingRefused as e:
            raise RequestError(ResponseCode.NO_PERMISSION, str(e)) from e
        except ConfigError as e:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
        parts.settings.activate(prepared)
    # Encoded routes may show the settings of before.
    parts.routes.clear()
    prepared.log(by)
    return success()
