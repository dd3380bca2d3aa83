"""QUERY_ASSIGNMENT and request modes: the broker assigns queues to consumers."""

import logging

from tianzhou.broker import validation
from tianzhou.broker.config import BrokerConfig, namesrv_addresses
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import find_group, find_topic
from tianzhou.broker.handlers.responses import saved, success_with
from tianzhou.broker.tables import assignment
from tianzhou.broker.tables.clients import MessageModel
from tianzhou.errors import RequestError, TianzhouError
from tianzhou.names import PERM_READ, RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies import decode_request
from tianzhou.protocol.bodies.queues import (
    MessageQueue,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeBody,
)
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting import scheduler
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_ROUTE_TIMEOUT_MS = 3000
_ROUTES_MAX = 10_000


async def query_assignment(deps: Deps, _: Connection, request: Command) -> Command:
    """QUERY_ASSIGNMENT: the queues of a client, by pull or pop; none means no change."""
    header = decode_request(QueryAssignmentRequestBody, request.body)
    topic, group, client_id = (
        header.topic or "",
        header.consumer_group or "",
        header.client_id or "",
    )
    if not (topic and group and client_id):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "an assignment is for a topic, a consumerGroup, a clientId"
        )
    config = deps.settings.config
    mode = deps.modes.find(
        topic, group, config.default_message_request_mode, config.default_pop_share_queue_num
    )
    queues = await _all_queues(deps, config, topic)
    if queues is not None and header.message_model != MessageModel.BROADCASTING:
        queues = _share(deps, config, header, mode, queues)
    assigned = None
    if queues is not None:
        assigned = [MessageQueueAssignment(queue=queue, mode=mode.mode) for queue in queues]
    return await scheduler.finish(success_with(QueryAssignmentResponseBody(assignments=assigned)))


def _share(
    deps: Deps,
    config: BrokerConfig,
    header: QueryAssignmentRequestBody,
    mode: SetMessageRequestModeBody,
    queues: list[MessageQueue],
) -> list[MessageQueue] | None:
    if not config.server_load_balancer_enable:
        return queues
    members = deps.consumers.get(header.consumer_group or "")
    share = assignment.STRATEGIES.get(header.strategy_name or "")
    if members is None or share is None:
        log.info(
            "group %s: no assignment for client %s: %s",
            validation.shorten(header.consumer_group or ""),
            validation.shorten(header.client_id or ""),
            "the group has sent no heartbeat" if members is None else
            f"strategy {validation.shorten(header.strategy_name or '')} is not known",
        )  # fmt: skip
        return None
    clients = sorted(set(members.client_ids()))
    client = header.client_id or ""
    if mode.mode == assignment.POP:
        count = mode.pop_share_queue_count
        return assignment.share_for_pop(share, queues, clients, client, count)
    return share(queues, clients, client)


async def _all_queues(deps: Deps, config: BrokerConfig, topic: str) -> list[MessageQueue] | None:
    """The readable queues of a topic on all brokers, in order; None if unknown."""
    queried_ms, queues = deps.routes.get(topic, (None, None))
    now_ms = deps.steady()
    if (
        queried_ms is not None
        and now_ms - queried_ms < config.load_balance_poll_name_server_interval
    ):
        return queues
    namesrvs = namesrv_addresses(config)
    if not namesrvs:
        return _own_queues(deps, config, topic)
    for namesrv in namesrvs:
        command = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
        try:
            response = await deps.client.request(namesrv, command, _ROUTE_TIMEOUT_MS)
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                # This broker may have created it a moment ago.
                return _own_queues(deps, config, topic)
            if response.code == ResponseCode.SUCCESS:
                queues = _queues_in(topic, decode_body(TopicRouteData, response.body))
                if len(deps.routes) >= _ROUTES_MAX:
                    deps.routes.clear()
                deps.routes[topic] = (now_ms, queues)
                return queues
            log.info("nameserver %s: no route of topic %s: %s", namesrv, topic, response.remark)
        except TianzhouError as e:
            log.info("nameserver %s: no route of topic %s: %s", namesrv, topic, e)
    return queues


def _queues_in(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    names = [
        (data.broker_name or "", queue_id)
        for data in route.queues
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_count)
    ]
    return [_queue(topic, name, queue_id) for name, queue_id in sorted(names)]


def _own_queues(deps: Deps, config: BrokerConfig, topic: str) -> list[MessageQueue] | None:
    known = deps.topics.get(topic)
    if known is None or not known.perm & PERM_READ:
        return None
    return [_queue(topic, config.broker_name, each) for each in range(known.read_queue_count)]


def _queue(topic: str, broker_name: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)


async def set_message_request_mode(deps: Deps, connection: Connection, request: Command) -> Command:
    """SET_MESSAGE_REQUEST_MODE: whether a group pulls or pops a topic."""
    mode = decode_request(SetMessageRequestModeBody, request.body)
    topic, group = mode.topic or "", mode.consumer_group or ""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    find_topic(deps, topic)
    find_group(deps, group)
    if mode.mode not in (assignment.PULL, assignment.POP):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the mode is {validation.shorten(mode.mode)}, not PULL or POP",
        )
    if not deps.modes.has(topic, group):
        deps.limits.check(
            "maxGroupRules", deps.settings.config.max_group_rules, len(deps.modes),
            f"the mode of group {group} for topic {topic} cannot be set",
        )  # fmt: skip
    deps.modes.put(topic, group, mode)
    log.info("group %s: topic %s is for %s, by %s", group, topic, mode.mode, connection.peer)
    return await saved(deps)
