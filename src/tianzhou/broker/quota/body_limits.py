"""The maximum length of the body of a request to a broker, by its code.

Messages are limited by frames and `maxMessageSize`; see `remoting/quota/body_limits`.
"""

from tianzhou.limits import (
    CLIENT_BODY_BYTES_MAX,
    LIST_BODY_BYTES_MAX,
    SETTINGS_BODY_BYTES_MAX,
)
from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.quota.body_limits import Longer

_MESSAGES = (
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip
"""Bounded by frames, and by the handlers that know maxMessageSize."""

LONGER: Longer = {
    **dict.fromkeys(_MESSAGES),
    # A client with thousands of subscriptions, or locks on all queues of a large cluster.
    RequestCode.HEART_BEAT: CLIENT_BODY_BYTES_MAX,
    RequestCode.CHECK_CLIENT_CONFIG: SETTINGS_BODY_BYTES_MAX,
    RequestCode.LOCK_BATCH_MQ: CLIENT_BODY_BYTES_MAX,
    RequestCode.UNLOCK_BATCH_MQ: CLIENT_BODY_BYTES_MAX,
    RequestCode.BATCH_ACK_MESSAGE: CLIENT_BODY_BYTES_MAX,
    # Settings, tables and lists that a tool sends in one piece.
    RequestCode.UPDATE_BROKER_CONFIG: SETTINGS_BODY_BYTES_MAX,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: LIST_BODY_BYTES_MAX,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: LIST_BODY_BYTES_MAX,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SETTINGS_BODY_BYTES_MAX,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: SETTINGS_BODY_BYTES_MAX,
}
