"""The handler of each request code, and why other codes are refused."""

from collections.abc import Callable

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
    roles,
    send,
    send_back,
    transaction,
)
from tianzhou.broker.handlers import client_calls as relay
from tianzhou.broker.handlers import queue_locks as locks
from tianzhou.broker.handlers.admin import acl as admin_acl
from tianzhou.broker.handlers.admin import broker as admin_broker
from tianzhou.broker.handlers.admin import cold_reads, controller, ha_group, replication, statistics
from tianzhou.broker.handlers.admin import groups as admin_groups
from tianzhou.broker.handlers.admin import store as admin_store
from tianzhou.broker.handlers.admin import tables as admin_tables
from tianzhou.broker.handlers.admin import topics as admin_topics
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.requests.slave_refusals import check_role
from tianzhou.broker.requests.unsupported import REFUSED
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

Handle = Callable[[Connection, Command], Answer]

HANDLERS: dict[int, Callable[[Deps, Connection, Command], Answer]] = {
    # -- messages
    RequestCode.SEND_MESSAGE: send.send_message,
    RequestCode.SEND_MESSAGE_V2: send.send_message_v2,
    RequestCode.SEND_BATCH_MESSAGE: send.send_message_v2,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back.send_back,
    RequestCode.RECALL_MESSAGE: recall.recall_message,
    RequestCode.PULL_MESSAGE: pull.pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull.pull_message,
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message_by_id,
    # -- transactions, replies, order
    RequestCode.END_TRANSACTION: transaction.end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: transaction.resume_check,
    RequestCode.SEND_REPLY_MESSAGE: reply.send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply.send_reply_v2,
    RequestCode.LOCK_BATCH_MQ: locks.lock_batch,
    RequestCode.UNLOCK_BATCH_MQ: locks.unlock_batch,
    # -- through the broker to consumers
    RequestCode.GET_CONSUMER_RUNNING_INFO: relay.get_consumer_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: relay.consume_message_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relay.get_consumer_status,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: relay.reset_offset,
    # -- popping
    RequestCode.POP_MESSAGE: pop.pop_message,
    RequestCode.ACK_MESSAGE: pop_ack.ack_message,
    RequestCode.BATCH_ACK_MESSAGE: pop_ack.batch_ack_message,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop_ack.change_invisible_time,
    RequestCode.PEEK_MESSAGE: pop.peek_message,
    RequestCode.NOTIFICATION: pop.notification,
    RequestCode.POLLING_INFO: pop.polling_info,
    RequestCode.QUERY_ASSIGNMENT: assignment.query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: assignment.set_message_request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: admin_tables.get_all_modes,
    # -- offsets
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset_by_timestamp,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest_store_time,
    RequestCode.CLONE_GROUP_OFFSET: offsets.clone_group_offset,
    RequestCode.QUERY_CORRECTION_OFFSET: offsets.query_correction_offset,
    # -- clients
    RequestCode.HEART_BEAT: heartbeat.heartbeat,
    RequestCode.UNREGISTER_CLIENT: heartbeat.unregister_client,
    RequestCode.CHECK_CLIENT_CONFIG: heartbeat.check_client_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: heartbeat.get_consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: heartbeat.get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: heartbeat.get_producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: heartbeat.get_all_producers,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: heartbeat.query_subscription,
    # -- topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin_topics.create_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin_topics.delete_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: admin_tables.get_all_topics,
    RequestCode.GET_TOPIC_CONFIG: admin_topics.get_topic_config,
    RequestCode.GET_TOPIC_STATS_INFO: admin_topics.get_topic_stats,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin_topics.get_system_topics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin_topics.query_topic_consume_by_who,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin_topics.create_topic_list,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: admin_topics.query_topics_by_consumer,
    # -- groups
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin_groups.update_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin_groups.delete_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin_tables.get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin_groups.get_group,
    RequestCode.GET_ALL_CONSUMER_OFFSET: admin_tables.get_all_offsets,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin_groups.update_group_list,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: admin_groups.update_group_forbidden,
    # -- statistics
    RequestCode.GET_CONSUME_STATS: statistics.get_consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: statistics.get_all_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: statistics.query_time_span,
    RequestCode.VIEW_BROKER_STATS_DATA: statistics.view_stats,
    # -- the store
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: admin_store.clean_expired_queues,
    RequestCode.CLEAN_UNUSED_TOPIC: admin_store.clean_unused_topics,
    RequestCode.DELETE_EXPIRED_COMMITLOG: admin_store.delete_expired_log,
    RequestCode.QUERY_CONSUME_QUEUE: admin_store.query_consume_queue,
    RequestCode.GET_ALL_DELAY_OFFSET: admin_tables.get_delay_offsets,
    RequestCode.GET_TIMER_CHECK_POINT: admin_tables.get_timer_check,
    RequestCode.GET_TIMER_METRICS: admin_tables.get_timer_metrics,
    RequestCode.GET_BROKER_HA_STATUS: replication.get_ha_status,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: replication.reset_master_flush_offset,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: cold_reads.get_cold_info,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: cold_reads.update_cold_thresholds,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: cold_reads.remove_cold_threshold,
    RequestCode.SET_COMMITLOG_READ_MODE: cold_reads.set_read_ahead,
    RequestCode.POP_ROLLBACK: cold_reads.export_pop_records,
    # -- access control
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: admin_acl.put_account,
    RequestCode.DELETE_ACL_CONFIG: admin_acl.remove_account,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: admin_acl.set_white_addresses,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: admin_acl.get_versions,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: admin_acl.get_accounts,
    # -- replication
    RequestCode.HA_HELLO: roles.say_hello,
    RequestCode.CHANGE_BROKER_ROLE: roles.change_broker_role,
    RequestCode.HA_GROUP: ha_group.get_group,
    RequestCode.HA_GROUP_COMMAND: ha_group.command_group,
    RequestCode.CONTROLLER_GET_METADATA_INFO: controller.get_metadata,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: controller.get_sync_state_data,
    RequestCode.CONTROLLER_ELECT_MASTER: controller.elect_master,
    RequestCode.GET_BROKER_EPOCH_CACHE: controller.get_epochs,
    # -- the broker
    RequestCode.GET_BROKER_CONFIG: admin_broker.get_broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: admin_broker.update_broker_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: admin_broker.get_broker_runtime_info,
}


def handle(deps: Deps, connection: Connection, request: Command) -> Answer:
    """Call the handler of a request; what it raises is answered by `remoting`."""
    handler = HANDLERS.get(request.code)
    if handler is None:
        raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, explain(request.code))
    check_role(deps.settings.config, request.code)
    return handler(deps, connection, request)


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
