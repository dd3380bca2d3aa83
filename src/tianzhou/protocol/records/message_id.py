"""The two ids of a message.

    offset id (offsetMsgId), given by the broker: address:4|16 port:4 log offset:8
    unique id (UNIQ_KEY), given by the producer:  address:4|16 pid:2 process hash:4 span:4 counter:2

Both are written as upper-case hex, 32 digits with an IPv4 address and 56 with an IPv6 one, the same
in 4.9 and 5.x. `span` is in milliseconds since the month began in the producer's time zone, so a
unique id alone does not say when it was made.
"""

import struct
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from tianzhou.errors import FieldError, RecordError
from tianzhou.message import Host, StoredMessage
from tianzhou.protocol import host, properties

_LOG_OFFSET = struct.Struct(">q")
_UNIQUE_TAIL = struct.Struct(">HIIH")
assert _UNIQUE_TAIL.size == 4 + _LOG_OFFSET.size == 12

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class UniqueId(msgspec.Struct, frozen=True):
    """The parts of a unique id."""

    address: str
    pid: int
    """The low 16 bits of the producer's process id."""
    process_hash: int
    """What differs between processes on one machine; Java takes its class loader's hash."""
    span_ms: int
    counter: int


# -- offset id -------------------------------------------------------------------------------------


def encode_offset_id(store_host: Host, log_offset: int) -> str:
    """Raises FieldError for an address or an offset that does not fit."""
    try:
        return (host.pack(store_host) + _LOG_OFFSET.pack(log_offset)).hex().upper()
    except (RecordError, struct.error) as e:
        raise FieldError(f"no message id of {store_host} and log offset {log_offset}: {e}") from e


def decode_offset_id(text: str) -> tuple[Host, int]:
    """The store host and the log offset. Raises FieldError for anything else."""
    raw = _from_hex(text)
    (log_offset,) = _LOG_OFFSET.unpack_from(raw, len(raw) - 8)
    return host.unpack(raw[:-8]), log_offset


# -- unique id -------------------------------------------------------------------------------------


def encode_unique_id(parts: UniqueId) -> str:
    """Numbers too large for their field keep their low bits, as in Java; a wrong address raises."""
    try:
        address = host.pack((parts.address, 0))[:-4]
    except RecordError as e:
        raise FieldError(f"no message id of address {parts.address!r}: {e}") from e
    tail = _UNIQUE_TAIL.pack(
        parts.pid & 0xFFFF,
        parts.process_hash & 0xFFFFFFFF,
        parts.span_ms & 0xFFFFFFFF,
        parts.counter & 0xFFFF,
    )
    return (address + tail).hex().upper()


def span_ms(now_ms: int, zone: tzinfo = UTC) -> int:
    """Milliseconds since the month began in `zone`: what an id made now carries."""
    try:
        now = (_EPOCH + now_ms * _MILLISECOND).astimezone(zone)
    except OverflowError as e:
        raise FieldError(f"{now_ms} ms since 1970 is no date") from e
    return now_ms - (datetime(now.year, now.month, 1, tzinfo=zone) - _EPOCH) // _MILLISECOND


# -- of a message ----------------------------------------------------------------------------------


def offset_id_of(message: StoredMessage) -> str:
    return encode_offset_id(message.store_host, message.log_offset)


def id_of(message: StoredMessage) -> str:
    """The producer's id of the message, or the broker's where the producer gave none."""
    return message.properties.get(properties.UNIQUE_KEY) or offset_id_of(message)


# -- inside ----------------------------------------------------------------------------------------


def _from_hex(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError as e:
        raise FieldError(f"message id {text[:64]!r} is not hexadecimal") from e
    # The length of the text matters too: fromhex overlooks spaces between bytes.
    if len(text) not in (32, 56) or len(raw) * 2 != len(text):
        raise FieldError(f"a message id has 32 or 56 digits, {text[:64]!r} has {len(text)}")
    return raw
