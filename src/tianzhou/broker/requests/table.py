"""The handler of each request code, with its dependencies, and why other codes are refused."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tianzhou.broker.handlers import (
    Answer,
    assignment,
    heartbeat,
    offsets,
    pop,
    pop_ack,
    pull,
    query,
    recall,
    reply,
    send,
    send_back,
    transaction,
)
from tianzhou.broker.handlers import client_calls as relay
from tianzhou.broker.handlers import queue_locks as locks
from tianzhou.broker.handlers.admin import acl as admin_acl
from tianzhou.broker.handlers.admin import broker as admin_broker
from tianzhou.broker.handlers.admin import cold_reads, statistics
from tianzhou.broker.handlers.admin import groups as admin_groups
from tianzhou.broker.handlers.admin import store as admin_store
from tianzhou.broker.handlers.admin import topics as admin_topics
from tianzhou.broker.requests.unsupported import REFUSED
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

Handle = Callable[[Connection, Command], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeps:
    """The dependencies of the handlers, by subject."""

    send: send.SendDeps
    pull: pull.PullDeps
    offsets: offsets.OffsetDeps
    clients: heartbeat.ClientDeps
    query: query.QueryDeps
    topics: admin_topics.TopicDeps
    groups: admin_groups.GroupDeps
    broker: admin_broker.BrokerDeps
    acl: admin_acl.AclDeps
    cold: cold_reads.ColdDeps
    stats: statistics.StatsDeps
    store: admin_store.StoreDeps
    locks: locks.LockDeps
    transactions: transaction.TransactionDeps
    reply: reply.ReplyDeps
    relay: relay.RelayDeps
    send_back: send_back.SendBackDeps
    recall: recall.RecallDeps
    pop: pop.PopDeps
    assignment: assignment.AssignmentDeps


class HandlerTable:
    """Calls the handler of a request; what a handler raises is answered by `remoting`."""

    def __init__(self, deps: HandlerDeps) -> None:
        self._handlers = _handlers(deps)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are served."""
        return frozenset(self._handlers)

    def __call__(self, connection: Connection, request: Command) -> Answer:
        handle = self._handlers.get(request.code)
        if handle is None:
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, explain(request.code))
        return handle(connection, request)


def explain(code: int) -> str:
    """Why a request code is not served, for the remark of the response."""
    try:
        name = RequestCode(code).name
    except ValueError:
        return f"request type {code} not supported: no RocketMQ version has it"
    why = REFUSED.get(code)
    if why is not None:
        return f"request type {code} ({name}) not supported because {why}"
    return f"request type {code} ({name}) not supported: a broker does not serve it"


def _handlers(deps: HandlerDeps) -> dict[int, Handle]:
    return {
        # -- messages
        RequestCode.SEND_MESSAGE: partial(send.send_message, deps.send),
        RequestCode.SEND_MESSAGE_V2: partial(send.send_message_v2, deps.send),
        RequestCode.SEND_BATCH_MESSAGE: partial(send.send_message_v2, deps.send),
        RequestCode.CONSUMER_SEND_MSG_BACK: partial(send_back.send_back, deps.send_back),
        RequestCode.RECALL_MESSAGE: partial(recall.recall_message, deps.recall),
        RequestCode.PULL_MESSAGE: partial(pull.pull_message, deps.pull),
        RequestCode.LITE_PULL_MESSAGE: partial(pull.pull_message, deps.pull),
        RequestCode.QUERY_MESSAGE: partial(query.query_message, deps.query),
        RequestCode.VIEW_MESSAGE_BY_ID: partial(query.view_message_by_id, deps.query),
        # -- transactions, replies, order
        RequestCode.END_TRANSACTION: partial(transaction.end_transaction, deps.transactions),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: partial(transaction.resume_check, deps.transactions),
        RequestCode.SEND_REPLY_MESSAGE: partial(reply.send_reply, deps.reply),
        RequestCode.SEND_REPLY_MESSAGE_V2: partial(reply.send_reply_v2, deps.reply),
        RequestCode.LOCK_BATCH_MQ: partial(locks.lock_batch, deps.locks),
        RequestCode.UNLOCK_BATCH_MQ: partial(locks.unlock_batch, deps.locks),
        # -- through the broker to consumers
        RequestCode.GET_CONSUMER_RUNNING_INFO: partial(relay.get_consumer_running_info, deps.relay),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(relay.consume_message_directly, deps.relay),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: partial(
            relay.get_consumer_status, deps.relay
        ),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: partial(relay.reset_offset, deps.relay),
        # -- popping
        RequestCode.POP_MESSAGE: partial(pop.pop_message, deps.pop),
        RequestCode.ACK_MESSAGE: partial(pop_ack.ack_message, deps.pop),
        RequestCode.BATCH_ACK_MESSAGE: partial(pop_ack.batch_ack_message, deps.pop),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: partial(pop_ack.change_invisible_time, deps.pop),
        RequestCode.PEEK_MESSAGE: partial(pop.peek_message, deps.pop),
        RequestCode.NOTIFICATION: partial(pop.notification, deps.pop),
        RequestCode.POLLING_INFO: partial(pop.polling_info, deps.pop),
        RequestCode.QUERY_ASSIGNMENT: partial(assignment.query_assignment, deps.assignment),
        RequestCode.SET_MESSAGE_REQUEST_MODE: partial(
            assignment.set_message_request_mode, deps.assignment
        ),
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: partial(
            assignment.get_all_message_request_mode, deps.assignment
        ),
        # -- offsets
        RequestCode.QUERY_CONSUMER_OFFSET: partial(offsets.query_consumer_offset, deps.offsets),
        RequestCode.UPDATE_CONSUMER_OFFSET: partial(offsets.update_consumer_offset, deps.offsets),
        RequestCode.GET_MAX_OFFSET: partial(offsets.get_max_offset, deps.offsets),
        RequestCode.GET_MIN_OFFSET: partial(offsets.get_min_offset, deps.offsets),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: partial(
            offsets.search_offset_by_timestamp, deps.offsets
        ),
        RequestCode.GET_EARLIEST_MSG_STORETIME: partial(
            offsets.get_earliest_store_time, deps.offsets
        ),
        RequestCode.CLONE_GROUP_OFFSET: partial(offsets.clone_group_offset, deps.offsets),
        RequestCode.QUERY_CORRECTION_OFFSET: partial(offsets.query_correction_offset, deps.offsets),
        # -- clients
        RequestCode.HEART_BEAT: partial(heartbeat.heartbeat, deps.clients),
        RequestCode.UNREGISTER_CLIENT: partial(heartbeat.unregister_client, deps.clients),
        RequestCode.CHECK_CLIENT_CONFIG: partial(heartbeat.check_client_config, deps.clients),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: partial(heartbeat.get_consumer_list, deps.clients),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: partial(
            heartbeat.get_consumer_connections, deps.clients
        ),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: partial(
            heartbeat.get_producer_connections, deps.clients
        ),
        RequestCode.GET_ALL_PRODUCER_INFO: partial(heartbeat.get_all_producers, deps.clients),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: partial(
            heartbeat.query_subscription, deps.clients
        ),
        # -- topics
        RequestCode.UPDATE_AND_CREATE_TOPIC: partial(admin_topics.create_topic, deps.topics),
        RequestCode.DELETE_TOPIC_IN_BROKER: partial(admin_topics.delete_topic, deps.topics),
        RequestCode.GET_ALL_TOPIC_CONFIG: partial(admin_topics.get_all_topic_config, deps.topics),
        RequestCode.GET_TOPIC_CONFIG: partial(admin_topics.get_topic_config, deps.topics),
        RequestCode.GET_TOPIC_STATS_INFO: partial(admin_topics.get_topic_stats, deps.topics),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: partial(
            admin_topics.get_system_topics, deps.topics
        ),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: partial(
            admin_topics.query_topic_consume_by_who, deps.topics
        ),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: partial(
            admin_topics.create_topic_list, deps.topics
        ),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: partial(
            admin_topics.query_topics_by_consumer, deps.topics
        ),
        # -- groups
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: partial(
            admin_groups.update_group, deps.groups
        ),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: partial(admin_groups.delete_group, deps.groups),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: partial(
            admin_groups.get_all_groups, deps.groups
        ),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: partial(admin_groups.get_group, deps.groups),
        RequestCode.GET_ALL_CONSUMER_OFFSET: partial(admin_groups.get_all_offsets, deps.groups),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: partial(
            admin_groups.update_group_list, deps.groups
        ),
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: partial(
            admin_groups.update_group_forbidden, deps.groups
        ),
        # -- statistics
        RequestCode.GET_CONSUME_STATS: partial(statistics.get_consume_stats, deps.stats),
        RequestCode.GET_BROKER_CONSUME_STATS: partial(statistics.get_all_consume_stats, deps.stats),
        RequestCode.QUERY_CONSUME_TIME_SPAN: partial(statistics.query_time_span, deps.stats),
        RequestCode.VIEW_BROKER_STATS_DATA: partial(statistics.view_stats, deps.stats),
        # -- the store
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: partial(
            admin_store.clean_expired_queues, deps.store
        ),
        RequestCode.CLEAN_UNUSED_TOPIC: partial(admin_store.clean_unused_topics, deps.store),
        RequestCode.DELETE_EXPIRED_COMMITLOG: partial(admin_store.delete_expired_log, deps.store),
        RequestCode.QUERY_CONSUME_QUEUE: partial(admin_store.query_consume_queue, deps.store),
        RequestCode.GET_ALL_DELAY_OFFSET: partial(admin_store.get_delay_offsets, deps.store),
        RequestCode.GET_TIMER_CHECK_POINT: partial(admin_store.get_timer_check, deps.store),
        RequestCode.GET_BROKER_HA_STATUS: partial(admin_store.get_ha_status, deps.store),
        RequestCode.RESET_MASTER_FLUSH_OFFSET: partial(
            admin_store.reset_master_flush_offset, deps.store
        ),
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: partial(cold_reads.get_cold_info, deps.cold),
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: partial(
            cold_reads.update_cold_thresholds, deps.cold
        ),
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: partial(
            cold_reads.remove_cold_threshold, deps.cold
        ),
        RequestCode.SET_COMMITLOG_READ_MODE: partial(cold_reads.set_read_ahead, deps.cold),
        RequestCode.POP_ROLLBACK: partial(cold_reads.export_pop_records, deps.cold),
        # -- access control
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: partial(admin_acl.put_account, deps.acl),
        RequestCode.DELETE_ACL_CONFIG: partial(admin_acl.remove_account, deps.acl),
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: partial(
            admin_acl.set_white_addresses, deps.acl
        ),
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: partial(admin_acl.get_versions, deps.acl),
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: partial(admin_acl.get_accounts, deps.acl),
        # -- the broker
        RequestCode.GET_BROKER_CONFIG: partial(admin_broker.get_broker_config, deps.broker),
        RequestCode.UPDATE_BROKER_CONFIG: partial(admin_broker.update_broker_config, deps.broker),
        RequestCode.GET_BROKER_RUNTIME_INFO: partial(
            admin_broker.get_broker_runtime_info, deps.broker
        ),
    }
