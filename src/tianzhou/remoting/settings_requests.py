"""Requests that change settings, for every server: the body has lines of key=value."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tianzhou.config.live import LiveSettings, Update, save_pairs
from tianzhou.config.properties import Property, decode_text, parse_properties
from tianzhou.config.settings import C, Loaded
from tianzhou.errors import ConfigError, RequestError, SettingRefused
from tianzhou.limits import SETTINGS_COUNT_MAX
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection


def read_properties(connection: Connection, request: Command) -> list[Property]:
    """The pairs of a body. Raises RequestError, also for too many lines."""
    count = request.body.count(b"\n")
    if count > SETTINGS_COUNT_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"{count} lines of settings are sent, {SETTINGS_COUNT_MAX} are read",
        )
    try:
        return parse_properties(decode_text(request.body)[0], _sender(connection))
    except ConfigError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {e}") from e


def fixed_keys(black_list: str, *always: str) -> frozenset[str]:
    """Keys that no request may change: `always`, and those of configBlackList."""
    return frozenset(key for key in (*always, *map(str.strip, black_list.split(";"))) if key)


async def change_settings(
    settings: LiveSettings[C],
    connection: Connection,
    request: Command,
    path: Path,
    *,
    fixed: frozenset[str],
    has_accounts: bool,
    check: Callable[[Loaded[C]], None] = lambda loaded: None,
) -> Update[C]:
    """Check the settings of a request, save them to `path`, apply and log them.

    Raises RequestError; then nothing is changed. RocketMQ ignores invalid values silently.
    """
    properties, by = read_properties(connection, request), _sender(connection)
    async with settings.lock:
        try:
            prepared = settings.prepare(properties, by, black_list=fixed, has_accounts=has_accounts)
            check(prepared.loaded)
            if prepared.pairs:
                await asyncio.to_thread(save_pairs, path, prepared.pairs)
        except SettingRefused as e:
            raise RequestError(ResponseCode.NO_PERMISSION, str(e)) from e
        except ConfigError as e:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
        settings.activate(prepared)
    prepared.log(by)
    return prepared


def _sender(connection: Connection) -> str:
    return f"request of {connection.peer}"
