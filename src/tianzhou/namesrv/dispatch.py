"""From request code to handler: every code that RocketMQ's nameserver answers, in one table."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tianzhou.errors import RequestError
from tianzhou.namesrv import config_requests, handlers
from tianzhou.namesrv.handlers import Parts
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

Answer = Command | Awaitable[Command]

HANDLERS: Final[Mapping[int, Callable[[Parts, Connection, Command], Answer]]] = {
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
    RequestCode.GET_UNIT_TOPIC_LIST: handlers.get_unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: handlers.get_unit_sub_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: handlers.get_unit_sub_ununit_topics,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: handlers.register_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: handlers.delete_topic,
    # -- configuration ----------------------------------------------------------------------------
    RequestCode.PUT_KV_CONFIG: handlers.put_kv,
    RequestCode.GET_KV_CONFIG: handlers.get_kv,
    RequestCode.DELETE_KV_CONFIG: handlers.delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: handlers.get_kv_list,
    RequestCode.UPDATE_NAMESRV_CONFIG: config_requests.update_config,
    RequestCode.GET_NAMESRV_CONFIG: config_requests.get_config,
}


def answer(parts: Parts, connection: Connection, request: Command) -> Answer:
    """The answer to a request. Raises RequestError for what has none."""
    handler = HANDLERS.get(request.code)
    if handler is None:
        raise RequestError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported",
        )
    return handler(parts, connection, request)
