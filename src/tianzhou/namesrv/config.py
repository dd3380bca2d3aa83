"""Settings of the nameserver, under RocketMQ's own names.

The keys are those of NamesrvConfig and NettyServerConfig in RocketMQ 5.x and of its TLS properties;
settings that only Tianzhou has are marked. `IGNORED` are keys of stock files without effect here.
"""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tianzhou.config.files import in_home
from tianzhou.config.log_settings import LogSettings
from tianzhou.config.settings import INT32_MAX, Change, path_setting, positive_setting, setting
from tianzhou.limits import (
    KV_BYTES_MAX,
    NAMESRV_BROKERS_MAX,
    NAMESRV_ROUTES_MAX,
    NAMESRV_TOPICS_MAX,
)
from tianzhou.remoting.tls.settings import TlsSettings

ENVIRONMENT_PREFIX = "TIANZHOU_NAMESRV_"

RESTART, ADMIN, LIVE = Change.RESTART, Change.ADMIN, Change.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(TlsSettings, LogSettings):
    """One nameserver."""

    # -- network ----------------------------------------------------------------------------------
    listen_port: int = setting(
        9876, "TCP port for brokers, clients and tools; 0 selects a free one", maximum=65535
    )
    bind_address: str = setting(
        "0.0.0.0",  # noqa: S104 - RocketMQ's default: every interface
        "address or name to listen on; 0.0.0.0 and :: are every interface, IPv4 and IPv6",
    )
    server_channel_max_idle_time_seconds: int = positive_setting(
        120, "seconds without traffic after which a connection is closed"
    )
    shutdown_wait_time_seconds: int = setting(
        30, "seconds that a stop waits for requests in flight", maximum=3600, change=RESTART
    )

    # -- files ------------------------------------------------------------------------------------
    kv_config_path: Path = path_setting(
        lambda: in_home("namesrv/kvConfig.json"), "file of the KV configuration"
    )
    config_store_path: Path = path_setting(
        lambda: in_home("namesrv/namesrv.properties"),
        "file for settings changed at run time; the configuration file if one is given",
    )

    # -- brokers ----------------------------------------------------------------------------------
    broker_channel_expired_time_ms: int = positive_setting(
        120_000, "a broker silent for so many ms is dropped, if it sends no own limit (Tianzhou's)",
        key="brokerChannelExpiredTime", change=ADMIN,
    )  # fmt: skip
    scan_not_active_broker_interval_ms: int = setting(
        5_000, "ms between two checks for silent brokers",
        key="scanNotActiveBrokerInterval", change=ADMIN, minimum=10, maximum=INT32_MAX,
    )  # fmt: skip
    delete_topic_with_broker_registration: bool = setting(
        False, "delete topics that a registration no longer lists", change=ADMIN
    )
    support_acting_master: bool = setting(
        False, "show the first slave of a group without master as its master", change=LIVE
    )
    notify_min_broker_id_changed: bool = setting(
        False, "notify the brokers of a group when the lowest broker id changes", change=ADMIN
    )

    # -- routes -----------------------------------------------------------------------------------
    order_message_enable: bool = setting(
        False, "add the order configuration of a topic to its route", change=LIVE
    )
    return_order_topic_config_to_broker: bool = setting(
        True, "answer a registration with the order configuration of all topics", change=LIVE
    )
    need_wait_for_service: bool = setting(
        False, "refuse route queries for waitSecondsForService after the start"
    )
    wait_seconds_for_service: int = setting(
        45, "seconds for brokers to register before clients are served, if needWaitForService",
        change=RESTART, maximum=600,
    )  # fmt: skip
    enable_all_topic_list: bool = setting(True, "answer requests for all topics", change=LIVE)
    enable_topic_list: bool = setting(
        True, "answer requests for topics by cluster and for unit topics", change=LIVE
    )
    route_cache_size: int = setting(
        64 * 1024 * 1024, "bytes of the cache of encoded routes (Tianzhou's)", size=True
    )

    # -- access -----------------------------------------------------------------------------------
    access_file: Path | None = setting(
        None, "brokers that may register, and administrators; reloaded when it changes (Tianzhou's)"
    )

    # -- limits -----------------------------------------------------------------------------------
    quota_file: Path | None = setting(
        None, "quotas of connections and clients; reloaded when it changes (Tianzhou's)"
    )
    max_topics: int = positive_setting(NAMESRV_TOPICS_MAX, "topics of all brokers (Tianzhou's)")
    max_routes: int = positive_setting(
        NAMESRV_ROUTES_MAX,
        "topics of all brokers, a topic counted for each broker name (Tianzhou's)",
    )
    max_brokers: int = positive_setting(NAMESRV_BROKERS_MAX, "registered brokers (Tianzhou's)")
    max_kv_bytes: int = positive_setting(
        KV_BYTES_MAX,
        "bytes of the KV configuration, with 64 more for each pair (Tianzhou's)",
        key="maxKVBytes",
    )

    # -- health and metrics ------------------------------------------------------------------------
    health_enable: bool = setting(False, "serve /health and /metrics over HTTP (Tianzhou's)")
    health_host: str = setting("", "address of both pages; bindAddress if empty (Tianzhou's)")
    health_port: int = setting(
        5558, "port of both; 0 selects a free one (Tianzhou's)", maximum=65535
    )

    # -- administration ---------------------------------------------------------------------------
    config_black_list: str = setting(
        "configBlackList;configStorePath;kvConfigPath",
        "keys that no request may change, separated by ';'",
    )


_ONE_LOOP = "one event loop serves every request"
_NO_CLIENT = "the nameserver has no client of its own to tune"
_KERNEL_SIZES = "the operating system sizes socket buffers"

IGNORED: Mapping[str, str] = {
    "rocketmqHome": "no installation folder is needed",
    "productEnvName": "there is no test cluster mode",
    "clusterTest": "there is no test cluster mode",
    "enableControllerInNamesrv": "this nameserver has no controller inside",
    "unRegisterBrokerQueueCapacity": "brokers are dropped at once",
    "tls.config.file": "TLS settings belong in the configuration file itself",
    "tls.server.authClient": "certificates that clients show are always checked",
    "tls.test.mode.enable": "there is no built-in test certificate",
    "enableShutdownGracefully": "a stop is always graceful",
    "useEpollNativeSelector": _ONE_LOOP,
    **dict.fromkeys(
        (
            "clientRequestThreadPoolNums", "clientRequestThreadPoolQueueCapacity",
            "defaultThreadPoolNums", "defaultThreadPoolQueueCapacity", "serverWorkerThreads",
            "serverCallbackExecutorThreads", "serverSelectorThreads", "serverOnewaySemaphoreValue",
            "serverAsyncSemaphoreValue", "serverNettyWorkerGroupEnable",
            "serverPooledByteBufAllocatorEnable",
        ),
        _ONE_LOOP,
    ),
    **dict.fromkeys(
        (
            "serverSocketSndBufSize", "serverSocketRcvBufSize", "serverSocketBacklog",
            "writeBufferHighWaterMark", "writeBufferLowWaterMark",
        ),
        _KERNEL_SIZES,
    ),
    **dict.fromkeys(
        (
            "clientWorkerThreads", "clientCallbackExecutorThreads", "clientOnewaySemaphoreValue",
            "clientAsyncSemaphoreValue", "connectTimeoutMillis", "channelNotActiveInterval",
            "clientChannelMaxIdleTimeSeconds", "clientSocketSndBufSize", "clientSocketRcvBufSize",
            "clientPooledByteBufAllocatorEnable", "clientCloseSocketIfTimeout", "socksProxyConfig",
            "disableCallbackExecutor", "disableNettyWorkerGroup",
        ),
        _NO_CLIENT,
    ),
}  # fmt: skip
"""Keys of stock files that are accepted without effect, with the reason."""
