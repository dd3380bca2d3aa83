"""Which handler serves which request code, and which parts of the broker it is given."""

from functools import partial
from typing import NamedTuple

from tianzhou.broker.handlers import (
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
from tianzhou.broker.requests.dispatch import Handle
from tianzhou.protocol.codes import RequestCode


class AllParts(NamedTuple):
    """The parts of each subject."""

    send: send.SendParts
    pull: pull.PullParts
    offsets: offsets.OffsetParts
    clients: heartbeat.ClientParts
    query: query.QueryParts
    topics: admin_topics.TopicParts
    groups: admin_groups.GroupParts
    broker: admin_broker.BrokerParts
    acl: admin_acl.AclParts
    cold: cold_reads.ColdParts
    stats: statistics.StatsParts
    store: admin_store.StoreParts
    locks: locks.LockParts
    transactions: transaction.TransactionParts
    reply: reply.ReplyParts
    relay: relay.RelayParts
    send_back: send_back.SendBackParts
    recall: recall.RecallParts
    pop: pop.PopParts
    assignment: assignment.AssignmentParts


def handlers_of(parts: AllParts) -> dict[int, Handle]:
    """The whole table."""
    return {
        # -- messages
        RequestCode.SEND_MESSAGE: partial(send.send_message, parts.send),
        RequestCode.SEND_MESSAGE_V2: partial(send.send_message_v2, parts.send),
        RequestCode.SEND_BATCH_MESSAGE: partial(send.send_message_v2, parts.send),
        RequestCode.CONSUMER_SEND_MSG_BACK: partial(send_back.send_back, parts.send_back),
        RequestCode.RECALL_MESSAGE: partial(recall.recall_message, parts.recall),
        RequestCode.PULL_MESSAGE: partial(pull.pull_message, parts.pull),
        RequestCode.LITE_PULL_MESSAGE: partial(pull.pull_message, parts.pull),
        RequestCode.QUERY_MESSAGE: partial(query.query_message, parts.query),
        RequestCode.VIEW_MESSAGE_BY_ID: partial(query.view_message_by_id, parts.query),
        # -- transactions, replies, order
        RequestCode.END_TRANSACTION: partial(transaction.end_transaction, parts.transactions),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: partial(
            transaction.resume_check, parts.transactions
        ),
        RequestCode.SEND_REPLY_MESSAGE: partial(reply.send_reply, parts.reply),
        RequestCode.SEND_REPLY_MESSAGE_V2: partial(reply.send_reply_v2, parts.reply),
        RequestCode.LOCK_BATCH_MQ: partial(locks.lock_batch, parts.locks),
        RequestCode.UNLOCK_BATCH_MQ: partial(locks.unlock_batch, parts.locks),
        # -- through the broker to consumers
        RequestCode.GET_CONSUMER_RUNNING_INFO: partial(
            relay.get_consumer_running_info, parts.relay
        ),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(relay.consume_message_directly, parts.relay),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: partial(
            relay.get_consumer_status, parts.relay
        ),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: partial(relay.reset_offset, parts.relay),
        # -- popping
        RequestCode.POP_MESSAGE: partial(pop.pop_message, parts.pop),
        RequestCode.ACK_MESSAGE: partial(pop_ack.ack_message, parts.pop),
        RequestCode.BATCH_ACK_MESSAGE: partial(pop_ack.batch_ack_message, parts.pop),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: partial(pop_ack.change_invisible_time, parts.pop),
        RequestCode.PEEK_MESSAGE: partial(pop.peek_message, parts.pop),
        RequestCode.NOTIFICATION: partial(pop.notification, parts.pop),
        RequestCode.POLLING_INFO: partial(pop.polling_info, parts.pop),
        RequestCode.QUERY_ASSIGNMENT: partial(assignment.query_assignment, parts.assignment),
        RequestCode.SET_MESSAGE_REQUEST_MODE: partial(
            assignment.set_message_request_mode, parts.assignment
        ),
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: partial(
            assignment.get_all_message_request_mode, parts.assignment
        ),
        # -- offsets
        RequestCode.QUERY_CONSUMER_OFFSET: partial(offsets.query_consumer_offset, parts.offsets),
        RequestCode.UPDATE_CONSUMER_OFFSET: partial(offsets.update_consumer_offset, parts.offsets),
        RequestCode.GET_MAX_OFFSET: partial(offsets.get_max_offset, parts.offsets),
        RequestCode.GET_MIN_OFFSET: partial(offsets.get_min_offset, parts.offsets),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: partial(
            offsets.search_offset_by_timestamp, parts.offsets
        ),
        RequestCode.GET_EARLIEST_MSG_STORETIME: partial(
            offsets.get_earliest_store_time, parts.offsets
        ),
        RequestCode.CLONE_GROUP_OFFSET: partial(offsets.clone_group_offset, parts.offsets),
        RequestCode.QUERY_CORRECTION_OFFSET: partial(
            offsets.query_correction_offset, parts.offsets
        ),
        # -- clients
        RequestCode.HEART_BEAT: partial(heartbeat.heartbeat, parts.clients),
        RequestCode.UNREGISTER_CLIENT: partial(heartbeat.unregister_client, parts.clients),
        RequestCode.CHECK_CLIENT_CONFIG: partial(heartbeat.check_client_config, parts.clients),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: partial(heartbeat.get_consumer_list, parts.clients),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: partial(
            heartbeat.get_consumer_connections, parts.clients
        ),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: partial(
            heartbeat.get_producer_connections, parts.clients
        ),
        RequestCode.GET_ALL_PRODUCER_INFO: partial(heartbeat.get_all_producers, parts.clients),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: partial(
            heartbeat.query_subscription, parts.clients
        ),
        # -- topics
        RequestCode.UPDATE_AND_CREATE_TOPIC: partial(admin_topics.create_topic, parts.topics),
        RequestCode.DELETE_TOPIC_IN_BROKER: partial(admin_topics.delete_topic, parts.topics),
        RequestCode.GET_ALL_TOPIC_CONFIG: partial(admin_topics.get_all_topic_config, parts.topics),
        RequestCode.GET_TOPIC_CONFIG: partial(admin_topics.get_topic_config, parts.topics),
        RequestCode.GET_TOPIC_STATS_INFO: partial(admin_topics.get_topic_stats, parts.topics),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: partial(
            admin_topics.get_system_topics, parts.topics
        ),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: partial(
            admin_topics.query_topic_consume_by_who, parts.topics
        ),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: partial(
            admin_topics.create_topic_list, parts.topics
        ),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: partial(
            admin_topics.query_topics_by_consumer, parts.topics
        ),
        # -- groups
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: partial(
            admin_groups.update_group, parts.groups
        ),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: partial(admin_groups.delete_group, parts.groups),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: partial(
            admin_groups.get_all_groups, parts.groups
        ),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: partial(admin_groups.get_group, parts.groups),
        RequestCode.GET_ALL_CONSUMER_OFFSET: partial(admin_groups.get_all_offsets, parts.groups),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: partial(
            admin_groups.update_group_list, parts.groups
        ),
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: partial(
            admin_groups.update_group_forbidden, parts.groups
        ),
        # -- statistics
        RequestCode.GET_CONSUME_STATS: partial(statistics.get_consume_stats, parts.stats),
        RequestCode.GET_BROKER_CONSUME_STATS: partial(
            statistics.get_all_consume_stats, parts.stats
        ),
        RequestCode.QUERY_CONSUME_TIME_SPAN: partial(statistics.query_time_span, parts.stats),
        RequestCode.VIEW_BROKER_STATS_DATA: partial(statistics.view_stats, parts.stats),
        # -- the store
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: partial(
            admin_store.clean_expired_queues, parts.store
        ),
        RequestCode.CLEAN_UNUSED_TOPIC: partial(admin_store.clean_unused_topics, parts.store),
        RequestCode.DELETE_EXPIRED_COMMITLOG: partial(admin_store.delete_expired_log, parts.store),
        RequestCode.QUERY_CONSUME_QUEUE: partial(admin_store.query_consume_queue, parts.store),
        RequestCode.GET_ALL_DELAY_OFFSET: partial(admin_store.get_delay_offsets, parts.store),
        RequestCode.GET_TIMER_CHECK_POINT: partial(admin_store.get_timer_check, parts.store),
        RequestCode.GET_BROKER_HA_STATUS: partial(admin_store.get_ha_status, parts.store),
        RequestCode.RESET_MASTER_FLUSH_OFFSET: partial(
            admin_store.reset_master_flush_offset, parts.store
        ),
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: partial(cold_reads.get_cold_info, parts.cold),
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: partial(
            cold_reads.update_cold_thresholds, parts.cold
        ),
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: partial(
            cold_reads.remove_cold_threshold, parts.cold
        ),
        RequestCode.SET_COMMITLOG_READ_MODE: partial(cold_reads.set_read_ahead, parts.cold),
        RequestCode.POP_ROLLBACK: partial(cold_reads.export_pop_records, parts.cold),
        # -- access control
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: partial(admin_acl.put_account, parts.acl),
        RequestCode.DELETE_ACL_CONFIG: partial(admin_acl.remove_account, parts.acl),
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: partial(
            admin_acl.set_white_addresses, parts.acl
        ),
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: partial(admin_acl.get_versions, parts.acl),
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: partial(admin_acl.get_accounts, parts.acl),
        # -- the broker
        RequestCode.GET_BROKER_CONFIG: partial(admin_broker.get_broker_config, parts.broker),
        RequestCode.UPDATE_BROKER_CONFIG: partial(admin_broker.update_broker_config, parts.broker),
        RequestCode.GET_BROKER_RUNTIME_INFO: partial(
            admin_broker.get_broker_runtime_info, parts.broker
        ),
    }
