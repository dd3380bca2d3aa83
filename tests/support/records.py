"""Records of the log: encoding, and the property CRC of 5.x."""

from tianzhou.message import Host
from tianzhou.protocol import host, kernel, properties
from tianzhou.protocol.kernel import body_crc
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.pure.record import SIZE_MIN

# The property CRC of 5.x: name, \x01, ten digits with the lowest first, \x02.
_CRC_PREFIX = properties.CRC32.encode() + b"\x01"
_CRC_BYTES = len(_CRC_PREFIX) + 10 + 1
assert _CRC_BYTES == 20


def encode_record(
    *,
    topic: str,
    body: Buffer,
    properties_text: str,
    queue_id: int,
    born_time_ms: int,
    born_host: Host,
    store_host: Host,
    store_time_ms: int = 0,
    queue_offset: int = 0,
    log_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_count: int = 0,
    prepared_log_offset: int = 0,
) -> bytes:
    """One record. The address bits of `sys_flag` are set by the hosts, regardless of the argument.

    Raises RecordError for values that do not fit: a topic or properties over 32,767 bytes, numbers
    beyond their field.
    """
    return kernel.encode_record(
        topic, body, properties_text, queue_id, queue_offset, log_offset, flag, sys_flag,
        born_time_ms, host.pack(born_host), store_time_ms, host.pack(store_host), reconsume_count,
        prepared_log_offset,
    )  # fmt: skip


def property_crc_matches(record: Buffer) -> bool | None:
    """Whether the property CRC of one whole record is right; None if it has none.

    A stale one is possible in a healthy record: a broker without appendPropCRC that moves a message
    of one with it copies the property. So this is no part of `decode_record`.
    """
    if len(record) < SIZE_MIN + _CRC_BYTES:
        return None
    tail = bytes(record[-_CRC_BYTES:])
    digits = tail[len(_CRC_PREFIX) : -1]
    if not (tail.startswith(_CRC_PREFIX) and tail.endswith(b"\x02") and digits.isdigit()):
        return None
    return int(digits[::-1]) == body_crc(memoryview(record)[:-_CRC_BYTES])
