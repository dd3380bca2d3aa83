"""Finds the copies that a broker delivered of scheduled messages, after a crash.

A delivered message names the record it was copied from: its field for the prepared message of a
transaction, which is 0 or more for every other message, holds `mark` of that record's log offset.
So delivery progress that was not saved before a crash can be derived from the log.
"""

import struct
from collections.abc import Iterator

from tianzhou.protocol.pure.record import MAGIC_V1, MAGIC_V2, SIZE_MIN
from tianzhou.protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6
from tianzhou.store.commit_log import STORE_TIME, CommitLog

_SIZE_AND_MAGIC = struct.Struct(">iI")
_SYS_FLAG = struct.Struct(">i")
_SYS_FLAG_AT = 36
_PREPARED = struct.Struct(">q")
_PREPARED_AT = 76
"""With two IPv4 hosts before it; an IPv6 host takes 12 bytes more."""
_V6_EXTRA_BYTES = 12


def mark(log_offset: int) -> int:
    """The prepared log offset of a copy of the record at a log offset; negative."""
    return ~log_offset


def search_from(log: CommitLog, due_ms: int) -> int:
    """The log offset from which to search copies of a message that was due at a time.

    None was stored before that time, so the search starts with the last older file.
    """
    for file in reversed(log.segments.files):
        fields = log.decode(file.first, check_crc=False)
        if fields is not None and fields[STORE_TIME] <= due_ms:
            return file.first
    return log.first


def copied_from(log: CommitLog, start: int) -> Iterator[int]:
    """The log offsets of the originals of all copies from log offset `start` on.

    `start` is the start of a record or a former end of the log. Only record heads are read.
    """
    position = max(start, log.first)
    while (window := log.window(position)) is not None:
        first, stop, view = window
        at, end = position - first, stop - first
        while at + SIZE_MIN <= end:
            size_bytes, magic = _SIZE_AND_MAGIC.unpack_from(view, at)
            if magic not in (MAGIC_V1, MAGIC_V2) or size_bytes < SIZE_MIN:
                break
            (sys_flag,) = _SYS_FLAG.unpack_from(view, at + _SYS_FLAG_AT)
            v6_count = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
            (found,) = _PREPARED.unpack_from(view, at + _PREPARED_AT + v6_count * _V6_EXTRA_BYTES)
            if found < 0:
                yield ~found
            at += size_bytes
        # A filler, or the end of the log.
        file = log.segments.find(position)
        if file is None:
            return
        position = file.stop
