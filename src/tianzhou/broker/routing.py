"""Which handler serves which request code, and which parts of the broker it is given."""

from functools import partial
from typing import NamedTuple

from tianzhou.broker.dispatch import Handle
from tianzhou.broker.handlers import (
    admin_broker,
    admin_groups,
    admin_topics,
    heartbeat,
    offsets,
    pull,
    query,
    send,
)
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


def handlers_of(parts: AllParts) -> dict[int, Handle]:
    """The whole table."""
    return {
        # -- messages
        RequestCode.SEND_MESSAGE: partial(send.send_message, parts.send),
        RequestCode.SEND_MESSAGE_V2: partial(send.send_message_v2, parts.send),
        RequestCode.SEND_BATCH_MESSAGE: partial(send.send_message_v2, parts.send),
        RequestCode.PULL_MESSAGE: partial(pull.pull_message, parts.pull),
        RequestCode.LITE_PULL_MESSAGE: partial(pull.pull_message, parts.pull),
        RequestCode.QUERY_MESSAGE: partial(query.query_message, parts.query),
        RequestCode.VIEW_MESSAGE_BY_ID: partial(query.view_message_by_id, parts.query),
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
        RequestCode.GET_CONSUME_STATS: partial(admin_groups.get_consume_stats, parts.groups),
        # -- the broker
        RequestCode.GET_BROKER_CONFIG: partial(admin_broker.get_broker_config, parts.broker),
        RequestCode.UPDATE_BROKER_CONFIG: partial(admin_broker.update_broker_config, parts.broker),
        RequestCode.GET_BROKER_RUNTIME_INFO: partial(
            admin_broker.get_broker_runtime_info, parts.broker
        ),
    }
