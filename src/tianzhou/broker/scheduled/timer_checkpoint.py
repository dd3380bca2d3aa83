"""`config/timercheck`: the progress of the timer, in the layout of RocketMQ 5.x.

    0 read time:i64  timer log:i64  queue offset:i64  first waiting:i64  version:3*i64    64 crc:u32
    72 log end:i64                                                                        80 crc:u32

Every message before `queue offset` of the timer topic that was due at `read time` is delivered, and
these deliveries are on disk. RocketMQ starts reading at the smaller of the third and the fourth
number, so the fourth is the oldest pending message. The CRC is our own: a file that RocketMQ has
written does not match it. The log end is ours, too: the deliveries lie before it. Its CRC is that
of the fields and the log end; without it the end is not known.
"""

import struct
import zlib
from typing import NamedTuple

_FIELDS = struct.Struct(">7q")
_CRC = struct.Struct(">I")
_CRC_AT = 64
_END = struct.Struct(">q")
_END_AT = 72
_FILE_BYTES = 4096


class TimerCheckpoint(NamedTuple):
    """The progress of the timer that is on disk."""

    read_time_ms: int = 0
    queue_offset: int = 0
    first_waiting: int = 0
    """Queue offset of the oldest pending message; `queue_offset` if there is none."""
    changed_ms: int = 0
    log_end: int = 0
    """The deliveries lie before this log offset; 0: it is not known."""


def encode_fields(check: TimerCheckpoint) -> bytes:
    """The fields alone, as in responses of brokers."""
    return _FIELDS.pack(
        check.read_time_ms, 0, check.queue_offset, check.first_waiting, 0, check.changed_ms, 0
    )


def encode_checkpoint(check: TimerCheckpoint, *, is_ours: bool = True) -> bytes:
    """The content of a file; if the progress is RocketMQ's it is written as RocketMQ's."""
    fields = encode_fields(check)
    data = fields.ljust(_CRC_AT, b"\0") + (_CRC.pack(zlib.crc32(fields)) if is_ours else b"")
    if check.log_end:
        end = _END.pack(check.log_end)
        data = data.ljust(_END_AT, b"\0") + end + _CRC.pack(zlib.crc32(fields + end))
    return data.ljust(_FILE_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> tuple[TimerCheckpoint, bool] | None:
    """The content of a file, and whether this program wrote it; None if it is too short."""
    if len(data) < _FIELDS.size:
        return None
    read_time_ms, _, queue_offset, first_waiting, _, changed_ms, _ = _FIELDS.unpack_from(data)
    fields, end = data[: _FIELDS.size], data[_END_AT : _END_AT + _END.size]
    end_crc = data[_END_AT + _END.size :][: _CRC.size]
    knows_end = len(end) == _END.size and end_crc == _CRC.pack(zlib.crc32(fields + end))
    log_end: int = _END.unpack(end)[0] if knows_end else 0
    check = TimerCheckpoint(read_time_ms, queue_offset, first_waiting, changed_ms, log_end)
    written = data[_CRC_AT : _CRC_AT + _CRC.size]
    return check, written == _CRC.pack(zlib.crc32(fields))
