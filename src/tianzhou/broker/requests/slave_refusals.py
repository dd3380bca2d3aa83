"""What a slave refuses, and what it serves: every request code is in one of the two tables.

A slave's log is a copy of its master's, and its topics, groups and offsets come from there, so it
refuses whatever would change them:

    sends and what becomes one   SERVICE_NOT_AVAILABLE: stock clients of 5.x retry on another broker
    ends of transactions         SLAVE_NOT_AVAILABLE, as RocketMQ's slaves
    tables                       SYSTEM_ERROR with the remark of RocketMQ's slaves
    popping, queue locks         SERVICE_NOT_AVAILABLE: their state exists on the master only

The role is read for each request: a promotion or demotion changes it while the broker runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tianzhou.broker.config import BrokerConfig
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode


@dataclass(frozen=True, slots=True)
class SlaveRefusal:
    """The response of a slave; `{broker}` in the remark stands for its name and id."""

    code: int
    remark: str


_NO_SENDS = SlaveRefusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "broker {broker} is a slave and stores no messages: send to its master, or to another broker",
)
_NO_TRANSACTIONS = SlaveRefusal(
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "broker {broker} is a slave and ends no transactions: its master does",
)
_NO_RECALLS = SlaveRefusal(
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "recall failed, broker service not available: {broker} is a slave",
)
_NO_TABLES = SlaveRefusal(
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker.",
)
_NO_RESETS = SlaveRefusal(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
_NO_POPS = SlaveRefusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "broker {broker} is a slave and serves no pop consumers: messages in flight are known to its "
    "master only",
)
_NO_LOCKS = SlaveRefusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "broker {broker} is a slave and locks no queues: orderly consumers lock them at its master",
)

REFUSED_BY_SLAVES: Mapping[int, SlaveRefusal] = {
    RequestCode.SEND_MESSAGE: _NO_SENDS,
    RequestCode.SEND_MESSAGE_V2: _NO_SENDS,
    RequestCode.SEND_BATCH_MESSAGE: _NO_SENDS,
    RequestCode.CONSUMER_SEND_MSG_BACK: _NO_SENDS,
    RequestCode.SEND_REPLY_MESSAGE: _NO_SENDS,
    RequestCode.SEND_REPLY_MESSAGE_V2: _NO_SENDS,
    RequestCode.END_TRANSACTION: _NO_TRANSACTIONS,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _NO_TRANSACTIONS,
    RequestCode.RECALL_MESSAGE: _NO_RECALLS,
    # -- tables that the master's replace
    RequestCode.UPDATE_AND_CREATE_TOPIC: _NO_TABLES,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _NO_TABLES,
    RequestCode.DELETE_TOPIC_IN_BROKER: _NO_TABLES,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _NO_TABLES,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _NO_TABLES,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _NO_TABLES,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _NO_TABLES,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _NO_TABLES,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _NO_RESETS,
    RequestCode.CLONE_GROUP_OFFSET: _NO_RESETS,
    # -- popping; these would announce messages that cannot be popped here
    RequestCode.POP_MESSAGE: _NO_POPS,
    RequestCode.ACK_MESSAGE: _NO_POPS,
    RequestCode.BATCH_ACK_MESSAGE: _NO_POPS,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _NO_POPS,
    RequestCode.PEEK_MESSAGE: _NO_POPS,
    RequestCode.NOTIFICATION: _NO_POPS,
    RequestCode.LOCK_BATCH_MQ: _NO_LOCKS,
    RequestCode.UNLOCK_BATCH_MQ: _NO_LOCKS,
}

SERVED_BY_SLAVES: frozenset[int] = frozenset(
    (
        # -- reading; `handlers/read_redirect.py` has the rules of pulls
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        # -- clients; the next copy of the master's offsets overwrites those that are committed here
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.POLLING_INFO,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        # -- tables, which slaves of 5.x copy from slaves, too
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
        # -- statistics
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.QUERY_CONSUME_QUEUE,
        # -- its own disk, settings and accounts
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.POP_ROLLBACK,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        # -- replication
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.HA_HELLO,
        RequestCode.CHANGE_BROKER_ROLE,
        RequestCode.HA_GROUP,
        RequestCode.HA_GROUP_COMMAND,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.GET_BROKER_EPOCH_CACHE,
    )
)


def check_role(config: BrokerConfig, code: int) -> None:
    """Raises RequestError for a request that this broker refuses because it is a slave."""
    if not config.is_slave:
        return
    refusal = REFUSED_BY_SLAVES.get(code)
    if refusal is not None:
        broker = f"{config.broker_name}[{config.broker_id}]"
        raise RequestError(refusal.code, refusal.remark.format(broker=broker))
