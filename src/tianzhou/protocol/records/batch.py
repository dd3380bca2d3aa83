"""The body of SEND_BATCH_MESSAGE, and of an inner batch of 5.x: messages without their topic.

    item := size:i32  magic:i32 (0)  crc:i32 (0)  flag:i32
            body length:i32, body
            properties length:i16, properties in UTF-8 (`properties.py`)

The size counts the whole item and must equal the sum of its parts. Magic and CRC are written as 0
and not checked, as in RocketMQ.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tianzhou.errors import RecordError
from tianzhou.protocol.pure.frames import Buffer

_HEAD = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
_SIZE_MIN = _HEAD.size + _SHORT.size
assert _SIZE_MIN == 22


class BatchItem(msgspec.Struct, frozen=True):
    """One message of a batch."""

    body: bytes
    properties_text: str = ""
    flag: int = 0


def encode(items: Iterable[BatchItem]) -> bytes:
    """Raises RecordError for an item that does not fit its lengths."""
    parts: list[bytes] = []
    for number, item in enumerate(items):
        try:
            parts.append(encode_item(item.body, item.properties_text, item.flag))
        except RecordError as e:
            raise RecordError(f"message {number} does not fit a batch: {e}") from e
    return b"".join(parts)


def encode_item(body: bytes, properties_text: str = "", flag: int = 0) -> bytes:
    """One item; items in a row are a batch. Raises RecordError if it does not fit its lengths."""
    head, tail = encode_around(len(body), properties_text, flag)
    return b"".join((head, body, tail))


def encode_around(body_bytes: int, properties_text: str, flag: int = 0) -> tuple[bytes, bytes]:
    """The bytes before and after a body of `body_bytes`, for callers that join them.

    Raises RecordError if it does not fit its lengths.
    """
    try:
        text = properties_text.encode()
        head = _HEAD.pack(_SIZE_MIN + body_bytes + len(text), 0, 0, flag, body_bytes)
        return head, _SHORT.pack(len(text)) + text
    except (struct.error, UnicodeEncodeError) as e:
        raise RecordError(f"a message of {body_bytes} bytes: {e}") from e


def decode(body: Buffer) -> list[BatchItem]:
    """All items; raises RecordError at the first that is not whole."""
    items: list[BatchItem] = []
    view = memoryview(body)
    start, stop = 0, len(view)
    while start < stop:
        item, size = _decode_item(view, start)
        items.append(item)
        start += size
    return items


def _decode_item(view: memoryview, start: int) -> tuple[BatchItem, int]:
    left = len(view) - start
    if left < _SIZE_MIN:
        raise RecordError(f"batch item at {start}: {left} bytes, the shortest has {_SIZE_MIN}")
    size, _magic, _crc, flag, body_length = _HEAD.unpack_from(view, start)
    if not _SIZE_MIN <= size <= left:
        raise RecordError(f"batch item at {start}: {size} bytes announced, {left} are there")
    if not 0 <= body_length <= size - _SIZE_MIN:
        raise RecordError(f"batch item at {start}: a body of {body_length} bytes in {size}")
    body_at = start + _HEAD.size
    properties_at = body_at + body_length
    (length,) = _SHORT.unpack_from(view, properties_at)
    if _SIZE_MIN + body_length + length != size:
        raise RecordError(
            f"batch item at {start}: {size} bytes announced, but its body has {body_length} "
            f"and its properties {length}"
        )
    text = str(view[properties_at + 2 : start + size], "utf-8", "replace")
    return BatchItem(bytes(view[body_at:properties_at]), text, flag), size


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The messages of a batch, encoded but for their offsets and their store time."""

    topic: str
    queue_id: int
    records: bytearray
    sizes: list[int]
    """Of the records in bytes."""
    codes: list[int]
    """The tags codes of their queue entries."""
    hashes: list[list[int]]
    """Of the keys of each."""
    key_count: int
