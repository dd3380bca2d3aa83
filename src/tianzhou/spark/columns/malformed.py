"""Messages that cannot be decoded: which they are, and what a task says of them.

Two kinds are told apart.

malformed    the record is sound, a value in it is not: a body that is said to be compressed and is
             not, or unpacks to more than allowed; a time outside of the calendar. A producer can
             send such a message. Its row has null there, the task counts it, and with the option
             `failOnMalformed` it fails instead.
damaged      the record itself is not sound: its lengths contradict each other, or its body does not
             match its checksum. That is a loss of data, and `failOnDataLoss` says what happens.

Both are named by topic, broker, queue and offset.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tianzhou.errors import BodyError, RecordError
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.pure.record import MAGIC_V1, MAGIC_V2, SIZE_MIN
from tianzhou.protocol.records.record import (
    LOG_OFFSET_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    decode_record,
    scan_records,
    store_time_at,
)
from tianzhou.spark.offsets import Range

log = logging.getLogger(__name__)

Longs = npt.NDArray[np.int64]

_LOGGED_MAX = 10
"""Malformed messages that a task names; the line at its end has the number of all."""
_MAGIC_AT = 4
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


# -- malformed -------------------------------------------------------------------------------------


@dataclass(slots=True)
class MalformedCounter:
    """The malformed values that one task has met."""

    fail: bool = False
    count: int = 0

    def add(self, where: str, why: object) -> None:
        """Count one. Raises BodyError if that is to end the task."""
        if self.fail:
            raise BodyError(f"{where}: {why}. The option failOnMalformed=false gives null instead")
        self.count += 1
        if self.count <= _LOGGED_MAX:
            log.warning("malformed, null in its row: %s: %s", where, why)

    def close(self) -> None:
        """Log the number of all, if there are any."""
        if self.count:
            log.warning("malformed values in this task: %d, each null in its row", self.count)


@dataclass(slots=True)
class OffsetGaps:
    """Queue offsets that a read of a whole range has passed without a message.

    Compaction and inner batches leave such gaps, and a broker leaves damaged messages out; from
    outside they look alike, so they are told and do not fail.
    """

    range: Range
    following: int = 0
    count: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        """Begin where the range does."""
        self.following = self.range.first

    def note(self, offsets: Longs) -> None:
        """Take the offsets of the next messages, in their order."""
        known = offsets[(offsets >= self.following) & (offsets < self.range.stop)]
        if not len(known):
            return
        self._pass(known)
        self.following = int(known[-1]) + 1

    def end(self) -> None:
        """The whole range was read."""
        self._pass(np.array([self.range.stop]))

    def _pass(self, known: Longs) -> None:
        behind = np.concatenate([[self.following], known[:-1] + 1])
        missing = np.maximum(known - behind, 0)
        if not self.count and missing.any():
            self.first = int(behind[np.argmax(missing > 0)])
        self.count += int(missing.sum())

    def close(self) -> None:
        """Log how many there were, if any."""
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
    """Those of `starts` where a sound record begins; the numbers of the others, and why.

    The buffer is a file of the log that begins at `first`: a record names its own place in it.
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
            wrong.append((number, f"the record at {start} is one of {found.log_offset}"))
    return np.array(good, np.int64), wrong


def walk(buffer: bytes, *, check_crc: bool) -> Iterator[tuple[int, RecordError | None]]:
    """Where the records of a pull reply begin, and what is wrong with those that are damaged.

    Behind one whose size makes no sense the next sound record is looked for.
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
    """Where the record behind a damaged one begins; the end of the buffer if there is none."""
    stop = at + int.from_bytes(buffer[at : at + 4], "big", signed=True)
    if stop >= at + SIZE_MIN and (stop == len(buffer) or _has_magic(buffer, stop)):
        return stop
    place = at + _MAGIC_AT
    while True:
        hits = [hit for magic in _MAGICS if (hit := buffer.find(magic, place + 1)) >= 0]
        if not hits:
            return len(buffer)
        place = min(hits)
        try:
            decode_record(buffer, place - _MAGIC_AT, read_body=False)
        except RecordError:
            continue  # bytes of a body, or damaged as well
        return place - _MAGIC_AT


def _has_magic(buffer: bytes, start: int) -> bool:
    return buffer[start + _MAGIC_AT : start + _MAGIC_AT + 4] in _MAGICS


def starts_of(buffer: bytes) -> list[int]:
    """Where the records of a pull reply begin, whether they are sound or not."""
    try:
        return [start for start, _, _ in scan_records(buffer)]
    except RecordError:
        return [start for start, _ in walk(buffer, check_crc=False)]


def queue_offset_at(buffer: Buffer, start: int) -> int:
    """The queue offset that a record names, -1 if it ends before."""
    return _number(buffer, start + QUEUE_OFFSET_AT)


def store_time_ms(buffer: Buffer, start: int = 0) -> int | None:
    """When a record says that it was stored, None if it ends before."""
    place = start + SYS_FLAG_AT
    at = start + store_time_at(int.from_bytes(buffer[place : place + 4], "big", signed=True))
    return _number(buffer, at) if at + 8 <= len(buffer) else None


def _number(buffer: Buffer, at: int) -> int:
    part = buffer[at : at + 8]
    return int.from_bytes(part, "big", signed=True) if len(part) == 8 else -1


def misplaced(buffer: Buffer, starts: Longs, first: int) -> npt.NDArray[np.bool_]:
    """Which records name another place of the log than the one where they are found.

    `first` is the place of the buffer's beginning; the records are known to be whole.
    """
    data = np.frombuffer(buffer, np.uint8)
    raw = data[starts[:, None] + np.arange(LOG_OFFSET_AT, LOG_OFFSET_AT + 8)]
    told = np.ascontiguousarray(raw).view(">i8").reshape(-1)
    wrong: npt.NDArray[np.bool_] = told != starts + first
    return wrong
