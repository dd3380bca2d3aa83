"""Settings of a broker, under RocketMQ's own names.

The keys are those of BrokerConfig, MessageStoreConfig and NettyServerConfig in RocketMQ 4.9 and
5.x, which a stock file mixes freely, so the store's settings are part of this class. Settings that
only Tianzhou has are marked. Keys that are not implemented are in `ignored_settings.py`.

Over 500 lines: one table of all settings.
"""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

import dataclasses
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from tianzhou.broker import failover_settings
from tianzhou.broker.failover_settings import FailoverSettings
from tianzhou.broker.ignored_settings import IGNORED, REFUSED
from tianzhou.config.files import in_home
from tianzhou.config.log_settings import LogSettings
from tianzhou.config.settings import (
    DEFAULT_ORIGIN,
    INT32_MAX,
    Change,
    Given,
    Loaded,
    from_environment,
    from_file,
    load,
    path_setting,
    positive_setting,
    setting,
)
from tianzhou.errors import AddressError, ConfigError
from tianzhou.limits import (
    GROUP_RULES_MAX,
    GROUPS_MAX,
    OFFSETS_MAX,
    POPPED_QUEUES_MAX,
    PRODUCER_GROUPS_MAX,
    QUEUE_LOCKS_MAX,
    SUBSCRIPTIONS_MAX,
    TOPICS_MAX,
)
from tianzhou.names import PERM_READ, PERM_WRITE, TRACE_TOPIC
from tianzhou.protocol.acl import Credentials
from tianzhou.remoting.address import format_address, parse_address, parse_addresses
from tianzhou.remoting.quota.addresses import parse_pattern
from tianzhou.remoting.tls.settings import TlsSettings
from tianzhou.store.config import StoreConfig

ENVIRONMENT_PREFIX = "TIANZHOU_BROKER_"
NAMESRV_ENVIRONMENT = "NAMESRV_ADDR"

RESTART, ADMIN, LIVE = Change.RESTART, Change.ADMIN, Change.LIVE
ELECTION_ORIGIN = "the election of the group"
"""Of a role and an id that this process got while it ran."""
_ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - RocketMQ's default


class MetricsExporter(StrEnum):
    """How metrics are exported; RocketMQ's other exporters need an OpenTelemetry collector."""

    DISABLE = "DISABLE"
    PROM = "PROM"


class BrokerRole(StrEnum):
    """The role of a broker, and whether a send waits for a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class RequestMode(StrEnum):
    """How consumers receive messages whose queues the broker assigns (5.x)."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(StoreConfig, TlsSettings, LogSettings, FailoverSettings):
    """One broker and its store."""

    # -- identity ---------------------------------------------------------------------------------
    broker_name: str = setting(
        platform.node() or "DEFAULT_BROKER", "name that a master shares with its slaves"
    )
    broker_cluster_name: str = setting("DefaultCluster", "cluster that the broker belongs to")
    broker_id: int = setting(0, "0 for a master, above it for a slave")
    broker_role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER, "SYNC_MASTER waits for a slave before it acknowledges"
    )
    # -- replication ------------------------------------------------------------------------------
    ha_master_address: str | None = setting(
        None, "HA address of the master, HOST:PORT; the nameserver's answer if not set"
    )
    in_sync_replicas: int = setting(
        1, "copies of a message, the master's included, that SYNC_MASTER waits for; at least 2",
        minimum=0, maximum=100,
    )  # fmt: skip
    slave_timeout: int = positive_setting(
        3000, "ms that SYNC_MASTER waits for slaves before it answers FLUSH_SLAVE_TIMEOUT"
    )
    ha_slave_fallbehind_max: int = setting(
        256 * 1024 * 1024, "bytes that a slave may be behind and still count for SYNC_MASTER",
        aliases=("haMaxGapNotInSync",), minimum=1, size=True,
    )  # fmt: skip
    ha_send_heartbeat_interval: int = setting(
        5000, "ms between two heartbeats on the HA port; 500 at most between brokers of Tianzhou",
        minimum=100, maximum=60_000,
    )  # fmt: skip
    ha_housekeeping_interval: int = setting(
        20_000, "ms of silence after which a connection of the HA port is closed",
        minimum=1000, maximum=3_600_000,
    )  # fmt: skip
    ha_transfer_batch_size: int = setting(
        32 * 1024, "bytes of the log that one frame to a slave of Apache's carries",
        minimum=1024, maximum=2 * 1024 * 1024, size=True,
    )  # fmt: skip
    ha_flow_control_enable: bool = setting(False, "limit the bytes that the master sends to slaves")
    max_ha_transfer_byte_in_second: int = setting(
        100 * 1024 * 1024, "that limit, in bytes per second for all slaves together",
        minimum=1024 * 1024, size=True,
    )  # fmt: skip
    ha_allowed_addresses: str = setting(
        "",
        "addresses of Apache's slaves that may copy the log, separated by ';'; if not set, none "
        "where requests need an account or TLS, else all (Tianzhou's)",
    )
    offset_check_in_slave: bool = setting(
        False, "a slave corrects wrong queue offsets of consumers itself", change=LIVE
    )
    region_id: str = setting(
        "DefaultRegion", "region name in responses to sends", change=LIVE, maximum=255
    )

    # -- network ----------------------------------------------------------------------------------
    listen_port: int = setting(
        10911, "TCP port for clients and tools; 0 chooses a free one", maximum=65535
    )
    bind_address: str = setting(
        _ALL_INTERFACES, "address to listen on; 0.0.0.0 and :: are every interface, IPv4 and IPv6"
    )
    broker_ip1: str | None = setting(
        None, "address that clients connect to; detected if not set",
        key="brokerIP1",
    )  # fmt: skip
    broker_ip2: str | None = setting(
        None, "address that slaves connect to; brokerIP1 if not set",
        key="brokerIP2",
    )  # fmt: skip
    ha_listen_port: int = setting(0, "TCP port for slaves; 0 is listenPort + 1", maximum=65535)
    vip_listen_enable: bool = setting(
        True, "listen on listenPort - 2 too, where clients send with vipChannelEnabled (Tianzhou's)"
    )
    server_channel_max_idle_time_seconds: int = positive_setting(
        120, "a connection without traffic for so long is closed"
    )
    shutdown_wait_time_seconds: int = setting(
        30, "how long a stop waits for pending responses", maximum=3600, change=RESTART
    )

    # -- nameservers ------------------------------------------------------------------------------
    namesrv_addr: str | None = setting(
        None, "nameservers to register with, separated by ';'; NAMESRV_ADDR in the environment",
        change=ADMIN,
    )  # fmt: skip
    register_name_server_period: int = positive_setting(
        30_000, "ms between two registrations; limited to 10,000 to 60,000", change=LIVE
    )
    register_broker_timeout_mills: int = setting(
        24_000, "time-out of a registration in ms", change=LIVE, minimum=100, maximum=600_000
    )
    compressed_register: bool = setting(False, "register in the binary form", change=LIVE)

    # -- topics and groups ------------------------------------------------------------------------
    default_topic_queue_nums: int = setting(
        8, "queues of the template TBW102, so at most of an automatic topic", minimum=1,
        maximum=65_536, change=RESTART,
    )  # fmt: skip
    auto_create_topic_enable: bool = setting(
        True, "create unknown topics from a template when a message is sent to them", change=LIVE
    )
    auto_create_subscription_group: bool = setting(
        True, "create unknown consumer groups when they connect", change=LIVE
    )
    cluster_topic_enable: bool = setting(
        True, "the topic named like the cluster is usable", change=RESTART
    )
    broker_topic_enable: bool = setting(
        True, "the topic named like the broker is usable", change=RESTART
    )
    broker_permission: int = setting(
        PERM_READ | PERM_WRITE, "permission of the whole broker: 4 read, 2 write, 6 both",
        change=LIVE, maximum=7,
    )  # fmt: skip
    trace_topic_enable: bool = setting(
        False, "create the topic of message traces on this broker", change=RESTART
    )
    msg_trace_topic_name: str = setting(TRACE_TOPIC, "topic of message traces")
    group_topic_binding_enable: bool = setting(
        False, "refuse subscriptions to topics that are not granted to the group (Tianzhou's)",
        change=ADMIN,
    )  # fmt: skip
    group_topic_bindings: str = setting(
        "", "topics granted to groups: group=topic,topic;group=topic (Tianzhou's)", change=ADMIN
    )

    # -- sending ----------------------------------------------------------------------------------
    broker_fast_failure_enable: bool = setting(
        True, "refuse sends that waited too long instead of storing them", change=LIVE
    )
    wait_time_mills_in_send_queue: int = setting(
        200,
        "ms for which sends are refused after the disk delayed one",
        change=LIVE,
        minimum=1,
        maximum=60_000,
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1000, "an append of so many ms means that the disk is overloaded", change=LIVE,
        minimum=100, maximum=INT32_MAX,
    )  # fmt: skip
    send_thread_pool_queue_capacity: int = setting(
        10_000,
        "sends that may wait for the disk or a slave at a time",
        change=LIVE,
        minimum=1,
        maximum=1_000_000,
    )
    start_accept_send_request_time_stamp: int = setting(
        0, "ms since 1970 before which sends are refused", change=LIVE
    )
    trace_on: bool = setting(True, "ask producers for message traces", change=LIVE)

    # -- transactions -----------------------------------------------------------------------------
    reject_transaction_message: bool = setting(False, "refuse transactional messages", change=LIVE)
    transaction_time_out: int = setting(
        6000, "ms before the first check of an open transaction", change=ADMIN, maximum=INT32_MAX
    )
    transaction_check_max: int = positive_setting(
        15, "checks of a transaction before it is given up", change=ADMIN
    )
    transaction_check_interval: int = positive_setting(
        60_000, "ms between two rounds of checks", change=ADMIN
    )
    transaction_op_msg_max_size: int = setting(
        4096, "bytes of a record that ends several transactions; 1: one record each, as 4.9 reads",
        change=LIVE, minimum=1, maximum=1024**2,
    )  # fmt: skip
    transaction_op_batch_interval: int = setting(
        0, "ms that ends of transactions may wait for others to share a record (RocketMQ: 3000)",
        change=ADMIN, maximum=3_600_000,
    )  # fmt: skip

    # -- replies and order ------------------------------------------------------------------------
    store_reply_message_enable: bool = setting(
        True, "store replies to requests in the reply topic, too", change=LIVE
    )
    rebalance_lock_max_live_time: int = positive_setting(
        60_000, "ms after which a queue lock of an orderly consumer expires if it is not renewed",
        key="rocketmq.broker.rebalance.lockMaxLiveTime", change=ADMIN,
    )  # fmt: skip

    # -- delayed and timed messages ---------------------------------------------------------------
    flush_delay_offset_interval: int = setting(
        10_000, "ms between two saves of the progress of delay levels", minimum=10
    )
    timer_wheel_enable: bool = setting(True, "accept messages with any delivery time (TIMER_*)")
    timer_max_delay_sec: int = positive_setting(
        3 * 24 * 3600, "longest delay of a timed message in seconds", change=LIVE
    )
    timer_roll_window_slot: int = setting(
        2 * 24 * 3600, "seconds after which a pending message is stored again; earlier if "
        "its log file would expire (half of fileReservedTime)", change=LIVE, minimum=60,
        maximum=INT32_MAX,
    )  # fmt: skip
    timer_flush_interval_ms: int = setting(
        1000, "ms between two saves of the progress of timed messages", minimum=10
    )
    recall_message_enable: bool = setting(False, "let producers recall timed messages", change=LIVE)
    allow_recall_when_broker_not_writeable: bool = setting(
        True, "allow recalls while brokerPermission forbids sending", change=LIVE
    )

    # -- pulling ----------------------------------------------------------------------------------
    long_polling_enable: bool = setting(
        True, "park a pull without messages until one arrives", change=LIVE
    )
    short_polling_time_mills: int = setting(
        1000, "ms that it is parked without long polling", change=LIVE, minimum=1, maximum=60_000
    )
    max_parked_pulls: int = setting(
        200_000,
        "parked pulls; more are answered at once (Tianzhou's)",
        change=LIVE,
        maximum=10_000_000,
    )
    pull_batch_max_message_count: int = setting(
        160, "messages that a pull may ask for", change=LIVE, minimum=1, maximum=10_000
    )
    slave_read_enable: bool = setting(
        False, "send consumers of old messages to a slave", change=LIVE
    )
    enable_mixed_message_type: bool = setting(
        False, "allow topics for all types of messages, message.type=MIXED", change=LIVE
    )
    enable_property_filter: bool = setting(
        False, "allow subscriptions by SQL92 expressions", change=LIVE
    )
    reject_pull_consumer_enable: bool = setting(
        False, "refuse pulls of groups that send no heartbeat", change=LIVE
    )
    lite_pull_message_enable: bool = setting(True, "serve LITE_PULL_MESSAGE", change=LIVE)

    # -- popping ----------------------------------------------------------------------------------
    enable_retry_topic_v2: bool = setting(
        False, "popped messages come back in %RETRY%group+topic, not %RETRY%group_topic",
        change=LIVE,
    )  # fmt: skip
    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        True, "pop from %RETRY%group_topic too while enableRetryTopicV2 is true", change=LIVE
    )
    pop_from_retry_probability: int = setting(
        20, "percentage of pops that read the retry topic first, the others last", change=LIVE,
        maximum=100,
    )  # fmt: skip
    pop_response_return_actual_retry_topic: bool = setting(
        False, "name the retry topic in retried messages, not the topic they were sent to",
        change=LIVE,
    )  # fmt: skip
    init_pop_offset_by_check_msg_in_mem: bool = setting(
        True, "start a new group at the first message if that is recent, not at the last",
        change=LIVE,
    )  # fmt: skip
    enable_pop_message_threshold: bool = setting(
        False, "stop popping a queue while popInflightMessageThreshold is exceeded", change=LIVE
    )
    pop_inflight_message_threshold: int = setting(
        10_000,
        "messages of a queue that a group may have in flight",
        change=LIVE,
        minimum=1,
        maximum=10_000_000,
    )
    pop_ck_max_buffer_size: int = setting(
        200_000, "messages that all groups together may have in flight; each uses 350 bytes",
        change=LIVE, minimum=1, maximum=10_000_000,
    )  # fmt: skip
    max_pop_polling_size: int = setting(
        100_000, "parked pops; more are answered at once", change=LIVE, maximum=10_000_000
    )
    pop_polling_size: int = setting(
        1024, "parked pops of one group and queue", change=LIVE, maximum=10_000_000,
    )  # fmt: skip
    default_message_request_mode: RequestMode = setting(
        RequestMode.PULL, "request mode of groups whose queues the broker assigns", change=LIVE
    )
    default_pop_share_queue_num: int = setting(
        -1, "by pop: how many neighbours share a consumer's queues; below 1 all share all",
        change=LIVE, minimum=-1, maximum=INT32_MAX,
    )  # fmt: skip
    server_load_balancer_enable: bool = setting(
        True, "assign queues to consumers that ask, instead of returning all to each", change=LIVE
    )
    load_balance_poll_name_server_interval: int = setting(
        30_000, "ms after which the route of queues to assign is queried again",
        change=LIVE, maximum=INT32_MAX,
    )  # fmt: skip

    # -- offsets and clients ----------------------------------------------------------------------
    flush_consumer_offset_interval: int = setting(
        5000, "ms between two saves of the consumer offsets", minimum=10
    )
    channel_expired_timeout: int = positive_setting(
        120_000, "a client without heartbeat for so many ms is dropped", change=ADMIN
    )
    use_server_side_reset_offset: bool = setting(
        True, "consumers learn of a reset by their next pull; false: they are called, as in 4.9",
        change=LIVE,
    )  # fmt: skip
    notify_consumer_ids_changed_enable: bool = setting(
        True, "notify the consumers of a group when one joins or leaves", change=LIVE
    )

    # -- administration ---------------------------------------------------------------------------
    copy_metadata_on_join: bool = setting(
        False, "a broker without topics copies topics and groups of its cluster (Tianzhou's)"
    )
    enable_detail_stat: bool = setting(
        True, "statistics by queue, too (QUEUE_PUT_NUMS and the like)", change=LIVE
    )
    broker_config_path: Path = path_setting(
        lambda: in_home("broker.properties"),
        "file for settings changed at run time; the configuration file if one is given",
    )
    config_black_list: str = setting(
        "configBlackList;brokerConfigPath", "keys that no request may change, separated by ';'"
    )

    # -- metrics ----------------------------------------------------------------------------------
    slow_request_threshold_mills: int = setting(
        1000, "log requests that take so many ms; 0 logs none (Tianzhou's)", change=LIVE,
        maximum=INT32_MAX,
    )  # fmt: skip
    metrics_exporter_type: MetricsExporter = setting(
        MetricsExporter.DISABLE, "PROM serves /metrics for Prometheus, and /health"
    )
    metrics_prom_exporter_host: str = setting("", "address of these pages; bindAddress if empty")
    metrics_prom_exporter_port: int = setting(
        5557, "their port; 0 chooses a free one", maximum=65535
    )

    # -- access control ---------------------------------------------------------------------------
    acl_enable: bool = setting(False, "check every request against the accounts in aclFile")
    rocketmq_home: Path = path_setting(
        lambda: Path(os.environ.get("ROCKETMQ_HOME") or in_home("")),
        "folder that aclFile and aclFolder are relative to",
    )
    acl_file: str = setting(
        "conf/plain_acl.yml", "accounts and white lists; read again when it changes (Tianzhou's)"
    )
    acl_folder: str = setting(
        "conf/acl", "folder of more such files, read along with aclFile (Tianzhou's)"
    )

    inner_client_authentication_credentials: str | None = setting(
        None, 'account of the broker\'s own requests, {"accessKey":"...","secretKey":"..."}',
        secret=True,
    )  # fmt: skip

    # -- limits -----------------------------------------------------------------------------------
    quota_file: Path | None = setting(
        None, "quotas of clients, topics and groups; read again when it changes (Tianzhou's)"
    )

    # -- tables -----------------------------------------------------------------------------------
    max_topics: int = positive_setting(
        TOPICS_MAX, "most topics, without those of groups (Tianzhou's)"
    )
    max_subscription_groups: int = positive_setting(GROUPS_MAX, "most consumer groups (Tianzhou's)")
    max_producer_groups: int = positive_setting(
        PRODUCER_GROUPS_MAX, "producer groups that are connected (Tianzhou's)"
    )
    max_subscriptions: int = positive_setting(
        SUBSCRIPTIONS_MAX, "subscriptions of all connected consumers (Tianzhou's)"
    )
    max_consumer_offsets: int = positive_setting(
        OFFSETS_MAX, "committed offsets, one for each queue and group (Tianzhou's)"
    )
    max_queue_locks: int = positive_setting(
        QUEUE_LOCKS_MAX, "queues locked by consumers in order (Tianzhou's)"
    )
    max_popped_queues: int = positive_setting(
        POPPED_QUEUES_MAX, "queues that groups pop, counted for each group (Tianzhou's)"
    )
    max_group_rules: int = positive_setting(
        GROUP_RULES_MAX, "topics forbidden to groups; modes (pull, pop) of groups (Tianzhou's)"
    )

    # -- refused ----------------------------------------------------------------------------------
    enable_dleger_commit_log: bool = setting(
        False, "DLedger; not in Tianzhou", key="enableDLegerCommitLog"
    )
    enable_controller_mode: bool = setting(False, "RocketMQ's controller; not in Tianzhou")

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    @property
    def is_staged(self) -> bool:
        # A slave writes what it receives straight to the log.
        # The class with slots is not the one that a bare super() means.
        return super(BrokerConfig, self).is_staged and not self.is_slave

    @property
    def config_directory(self) -> Path:
        """The folder of the tables of topics, groups and offsets."""
        return self.root_directory / "config"

    @property
    def ha_port(self) -> int:
        return self.ha_listen_port or self.listen_port + 1


def load_broker_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[Given] = (),
    defaults: Iterable[Given] = (),
) -> Loaded[BrokerConfig]:
    """Flags before environment before file before `defaults`. Raises ConfigError."""
    environment = os.environ if environ is None else environ
    sources = [*defaults]
    if file is not None:
        sources += [
            Given("brokerConfigPath", str(file.absolute()), f"flag --config {file}"),
            *from_file(file),
        ]
    if address := environment.get(NAMESRV_ENVIRONMENT):
        sources.append(Given("namesrvAddr", address, f"environment {NAMESRV_ENVIRONMENT}"))
    sources += from_environment(BrokerConfig, environment, ENVIRONMENT_PREFIX)
    sources += flags
    _check_promises(sources)
    ignored = {**dict.fromkeys(REFUSED, "this value asks for nothing"), **IGNORED}
    loaded = load(BrokerConfig, sources, ignored)
    check_config(loaded)
    return dataclasses.replace(loaded, warnings=(*loaded.warnings, *_warnings(loaded)))


def _warnings(loaded: Loaded[BrokerConfig]) -> Iterator[str]:
    """Settings that promise more than they do together."""
    config = loaded.config
    if config.in_sync_replicas > 1 and config.broker_role is BrokerRole.ASYNC_MASTER:
        yield (
            f"{loaded.origins['in_sync_replicas']}: inSyncReplicas={config.in_sync_replicas} has "
            "no effect: an ASYNC_MASTER acknowledges without any slave; set brokerRole=SYNC_MASTER"
        )


def _check_promises(sources: Iterable[Given]) -> None:
    """Raises ConfigError for a value that promises what this broker does not do."""
    for given in {given.key: given for given in sources}.values():
        refused = REFUSED.get(given.key)
        if refused is not None and given.text.strip().lower() not in refused.accepted:
            raise ConfigError(
                f"{given.origin}: {given.key}={given.text}: {refused.why}; remove the key, or set "
                f"it to {' or '.join(refused.accepted) or 'nothing'}"
            )


def namesrv_addresses(config: BrokerConfig) -> list[str]:
    """The nameservers to register with. Raises ConfigError."""
    try:
        return [format_address(*address) for address in parse_addresses(config.namesrv_addr or "")]
    except AddressError as e:
        raise ConfigError(f"namesrvAddr: {e}") from e


class _Account(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str


def inner_credentials(config: BrokerConfig) -> Credentials | None:
    """The account of the broker's own requests, if it has one. Raises ConfigError."""
    text = config.inner_client_authentication_credentials
    if text is None:
        return None
    try:
        account = msgspec.json.decode(text, type=_Account)
    except msgspec.DecodeError as e:
        # The text could contain the secret.
        raise ConfigError(
            "innerClientAuthenticationCredentials is no JSON object with accessKey and secretKey"
        ) from e
    return Credentials(account.access_key, account.secret_key)


def _check_ha_addresses(loaded: Loaded[BrokerConfig]) -> None:
    """Raises ConfigError for addresses that cannot be any."""
    config, origins = loaded.config, loaded.origins
    try:
        if config.ha_master_address:
            parse_address(config.ha_master_address)
    except AddressError as e:
        raise ConfigError(f"{origins['ha_master_address']}: haMasterAddress: {e}") from e
    try:
        for pattern in filter(None, config.ha_allowed_addresses.split(";")):
            parse_pattern(pattern)
    except ConfigError as e:
        raise ConfigError(f"{origins['ha_allowed_addresses']}: haAllowedAddresses: {e}") from e


def check_config(loaded: Loaded[BrokerConfig]) -> None:
    """Refuse combinations of settings that cannot work. Raises ConfigError."""
    config, origins = loaded.config, loaded.origins
    id_or_role = "broker_role" if origins["broker_id"] == DEFAULT_ORIGIN else "broker_id"
    namesrv_addresses(config)
    inner_credentials(config)
    _check_ha_addresses(loaded)
    given = frozenset(name for name, origin in origins.items() if origin != DEFAULT_ORIGIN)
    for refusal in failover_settings.refusals(config, given):
        raise ConfigError(f"{origins[refusal.field]}: {refusal.text}")
    if config.has_failover:
        _check_failover(config, origins)
    is_fixed = not config.has_failover
    refusals = (
        (config.enable_dleger_commit_log, "enable_dleger_commit_log",
         "enableDLegerCommitLog=true: Tianzhou has no DLedger"),
        (config.enable_controller_mode, "enable_controller_mode",
         "enableControllerMode=true: RocketMQ's controller is not supported"),
        (is_fixed and config.is_slave and config.broker_id < 1, id_or_role,
         f"brokerId={config.broker_id}: a slave has a brokerId of 1 or more"),
        (is_fixed and not config.is_slave and config.broker_id != 0, "broker_id",
         f"brokerId={config.broker_id}: a master has brokerId 0"),
        (config.ha_housekeeping_interval <= config.ha_send_heartbeat_interval,
         "ha_housekeeping_interval",
         f"haHousekeepingInterval={config.ha_housekeeping_interval}: a slave would be disconnected "
         "while nothing is sent; it must be larger than haSendHeartbeatInterval="
         f"{config.ha_send_heartbeat_interval}"),
        (not config.broker_name.strip(), "broker_name", "brokerName is empty"),
        (not config.broker_cluster_name.strip(), "broker_cluster_name",
         "brokerClusterName is empty"),
    )  # fmt: skip
    _refuse(refusals, origins)


def _check_failover(config: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse what contradicts roles that are decided by election. Raises ConfigError."""
    name_problem = failover_settings.name_problem
    names = (
        ("broker_name", name_problem("brokerName", config.broker_name)),
        ("broker_cluster_name", name_problem("brokerClusterName", config.broker_cluster_name)),
    )
    elected = "with haEtcdEndpoints the brokers elect their master"
    _refuse(
        (
            (config.is_slave and origins["broker_role"] != ELECTION_ORIGIN, "broker_role",
             f"brokerRole=SLAVE: {elected}; set ASYNC_MASTER or SYNC_MASTER, the mode of this "
             "broker while it is the master"),
            (origins["broker_id"] not in (DEFAULT_ORIGIN, ELECTION_ORIGIN), "broker_id",
             f"brokerId={config.broker_id}: {elected} and agree on their ids; remove the key"),
            (config.ha_master_address is not None, "ha_master_address",
             f"haMasterAddress: {elected}, and slaves follow the elected one; remove the key"),
            (config.transient_store_pool_enable, "transient_store_pool_enable",
             "transientStorePoolEnable=true: messages in the pool would be lost at a switch of the "
             "master; set it to false with haEtcdEndpoints"),
            *((text is not None, name, text or "") for name, text in names),
        ),
        origins,
    )  # fmt: skip


def _refuse(refusals: Iterable[tuple[bool, str, str]], origins: Mapping[str, str]) -> None:
    for refused, name, text in refusals:
        if refused:
            raise ConfigError(f"{origins[name]}: {text}")
