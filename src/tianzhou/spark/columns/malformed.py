"""Malformed messages and damaged records: detection, counting and reporting.

malformed    the record is intact, a value in it is invalid: a body flagged as compressed that is
             not, or is too large decompressed; a time outside of the calendar. A producer can send
             such a message. The value is null in its row and counted; with the option
             `failOnMalformed` the task fails.
damaged      the record itself is invalid: its lengths are inconsistent, or its body does not match
             its checksum. That is data loss, and the option `failOnDataLoss` applies.

Both are reported with topic, broker, queue and offset.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tianzhou.errors import BodyError, RecordError
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.pure.record import MAGIC_V1, MAGIC_V2, SIZE_MIN, SYS_FLAG_AT
from tianzhou.protocol.records.record import (
    LOG_OFFSET_AT,
    QUEUE_OFFSET_AT,
    decode_record,
    scan_records,
    store_time_at,
)
from tianzhou.spark.columns.without_kernel import Longs
from tianzhou.spark.offsets import Range

log = logging.getLogger(__name__)

_LOGGED_MAX = 10
"""Malformed values that a task logs individually; it logs the total at its end."""
_MAGIC_AT = 4
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


# -- malformed -------------------------------------------------------------------------------------


@dataclass(slots=True)
class MalformedCounter:
    """Counts the malformed values of one task."""

    fail: bool = False
    count: int = 0

    def add(self, where: str, why: object) -> None:
        """Count one value. Raises BodyError if it must fail the task."""
        if self.fail:
            raise BodyError(f"{where}: {why}. The option failOnMalformed=false gives null instead")
        self.count += 1
        if self.count <= _LOGGED_MAX:
            log.warning("malformed, null in its row: %s: %s", where, why)

    def close(self) -> None:
        """Log the total, if there are any."""
        if self.count:
            log.warning("malformed values in this task: %d, each null in its row", self.count)


@dataclass(slots=True)
class OffsetGaps:
    """Queue offsets without a message in a fully read range.

    Compaction and inner batches leave such gaps, and a broker omits damaged messages. A reader
    cannot distinguish these, so gaps are logged and do not fail the task.
    """

    range: Range
    following: int = 0
    count: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        """Start at the beginning of the range."""
        self.following = self.range.first

    def note(self, offsets: Longs) -> None:
        """Process the offsets of the next messages, in order."""
        known = offsets[(offsets >= self.following) & (offsets < self.range.stop)]
        if not len(known):
            return
        self._pass(known)
        self.following = int(known[-1]) + 1

    def end(self) -> None:
        """Process the end of the range."""
        self._pass(np.array([self.range.stop]))

    def _pass(self, known: Longs) -> None:
        behind = np.concatenate([[self.following], known[:-1] + 1])
        missing = np.maximum(known - behind, 0)
        if not self.count and missing.any():
            self.first = int(behind[np.argmax(missing > 0)])
        self.count += int(missing.sum())

    def close(self) -> None:
        """Log the number of gaps, if any."""
        if self.count:
            log.warning(
                "queue %s: %d offsets from %d on have no message: compacted, part of an inner "
                "batch, or damaged and left out by the broker",
                self.range.queue, self.count, self.first,
            )  # fmt: skip


# -- damaged ---------------------------------------------------------------------------------------


def intact_records(
    buffer: Buffer, starts: Longs, first: int, *, check_crc: bool
) -> tuple[Longs, list[tuple[int, str]]]:
    """Those of `starts` where an intact record begins; the indices of the others with the reason.

    The buffer is a log file that begins at `first`; a record contains its own log offset.
    """
    good: list[int] = []
    wrong: list[tuple[int, str]] = []
    for number, start in enumerate(starts.tolist()):
        try:
            found = decode_record(buffer, start, check_crc=check_crc, read_body=False)
        except RecordError as e:
            wrong.append((number, str(e)))
            continue
        if found.log_offset == first + start:
            good.append(start)
        else:
            wrong.append((number, f"the record at {start} has log offset {found.log_offset}"))
    return np.array(good, np.int64), wrong


def walk(buffer: bytes, *, check_crc: bool) -> Iterator[tuple[int, RecordError | None]]:
    """Start and damage of each record of a pull response.

    After a record with an invalid size, the next intact record is searched.
    """
    at = 0
    while at < len(buffer):
        try:
            size = decode_record(buffer, at, check_crc=check_crc, read_body=False).size_bytes
        except RecordError as e:
            yield at, e
            at = _following(buffer, at)
        else:
            yield at, None
            at += size


def _following(buffer: bytes, at: int) -> int:
    """Where the record after a damaged one begins; the end of the buffer if there is none."""
    stop = at + int.from_bytes(buffer[at : at + 4], "big", signed=True)
    if stop >= at + SIZE_MIN:
        magic = buffer[stop + _MAGIC_AT : stop + _MAGIC_AT + 4]
        if stop == len(buffer) or magic in _MAGICS:
            return stop
    magic_at = at + _MAGIC_AT
    while True:
        hits = [hit for magic in _MAGICS if (hit := buffer.find(magic, magic_at + 1)) >= 0]
        if not hits:
            return len(buffer)
        magic_at = min(hits)
        try:
            decode_record(buffer, magic_at - _MAGIC_AT, read_body=False)
        except RecordError:
            continue  # bytes of a body, or damaged, too
        return magic_at - _MAGIC_AT


def starts_of(buffer: bytes) -> list[int]:
    """Where the records of a pull response begin, intact or not."""
    try:
        return [start for start, _, _ in scan_records(buffer)]
    except RecordError:
        return [start for start, _ in walk(buffer, check_crc=False)]


def queue_offset_at(buffer: Buffer, start: int) -> int:
    """The queue offset in a record; -1 if the buffer ends before it."""
    return _number(buffer, start + QUEUE_OFFSET_AT)


def store_time_ms(buffer: Buffer, start: int = 0) -> int | None:
    """The store time in a record; None if the buffer ends before it."""
    flag_at = start + SYS_FLAG_AT
    at = start + store_time_at(int.from_bytes(buffer[flag_at : flag_at + 4], "big", signed=True))
    return _number(buffer, at) if at + 8 <= len(buffer) else None


def _number(buffer: Buffer, at: int) -> int:
    part = buffer[at : at + 8]
    return int.from_bytes(part, "big", signed=True) if len(part) == 8 else -1


def misplaced(buffer: Buffer, starts: Longs, first: int) -> npt.NDArray[np.bool_]:
    """A mask of the records whose log offset differs from their position.

    `first` is the log offset of the buffer's beginning; the records must be complete.
    """
    data = np.frombuffer(buffer, np.uint8)
    raw = data[starts[:, None] + np.arange(LOG_OFFSET_AT, LOG_OFFSET_AT + 8)]
    log_offsets = np.ascontiguousarray(raw).view(">i8").reshape(-1)
    wrong: npt.NDArray[np.bool_] = log_offsets != starts + first
    return wrong
