"""The log: every message of every topic, one record after the other, in files of one size.

    00000000000000000000          00000000001073741824
    | record | record | filler |  | record | record | zeros ... |
                                                    ^ written

One thread writes. It copies a whole record into mapped memory and then advances `written`; readers
stop there, so no reader waits and none sees half a record. A record never crosses the end of a
file: at least 8 bytes stay free for the filler, which means "continue in the next file".

With a staging pool the records go to a buffer instead, and readers stop at `readable`, which
`commit` advances after copying the buffer to the file. Any thread may commit.
"""

import threading
from collections.abc import Iterator
from typing import Final, Protocol

from tianzhou.errors import RecordError, StoreError
from tianzhou.protocol import kernel
from tianzhou.protocol.pure.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_MIN, RecordFields
from tianzhou.protocol.pure.walk import has_lost_sector, text_ranges
from tianzhou.protocol.records.record import BLANK_BYTES_MIN, encode_blank
from tianzhou.store.files.disk import DiskFile
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.segments import Segments
from tianzhou.store.files.staging import StagedFile, StagingPool

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_SEARCH_BYTES = 1 << 20
_RESERVE_BYTES_MIN = 1 << 20
_RESERVE_BYTES_MAX = 32 << 20

# Indexes into the fields of a decoded record.
TOPIC: Final = 0
PROPERTIES: Final = 2
QUEUE_ID: Final = 3
QUEUE_OFFSET: Final = 4
LOG_OFFSET: Final = 5
SYS_FLAG: Final = 7
STORE_TIME: Final = 10
PREPARED: Final = 13
SIZE: Final = 15


Window = tuple[int, int, memoryview]
"""Log offset of a file's first byte, log offset up to which it is readable, and its bytes."""


class FileSupply(Protocol):
    """Supplies the next file of the log."""

    def next_file(self, first: int, reserve_bytes: int) -> MappedFile:
        """The file that begins at `first`, mapped, with disk blocks for its first bytes.

        Raises OSError; the call can be repeated.
        """
        ...

    def wrote(self, file: MappedFile, position: int) -> int:
        """Called at a position of `file`; returns the position for the next call."""
        ...


def log_space_ahead(position: int) -> int:
    """How many bytes after a position get disk blocks in advance."""
    return min(max(position, _RESERVE_BYTES_MIN), _RESERVE_BYTES_MAX)


def reserve_log_space(file: MappedFile, position: int, end: int) -> None:
    """Allocates disk blocks of a log file that is written up to a position. Raises OSError."""
    file.ensure_space(position, end, more=log_space_ahead(position))
    file.expect_writes(position)


class CommitLog:
    """Appends to and reads of the log."""

    __slots__ = (
        "_changing", "_committed", "_committing", "_file", "_handle", "_notify_at", "_pool",
        "_position", "_reserved_end", "_staged", "_supply", "_tail", "last_store_time_ms",
        "segments", "written",
    )  # fmt: skip

    def __init__(
        self, segments: Segments, supply: FileSupply, pool: StagingPool | None = None
    ) -> None:
        self.segments = segments
        self._supply = supply
        self._pool = pool
        self._staged: tuple[StagedFile, ...] = ()
        """Files with staged records, oldest first; replaced as a whole."""
        self._committed = 0
        self._committing = threading.Lock()
        self._changing = threading.Lock()
        """Held while the tuple is replaced, by the writer or the committing thread."""
        self._file: MappedFile | None = None
        self._handle: DiskFile | None = None
        """The same file, open for `write`."""
        self._tail = memoryview(b"")
        self._position = 0
        self._reserved_end = 0
        """Position in the last file up to which it has disk blocks."""
        self._notify_at = 0
        self.written = 0
        """Log offset after the last record."""
        self.last_store_time_ms = 0

    # -- writing --------------------------------------------------------------------------------

    def start_at(self, log_offset: int) -> None:
        """Sets the end of the log, where the next record goes. Files beyond it do not exist."""
        self.written = self._committed = log_offset
        self._drop_staged()
        file = self.segments.find(log_offset)
        self._use(file, log_offset - file.first if file else 0)

    def _use(self, file: MappedFile | None, position: int) -> None:
        if self._handle is not None and file is not self._file:
            self._handle.close()
            self._handle = None
        self._file = file
        self._tail = self._memory(file) if file else memoryview(b"")
        self._position = position
        self._reserved_end = file.reserved_bytes if file else 0
        self._notify_at = self._supply.wrote(file, position) if file else 0

    def _memory(self, file: MappedFile) -> memoryview:
        """The memory that records of a file are written to."""
        if self._pool is None:
            return file.view()
        buffer = self._pool.borrow()
        with self._changing:
            self._staged = (*self._staged, StagedFile(file, buffer))
        return file.view() if buffer is None else buffer

    def _drop_staged(self) -> None:
        all_staged, self._staged = self._staged, ()
        for staged in all_staged:
            self._give_back(staged)

    def _give_back(self, staged: StagedFile) -> None:
        if staged.buffer is not None and self._pool is not None:
            self._pool.give_back(staged.buffer)

    def release(self) -> None:
        """Unmaps the files; nothing is written after that."""
        self._use(None, 0)
        with self._committing:
            self._drop_staged()
        for file in self.segments.files:
            file.unmap()

    def release_resident(self, resident_bytes: int) -> None:
        """Releases resident pages of the log except those at its end, which would grow with it.

        Every touched page of a mapped file counts as resident until it is released. Files that were
        not read since the last call are unmapped. Nothing is lost or written: the pages stay in the
        page cache while memory is free.
        """
        for file in self.segments.files:
            cold_bytes = min(self.written - resident_bytes - file.first, file.size_bytes)
            if cold_bytes <= 0 or not file.mapped:
                continue
            if cold_bytes == file.size_bytes and not file.touched:
                file.unmap()
            else:
                file.touched = False
                file.release(0, cold_bytes)

    def allocate(self, size_bytes: int) -> int:
        """The log offset of the next record of this size; starts a new file if needed.

        Raises StoreError if the record is larger than a file, OSError if the disk has no space for
        a new file; then nothing has changed.
        """
        end = self._position + size_bytes + BLANK_BYTES_MIN
        if end > self._reserved_end:
            if end <= len(self._tail):
                self._ensure_space(end)
            elif size_bytes + BLANK_BYTES_MIN > self.segments.size_bytes:
                raise StoreError(
                    f"a record of {size_bytes} bytes does not fit a log file of "
                    f"{self.segments.size_bytes} (mappedFileSizeCommitLog)"
                )
            else:
                self._roll(size_bytes + BLANK_BYTES_MIN)
        assert self._file is not None
        return self._file.first + self._position

    def _ensure_space(self, end: int) -> None:
        """Allocates disk blocks up to a position; mapped writes without them can be fatal."""
        file = self._file
        assert file is not None
        reserve_log_space(file, self._position, end)
        self._reserved_end = file.reserved_bytes

    def tail(self) -> tuple[memoryview, int]:
        """The memory of the last file (empty with a staging pool), and the next position."""
        return (self._tail if self._pool is None else memoryview(b"")), self._position

    def advance(self, size_bytes: int, store_time_ms: int) -> None:
        """Makes records that were written at the tail part of the log."""
        self._position += size_bytes
        self.last_store_time_ms = store_time_ms
        self.written += size_bytes
        if self._position >= self._notify_at and self._file is not None:
            self._notify_at = self._supply.wrote(self._file, self._position)

    def write(self, records: memoryview, store_time_ms: int) -> None:
        """Appends many records, which fit the last file. Raises OSError.

        One write call costs less than the page faults of mapped writes.
        """
        assert self._file is not None
        if self._handle is None:
            self._handle = self._file.open()
        end = self._position + len(records) + BLANK_BYTES_MIN
        if end > self._reserved_end:
            self._ensure_space(end)
        self._handle.write(self._position, records)
        self.advance(len(records), store_time_ms)

    def prepare_copy(self, size_bytes: int) -> None:
        """Reserves space for bytes of another log, up to the end of a file. Raises OSError."""
        file = self._file
        if file is None or self._position == file.size_bytes:
            self._roll(min(size_bytes + BLANK_BYTES_MIN, self.segments.size_bytes))
            return
        end = min(self._position + size_bytes + BLANK_BYTES_MIN, file.size_bytes)
        if end > self._reserved_end:
            self._ensure_space(end)

    def copy(self, data: memoryview, store_time_ms: int) -> None:
        """Appends whole records of another log, or its filler with all up to the end of the file.

        `prepare_copy` was called before. Raises OSError.
        """
        file = self._file
        assert file is not None
        if self._pool is None:
            if self._handle is None:
                self._handle = file.open()
            self._handle.write(self._position, data)
        else:
            self._tail[self._position : self._position + len(data)] = data
        if self._staged and self._position + len(data) == file.size_bytes:
            self._staged[-1].end = file.stop
        self.advance(len(data), store_time_ms)

    def append(self, record: bytes | bytearray, store_time_ms: int) -> None:
        """Appends a record; `allocate` was called for its size before."""
        size_bytes, position = len(record), self._position
        end = position + size_bytes
        self._tail[position:end] = record
        # Inlined `advance`, which saves a call per message.
        self._position = end
        self.last_store_time_ms = store_time_ms
        self.written += size_bytes
        if end >= self._notify_at and self._file is not None:
            self._notify_at = self._supply.wrote(self._file, end)

    def _roll(self, reserve_bytes: int) -> None:
        # The new file is created first: without space for it the old one stays as it is.
        old = self._file
        # A copied file has its filler already.
        left = old.size_bytes - self._position if old else 0
        if left:
            self._ensure_space(self._position + BLANK_BYTES_MIN)
        following = self._supply.next_file(old.stop if old else self.written, reserve_bytes)
        if old is not None and left:
            self._tail[self._position : self._position + BLANK_BYTES_MIN] = encode_blank(left)
            if self._staged:
                self._staged[-1].end = old.first + self._position + BLANK_BYTES_MIN
        if old is not None:
            old.expect_writes(old.size_bytes)  # none any more
        self.segments.add(following)
        self.written = following.first
        self._use(following, 0)

    # -- committing -----------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        """Whether records are readable only after a commit."""
        return self._pool is not None

    @property
    def readable(self) -> int:
        """Log offset after the last readable record."""
        return self.written if self._pool is None else self._committed

    def commit(self) -> int:
        """Copies staged records to the files; returns the new `readable`. Raises OSError.

        Files that the writer adds meanwhile begin after the position read first.
        """
        if self._pool is None:
            return self.written
        with self._committing:
            written, start = self.written, self._committed
            for staged in self._staged:
                stop = written if staged.end is None else min(staged.end, written)
                staged.commit(max(start, staged.file.first), min(stop, staged.file.stop))
            done = [staged for staged in self._staged if staged.end and staged.file.stop <= written]
            self._committed = written
            with self._changing:
                self._staged = self._staged[len(done) :]
            for staged in done:
                self._give_back(staged)
            return written

    # -- reading --------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The smallest log offset that exists."""
        files = self.segments.files
        return files[0].first if files else self.written

    def slice(self, log_offset: int, size_bytes: int) -> memoryview | None:
        """A view of a range of the log; None if it does not exist or crosses a file."""
        if size_bytes < 0 or log_offset + size_bytes > self.readable:
            return None
        file = self.segments.find(log_offset)
        if file is None or log_offset + size_bytes > file.stop:
            return None
        try:
            view = file.view()
        except FileNotFoundError:  # Deleted by retention after it was found.
            return None
        start = log_offset - file.first
        return view[start : start + size_bytes].toreadonly()

    def window(self, log_offset: int) -> Window | None:
        """The readable range of the file with a log offset; None if that does not exist.

        For reads of many consecutive records.
        """
        readable = self.readable
        file = self.segments.find(log_offset)
        if file is None or log_offset >= readable:
            return None
        try:
            view = file.view()
        except FileNotFoundError:  # Deleted by retention after it was found.
            return None
        return file.first, min(file.stop, readable), view.toreadonly()

    def record(self, log_offset: int) -> memoryview | None:
        """The bytes of the record at a log offset; None if no complete record begins there."""
        head = self.slice(log_offset, 8)
        if head is None or bytes(head[4:]) not in _MAGICS:
            return None
        size_bytes = int.from_bytes(head[:4], "big")
        return self.slice(log_offset, size_bytes) if size_bytes >= SIZE_MIN else None

    def decode(
        self, log_offset: int, *, check_crc: bool = True, read_body: bool = False
    ) -> RecordFields | None:
        """The fields of a record; None unless a valid record with this log offset is there."""
        record = self.record(log_offset)
        if record is None:
            return None
        try:
            fields = kernel.decode_record(record, 0, check_crc, read_body)
        except RecordError:
            return None
        return fields if fields[LOG_OFFSET] == log_offset else None


# -- walking -------------------------------------------------------------------------------------


class WalkStopped(Exception):
    """A walk over one file found an invalid record before the end of the file."""

    def __init__(self, position: int, why: str, *, unused: bool) -> None:
        super().__init__(why)
        self.position = position
        self.why = why
        self.unused = unused
        """Nothing was ever written here: the ordinary end of a log."""


def walk(
    view: memoryview, first: int, position: int, *, check_crc: bool, torn: bool = False
) -> Iterator[RecordFields]:
    """The records of one file from a position on, bodies left out.

    Ends at the filler; raises WalkStopped at the first position without a valid record. With `torn`
    records with lost sectors are invalid, too.
    """
    decode = kernel.decode_record
    size_bytes = len(view)
    while True:
        try:
            fields = decode(view, position, check_crc, False)
        except RecordError as e:
            if bytes(view[position + 4 : position + 8]) == _BLANK and _is_filler(view, position):
                return
            unused = not any(view[position : position + 8])
            raise WalkStopped(position, str(e), unused=unused) from e
        if fields[LOG_OFFSET] != first + position:
            why = f"record at {position}: its log offset field is {fields[LOG_OFFSET]}"
            raise WalkStopped(position, why, unused=False)
        if torn and _lost_text(view, position, fields):
            raise WalkStopped(
                position, f"record at {position}: a part of it was lost", unused=False
            )
        yield fields
        position += fields[SIZE]
        if position + BLANK_BYTES_MIN > size_bytes:
            raise WalkStopped(
                position, f"record at {position}: no space for a filler", unused=False
            )


def _lost_text(view: memoryview, position: int, fields: RecordFields) -> bool:
    """Whether sectors of topic or properties are lost, which no checksum covers.

    A lost sector reads as zeros. Lost sectors before the text are found by the lengths and the CRC.
    """
    # The lengths may be zero, and are right, or the record would not have its size.
    ranges = text_ranges(view, position, fields[SIZE], fields[SYS_FLAG])
    return any(has_lost_sector(view, at, end) for at, end in ranges)


def _is_filler(view: memoryview, position: int) -> bool:
    return int.from_bytes(view[position : position + 4], "big") == len(view) - position


def find_record(view: memoryview, first: int, position: int, stop: int) -> int | None:
    """The position of the next valid record, at or after a position; None if there is none.

    A record contains its own log offset, so bytes of a body do not look like one.
    """
    while position < stop:
        chunk = bytes(view[position : min(position + _SEARCH_BYTES, stop)])
        at = min((hit for hit in map(chunk.find, _MAGICS) if hit >= 0), default=-1)
        if at < 0:
            # The magic number may cross two chunks.
            position += max(len(chunk) - 3, 1) if len(chunk) == _SEARCH_BYTES else len(chunk)
            continue
        candidate = position + at - 4
        if candidate >= 0 and _sound(view, first, candidate):
            return candidate
        position += at + 1
    return None


def _sound(view: memoryview, first: int, position: int) -> bool:
    try:
        fields = kernel.decode_record(view, position, True, False)
    except RecordError:
        return False
    return fields[LOG_OFFSET] == first + position
