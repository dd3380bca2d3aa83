"""How long the body of a request to a broker may be, by its code; see `remoting/quota/bodies`.

Messages may be as long as frames and `maxMessageSize` allow.
"""

from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.quota.bodies import Longer

_MIB = 1024 * 1024

_MESSAGES = (
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip
"""Bounded by frames, and by the handlers that know maxMessageSize."""

LONGER: Longer = {
    **dict.fromkeys(_MESSAGES),
    # A client with thousands of subscriptions, or locks on all queues of a large cluster.
    RequestCode.HEART_BEAT: 2 * _MIB,
    RequestCode.CHECK_CLIENT_CONFIG: _MIB,
    RequestCode.LOCK_BATCH_MQ: 2 * _MIB,
    RequestCode.UNLOCK_BATCH_MQ: 2 * _MIB,
    RequestCode.BATCH_ACK_MESSAGE: 2 * _MIB,
    # Settings, tables and lists that a tool sends in one piece.
    RequestCode.UPDATE_BROKER_CONFIG: _MIB,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: 8 * _MIB,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: 8 * _MIB,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _MIB,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _MIB,
}
