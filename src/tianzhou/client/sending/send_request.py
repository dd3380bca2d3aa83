"""Encodes messages as send requests, and decodes the responses. Sans-IO.

`outgoing` checks and encodes a message into what all attempts of its send share; `fields_of` makes
the header of one attempt from a template that is computed once per queue; `result_of` decodes the
response. `split` divides a list of messages into batches that brokers accept.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import msgspec

from tianzhou.client.message import Message
from tianzhou.client.queues import Queue
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.errors import FieldError, MessageRefused, RecordError
from tianzhou.names import RETRY_TOPIC_PREFIX, UNSENDABLE_TOPICS
from tianzhou.protocol import headers, properties
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import SendMessageResponse
from tianzhou.protocol.pure.record import PROPERTIES_BYTES_MAX
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.compression import compress, flag_of
from tianzhou.protocol.records.recall import decode_handle
from tianzhou.protocol.sysflag import TRANSACTION_PREPARED

_SEND, _BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
"""Every send uses them: reading a member of an enumeration takes 50 ns in Python 3.11."""

TOPIC_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 255

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_RESERVED_GROUP = "DEFAULT_PRODUCER"
_PLAIN_TEXT = f"\x02{properties.WAIT_STORED}\x01true\x02"
_UNIQUE_PREFIX = f"{properties.UNIQUE_KEY}\x01"
_ID_CHARACTERS = 32
_PLAIN_LENGTH = len(_UNIQUE_PREFIX) + _ID_CHARACTERS + len(_PLAIN_TEXT)
_PLAIN_START = f"\0{chr(_PLAIN_LENGTH)}{_UNIQUE_PREFIX}"
"""What follows the body of a batched message that has no properties but its id."""
assert _PLAIN_LENGTH < 128


class SendStatus(StrEnum):
    """The durability of a stored message; only SEND_OK is all that was requested."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUSES: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored, and its ids."""

    status: SendStatus
    msg_id: str
    """The unique id from the producer; consumers see the same one."""
    offset_msg_id: str
    """The id from the broker: its address and the position in the log."""
    queue: Queue
    """The queue; its topic is without namespace."""
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    """Cancels a delayed message (`Producer.recall`)."""
    region_id: str = "DefaultRegion"
    trace_on: bool = True


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An encoded message, shared by all attempts of its send. Names are those on the wire."""

    topic: str
    body: bytes
    properties_text: str
    unique_ids: tuple[str, ...]
    """One per message; a batch has several."""
    code: int = RequestCode.SEND_MESSAGE_V2
    sys_flag: int = 0
    flag: int = 0


# -- checks ----------------------------------------------------------------------------------------


def check_group(group: str) -> None:
    """Raises MessageRefused for an invalid group name."""
    _check_name("group", group, GROUP_CHARACTERS_MAX)
    if group == _RESERVED_GROUP:
        raise MessageRefused(f"group {group} is reserved; choose a name of your own")


def check_topic(topic: str) -> None:
    """Raises MessageRefused for an invalid or reserved topic name."""
    check_name_of_topic(topic)
    if topic in UNSENDABLE_TOPICS:
        raise MessageRefused(f"topic {topic} is reserved for brokers; nothing can be sent to it")


def check_name_of_topic(topic: str) -> None:
    """Raises MessageRefused for an invalid topic name."""
    _check_name("topic", topic, TOPIC_CHARACTERS_MAX)


def _check_name(kind: str, name: str, characters_max: int) -> None:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are checked
        raise MessageRefused(f"the {kind} is {name!r}; it must be a string")
    if not name:
        raise MessageRefused(f"the {kind} is empty")
    if len(name) > characters_max:
        raise MessageRefused(
            f"{kind} {name[:40]}...: {len(name)} characters, over {characters_max}"
        )
    if not _NAME.fullmatch(name):
        raise MessageRefused(f"{kind} {name!r}: only letters, digits, % | _ and - are allowed")


# -- one message -----------------------------------------------------------------------------------


def outgoing(
    message: Message,
    topic: str,
    unique_id: str,
    settings: ProducerSettings,
    *,
    namespace: str = "",
    extra: dict[str, str] | None = None,
) -> Outgoing:
    """Encode a message; `topic` is its name on the wire, which the caller has checked.

    `extra` are properties of the client (transactions, requests). Raises MessageRefused.
    """
    body = message.payload
    size_bytes = len(body)
    if not size_bytes:
        raise MessageRefused(f"topic {topic}: the body is empty")
    if size_bytes > settings.message_bytes_max:
        raise MessageRefused(
            f"topic {topic}: the body has {size_bytes} bytes, over {settings.message_bytes_max}"
        )
    text = properties_text(message, unique_id, namespace=namespace, extra=extra)
    sys_flag = 0
    if size_bytes >= settings.compress_over_bytes:
        body = compress(body, settings.compression, settings.compression_level)
        sys_flag = flag_of(settings.compression)
    code = _SEND
    if extra:
        if properties.TRANSACTION_PREPARED in extra:
            sys_flag |= TRANSACTION_PREPARED
        if extra.get(properties.MESSAGE_TYPE) == "reply":
            code = RequestCode.SEND_REPLY_MESSAGE_V2
    return Outgoing(topic, body, text, (unique_id,), code, sys_flag, message.flag)


def properties_text(
    message: Message, unique_id: str, *, namespace: str = "", extra: dict[str, str] | None = None
) -> str:
    """The properties of a message, encoded. Raises MessageRefused."""
    # Fast path: most messages have no other properties.
    if not (
        message.tags or message.keys or message.properties or namespace or extra
        or message.is_delayed or message.shard is not None or not message.wait_stored
    ):  # fmt: skip
        return f"{_UNIQUE_PREFIX}{unique_id}{_PLAIN_TEXT}"
    wire = message.wire_properties(namespace)
    wire[properties.UNIQUE_KEY] = unique_id
    if extra:
        wire |= extra
    try:
        text = properties.encode(wire)
    except FieldError as e:
        raise MessageRefused(f"topic {message.topic}: {e}") from e
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise MessageRefused(
            f"topic {message.topic}: properties of {len(text.encode())} bytes, over "
            f"{PROPERTIES_BYTES_MAX}"
        )
    return text


# -- batches ---------------------------------------------------------------------------------------


def may_batch(message: Message) -> bool:
    """Whether brokers accept the message in a batch: not delayed, not for a retry topic."""
    return not (
        message.delay_level or message.delay is not None or message.deliver_at is not None
        or message.topic.startswith(RETRY_TOPIC_PREFIX)
    )  # fmt: skip


def item_pieces(
    message: Message, unique_id: str, namespace: str = ""
) -> tuple[bytes, bytes, bytes]:
    """One message encoded for a batch, in three pieces, the second being the body.

    Bodies in batches are not compressed, as in RocketMQ. Raises MessageRefused.
    """
    body = message.payload
    if not body:
        raise MessageRefused(f"topic {message.topic}: the body is empty")
    if not (
        message.tags or message.keys or message.properties or message.flag or namespace
        or message.shard is not None or not message.wait_stored or message.delay_level
        or message.delay is not None or message.deliver_at is not None
    ) and len(unique_id) == _ID_CHARACTERS:  # fmt: skip
        # Fast path: most messages have nothing but a body and their id.
        return _plain_head(len(body)), body, f"{_PLAIN_START}{unique_id}{_PLAIN_TEXT}".encode()
    text = properties_text(message, unique_id, namespace=namespace)
    try:
        head, tail = batch.encode_around(len(body), text, message.flag)
    except RecordError as e:
        raise MessageRefused(f"topic {message.topic}: it does not fit a batch: {e}") from e
    return head, body, tail


@lru_cache(maxsize=256)
def _plain_head(body_bytes: int) -> bytes:
    head, _ = batch.encode_around(
        body_bytes, f"{_UNIQUE_PREFIX}{'0' * _ID_CHARACTERS}{_PLAIN_TEXT}"
    )
    return head


def batch_item(message: Message, unique_id: str, namespace: str = "") -> bytes:
    """The same in one piece."""
    return b"".join(item_pieces(message, unique_id, namespace))


def split(sizes_bytes: Sequence[int], batch_bytes: int, batch_count: int) -> list[range]:
    """Divide a list of items into ranges of at most `batch_bytes` and `batch_count`.

    An item that exceeds `batch_bytes` has a range of its own.
    """
    ranges: list[range] = []
    start = used_bytes = 0
    for at, size_bytes in enumerate(sizes_bytes):
        if at > start and (used_bytes + size_bytes > batch_bytes or at - start >= batch_count):
            ranges.append(range(start, at))
            start, used_bytes = at, 0
        used_bytes += size_bytes
    if start < len(sizes_bytes):
        ranges.append(range(start, len(sizes_bytes)))
    return ranges


def outgoing_batch(
    topic: str,
    items: Iterable[bytes],
    unique_ids: Sequence[str],
    settings: ProducerSettings,
    *,
    wait_stored: bool,
) -> Outgoing:
    """Encode a batch of items, whole or in pieces.

    Raises MessageRefused if it is too large.
    """
    body = b"".join(items)
    if len(body) > settings.message_bytes_max:
        raise MessageRefused(
            f"topic {topic}: a batch of {len(body)} bytes, over {settings.message_bytes_max}"
        )
    waits = "true" if wait_stored else "false"
    return Outgoing(
        topic=topic,
        body=body,
        properties_text=f"{properties.WAIT_STORED}\x01{waits}\x02",
        unique_ids=tuple(unique_ids),
        code=_BATCH,
    )


# -- the wire --------------------------------------------------------------------------------------


def header_template(
    group: str, queue: Queue, template_topic: str, queue_count: int, *, unit_mode: bool
) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 that all messages of a queue share."""
    return {
        "a": group, "b": queue.topic, "c": template_topic, "d": str(queue_count),
        "e": str(queue.queue_id), "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
        "k": "true" if unit_mode else "false", "m": "false", "n": queue.broker_name,
    }  # fmt: skip


def fields_of(template: dict[str, str], out: Outgoing, now_ms: int) -> dict[str, str]:
    """The header of one attempt."""
    fields = template.copy()
    fields["g"] = str(now_ms)
    fields["i"] = out.properties_text
    if out.sys_flag:
        fields["f"] = str(out.sys_flag)
    if out.flag:
        fields["h"] = str(out.flag)
    if out.code == _BATCH:
        fields["m"] = "true"
    return fields


def result_of(answer: Command, out: Outgoing, topic: str, broker_name: str) -> SendResult:
    """The result of a single message, for a response whose code is in STATUSES.

    Raises FieldError if a required field is missing.
    """
    fields = answer.ext_fields or {}
    try:
        queue_id, queue_offset = int(fields["queueId"]), int(fields["queueOffset"])
        offset_msg_id = fields["msgId"]
    except (KeyError, ValueError):
        header = headers.decode(SendMessageResponse, fields)  # says what is wrong
        queue_id, queue_offset, offset_msg_id = header.queue_id, header.queue_offset, header.msg_id
    return SendResult(
        STATUSES[answer.code],
        out.unique_ids[0],
        offset_msg_id,
        Queue(topic, broker_name, queue_id),
        queue_offset,
        fields.get("transactionId"),
        fields.get("recallHandle"),
        fields.get("MSG_REGION") or "DefaultRegion",
        fields.get("TRACE_ON") != "false",
    )


def results_of(answer: Command, out: Outgoing, topic: str, broker_name: str) -> list[SendResult]:
    """The results of a batch, one per message, in their order.

    A broker that stores the batch as one (5.x, batch topics) gives one id to all of them.
    """
    whole = result_of(answer, out, topic, broker_name)
    offset_ids = whole.offset_msg_id.split(",")
    if len(offset_ids) != len(out.unique_ids):
        offset_ids = [whole.offset_msg_id] * len(out.unique_ids)
    return [
        SendResult(
            whole.status, unique_id, offset_id, whole.queue, whole.queue_offset + at,
            None, None, whole.region_id, whole.trace_on,
        )
        for at, (unique_id, offset_id) in enumerate(zip(out.unique_ids, offset_ids, strict=True))
    ]  # fmt: skip


def recall_broker(recall_handle: str) -> str:
    """The broker of a recall handle. Raises MessageRefused for an invalid handle."""
    try:
        return decode_handle(recall_handle).broker_name
    except FieldError as e:
        raise MessageRefused(str(e)) from e
