"""Request and reply: the properties of the two messages, and how a reply is decoded.

A request carries a correlation id and the client id of its sender. Its consumer sends a reply to
the reply topic of the broker's cluster, and the broker pushes it to the sender
(PUSH_REPLY_MESSAGE_TO_CLIENT). Sans-IO.
"""

from tianzhou.client.message import ReceivedMessage
from tianzhou.errors import AddressError, MessageRefused
from tianzhou.message import Host, StoredMessage
from tianzhou.protocol import headers, properties
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import PushReplyMessageRequest
from tianzhou.protocol.kernel import body_crc
from tianzhou.remoting.address import parse_address

_REPLY = "reply"
_OF_A_REQUEST = (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT, properties.CLUSTER)
_NOWHERE: Host = ("0.0.0.0", 0)  # noqa: S104 - an unknown address, nothing is bound to it


def request_properties(correlation_id: str, client_id: str, ttl_ms: int) -> dict[str, str]:
    """The properties of a request."""
    return {
        properties.CORRELATION_ID: correlation_id,
        properties.REPLY_TO_CLIENT: client_id,
        properties.TTL: str(ttl_ms),
    }


def is_request(message: ReceivedMessage) -> bool:
    """Whether a message is a request that can be replied to."""
    return all(name in message.properties for name in _OF_A_REQUEST)


def reply_timeout_ms(request: ReceivedMessage, timeout_ms: int) -> int:
    """The time-out of a reply: at most the time-out of its request."""
    ttl = request.properties.get(properties.TTL, "")
    return min(timeout_ms, int(ttl)) if ttl.isdecimal() and int(ttl) > 0 else timeout_ms


def reply_properties(request: ReceivedMessage) -> dict[str, str]:
    """The properties of a reply. Raises MessageRefused if the message is no request."""
    given = request.properties
    missing = [name for name in _OF_A_REQUEST if name not in given]
    if missing:
        raise MessageRefused(
            f"message {request.msg_id} of topic {request.topic} is no request, it has no "
            f"{', '.join(missing)}"
        )
    names = (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT, properties.TTL)
    copied = {name: given[name] for name in names if name in given}
    return {**copied, properties.MESSAGE_TYPE: _REPLY}


def reply_from(pushed: Command, unpacked_bytes_max: int, arrived_ms: int) -> ReceivedMessage:
    """The reply that a broker pushed. Raises FieldError."""
    header = headers.decode(PushReplyMessageRequest, pushed.fields)
    carried = properties.decode(header.properties or "")
    carried[properties.ARRIVE_TIME] = str(arrived_ms)
    stored = StoredMessage(
        topic=header.topic,
        body=pushed.body,
        properties=carried,
        queue_id=header.queue_id,
        queue_offset=0,
        log_offset=0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_time_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_count=header.reconsume_times or 0,
        prepared_log_offset=0,
        body_crc=body_crc(pushed.body),
        size_bytes=len(pushed.body),
    )
    return ReceivedMessage(stored, unpacked_bytes_max=unpacked_bytes_max)


def _host(address: str) -> Host:
    """An address as RocketMQ writes it, "1.2.3.4:5" or "/1.2.3.4:5"."""
    try:
        return parse_address(address.rpartition("/")[2])
    except AddressError:
        return _NOWHERE
