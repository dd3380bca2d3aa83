"""How long the body of a request may be, by its code.

Messages may be as long as frames and `maxMessageSize` allow. All other requests carry a few names
and numbers, and decoding megabytes of JSON for them would let one peer hold up everybody: they are
refused before anything looks into them.
"""

from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

_KIB, _MIB = 1024, 1024 * 1024

BODY_MAX_BYTES = 64 * _KIB
"""Of a request that is not named below."""

_MESSAGES = (
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip
"""Bounded by frames, and by the handlers that know maxMessageSize."""

_LONGER: dict[int, int] = {
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


def body_max_bytes(code: int) -> int | None:
    """The longest body of a request; None if that is for its handler to say."""
    return None if code in _MESSAGES else _LONGER.get(code, BODY_MAX_BYTES)


def check_body(request: Command) -> None:
    """Raises RequestError for a body that is too long for its request."""
    size_bytes = len(request.body)
    # Nearly all bodies are short, and then nothing needs to be looked up.
    if size_bytes <= BODY_MAX_BYTES:
        return
    max_bytes = body_max_bytes(request.code)
    if max_bytes is not None and size_bytes > max_bytes:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request type {request.code} carries {size_bytes} bytes, {max_bytes} are allowed",
        )
