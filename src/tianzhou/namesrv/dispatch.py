"""The request table: a handler for every code that RocketMQ's nameserver answers."""

from collections.abc import Mapping
from typing import Final

from tianzhou.errors import RequestError
from tianzhou.limits import SETTINGS_BODY_BYTES_MAX
from tianzhou.namesrv import handlers
from tianzhou.namesrv.handlers import Handler, NamesrvDeps, Replied
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.quota.body_limits import Longer

_UNIT, _UNIT_SUB = 1, 2
"""Bits of the system flag of a topic."""

LONGER: Longer = {
    # A registration lists all topics of a broker, so it may be as long as a frame, if it is JSON as
    # brokers write it (`protocol/bodies/codec`).
    RequestCode.REGISTER_BROKER: None,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: SETTINGS_BODY_BYTES_MAX,
    RequestCode.UPDATE_NAMESRV_CONFIG: SETTINGS_BODY_BYTES_MAX,
}
"""How long a body may be, where that is longer than usual."""

HANDLERS: Final[Mapping[int, Handler]] = {
    # -- routes and brokers -----------------------------------------------------------------------
    RequestCode.GET_ROUTEINFO_BY_TOPIC: handlers.get_route,
    RequestCode.REGISTER_BROKER: handlers.register_broker,
    RequestCode.UNREGISTER_BROKER: handlers.unregister_broker,
    RequestCode.BROKER_HEARTBEAT: handlers.broker_heartbeat,
    RequestCode.QUERY_DATA_VERSION: handlers.query_data_version,
    RequestCode.GET_BROKER_MEMBER_GROUP: handlers.get_broker_member_group,
    RequestCode.GET_BROKER_CLUSTER_INFO: handlers.get_cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: handlers.wipe_write_perm,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: handlers.add_write_perm,
    # -- topics -----------------------------------------------------------------------------------
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: handlers.get_all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: handlers.get_topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: handlers.get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: handlers.unit_topics(_UNIT, _UNIT),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: handlers.unit_topics(_UNIT_SUB, _UNIT_SUB),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: handlers.unit_topics(
        _UNIT | _UNIT_SUB, _UNIT_SUB
    ),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: handlers.register_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: handlers.delete_topic,
    # -- configuration ----------------------------------------------------------------------------
    RequestCode.PUT_KV_CONFIG: handlers.put_kv,
    RequestCode.GET_KV_CONFIG: handlers.get_kv,
    RequestCode.DELETE_KV_CONFIG: handlers.delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: handlers.get_kv_list,
    RequestCode.UPDATE_NAMESRV_CONFIG: handlers.update_config,
    RequestCode.GET_NAMESRV_CONFIG: handlers.get_config,
}


def answer(deps: NamesrvDeps, connection: Connection, request: Command) -> Replied:
    """The response to a request. Raises RequestError, also for an unknown code."""
    handler = HANDLERS.get(request.code)
    if handler is None:
        raise RequestError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported",
        )
    return handler(deps, connection, request)
