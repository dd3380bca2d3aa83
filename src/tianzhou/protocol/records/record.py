"""The message record: how one message is stored in the commit log, and how pull replies carry it.

All numbers are big-endian and, except the magic, signed.

    at    bytes  field
    0     4      size of the whole record
    4     4      magic: 0xDAA320A7 (v1), 0xDAA320AB (v2), 0xCBD43194 (filler at a file's end)
    8     4      body CRC: CRC-32 of the body as stored, top bit cleared
    12    4      queue id
    16    4      flag, the program's own
    20    8      queue offset
    28    8      log offset: where this record begins
    36    4      system flag (`sysflag.py`)
    40    8      born time, ms
    48    8/20   born host: address (4, or 16 where the system flag says IPv6), port
    56*   8      store time, ms                       * and what follows: 12 more for each IPv6 host
    64*   8/20   store host
    72*   4      reconsume count
    76*   8      log offset of the prepared (half) message of a transaction
    84*   4      body length, then the body
          1/2    topic length (v1: 1 byte, up to 127; v2: 2 bytes), then the topic in UTF-8
          2      properties length, then the properties (`properties.py`) in UTF-8

A filler has only size and magic; the rest is arbitrary. Version 2 is written for topics longer than
127 bytes and for no others, as 5.x does. The size must equal the sum of the parts, every length is
checked before it is used, and RecordError says what is wrong and where.

A record may be built before its position is known; `patch_record` then writes the three values that
depend on it: 16 bytes at 20 (queue offset, log offset) and 8 at 56 or 68 (store time). The body CRC
does not cover them; the property CRC of 5.x does, it covers all before itself.
"""

import struct
from collections.abc import Iterator

from tianzhou.errors import RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol import host, kernel, properties
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.pure.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    SIZE_MIN,
    SYS_FLAG_AT,
)
from tianzhou.protocol.sysflag import BORN_HOST_V6

QUEUE_OFFSET_AT = 20
LOG_OFFSET_AT = 28
BLANK_BYTES_MIN = SIZE_AND_MAGIC.size
assert (BLANK_BYTES_MIN, SIZE_MIN) == (8, 91)

_OFFSETS = struct.Struct(">qq")
_TIME = struct.Struct(">q")
_FLAG = struct.Struct(">i")


# -- reading ---------------------------------------------------------------------------------------


def decode_record(
    buffer: Buffer, start: int = 0, *, check_crc: bool = True, read_body: bool = True
) -> StoredMessage:
    """The message whose record begins at `start`; what follows it does not matter.

    The CRC is checked even if the body is not wanted. Raises RecordError for damage and for a
    filler.
    """
    return StoredMessage(*kernel.decode_record(buffer, start, check_crc, read_body))


def decode_records(
    buffer: Buffer, *, check_crc: bool = False, read_body: bool = True
) -> list[StoredMessage]:
    """All messages of a buffer that holds records and nothing else, such as a pull reply's body."""
    found = kernel.decode_records(buffer, check_crc, read_body)
    return [StoredMessage(*fields) for fields in found]


def scan_records(
    buffer: Buffer, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """(start, size, magic) of each record, fillers included, without looking inside.

    Raises RecordError at the first position without a complete record.
    """
    end = len(buffer) if stop is None else min(stop, len(buffer))
    while start < end:
        if end - start < BLANK_BYTES_MIN:
            raise RecordError(f"record at {start}: only {end - start} bytes are there")
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, start)
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            raise RecordError(f"record at {start}: magic number {magic:#010x} is unknown")
        smallest = BLANK_BYTES_MIN if magic == MAGIC_BLANK else SIZE_MIN
        if not smallest <= size <= end - start:
            raise RecordError(f"record at {start}: {size} bytes announced, {end - start} are there")
        yield start, size, magic
        start += size


# -- writing ---------------------------------------------------------------------------------------


def encode_stored(message: StoredMessage, *, closed: bool = True) -> bytes:
    """The record of a message that was read before; `closed` as in `properties.encode`.

    Size and CRC are computed anew, the address bits of the system flag from the hosts. Raises
    RecordError for values that do not fit: a topic or properties over 32,767 bytes, numbers beyond
    their field.
    """
    return kernel.encode_record(
        message.topic, message.body, properties.encode(message.properties, closed=closed),
        message.queue_id, message.queue_offset, message.log_offset, message.flag, message.sys_flag,
        message.born_time_ms, host.pack(message.born_host), message.store_time_ms,
        host.pack(message.store_host), message.reconsume_count, message.prepared_log_offset,
    )  # fmt: skip


def encode_blank(size_bytes: int) -> bytes:
    """The 8 bytes that begin a filler of `size_bytes`, these included."""
    if size_bytes < BLANK_BYTES_MIN:
        raise RecordError(f"a filler has at least {BLANK_BYTES_MIN} bytes, not {size_bytes}")
    return SIZE_AND_MAGIC.pack(size_bytes, MAGIC_BLANK)


def store_time_at(sys_flag: int) -> int:
    """Where in a record the store time stands."""
    return 68 if sys_flag & BORN_HOST_V6 else 56


def patch_record(
    buffer: bytearray | memoryview,
    start: int,
    *,
    queue_offset: int,
    log_offset: int,
    store_time_ms: int,
) -> None:
    """Write position and store time into the record at `start`."""
    (sys_flag,) = _FLAG.unpack_from(buffer, start + SYS_FLAG_AT)
    _OFFSETS.pack_into(buffer, start + QUEUE_OFFSET_AT, queue_offset, log_offset)
    _TIME.pack_into(buffer, start + store_time_at(sys_flag), store_time_ms)
