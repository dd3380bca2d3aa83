"""The broker over the wire: reading and changing its settings, and how it is doing."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.config import BrokerConfig, check_config
from tianzhou.broker.durability import Durability
from tianzhou.broker.stats import Stats
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings, save_pairs
from tianzhou.config.properties import decode_text, parse_properties
from tianzhou.config.settings import Change, settings_of
from tianzhou.errors import ConfigError, RequestError
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.topics import DataVersion, KVTable
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import encode
from tianzhou.protocol.headers.admin import GetBrokerConfigResponse
from tianzhou.protocol.version import CURRENT_VERSION, version_name
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_ALWAYS_FIXED = ("configBlackList", "brokerConfigPath", "rocketmqHome")
_NO_TIME = -1


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """What these requests need of a broker."""

    settings: LiveSettings[BrokerConfig]
    settings_lock: asyncio.Lock
    started_ms: int
    store: MessageStore
    durability: Durability
    stats: Stats
    parked_count: Callable[[], int]
    clock: Clock
    on_settings: Callable[[BrokerConfig, BrokerConfig], None]
    """Told of the settings before and after a change."""


# -- settings --------------------------------------------------------------------------------------


def fixed_keys(config: BrokerConfig) -> frozenset[str]:
    """Keys that no request may change."""
    listed = (key.strip() for key in config.config_black_list.split(";"))
    return frozenset(key for key in (*_ALWAYS_FIXED, *listed) if key)


def get_broker_config(parts: BrokerParts, _: Connection, __: Command) -> Command:
    """GET_BROKER_CONFIG: all settings as a properties file."""
    version = encode_body(DataVersion(timestamp=parts.started_ms), standard=True).decode()
    return Command(
        code=ResponseCode.SUCCESS,
        ext_fields=encode(GetBrokerConfigResponse(version=version)),
        body=parts.settings.as_properties().encode(),
    )


async def update_broker_config(
    parts: BrokerParts, connection: Connection, request: Command
) -> Command:
    """UPDATE_BROKER_CONFIG: check, save, then apply; a wrong value changes nothing."""
    text, _ = decode_text(request.body)
    by = f"request of {connection.peer}"
    try:
        properties = parse_properties(text, by)
    except ConfigError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the properties cannot be read: {e}") from e
    forbidden = fixed_keys(parts.settings.config).intersection(found.key for found in properties)
    if forbidden:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"{', '.join(sorted(forbidden))} cannot be changed by a request (configBlackList)",
        )
    async with parts.settings_lock:
        before = parts.settings.config
        try:
            prepared = parts.settings.prepare(properties, by)
            check_config(prepared.loaded)
            if prepared.pairs:
                await asyncio.to_thread(save_pairs, before.broker_config_path, prepared.pairs)
        except ConfigError as e:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
        parts.settings.adopt(prepared)
    _log_update(prepared.pairs, [found.key for found in properties], by)
    parts.on_settings(before, parts.settings.config)
    return Command(code=ResponseCode.SUCCESS)


def _log_update(pairs: dict[str, str], keys: list[str], by: str) -> None:
    by_key = {key: declared for declared in settings_of(BrokerConfig) for key in declared.keys}
    for key in keys:
        declared = by_key.get(key)
        if declared is None:
            log.warning("setting %s: unknown, left out, by %s", key, by)
            continue
        value = "(hidden)" if declared.secret else pairs[key]
        when = "" if declared.change is Change.LIVE else ", counts after a restart"
        log.info("setting %s: %s%s, by %s", key, value, when, by)


# -- how it is doing -------------------------------------------------------------------------------


def get_broker_runtime_info(parts: BrokerParts, _: Connection, __: Command) -> Command:
    """GET_BROKER_RUNTIME_INFO: what `mqadmin brokerStatus` and `clusterList` show."""
    return Command(code=ResponseCode.SUCCESS, body=encode_body(KVTable(table=runtime_info(parts))))


def runtime_info(parts: BrokerParts) -> dict[str, str]:
    """The figures under RocketMQ's names; those that have no meaning here are neutral."""
    config, store, stats = parts.settings.config, parts.store, parts.stats
    up_ms = max(parts.clock() - stats.started_ms, 1)
    put_rate, get_rate = (_rate(count, up_ms) for count in (stats.put.messages, stats.got.messages))
    put_count = stats.put.messages
    earliest = store.earliest_log_time()
    ratio, capacity = _disk(config)
    return {
        "brokerVersionDesc": version_name(CURRENT_VERSION),
        "brokerVersion": str(CURRENT_VERSION),
        "bootTimestamp": str(stats.started_ms),
        "runtime": _duration(up_ms),
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(put_count),
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": str(stats.got.messages),
        "putMessageTimesTotal": str(put_count),
        "putMessageSizeTotal": str(stats.put.size_bytes),
        "putMessageAverageSize": f"{stats.put.size_bytes / put_count if put_count else 0.0:.1f}",
        "putMessageFailedTimes": str(stats.put_failures),
        "putMessageEntireTimeMax": str(stats.put_slowest_ms),
        "putMessageDistributeTime": " ".join(
            f"{took_ms}ms:{count}" for took_ms, count in sorted(stats.put_times.items())
        ),
        "getMessageEntireTimeMax": "0",
        "putTps": put_rate,
        "getFoundTps": get_rate,
        "getMissTps": _rate(stats.pulls_missed, up_ms),
        "getTotalTps": _rate(stats.pulls_found + stats.pulls_missed, up_ms),
        "getTransferedTps": get_rate,
        "getTransferredTps": get_rate,
        "sendThreadPoolQueueSize": str(parts.durability.waiting_count),
        "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": str(parts.parked_count()),
        "pullThreadPoolQueueCapacity": str(config.max_parked_pulls),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "queryThreadPoolQueueCapacity": "0",
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "0",
        "pageCacheLockTimeMills": "0",
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "remainHowManyDataToFlush": f"{store.end_log_offset - store.flushed_log_offset} B",
        "remainTransientStoreBufferNumbs": "2147483647",
        "commitLogMinOffset": str(store.first_log_offset),
        "commitLogMaxOffset": str(store.end_log_offset),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{config.log_directory}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": capacity,
        "earliestMessageTimeStamp": str(_NO_TIME if earliest is None else earliest),
        "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
        "brokerActive": "true",
    }


def _rate(count: int, up_ms: int) -> str:
    """Per second since the start, three times: RocketMQ has windows of 10, 60 and 600 s there."""
    rate = f"{count * 1000 / up_ms:.2f}"
    return f"{rate} {rate} {rate}"


def _duration(up_ms: int) -> str:
    seconds = up_ms // 1000
    return (
        f"[ {seconds // 86_400} days, {seconds // 3600 % 24} hours, "
        f"{seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
    )


def _disk(config: BrokerConfig) -> tuple[str, str]:
    try:
        usage = shutil.disk_usage(config.log_directory)
    except OSError:
        return "-1", "unknown"
    gib = 1024**3
    capacity = f"Total : {usage.total / gib:.1f} GiB, Free : {usage.free / gib:.1f} GiB."
    return f"{usage.used / usage.total:.4f}", capacity
