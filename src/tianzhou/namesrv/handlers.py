"""What the nameserver answers, one function per request code.

A handler reads its typed header, asks the registry or the KV configuration, and returns the answer.
What cannot be answered raises `RequestError` with RocketMQ's own code and remark. Handlers answer
at once, without a task, except the few that write a file.
"""

import asyncio
import hashlib
import logging
import zlib
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
from tianzhou.namesrv.registry import FLAG_UNIT, FLAG_UNIT_SUB, Registry, same_version
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
from tianzhou.remoting import slices
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.slices import Steps, sliced

log = logging.getLogger(__name__)

T = TypeVar("T")
Replied = Command | Awaitable[Command]

_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_CRC_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What handlers work with; `tell` sends a notice to brokers."""

    settings: LiveSettings[NamesrvConfig]
    settings_lock: asyncio.Lock
    """Held while a change of settings is being saved."""
    fixed_keys: frozenset[str]
    """Keys that no request may change."""
    has_accounts: bool
    """Whether requests that change something are checked for an administrator (accessFile)."""
    warnings: LogRateLimit
    """Limits the log lines about doubtful registrations, which any host can send."""
    registry: Registry
    routes: RouteCache
    kv: KVConfig
    clock: Clock
    ready_ms: int
    """From then on route queries are answered (needWaitForService). Computed at the start, so that
    no change of settings takes routes away again."""
    tell: Callable[[MinIdNotice], None]
    changing: "dict[None, Future[Any]]" = field(default_factory=lambda: dict[None, "Future[Any]"]())
    """The last change of the registry, if it takes more than a slice."""


def success(body: bytes = b"", header: headers.Header | None = None) -> Command:
    ext_fields = headers.encode(header) if header is not None else None
    return Command(code=ResponseCode.SUCCESS, ext_fields=ext_fields, body=body)


# -- routes ---------------------------------------------------------------------------------------


def is_in_service(parts: Parts) -> bool:
    """Whether brokers have had the time to register that they shall have before clients ask."""
    return parts.clock() >= parts.ready_ms


def get_route(parts: Parts, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.GetRouteInfoRequest, request.fields)
    if not is_in_service(parts):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    if header.zone_mode and header.zone_name and not header.zone_name.isspace():
        answer = _route_in_zone(parts, header.topic, header.zone_name)
    else:
        standard = request.version >= V4_9_4 or header.accept_standard_json_only is True
        answer = parts.routes.answer(header.topic, standard=standard)
    if answer is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}{_FAQ}",
        )
    return Command(code=ResponseCode.SUCCESS, body=answer)


def _route_in_zone(parts: Parts, topic: str, zone_name: str) -> bytes | None:
    route = parts.routes.route(topic)
    # RocketMQ writes filtered routes in the old dialect for every client.
    return None if route is None else bodies.encode(only_zone(route, zone_name))


def get_cluster_info(parts: Parts, _: Connection, __: Command) -> Command:
    info = ClusterInfo(brokers=parts.registry.brokers(), clusters=parts.registry.clusters())
    return success(bodies.encode(info))


# -- brokers --------------------------------------------------------------------------------------


def register_broker(parts: Parts, connection: Connection, request: Command) -> Replied:
    return change_registry(parts, _register_broker(parts, connection, request))


def change_registry(parts: Parts, steps: Steps[T]) -> "T | Future[T]":
    """All changes come one after the other: each may take more than a slice."""
    return slices.in_order(parts.changing, None, steps)


def _register_broker(parts: Parts, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.RegisterBrokerRequest, request.fields)
    if header.body_crc32 and zlib.crc32(request.body) & _CRC_MASK != header.body_crc32:
        _warn(parts, f"broker {connection.peer}: registration with a wrong checksum")
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
    registered = yield from _register(parts, identity, header.compressed, connection, request)
    if registered is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if registered.notice is not None:
        parts.tell(registered.notice)
    return success(
        _order_config_for_broker(parts),
        wire.RegisterBrokerResponse(
            ha_server_addr=registered.ha_addr, master_addr=registered.master_addr
        ),
    )


def _register(
    parts: Parts,
    identity: BrokerIdentity,
    compressed: bool,
    connection: Connection,
    request: Command,
) -> Steps[Registered | None]:
    exact = parts.settings.config.delete_topic_with_broker_registration
    now_ms = parts.clock()
    digest = hashlib.blake2b(request.body, digest_size=16).digest()
    yield
    if not exact:
        renewed = parts.registry.renew(identity, digest, connection, now_ms)
        if renewed is not None:
            return renewed
    said = yield from _broker_topics(request, compressed)
    if connection.closed:
        # It would stay until it has been silent for too long.
        return None
    registered = yield from parts.registry.register(
        identity, said, digest, connection, now_ms, delete_missing=exact
    )
    _log_registration(parts, identity, said, registered, connection.peer)
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


def _warn(parts: Parts, text: str) -> None:
    if (ending := parts.warnings.ending()) is not None:
        log.warning("%s%s", text, ending)


def _log_registration(
    parts: Parts,
    identity: BrokerIdentity,
    said: BrokerTopics,
    registered: Registered | None,
    peer: str,
) -> None:
    who = f"broker {identity.name} {identity.broker_id} at {identity.addr}"
    if registered is None:
        _warn(parts, f"{who}: refused, its first registration lists one topic only")
        return
    if registered.ignored:
        _warn(parts, f"{who}: ignored, a newer broker has its id; registered from {peer}")
        return
    if registered.displaced is not None:
        _warn(
            parts,
            f"{who}: takes the place of {registered.displaced}, which has the same name and id and "
            f"is still registered; registered from {peer}. Give one of them another brokerName; if "
            f"it is no broker of yours, list yours in accessFile",
        )
    if registered.new:
        log.info("%s: registered in %s, %d topics", who, identity.cluster, len(said.topics))
    else:
        log.debug("%s: topics changed, %d listed", who, len(said.topics))


def _order_config_for_broker(parts: Parts) -> bytes:
    if not parts.settings.config.return_order_topic_config_to_broker:
        return b""
    pairs = parts.kv.namespace(ORDER_TOPIC_NAMESPACE)
    return b"" if pairs is None else _encode_pairs(pairs)


def unregister_broker(parts: Parts, connection: Connection, request: Command) -> Replied:
    return change_registry(parts, _unregister_broker(parts, connection, request))


def _unregister_broker(parts: Parts, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.BrokerRequest, request.fields)
    told = yield from parts.registry.unregister(header.broker_name, header.broker_addr)
    tell_dropped(parts, told, f"unregistered by {connection.peer}")
    return success()


def tell_dropped(parts: Parts, dropped: list[Dropped], why: str) -> None:
    """Log brokers that are gone, and tell the rest of their groups if their lowest id changed."""
    for each in dropped:
        log.info(
            "broker %s %d at %s: gone, %s",
            each.broker.name, each.broker.broker_id, each.broker.addr, why,
        )  # fmt: skip
        if each.notice is not None:
            parts.tell(each.notice)


def broker_heartbeat(parts: Parts, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.BrokerHeartbeatRequest, request.fields)
    parts.registry.heartbeat(header.cluster_name, header.broker_addr, parts.clock())
    return success()


def query_data_version(parts: Parts, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.BrokerRequest, request.fields)
    theirs = bodies.decode_request(DataVersion, request.body)
    parts.registry.heartbeat(header.cluster_name, header.broker_addr, parts.clock())
    ours = parts.registry.version_of(header.cluster_name, header.broker_addr)
    changed = ours is None or not same_version(ours, theirs)
    body = b"" if ours is None else bodies.encode(ours)
    return success(body, wire.QueryDataVersionResponse(changed=changed))


def get_broker_member_group(parts: Parts, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.GetBrokerMemberGroupRequest, request.fields)
    group = BrokerMemberGroup(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        addresses=parts.registry.members(header.broker_name),
    )
    return success(bodies.encode(GetBrokerMemberGroupBody(broker_member_group=group)))


def wipe_write_perm(parts: Parts, connection: Connection, request: Command) -> Replied:
    return change_registry(parts, _wipe_write_perm(parts, connection, request))


def _wipe_write_perm(parts: Parts, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.BrokerNameRequest, request.fields)
    count = yield from parts.registry.wipe_write_perm(header.broker_name)
    log.info("broker %s: %d topics read-only, by %s", header.broker_name, count, connection.peer)
    return success(header=wire.WipeWritePermResponse(wipe_topic_count=count))


def add_write_perm(parts: Parts, connection: Connection, request: Command) -> Replied:
    return change_registry(parts, _add_write_perm(parts, connection, request))


def _add_write_perm(parts: Parts, connection: Connection, request: Command) -> Steps[Command]:
    header = headers.decode(wire.BrokerNameRequest, request.fields)
    count = yield from parts.registry.add_write_perm(header.broker_name)
    log.info("broker %s: %d topics writable, by %s", header.broker_name, count, connection.peer)
    return success(header=wire.AddWritePermResponse(add_topic_count=count))


# -- topics ---------------------------------------------------------------------------------------


def register_topic(parts: Parts, _: Connection, request: Command) -> Replied:
    return change_registry(parts, _register_topic(parts, request))


def _register_topic(parts: Parts, request: Command) -> Steps[Command]:
    header = headers.decode(TopicRequest, request.fields)
    route = yield from bodies.decode_request_steps(TopicRouteData, request.body)
    unknown = parts.registry.register_topic(header.topic, route.queues)
    if unknown is not None:
        log.warning("topic %s: not registered, broker %s is unknown", header.topic, unknown)
    return success()


def delete_topic(parts: Parts, connection: Connection, request: Command) -> Replied:
    return change_registry(parts, _delete_topic(parts, connection, request))


def _delete_topic(parts: Parts, connection: Connection, request: Command) -> Steps[Command]:
    yield
    header = headers.decode(wire.DeleteTopicFromNamesrvRequest, request.fields)
    parts.registry.delete_topic(header.topic, header.cluster_name)
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


def get_all_topics(parts: Parts, _: Connection, __: Command) -> Replied:
    enabled = parts.settings.config.enable_all_topic_list
    return _topic_list(parts.registry.topic_names(), enabled=enabled)


def get_topics_by_cluster(parts: Parts, _: Connection, request: Command) -> Replied:
    header = headers.decode(wire.GetTopicsByClusterRequest, request.fields)
    topics = parts.registry.topics_of_cluster(header.cluster)
    return _topic_list(topics, enabled=parts.settings.config.enable_topic_list)


def get_system_topics(parts: Parts, _: Connection, __: Command) -> Replied:
    """Names that topics of every cluster have: those of clusters and of brokers."""
    names: dict[str, None] = {}
    for cluster, broker_names in parts.registry.clusters().items():
        names |= dict.fromkeys([cluster, *broker_names])
    addresses = [data.addresses or {} for data in parts.registry.brokers().values()]
    broker_addr = next((addr for each in addresses for addr in each.values()), None)
    return _topic_list(list(names), enabled=True, broker_addr=broker_addr)


def get_unit_topics(parts: Parts, _: Connection, __: Command) -> Replied:
    return _unit_topics(parts, lambda flag: flag & FLAG_UNIT != 0)


def get_unit_sub_topics(parts: Parts, _: Connection, __: Command) -> Replied:
    return _unit_topics(parts, lambda flag: flag & FLAG_UNIT_SUB != 0)


def get_unit_sub_ununit_topics(parts: Parts, _: Connection, __: Command) -> Replied:
    return _unit_topics(parts, lambda flag: flag & (FLAG_UNIT | FLAG_UNIT_SUB) == FLAG_UNIT_SUB)


def _unit_topics(parts: Parts, wanted: Callable[[int], bool]) -> Replied:
    enabled = parts.settings.config.enable_topic_list
    return _topic_list(parts.registry.unit_topics(wanted), enabled=enabled)


# -- KV configuration -----------------------------------------------------------------------------


async def put_kv(parts: Parts, connection: Connection, request: Command) -> Command:
    header = headers.decode(wire.PutKVConfigRequest, request.fields)
    await _saved(parts.kv.put(header.namespace, header.key, header.value))
    _kv_changed(parts, header.namespace, header.key)
    log.info("KV %s %s: set by %s", header.namespace, header.key, connection.peer)
    return success()


async def delete_kv(parts: Parts, connection: Connection, request: Command) -> Command:
    header = headers.decode(wire.KVConfigRequest, request.fields)
    await _saved(parts.kv.delete(header.namespace, header.key))
    _kv_changed(parts, header.namespace, header.key)
    log.info("KV %s %s: deleted by %s", header.namespace, header.key, connection.peer)
    return success()


async def _saved(work: Awaitable[None]) -> None:
    try:
        await work
    except StoreError as e:
        log.error("%s", e)  # noqa: TRY400 - the text says it all
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e


def _kv_changed(parts: Parts, namespace: str, key: str) -> None:
    if namespace == ORDER_TOPIC_NAMESPACE:
        parts.routes.forget((key,))


def get_kv(parts: Parts, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.KVConfigRequest, request.fields)
    value = parts.kv.get(header.namespace, header.key)
    if value is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return success(header=wire.GetKVConfigResponse(value=value))


def get_kv_list(parts: Parts, _: Connection, request: Command) -> Command:
    header = headers.decode(wire.GetKVListRequest, request.fields)
    pairs = parts.kv.namespace(header.namespace)
    if pairs is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
        )
    return success(_encode_pairs(pairs))


def _encode_pairs(pairs: Mapping[str, str]) -> bytes:
    return bodies.encode(KVTable(table=dict(pairs)))
