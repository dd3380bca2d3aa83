"""Broker administration: reading and changing settings, runtime statistics."""

import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable

from tianzhou.broker.config import BrokerConfig, check_config
from tianzhou.broker.failover_settings import check_change
from tianzhou.broker.handlers.admin.ha_group import failover_keys
from tianzhou.broker.handlers.admin.replication import runtime_keys
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.statistics.counters import Stats
from tianzhou.config.settings import Loaded
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.topics import DataVersion, KVTable
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import encode
from tianzhou.protocol.headers.admin import GetBrokerConfigResponse
from tianzhou.protocol.version import CURRENT_VERSION, version_name
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.settings_requests import change_settings, fixed_keys

_ALWAYS_FIXED = ("configBlackList", "brokerConfigPath", "rocketmqHome")
_NO_TIME = -1
_FOR_STOCK_TOOLS = f"filterServerNums=0\nclientCallbackExecutorThreads={os.cpu_count() or 1}\n"
"""Keys without effect: `exportConfigs` of 4.9 fails without them, `exportMetrics` reads the number
of processors from the last one."""


# -- settings --------------------------------------------------------------------------------------


def get_broker_config(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_BROKER_CONFIG: all settings as a properties file."""
    version = encode_body(DataVersion(timestamp=deps.stats.started_ms), standard=True).decode()
    return Command(
        code=ResponseCode.SUCCESS,
        ext_fields=encode(GetBrokerConfigResponse(version=version)),
        body=f"{deps.settings.as_properties()}{_FOR_STOCK_TOOLS}".encode(),
    )


async def update_broker_config(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_BROKER_CONFIG: check, save, then apply; an invalid value changes nothing."""
    config = deps.settings.config

    def check(loaded: Loaded[BrokerConfig]) -> None:
        check_config(loaded)
        check_change(deps.settings.config, loaded.config)

    update = await change_settings(
        deps.settings, connection, request, config.broker_config_path,
        fixed=fixed_keys(config.config_black_list, *_ALWAYS_FIXED),
        has_accounts=deps.acl_files is not None, check=check,
    )  # fmt: skip
    deps.on_settings(update.before, update.loaded.config)
    pending = ", ".join(update.pending())
    # Stock tools do not show the remark of a success.
    remark = f"{pending}: takes effect after a restart" if pending else None
    return Command(code=ResponseCode.SUCCESS, remark=remark)


# -- statistics -----------------------------------------------------------------------------------


def get_broker_runtime_info(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_BROKER_RUNTIME_INFO: what `mqadmin brokerStatus` and `clusterList` show."""
    return Command(code=ResponseCode.SUCCESS, body=encode_body(KVTable(table=runtime_info(deps))))


def runtime_info(deps: Deps) -> dict[str, str]:
    """Statistics under RocketMQ's names; those without a meaning here are neutral."""
    config, store, stats, now_ms = deps.settings.config, deps.store, deps.stats, deps.clock()
    deps.history.refresh(now_ms)
    totals, rates = deps.history.totals, deps.history.rates(now_ms)
    put_count = stats.put.messages
    earliest = store.earliest_log_time()
    ratio, capacity = _disk(config)
    return {
        "brokerVersionDesc": version_name(CURRENT_VERSION),
        "brokerVersion": str(CURRENT_VERSION),
        "bootTimestamp": str(stats.started_ms),
        "runtime": _duration(max(now_ms - stats.started_ms, 0)),
        "msgPutTotalYesterdayMorning": str(totals.yesterday.put),
        "msgPutTotalTodayMorning": str(totals.today.put),
        "msgPutTotalTodayNow": str(totals.put),
        "msgGetTotalYesterdayMorning": str(totals.yesterday.got),
        "msgGetTotalTodayMorning": str(totals.today.got),
        "msgGetTotalTodayNow": str(totals.got),
        "putMessageTimesTotal": str(put_count),
        "putMessageSizeTotal": str(stats.put.size_bytes),
        "putMessageAverageSize": f"{stats.put.size_bytes / put_count if put_count else 0.0:.1f}",
        "putMessageFailedTimes": str(stats.put_failures),
        "putMessageEntireTimeMax": str(stats.put_slowest_ms),
        "putMessageDistributeTime": put_times(stats),
        "putLatency99": f"{put_percentile_ms(stats, 990):.2f}",
        "putLatency999": f"{put_percentile_ms(stats, 999):.2f}",
        "getMessageEntireTimeMax": "0",
        "putTps": _three(rates.put),
        "getFoundTps": _three(rates.found),
        "getMissTps": _three(rates.missed),
        "getTotalTps": _three(map(sum, zip(rates.found, rates.missed, strict=True))),
        # RocketMQ 4.9 misspells the name, 5.x does not.
        "getTransferedTps": _three(rates.transferred),
        "getTransferredTps": _three(rates.transferred),
        "sendThreadPoolQueueSize": str(deps.durability.waiting_count),
        "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": str(len(deps.parked)),
        "pullThreadPoolQueueCapacity": str(config.max_parked_pulls),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        **_NO_POOLS,
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
        # As in RocketMQ 5.x: false where the services of a master do not run.
        "brokerActive": "false" if config.is_slave else "true",
        **runtime_keys(deps.replication_status(), is_slave=config.is_slave),
        **failover_keys(deps),
        **deps.scheduled.runtime_info(),
    }


_NO_POOLS = {
    f"{pool}ThreadPoolQueue{figure}": "0"
    for pool in ("query", "ack", "litePull")
    for figure in ("Size", "Capacity", "HeadWaitTimeMills")
}
"""Queues that stock tools show and that do not exist here."""


def _three(rates: Iterable[float]) -> str:
    """Rates over 10, 60 and 600 s, in the format of RocketMQ."""
    return " ".join(f"{rate:.2f}" for rate in rates)


_PUT_STEPS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_PUT_STEP_NAMES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s",
    "2~3s", "3~4s", "4~5s", "5~10s", "10s~",
)  # fmt: skip


def put_times(stats: Stats) -> str:
    """Histogram of append times, with the buckets of RocketMQ."""
    counts = [0] * len(_PUT_STEP_NAMES)
    for took_ms, count in stats.put_times.items():
        counts[bisect_right(_PUT_STEPS_MS, took_ms)] += count
    counts[0] = max(stats.put.calls - sum(counts), 0)
    steps = zip(_PUT_STEP_NAMES, counts, strict=True)
    return " ".join(f"[{name}]:{count}" for name, count in steps)


def put_percentile_ms(stats: Stats, per_mille: int) -> int:
    """A percentile of append times, given per mille."""
    beyond = stats.put.calls * (1000 - per_mille) // 1000
    for took_ms in sorted(stats.put_times, reverse=True):
        beyond -= stats.put_times[took_ms]
        if beyond < 0:
            return took_ms
    return 0


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
    # Space reserved for root is neither used nor available, so it is left out.
    return f"{usage.used / max(usage.used + usage.free, 1):.4f}", capacity
