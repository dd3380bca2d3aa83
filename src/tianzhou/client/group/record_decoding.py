"""Decodes the records of a pull response, checks them, and unwraps batches.

Sans-IO. The checks: records are complete, they belong to the queue of the pull and to its range of
offsets, and their bodies have the CRC that the broker stored. A response that fails is pulled
again, since the damage may have happened in transit. A record that arrives with the same damage a
second time is damaged in the log: it is left out.

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
    """The decoded records of a response."""

    stored: list[StoredMessage]
    """The records before the first one with a new damage."""
    damage: Damage | None = None
    """The new damage."""
    left_out: bool = False
    """Whether a record with the known damage was left out."""


def read_records(
    body: bytes,
    queue: Queue,
    queue_offset: int,
    next_offset: int,
    *,
    offset_delta: int = 0,
    known: Damage | None = None,
) -> Reading:
    """The records of the response to a pull of a queue from one offset up to another.

    `offset_delta` is added to the offsets of a queue that was moved between brokers. A record with
    the `known` damage is left out. Raises RecordError if the records cannot be decoded, or do not
    belong to the pull.
    """
    is_sound = True
    try:
        found = decode_records(body, check_crc=True)
    except RecordError:
        is_sound, found = False, decode_records(body, check_crc=False)
    if offset_delta:
        found = [_moved(each, queue.queue_id, offset_delta) for each in found]
    check_offsets(found, queue, queue_offset, next_offset)
    return Reading(found) if is_sound else _without_damaged(found, known)


def _moved(stored: StoredMessage, queue_id: int, offset_delta: int) -> StoredMessage:
    moved_offset = stored.queue_offset + offset_delta
    return msgspec.structs.replace(stored, queue_id=queue_id, queue_offset=moved_offset)


def _without_damaged(found: list[StoredMessage], known: Damage | None) -> Reading:
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


def check_offsets(
    found: list[StoredMessage], queue: Queue, queue_offset: int, next_offset: int
) -> None:
    """Check that records are of a queue, ascending, and in the range. Raises RecordError."""
    topic, queue_id, last = queue.topic, queue.queue_id, queue_offset - 1
    if topic.startswith(_LIGHT_TOPIC_PREFIX):
        return
    for each in found:
        if each.topic != topic or each.queue_id != queue_id:
            raise RecordError(
                f"queue {queue}: received a message of {each.topic[:64]} {each.queue_id}"
            )
        at = each.queue_offset
        if at <= last and not each.sys_flag & INNER_BATCH:
            raise RecordError(f"received offset {at} where {last + 1} or more was expected")
        last = at
    if last >= next_offset:
        raise RecordError(f"received offset {last}, but the next offset is {next_offset}")


def unwrapped(found: list[StoredMessage], unpacked_bytes_max: int) -> list[StoredMessage]:
    """The records, with batches that are stored as one record unwrapped.

    A batch that cannot be decoded is delivered as it is, so that it does not block the queue.
    """
    if not any(each.sys_flag & _WRAPPED == _WRAPPED for each in found):
        return found
    messages: list[StoredMessage] = []
    for each in found:
        if each.sys_flag & _WRAPPED != _WRAPPED:
            messages.append(each)
            continue
        try:
            messages += _items(each, unpacked_bytes_max)
        except ProtocolError as error:
            log.warning("topic %s: a batch at %d: %s", each.topic, each.queue_offset, error)
            messages.append(each)
    return messages


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
