"""Finds the copies that a broker delivered of scheduled messages, after a crash.

A delivered message names the record it was copied from: its field for the prepared message of a
transaction, which is 0 or more for every other message, holds `mark` of that record's log offset.
So delivery progress that was not saved before a crash can be derived from the log.
"""

import struct
from collections.abc import Iterator

from tianzhou.protocol.pure import record
from tianzhou.store.commit_log import STORE_TIME, CommitLog

_SYS_FLAG = struct.Struct(">i")
_PREPARED = struct.Struct(">q")
_PREPARED_BEFORE_BODY = 12
"""The prepared log offset and the length of the body are the end of a record's head."""


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
        while at + record.SIZE_MIN <= end:
            size_bytes, magic = record.SIZE_AND_MAGIC.unpack_from(view, at)
            if magic not in (record.MAGIC_V1, record.MAGIC_V2) or size_bytes < record.SIZE_MIN:
                break
            (sys_flag,) = _SYS_FLAG.unpack_from(view, at + record.SYS_FLAG_AT)
            (found,) = _PREPARED.unpack_from(
                view, at + record.head_bytes(sys_flag) - _PREPARED_BEFORE_BODY
            )
            if found < 0:
                yield ~found
            at += size_bytes
        # A filler, or the end of the log.
        file = log.segments.find(position)
        if file is None:
            return
        position = file.stop
