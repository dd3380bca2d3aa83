"""From the body of a pull's answer to messages: checked, unwrapped, and filtered again by tags.

Values in, values out. What is checked: that the records are whole, that they are of the queue that
was asked for and lie where they can lie, and that their bodies have the CRC that the broker stored.
An answer that fails is not believed; it is asked for again, since the damage may have happened on
the way. If the same record comes with the same damage once more, it lies like that in the log:
asking would help no more, and it is left out.

RocketMQ 5 may store a batch as one record (topics of the queue type BatchCQ); such a record is
unwrapped into its messages, which have offsets of their own.
"""

import logging
from dataclasses import dataclass

import msgspec

from tianzhou.client.queues import Queue
from tianzhou.errors import ProtocolError, RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.kernel import body_crc
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.compression import plain_body
from tianzhou.protocol.records.record import decode_records
from tianzhou.protocol.sysflag import COMPRESSED, COMPRESSION_MASK, INNER_BATCH, NEED_UNWRAP

log = logging.getLogger(__name__)

_LIGHT_TOPIC_PREFIX = "%LMQ%"
"""Queues of light topics (MQTT) hold records of other topics, under offsets of their own."""
_WRAPPED = INNER_BATCH | NEED_UNWRAP


@dataclass(frozen=True, slots=True)
class Damage:
    """A record whose body is not what the broker stored."""

    queue_offset: int
    stored_crc: int
    found_crc: int

    def __str__(self) -> str:
        return (
            f"the message at offset {self.queue_offset} is damaged: its body has CRC "
            f"{self.found_crc:#010x}, {self.stored_crc:#010x} was stored"
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer holds."""

    stored: list[StoredMessage]
    """Its records, up to the first one with a damage that was not known."""
    damage: Damage | None = None
    """That damage."""
    left_out: bool = False
    """Whether a record with the known damage was among them."""


def read_records(
    body: bytes,
    queue: Queue,
    queue_offset: int,
    next_offset: int,
    *,
    offset_delta: int = 0,
    known: Damage | None = None,
) -> Reading:
    """The records of the answer to a pull of a queue from one offset up to another.

    `offset_delta` is what a broker adds to the offsets of a queue that was moved there; those in
    the result have it. A record with the `known` damage is left out. Raises RecordError if the
    records cannot be told apart, or cannot be the answer.
    """
    is_sound = True
    try:
        found = decode_records(body, check_crc=True)
    except RecordError:
        is_sound, found = False, decode_records(body, check_crc=False)
    if offset_delta:
        found = [_moved(each, queue.queue_id, offset_delta) for each in found]
    check_places(found, queue, queue_offset, next_offset)
    return Reading(found) if is_sound else _sorted_out(found, known)


def _moved(stored: StoredMessage, queue_id: int, offset_delta: int) -> StoredMessage:
    moved_offset = stored.queue_offset + offset_delta
    return msgspec.structs.replace(stored, queue_id=queue_id, queue_offset=moved_offset)


def _sorted_out(found: list[StoredMessage], known: Damage | None) -> Reading:
    sound: list[StoredMessage] = []
    left_out = False
    for each in found:
        crc = body_crc(each.body)
        if crc == each.body_crc:
            sound.append(each)
            continue
        damage = Damage(each.queue_offset, each.body_crc, crc)
        if damage != known:
            return Reading(sound, damage, left_out)
        left_out = True
    return Reading(sound, None, left_out)


def check_places(
    found: list[StoredMessage], queue: Queue, queue_offset: int, next_offset: int
) -> None:
    """See that records are of a queue, rising, and between two offsets. Raises RecordError."""
    topic, queue_id, last = queue.topic, queue.queue_id, queue_offset - 1
    if topic.startswith(_LIGHT_TOPIC_PREFIX):
        return
    for each in found:
        if each.topic != topic or each.queue_id != queue_id:
            raise RecordError(f"a message of {each.topic[:64]} {each.queue_id} came for {queue}")
        at = each.queue_offset
        if at <= last and not each.sys_flag & INNER_BATCH:
            raise RecordError(f"a message at {at} came where {last + 1} was the next")
        last = at
    if last >= next_offset:
        raise RecordError(f"a message at {last} came, though the next one is at {next_offset}")


def unwrapped(found: list[StoredMessage], unpacked_bytes_max: int) -> list[StoredMessage]:
    """The same with every batch that lies in one record taken apart.

    A batch that cannot be decoded stays as it is: the handler gets it, and the queue goes on.
    """
    if not any(each.sys_flag & _WRAPPED == _WRAPPED for each in found):
        return found
    apart: list[StoredMessage] = []
    for each in found:
        if each.sys_flag & _WRAPPED != _WRAPPED:
            apart.append(each)
            continue
        try:
            apart += _items(each, unpacked_bytes_max)
        except ProtocolError as error:
            log.warning("topic %s: a batch at %d: %s", each.topic, each.queue_offset, error)
            apart.append(each)
    return apart


def _items(wrapped: StoredMessage, unpacked_bytes_max: int) -> list[StoredMessage]:
    body = plain_body(wrapped.body, wrapped.sys_flag, unpacked_bytes_max)
    flags = wrapped.sys_flag & ~(_WRAPPED | COMPRESSED | COMPRESSION_MASK)
    return [
        msgspec.structs.replace(
            wrapped, body=item.body, flag=item.flag, sys_flag=flags,
            queue_offset=wrapped.queue_offset + number,
            properties=properties.decode(item.properties_text), body_crc=body_crc(item.body),
            size_bytes=len(item.body) + len(item.properties_text),
        )
        for number, item in enumerate(batch.decode(body))
    ]  # fmt: skip
