"""The record codec in pure Python; the layout is drawn in `records/record.py`.

As in `frames.py`, the kernel has the same contract but declines input for which this code raises.
Fields travel as tuples in the order of `StoredMessage`, hosts packed as in `host.py` on the way in.
"""

import struct
from functools import lru_cache
from zlib import crc32

from tianzhou.errors import RecordError
from tianzhou.message import Host
from tianzhou.protocol import host, properties
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6

RecordFields = tuple[
    str, bytes, dict[str, str], int, int, int, int, int, int, Host, int, Host, int, int, int, int
]
"""The fields of StoredMessage in their order."""

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

TOPIC_V1_BYTES_MAX = 127
TOPIC_BYTES_MAX = 32_767
PROPERTIES_BYTES_MAX = 32_767

SIZE_AND_MAGIC = struct.Struct(">iI")
SYS_FLAG_AT = 36
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_pack_short = _SHORT.pack
_BYTE = struct.Struct(">b")

HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
# size magic crc queue flag | queue offset, log offset | sys flag, born time, born host |
# store time, store host | reconsume count, prepared offset, body length
_HEADS = {
    0: struct.Struct(">iIiii qq iq8s q8s iqi"),
    BORN_HOST_V6: struct.Struct(">iIiii qq iq20s q8s iqi"),
    STORE_HOST_V6: struct.Struct(">iIiii qq iq8s q20s iqi"),
    HOSTS_V6: struct.Struct(">iIiii qq iq20s q20s iqi"),
}
assert [head.size for head in _HEADS.values()] == [88, 100, 100, 112]


def head_bytes(sys_flag: int) -> int:
    """The length of a record's head, up to and with the length of the body."""
    return _HEADS[sys_flag & HOSTS_V6].size


LAYOUTS = {
    (born_bytes, store_bytes): (bits, _HEADS[bits].pack, _HEADS[bits].size)
    for born_bytes, born_bit in ((host.PACKED_V4_BYTES, 0), (host.PACKED_V6_BYTES, BORN_HOST_V6))
    for store_bytes, store_bit in ((host.PACKED_V4_BYTES, 0), (host.PACKED_V6_BYTES, STORE_HOST_V6))
    for bits in (born_bit | store_bit,)
}
"""By the lengths of the packed hosts: the address bits, and what packs the head, how long."""

SIZE_MIN = 88 + 1 + 2
"""The smallest record: IPv4, no body, no topic, no properties."""


def body_crc(body: Buffer) -> int:
    """CRC-32 without its top bit, as records store it."""
    return crc32(body) & 0x7FFFFFFF


def decode_record(buffer: Buffer, start: int, check_crc: bool, read_body: bool) -> RecordFields:
    """The record that begins at `start`; raises RecordError for anything else."""
    size, magic = _checked_start(buffer, start)
    (sys_flag,) = _INT.unpack_from(buffer, start + SYS_FLAG_AT)
    head = _HEADS[sys_flag & HOSTS_V6]
    topic_length = _SHORT if magic == MAGIC_V2 else _BYTE
    # Bytes left for body, topic and properties after the fixed fields.
    rest_bytes = size - head.size - topic_length.size - 2
    if rest_bytes < 0:
        raise RecordError(f"record at {start}: {size} bytes are too few for its addresses")
    (
        _size, _magic, crc, queue_id, flag, queue_offset, log_offset, _sys_flag, born_time_ms,
        born_host, store_time_ms, store_host, reconsume_count, prepared_log_offset, body_length,
    ) = head.unpack_from(buffer, start)  # fmt: skip
    if not 0 <= body_length <= rest_bytes:
        raise RecordError(f"record at {start}: a body of {body_length} bytes in {size}")
    view = memoryview(buffer)
    at = start + head.size
    body_view = view[at : at + body_length]
    if check_crc and body_length and body_crc(body_view) != crc:
        raise RecordError(f"record at {start}: the body does not match its CRC {crc:#010x}")
    topic_at = at + body_length
    topic, properties_at = _text(view, topic_at, topic_length, rest_bytes - body_length, "a topic")
    left = start + size - properties_at - 2
    text, end = _text(view, properties_at, _SHORT, left, "properties")
    if end != start + size:
        raise RecordError(f"record at {start}: {size} bytes announced, {end - start} used")
    return (
        topic, bytes(body_view) if read_body else b"", properties.decode(text), queue_id,
        queue_offset, log_offset, flag, sys_flag, born_time_ms, host.unpack(born_host),
        store_time_ms, host.unpack(store_host), reconsume_count, prepared_log_offset, crc, size,
    )  # fmt: skip


def decode_records(buffer: Buffer, check_crc: bool, read_body: bool) -> list[RecordFields]:
    """Records that follow each other up to the end of the buffer."""
    records: list[RecordFields] = []
    start, stop = 0, len(buffer)
    while start < stop:
        fields = decode_record(buffer, start, check_crc, read_body)
        records.append(fields)
        start += fields[-1]
    return records


def encode_record(
    topic: str,
    body: Buffer,
    properties_text: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    flag: int,
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_count: int,
    prepared_log_offset: int,
) -> bytes:
    """One record; the address bits of `sys_flag` follow the hosts."""
    layout = LAYOUTS.get((len(born_host), len(store_host)))
    if layout is None:
        known = (host.PACKED_V4_BYTES, host.PACKED_V6_BYTES)
        wrong = born_host if len(born_host) not in known else store_host
        raise RecordError(f"a packed host has 8 or 20 bytes, not {len(wrong)}")
    hosts_v6, pack_head, head_bytes = layout
    try:
        magic, topic_bytes = encode_topic(topic)
        properties_bytes, body_length = properties_text.encode(), len(body)
        properties_length = _pack_short(len(properties_bytes))
        size = head_bytes + body_length + len(topic_bytes) + 2 + len(properties_bytes)
        fixed = pack_head(
            size, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, log_offset,
            sys_flag & ~HOSTS_V6 | hosts_v6, born_time_ms, born_host, store_time_ms, store_host,
            reconsume_count, prepared_log_offset, body_length,
        )  # fmt: skip
    except (struct.error, UnicodeEncodeError) as e:
        raise RecordError(f"a message of topic {topic[:64]!r} does not fit a record: {e}") from e
    return b"".join((fixed, body, topic_bytes, properties_length, properties_bytes))


@lru_cache(maxsize=4096)
def encode_topic(topic: str) -> tuple[int, bytes]:
    """The magic number of a record of a topic, and the topic after its length."""
    encoded = topic.encode()
    if len(encoded) > TOPIC_V1_BYTES_MAX:
        return MAGIC_V2, _SHORT.pack(len(encoded)) + encoded
    return MAGIC_V1, _BYTE.pack(len(encoded)) + encoded


def _checked_start(buffer: Buffer, start: int) -> tuple[int, int]:
    """Size and magic of the record at `start`, all of which is in the buffer."""
    left = len(buffer) - start
    if start < 0 or left < SIZE_AND_MAGIC.size:
        raise RecordError(f"record at {start}: the data has {len(buffer)} bytes")
    size: int
    magic: int
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, start)
    if magic == MAGIC_BLANK:
        raise RecordError(f"record at {start}: filler at the end of a file, not a message")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"record at {start}: magic number {magic:#010x} is unknown")
    if not SIZE_MIN <= size <= left:
        raise RecordError(f"record at {start}: {size} bytes announced, {left} are there")
    return size, magic


def _text(
    view: memoryview, at: int, length_form: struct.Struct, rest_bytes: int, what: str
) -> tuple[str, int]:
    """A text after its length, and the index after it.

    Bytes that are not UTF-8 are replaced as Java does: a message with a broken name in it is still
    the user's message.
    """
    (length,) = length_form.unpack_from(view, at)
    if not 0 <= length <= rest_bytes:
        raise RecordError(
            f"record text at {at}: {what} of {length} bytes where {rest_bytes} are left"
        )
    first = at + length_form.size
    return str(view[first : first + length], "utf-8", "replace"), first + length
