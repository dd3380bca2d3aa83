"""The handlers of the nameserver, one function per request code.

A handler decodes its header, queries the registry or the KV configuration, and returns the
response. It raises `RequestError` with RocketMQ's own code and remark. Handlers respond at once,
without a task, except the few that write a file, and long work, which runs in slices.
"""

import hashlib
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError, StoreError
from tianzhou.names import ORDER_TOPIC_NAMESPACE
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.kv_config import KVConfig
from tianzhou.namesrv.registrations import (
    BrokerIdentity,
    BrokerTopics,
    Dropped,
    MinIdNotice,
    Registered,
)
from tianzhou.namesrv.registry import Registry, same_version
from tianzhou.namesrv.route_cache import RouteCache
from tianzhou.namesrv.zones import only_zone
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies import registration
from tianzhou.protocol.bodies.route import (
    BrokerMemberGroup,
    ClusterInfo,
    GetBrokerMemberGroupBody,
    TopicRouteData,
)
from tianzhou.protocol.bodies.topics import DataVersion, KVTable, TopicConfigTable, TopicList
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import namesrv as wire
from tianzhou.protocol.headers.topics import TopicRequest
from tianzhou.protocol.version import V3_0_11, V4_9_4
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.scheduler import InOrder, Steps, sliced
from tianzhou.remoting.settings_requests import change_settings, fixed_keys

log = logging.getLogger(__name__)

Replied = Command | Awaitable[Command]

_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_CRC_MASK = 0x7FFFFFFF
_SUCCESS = ResponseCode.SUCCESS
"""Route queries use it: reading a member of an enumeration takes 50 ns in Python 3.11."""
_FIXED_KEYS = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Settings that no request may change, also if they are not in configBlackList."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvDeps:
    """Dependencies of the handlers."""

    settings: LiveSettings[NamesrvConfig]
    has_accounts: bool
    """Whether requests that change something are checked for an administrator (accessFile)."""
    warnings: LogRateLimit
    """Limits the log lines about suspicious registrations, which any host can send."""
    registry: Registry
    routes: RouteCache
    kv: KVConfig
    clock: Clock
    ready_ms: int
    """Route queries are rejected before this time (needWaitForService). Computed at the start, so
    that a change of settings cannot make the server reject them again."""
    notify: Callable[[MinIdNotice], None]
    """Notifies brokers that the lowest id of their group has changed."""
    changes: InOrder = field(default_factory=InOrder)
    """Serializes changes of the registry: each may last longer than a slice."""


Handler = Callable[[NamesrvDeps, Connection, Command], Replied]


def changes_registry(
    handle: Callable[[NamesrvDeps, Connection, Command], Steps[Command]],
) -> Handler:
    """A handler that runs after all earlier changes of the registry."""

    def start(deps: NamesrvDeps, connection: Connection, request: Command) -> Replied:
        return deps.changes.answer(handle(deps, connection, request))

    return start


def success(body: bytes = b"", header: headers.Header | None = None) -> Command:
    ext_fields = headers.encode(header) if header is not None else None
    return Command(code=ResponseCode.SUCCESS, ext_fields=ext_fields, body=body)


# -- routes ---------------------------------------------------------------------------------------


def is_in_service(deps: NamesrvDeps) -> bool:
    """Whether route queries are answered: the time for brokers to register is over."""
    return deps.clock() >= deps.ready_ms


def get_route(deps: NamesrvDeps, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.GetRouteInfoRequest, request.fields)
    if not is_in_service(deps):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    if header.zone_mode and header.zone_name and not header.zone_name.isspace():
        route = deps.routes.route(header.topic)
        # RocketMQ encodes filtered routes in the old dialect for every client.
        body = None if route is None else bodies.encode(only_zone(route, header.zone_name))
    else:
        standard = request.version >= V4_9_4 or header.accept_standard_json_only is True
        body = deps.routes.answer(header.topic, standard=standard)
    if body is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}{_FAQ}",
        )
    return Command(code=_SUCCESS, body=body)


def get_cluster_info(deps: NamesrvDeps, _: Connection, __: Command) -> Command:
    info = ClusterInfo(brokers=deps.registry.brokers(), clusters=deps.registry.clusters())
    return success(bodies.encode(info))


# -- brokers --------------------------------------------------------------------------------------


@changes_registry
def register_broker(deps: NamesrvDeps, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.RegisterBrokerRequest, request.fields)
    if header.body_crc32 and zlib.crc32(request.body) & _CRC_MASK != header.body_crc32:
        _warn(deps, f"broker {connection.peer}: registration with a wrong checksum")
        raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    identity = BrokerIdentity(
        cluster=header.cluster_name,
        name=header.broker_name,
        broker_id=header.broker_id,
        addr=header.broker_addr,
        ha_addr=header.ha_server_addr,
        zone=header.zone_name,
        acting_master=header.enable_acting_master,
        timeout_ms=header.heartbeat_timeout_millis,
    )
    registered = yield from _register(deps, identity, header.compressed, connection, request)
    if registered is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if registered.notice is not None:
        deps.notify(registered.notice)
    response = success(
        _order_config_for_broker(deps),
        wire.RegisterBrokerResponse(
            ha_server_addr=registered.ha_addr,
            master_addr=registered.master_addr,
            state_version=registered.newer_version,
        ),
    )
    if registered.ignored:
        # A success without a remark, as of Apache's, would hide from an operator that it is so.
        response.remark = (
            f"another broker is registered as {identity.name} with id {identity.broker_id}, and "
            "its tables are newer: this one may be a former master"
        )
    return response


def _register(
    deps: NamesrvDeps,
    identity: BrokerIdentity,
    compressed: bool,
    connection: Connection,
    request: Command,
) -> Steps[Registered | None]:
    delete_missing = deps.settings.config.delete_topic_with_broker_registration
    now_ms = deps.clock()
    digest = hashlib.blake2b(request.body, digest_size=16).digest()
    yield
    if not delete_missing:
        renewed = deps.registry.renew(identity, digest, connection, now_ms)
        if renewed is not None:
            return renewed
    topics = yield from _broker_topics(request, compressed)
    if connection.closed:
        # Registered now, the broker would stay until it expires.
        return None
    registered = yield from deps.registry.register(
        identity, topics, digest, connection, now_ms, delete_missing=delete_missing
    )
    _log_registration(deps, identity, topics, registered, connection.peer)
    return registered


def _broker_topics(request: Command, compressed: bool) -> Steps[BrokerTopics]:
    if not request.body:
        return BrokerTopics(version=DataVersion(), topics={}, mappings={}, filter_servers=[])
    if request.version < V3_0_11:
        table = yield from bodies.decode_request_steps(TopicConfigTable, request.body)
        filter_servers = None
    else:
        body = yield from registration.decode_steps(
            request.body, compressed=compressed, broker_version=request.version
        )
        table, filter_servers = body.topic_config, body.filter_servers
    return BrokerTopics(
        version=table.data_version,
        topics=table.topics,
        mappings=table.mapping_infos or {},
        filter_servers=filter_servers,
    )


def _warn(deps: NamesrvDeps, text: str) -> None:
    if (ending := deps.warnings.ending()) is not None:
        log.warning("%s%s", text, ending)


def _log_registration(
    deps: NamesrvDeps,
    identity: BrokerIdentity,
    topics: BrokerTopics,
    registered: Registered | None,
    peer: str,
) -> None:
    broker = f"broker {identity.name} {identity.broker_id} at {identity.addr}"
    if registered is None:
        _warn(deps, f"{broker}: refused, its first registration lists one topic only")
        return
    if registered.ignored:
        _warn(deps, f"{broker}: ignored, a newer broker has its id; registered from {peer}")
        return
    epoch = topics.version.state_version or 0
    if registered.displaced is not None and epoch:
        # A switch: the former master has not unregistered, as it was killed or cut off.
        log.info(
            "%s: replaces %s, as the master of epoch %d; registered from %s",
            broker, registered.displaced, epoch, peer,
        )  # fmt: skip
    elif registered.displaced is not None:
        _warn(
            deps,
            f"{broker}: replaces {registered.displaced}, which has the same name and id and "
            f"is still registered; registered from {peer}. Give one of them another brokerName; if "
            f"it is no broker of yours, list yours in accessFile",
        )
    if registered.new:
        log.info("%s: registered in %s, %d topics", broker, identity.cluster, len(topics.topics))
    else:
        log.debug("%s: topics changed, %d listed", broker, len(topics.topics))


def _order_config_for_broker(deps: NamesrvDeps) -> bytes:
    if not deps.settings.config.return_order_topic_config_to_broker:
        return b""
    pairs = deps.kv.namespace(ORDER_TOPIC_NAMESPACE)
    return b"" if pairs is None else _encode_pairs(pairs)


@changes_registry
def unregister_broker(
    deps: NamesrvDeps, connection: Connection, request: Command
) -> Steps[Command]:
    header = headers.decode(wire.BrokerRequest, request.fields)
    dropped = yield from deps.registry.unregister(header.broker_name, header.broker_addr)
    report_dropped(deps, dropped, f"unregistered by {connection.peer}")
    return success()


def report_dropped(deps: NamesrvDeps, dropped: list[Dropped], why: str) -> None:
    """Log dropped brokers, and notify the other brokers of a group if its lowest id changed."""
    for each in dropped:
        log.info(
            "broker %s %d at %s: dropped, %s",
            each.broker.name, each.broker.broker_id, each.broker.addr, why,
        )  # fmt: skip
        if each.notice is not None:
            deps.notify(each.notice)


def broker_heartbeat(deps: NamesrvDeps, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.BrokerHeartbeatRequest, request.fields)
    deps.registry.heartbeat(header.cluster_name, header.broker_addr, deps.clock())
    return success()


def query_data_version(deps: NamesrvDeps, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.BrokerRequest, request.fields)
    current = bodies.decode_request(DataVersion, request.body)
    deps.registry.heartbeat(header.cluster_name, header.broker_addr, deps.clock())
    registered = deps.registry.version_of(header.cluster_name, header.broker_addr)
    changed = registered is None or not same_version(registered, current)
    body = b"" if registered is None else bodies.encode(registered)
    return success(body, wire.QueryDataVersionResponse(changed=changed))


def get_broker_member_group(deps: NamesrvDeps, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.GetBrokerMemberGroupRequest, request.fields)
    group = BrokerMemberGroup(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        addresses=deps.registry.members(header.broker_name),
    )
    return success(bodies.encode(GetBrokerMemberGroupBody(broker_member_group=group)))


@changes_registry
def wipe_write_perm(deps: NamesrvDeps, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.BrokerNameRequest, request.fields)
    count = yield from deps.registry.wipe_write_perm(header.broker_name)
    log.info("broker %s: %d topics read-only, by %s", header.broker_name, count, connection.peer)
    return success(header=wire.WipeWritePermResponse(wipe_topic_count=count))


@changes_registry
def add_write_perm(deps: NamesrvDeps, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.BrokerNameRequest, request.fields)
    count = yield from deps.registry.add_write_perm(header.broker_name)
    log.info("broker %s: %d topics writable, by %s", header.broker_name, count, connection.peer)
    return success(header=wire.AddWritePermResponse(add_topic_count=count))


# -- topics ---------------------------------------------------------------------------------------


@changes_registry
def register_topic(deps: NamesrvDeps, _: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(TopicRequest, request.fields)
    route = yield from bodies.decode_request_steps(TopicRouteData, request.body)
    unknown = deps.registry.register_topic(header.topic, route.queues)
    if unknown is not None:
        log.warning("topic %s: not registered, broker %s is unknown", header.topic, unknown)
    return success()


@changes_registry
def delete_topic(deps: NamesrvDeps, connection: Connection, request: Command) -> Steps[Command]:
    yield
    header = headers.decode(wire.DeleteTopicFromNamesrvRequest, request.fields)
    deps.registry.delete_topic(header.topic, header.cluster_name)
    where = header.cluster_name or "all clusters"
    log.info("topic %s: deleted in %s, by %s", header.topic, where, connection.peer)
    return success()


@sliced
def _topic_list(
    topics: Iterable[str | None], *, enabled: bool, broker_addr: str | None = None
) -> Steps[Command]:
    if not enabled:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")
    names: list[str] = []
    for name in topics:
        if name is not None:
            names.append(name)
        yield
    body = TopicList(topics=names, broker_addr=broker_addr)
    return success((yield from bodies.encode_steps(body)))


def get_all_topics(deps: NamesrvDeps, _: Connection, __: Command) -> Replied:
    enabled = deps.settings.config.enable_all_topic_list
    return _topic_list(deps.registry.topic_names(), enabled=enabled)


def get_topics_by_cluster(deps: NamesrvDeps, _: Connection, request: Command) -> Replied:
    header = headers.decode(wire.GetTopicsByClusterRequest, request.fields)
    topics = deps.registry.topics_of_cluster(header.cluster)
    return _topic_list(topics, enabled=deps.settings.config.enable_topic_list)


def get_system_topics(deps: NamesrvDeps, _: Connection, __: Command) -> Replied:
    """The names of all clusters and brokers: each has a topic of its name."""
    names: dict[str, None] = {}
    for cluster, broker_names in deps.registry.clusters().items():
        names |= dict.fromkeys([cluster, *broker_names])
    addresses = [data.addresses or {} for data in deps.registry.brokers().values()]
    broker_addr = next((addr for each in addresses for addr in each.values()), None)
    return _topic_list(list(names), enabled=True, broker_addr=broker_addr)


def unit_topics(mask: int, wanted: int) -> Handler:
    """A handler that lists the topics whose system flag, masked, equals `wanted`."""

    def get(deps: NamesrvDeps, _: Connection, __: Command) -> Replied:
        enabled = deps.settings.config.enable_topic_list
        return _topic_list(deps.registry.unit_topics(mask, wanted), enabled=enabled)

    return get


# -- settings --------------------------------------------------------------------------------------


def get_config(deps: NamesrvDeps, _: Connection, __: Command) -> Command:
    return success(deps.settings.as_properties().encode())


async def update_config(deps: NamesrvDeps, connection: Connection, request: Command) -> Command:
    config = deps.settings.config
    await change_settings(
        deps.settings, connection, request, config.config_store_path,
        fixed=fixed_keys(config.config_black_list, *_FIXED_KEYS), has_accounts=deps.has_accounts,
    )  # fmt: skip
    # Cached routes may depend on the old settings.
    deps.routes.clear()
    return success()


# -- KV configuration -----------------------------------------------------------------------------


async def put_kv(deps: NamesrvDeps, connection: Connection, request: Command) -> Command:
    header = headers.decode(wire.PutKVConfigRequest, request.fields)
    saved = deps.kv.put(header.namespace, header.key, header.value)
    return await _kv_changed(deps, header.namespace, header.key, saved, f"set by {connection.peer}")


async def delete_kv(deps: NamesrvDeps, connection: Connection, request: Command) -> Command:
    header = headers.decode(wire.KVConfigRequest, request.fields)
    saved = deps.kv.delete(header.namespace, header.key)
    done = f"deleted by {connection.peer}"
    return await _kv_changed(deps, header.namespace, header.key, saved, done)


async def _kv_changed(
    deps: NamesrvDeps, namespace: str, key: str, saved: Awaitable[None], done: str
) -> Command:
    try:
        await saved
    except StoreError as e:
        log.error("%s", e)  # noqa: TRY400 - the text has the cause
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
    if namespace == ORDER_TOPIC_NAMESPACE:
        deps.routes.forget((key,))
    log.info("KV %s %s: %s", namespace, key, done)
    return success()


def get_kv(deps: NamesrvDeps, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.KVConfigRequest, request.fields)
    value = deps.kv.get(header.namespace, header.key)
    if value is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return success(header=wire.GetKVConfigResponse(value=value))


def get_kv_list(deps: NamesrvDeps, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.GetKVListRequest, request.fields)
    pairs = deps.kv.namespace(header.namespace)
    if pairs is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
        )
    return success(_encode_pairs(pairs))


def _encode_pairs(pairs: Mapping[str, str]) -> bytes:
    return bodies.encode(KVTable(table=dict(pairs)))
