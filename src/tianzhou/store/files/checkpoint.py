"""The checkpoint: up to where the files are on disk. One page, in RocketMQ's layout.

    0    store time of the last message whose log record is on the disk:i64
    8    store time of the last message whose queue entry is on the disk:i64
    16   store time of the last message in an index file that is full and on the disk:i64
    24   (5.x) offset that the master has flushed:i64, confirmed log offset:i64; unchanged
    64   our own part: magic "TZ01", then log offset:i64, number of queues:i64, sum of their next
         offsets:i64, number of index items:i64, then CRC-32 of bytes 0-23 and of our part before it

RocketMQ chooses the start of a recovery by these times, and clocks jump. Our part is exact: every
queue entry and index item of records before `log_offset` is on disk, and this many of them. If
RocketMQ wrote the times since, the CRC does not match and our part is ignored. Both parts are in
one sector, so a torn write has all of it or nothing.
"""

import struct
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tianzhou.store.files.disk import PAGE_BYTES, Disk

_TIMES = struct.Struct(">qqq")
_OWN_AT = 64
_OWN = struct.Struct(">4sqqqq")
_CRC = struct.Struct(">I")
_MAGIC = b"TZ01"
_SLACK_MS = 3000


@dataclass(frozen=True, slots=True)
class Derived:
    """Counts of what is derived from the log before `log_offset`."""

    log_offset: int
    queue_count: int
    entry_count: int
    index_count: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the file."""

    log_time_ms: int = 0
    queue_time_ms: int = 0
    index_time_ms: int = 0
    derived: Derived | None = None

    @property
    def safe_time_ms(self) -> int:
        """Everything stored before this time is on disk in log and queues, by RocketMQ's rule."""
        return max(min(self.log_time_ms, self.queue_time_ms) - _SLACK_MS, 0)


def read_checkpoint(disk: Disk, path: Path) -> Checkpoint:
    """The checkpoint; all zeros if the file is missing or too short."""
    try:
        with closing(disk.open(path, writable=False)) as handle:
            page = handle.read(0, PAGE_BYTES)
    except FileNotFoundError:
        return Checkpoint()
    if len(page) < _TIMES.size:
        return Checkpoint()
    log_time_ms, queue_time_ms, index_time_ms = _TIMES.unpack_from(page)
    return Checkpoint(log_time_ms, queue_time_ms, index_time_ms, _read_own(page))


def _read_own(page: bytes) -> Derived | None:
    if len(page) < _OWN_AT + _OWN.size + _CRC.size:
        return None
    magic, log_offset, queue_count, entry_count, index_count = _OWN.unpack_from(page, _OWN_AT)
    (crc,) = _CRC.unpack_from(page, _OWN_AT + _OWN.size)
    if magic != _MAGIC or crc != _own_crc(page):
        return None
    return Derived(log_offset, queue_count, entry_count, index_count)


def _own_crc(page: bytes) -> int:
    return zlib.crc32(page[_OWN_AT : _OWN_AT + _OWN.size], zlib.crc32(page[: _TIMES.size]))


def write_checkpoint(disk: Disk, path: Path, checkpoint: Checkpoint) -> None:
    """Writes the file and makes it durable."""
    new = not disk.exists(path)
    with closing(disk.open(path, create=True)) as handle:
        page = bytearray(handle.read(0, PAGE_BYTES).ljust(PAGE_BYTES, b"\0"))
        _TIMES.pack_into(
            page, 0, checkpoint.log_time_ms, checkpoint.queue_time_ms, checkpoint.index_time_ms
        )
        own = checkpoint.derived
        if own is None:
            page[_OWN_AT : _OWN_AT + _OWN.size + _CRC.size] = bytes(_OWN.size + _CRC.size)
        else:
            _OWN.pack_into(
                page, _OWN_AT, _MAGIC, own.log_offset, own.queue_count, own.entry_count,
                own.index_count,
            )  # fmt: skip
            _CRC.pack_into(page, _OWN_AT + _OWN.size, _own_crc(bytes(page)))
        handle.write(0, bytes(page))
        handle.sync()
    if new:
        disk.sync_directory(path.parent)
