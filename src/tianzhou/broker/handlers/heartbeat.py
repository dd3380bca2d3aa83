"""Clients: heartbeats, unregistration, members of groups, and notification of changes."""

import logging
from collections.abc import Iterable
from functools import lru_cache

from tianzhou.broker import validation
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import Answer
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import check_filter, group_if_known
from tianzhou.broker.handlers.responses import success_with
from tianzhou.broker.tables.clients import (
    Change,
    Client,
    ConsumerHeartbeat,
    Subscription,
    make_subscription,
)
from tianzhou.errors import RemotingError, RequestError
from tianzhou.limits import GROUPS_OF_CONNECTION_MAX, SUBSCRIPTIONS_OF_CONNECTION_MAX
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies import decode_request as decode_body
from tianzhou.protocol.bodies import decode_request_steps
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.clients import (
    CheckClientBody,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionDifference,
)
from tianzhou.protocol.bodies.clients import Connection as ConnectionBody
from tianzhou.protocol.bodies.groups import QuerySubscriptionBody
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, Language
from tianzhou.protocol.derived import is_topic_name
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.clients import (
    ConsumerGroupRequest,
    GetProducerConnectionListRequest,
    UnregisterClientRequest,
)
from tianzhou.protocol.headers.topics import QuerySubscriptionByConsumerRequest
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, answer, handle_in_order, sliced

log = logging.getLogger(__name__)

_DIFFERENCES_LOGGED = 3


# -- heartbeats ------------------------------------------------------------------------------------


def heartbeat(deps: Deps, connection: Connection, request: Command) -> Answer:
    """HEART_BEAT."""
    # A client that unregisters while its long heartbeat runs must not be registered after it.
    return handle_in_order(connection, _heartbeat(deps, connection, request))


def _heartbeat(deps: Deps, connection: Connection, request: Command) -> Steps[Command]:
    sent = yield from decode_request_steps(HeartbeatData, request.body)
    if not sent.client_id:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the heartbeat names no client id")
    for consumer in sent.consumers:
        _check_bindings(deps.settings.config, consumer)
        yield
    if _is_closed(connection):
        return Command(code=ResponseCode.SUCCESS)
    if not deps.client_ids.claim(connection, sent.client_id, connection.account):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"client id {validation.shorten(sent.client_id)} is in use by a connection of another "
            f"account: set another instance name",
        )
    refusal: RequestError | None = None
    for consumer in sent.consumers:
        client = _client(deps, connection, request, sent.client_id)
        try:
            yield from _consumer_heartbeat(deps, connection, client, consumer)
        except RequestError as e:  # the other groups of the client are registered
            refusal = refusal or e
        yield
    for name in filter(None, (producer.group_name for producer in sent.producers)):
        yield
        if _is_closed(connection):
            break
        client = _client(deps, connection, request, sent.client_id)
        try:
            _producer_heartbeat(deps, connection, client, name)
        except RequestError as e:
            refusal = refusal or e
    if refusal is not None:
        raise refusal
    return Command(code=ResponseCode.SUCCESS)


def _is_closed(connection: Connection) -> bool:
    """Checked after each step: a closed connection would stay registered for ever."""
    return connection.closed


def _producer_heartbeat(deps: Deps, connection: Connection, client: Client, name: str) -> None:
    if name not in deps.producers.groups_of(connection):
        _check_groups_of(deps, connection, name)
    if name not in deps.producers.groups:
        deps.limits.check(
            "maxProducerGroups", deps.settings.config.max_producer_groups,
            len(deps.producers.groups), f"producer group {validation.shorten(name)} cannot join",
        )  # fmt: skip
    if deps.producers.heartbeat(connection, client, name):
        log.info(
            "producer group %s: %s joined from %s",
            validation.shorten(name), client.client_id, connection.peer,
        )  # fmt: skip


def _check_groups_of(deps: Deps, connection: Connection, name: str) -> None:
    """Raises RequestError if a connection registers too many groups."""
    tables = (deps.consumers, deps.producers)
    count = sum(len(table.groups_of(connection)) for table in tables)
    what = f"group {validation.shorten(name)} cannot join on this connection"
    deps.limits.check("groups of a connection", GROUPS_OF_CONNECTION_MAX, count, what)


def _check_subscriptions(deps: Deps, connection: Connection, sent: ConsumerHeartbeat) -> None:
    """Raises RequestError if there are too many subscriptions."""
    grown, own_count = deps.consumers.growth(connection, sent)
    if grown <= 0:
        return
    what = (
        f"group {validation.shorten(sent.group)} cannot subscribe to {own_count} topics or filters"
    )
    limit = SUBSCRIPTIONS_OF_CONNECTION_MAX
    deps.limits.check("subscriptions of a connection", limit, own_count - 1, what)
    count = deps.consumers.subscription_count + grown - 1
    deps.limits.check(
        "maxSubscriptions", deps.settings.config.max_subscriptions, count, what
    )  # fmt: skip


def _client(deps: Deps, connection: Connection, request: Command, client_id: str) -> Client:
    return Client(
        client_id, request.language, request.version, deps.steady(), connection.account
    )  # fmt: skip


def _consumer_heartbeat(
    deps: Deps, connection: Connection, client: Client, consumer: ConsumerData
) -> Steps[None]:
    name = consumer.group_name or ""
    group = group_if_known(deps, name)
    if group is None:
        # The next pull is refused with the reason; this heartbeat is for other groups, too.
        log.warning("group %s: does not exist, heartbeat of %s ignored", name, connection.peer)
        return
    if is_topic_name(RETRY_TOPIC_PREFIX + name) and not deps.settings.config.is_slave:
        # Otherwise an older version or RocketMQ has accepted the group.
        deps.topics.create_for_group(RETRY_TOPIC_PREFIX + name, group.retry_queue_count)
    compiled: list[Subscription] = []
    for data in consumer.subscriptions:
        if data.topic:
            compiled.append(_subscription(data))
            yield
    if _is_closed(connection):
        return
    subscriptions = tuple(compiled)
    sent = ConsumerHeartbeat(
        group=name,
        consume_type=str(consumer.consume_type or "CONSUME_PASSIVELY"),
        message_model=str(consumer.message_model or "CLUSTERING"),
        consume_from=str(consumer.consume_from_where or "CONSUME_FROM_LAST_OFFSET"),
        subscriptions=subscriptions,
    )
    if name not in deps.consumers.groups_of(connection):
        _check_groups_of(deps, connection, name)
    _check_subscriptions(deps, connection, sent)
    change = deps.consumers.heartbeat(connection, client, sent)
    if change is None:
        return
    log.info("group %s: changed by %s from %s", name, client.client_id, connection.peer)
    for each in subscriptions:
        if each.problem is not None:
            log.warning("group %s: subscription to %s: %s", name, each.topic, each.problem)
        elif each.sql is not None and each.sql.ignored:
            log.warning(
                "group %s: subscription to %s: what follows the expression is ignored: %s",
                name, each.topic, each.sql.ignored,
            )  # fmt: skip
    notify(deps, [change])


def _subscription(sent: SubscriptionData) -> Subscription:
    return make_subscription(
        sent.topic or "",
        sent.expression,
        sent.expression_type,
        sent.version,
        class_filter=sent.class_filter_mode,
    )


def notify(deps: Deps, changes: Iterable[Change[Connection]]) -> None:
    """Notify the members of changed groups to rebalance; log where subscriptions differ."""
    for change in changes:
        for difference in change.differences[:_DIFFERENCES_LOGGED]:
            log.warning("%s", difference)
        if len(change.differences) > _DIFFERENCES_LOGGED:
            log.warning(
                "group %s: members subscribe differently to %d more topics",
                change.group, len(change.differences) - _DIFFERENCES_LOGGED,
            )  # fmt: skip
        group = deps.groups.get(change.group)
        wanted = group is None or group.notify_consumer_ids_changed_enable
        if not wanted or not deps.settings.config.notify_consumer_ids_changed_enable:
            continue
        header = encode(ConsumerGroupRequest(consumer_group=change.group))
        for connection in change.notify:
            command = Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=dict(header))
            try:
                connection.oneway(command)
            except RemotingError as e:
                log.info(
                    "group %s: %s is not notified of a change: %s", change.group, connection, e
                )


def unregister_client(deps: Deps, connection: Connection, request: Command) -> Answer:
    """UNREGISTER_CLIENT."""
    return handle_in_order(connection, _unregister_client(deps, connection, request))


def _unregister_client(deps: Deps, connection: Connection, request: Command) -> Steps[Command]:
    header = decode(UnregisterClientRequest, request.fields)
    yield
    if header.producer_group:
        deps.producers.unregister(connection, header.producer_group)
    if header.consumer_group:
        change = deps.consumers.unregister(connection, header.consumer_group)
        if change is not None:
            log.info("group %s: %s left", header.consumer_group, header.client_id)
            notify(deps, [change])
    return Command(code=ResponseCode.SUCCESS)


def connection_closed(deps: Deps, connection: Connection) -> None:
    """Remove the clients of a closed connection."""
    answer(_connection_closed(deps, connection))


def _connection_closed(deps: Deps, connection: Connection) -> Steps[None]:
    deps.client_ids.closed(connection)
    for _ in deps.producers.closed(connection):
        yield
    for change in deps.consumers.closed(connection):
        log.info("group %s: %s disconnected (%s)", change.group, connection.peer, connection.reason)
        notify(deps, [change])
        yield


def close_silent(deps: Deps) -> None:
    """Close connections whose clients have stopped sending heartbeats."""
    now_ms, timeout_ms = deps.steady(), deps.settings.config.channel_expired_timeout
    for table in (deps.consumers, deps.producers):
        for connection in table.expired(now_ms, timeout_ms):
            log.warning("client %s: no heartbeat for %d ms, closed", connection.peer, timeout_ms)
            connection.close(f"no heartbeat for {timeout_ms} ms")
            connection_closed(deps, connection)


# -- bindings --------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def parse_bindings(text: str) -> dict[str, frozenset[str]]:
    """Topics granted to each group by a text like "group=topic,topic;group=topic"."""
    bindings: dict[str, frozenset[str]] = {}
    for part in text.split(";"):
        group, _, topics = part.partition("=")
        if group.strip():
            granted = frozenset(topic.strip() for topic in topics.split(",") if topic.strip())
            bindings[group.strip()] = bindings.get(group.strip(), frozenset()) | granted
    return bindings


def _check_bindings(config: BrokerConfig, consumer: ConsumerData) -> None:
    """Raises RequestError if the group subscribes to a topic that is not granted to it."""
    if not config.group_topic_binding_enable:
        return
    group = consumer.group_name or ""
    granted = parse_bindings(config.group_topic_bindings).get(group, frozenset())
    for subscription in consumer.subscriptions:
        topic = subscription.topic or ""
        if topic not in granted and topic != RETRY_TOPIC_PREFIX + group:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"topic {validation.shorten(topic)} is not granted to consumer group "
                f"{validation.shorten(group)}: groupTopicBindings must list it",
            )


def check_client_config(deps: Deps, _: Connection, request: Command) -> Command:
    """CHECK_CLIENT_CONFIG: checks the filter of a consumer before it starts."""
    sent = decode_body(CheckClientBody, request.body)
    data = sent.subscription_data
    if data is None:
        return Command(code=ResponseCode.SUCCESS)
    subscription = make_subscription(
        data.topic or "", data.expression, data.expression_type, data.version
    )
    check_filter(deps.settings.config, subscription)
    if not subscription.is_by_tags and subscription.problem is not None:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, subscription.problem)
    return Command(code=ResponseCode.SUCCESS)


# -- queries ---------------------------------------------------------------------------------------


def get_consumer_list(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP: the client ids by which consumers divide the queues."""
    header = decode(ConsumerGroupRequest, request.fields)
    group = deps.consumers.get(header.consumer_group)
    if group is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"no consumer of group {validation.shorten(header.consumer_group)} is connected",
        )
    body = encode_body(ConsumerIdList(consumer_ids=group.client_ids()))
    return Command(code=ResponseCode.SUCCESS, body=body)


@sliced
def get_consumer_connections(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_CONSUMER_CONNECTION_LIST."""
    header = decode(ConsumerGroupRequest, request.fields)
    group = deps.consumers.get(header.consumer_group)
    if group is None:
        raise RequestError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"no consumer of group {validation.shorten(header.consumer_group)} is connected",
        )
    body = ConsumerConnection(
        connections=[_connection_body(*each) for each in group.members.items()],
        subscriptions={
            topic: subscription_body(each) for topic, each in group.subscriptions.items()
        },
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from,
        differences=[
            SubscriptionDifference(
                topic=each.topic,
                client_id=each.client_id,
                subscribes=each.description,
                other_client_id=each.other_client_id,
                other_subscribes=each.other_description,
            )
            for each in group.differences
        ]
        or None,
    )
    return (yield from success_with(body))


def subscription_body(subscription: Subscription) -> SubscriptionData:
    """A subscription as consumers send it."""
    return SubscriptionData(
        class_filter_mode=subscription.class_filter,
        topic=subscription.topic,
        expression=subscription.expression,
        tags=list(subscription.tags.tags),
        tag_codes=sorted(subscription.tags.codes),
        version=subscription.version,
        expression_type=subscription.expression_type,
    )


def query_subscription(deps: Deps, _: Connection, request: Command) -> Command:
    """QUERY_SUBSCRIPTION_BY_CONSUMER (5.x): the filter of a group; nothing if it is offline."""
    header = decode(QuerySubscriptionByConsumerRequest, request.fields)
    subscription = deps.consumers.subscription(header.group, header.topic or "")
    body = QuerySubscriptionBody(
        subscription_data=None if subscription is None else subscription_body(subscription),
        group=header.group,
        topic=header.topic,
    )
    return Command(code=ResponseCode.SUCCESS, body=encode_body(body))


def get_producer_connections(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_PRODUCER_CONNECTION_LIST."""
    header = decode(GetProducerConnectionListRequest, request.fields)
    members = deps.producers.groups.get(header.producer_group)
    if not members:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"no producer of group {validation.shorten(header.producer_group)} is connected",
        )
    body = ProducerConnection(connections=[_connection_body(*each) for each in members.items()])
    return Command(code=ResponseCode.SUCCESS, body=encode_body(body))


@sliced
def get_all_producers(deps: Deps, _: Connection, __: Command) -> Steps[Command]:
    """GET_ALL_PRODUCER_INFO: every connected producer by group."""
    ahead_ms = deps.clock() - deps.steady()
    data: dict[str, list[ProducerInfo]] = {}
    for group in sorted(deps.producers.groups):
        data[group] = [
            ProducerInfo(
                client_id=client.client_id,
                remote_ip=connection.peer,
                language=_language_name(client.language),
                version=client.version,
                last_update_timestamp=client.seen_ms + ahead_ms,
            )
            for connection, client in deps.producers.groups.get(group, {}).items()
        ]
        yield
    return (yield from success_with(ProducerTableInfo(data=data)))


def _connection_body(connection: Connection, client: Client) -> ConnectionBody:
    return ConnectionBody(
        client_id=client.client_id,
        client_addr=connection.peer,
        language=_language_name(client.language),
        version=client.version,
    )


def _language_name(language: int) -> str:
    return Language(language).name if language in tuple(Language) else Language.OTHER.name
