"""A consume queue: the log positions of the messages of one queue, in order.

    entry := log offset:i64  record size:i32  tags code:i64            20 bytes, big-endian

The tags code is the hash of the tags, or the time of delivery for delayed messages. A queue whose
first messages are gone starts inside a file; the entries before it are blank (log offset 0, size
2^31-1), as RocketMQ writes them. After the last entry there are zeros.

Entries are derived from the log. One thread writes; `next_offset` advances after the entry is
written.

A new file is staged in memory first (see `mapped_file`): the flush writes its entries to disk, and
the writer continues in the file when the stage is full. Entries after the last checkpoint are
derived again after a crash.
"""

import contextlib
import errno
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue_ext import QueueExt, is_address
from tianzhou.store.files.disk import PAGE_BYTES, Disk, explained
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.mapping_limit import MappingLimit
from tianzhou.store.files.segments import Segments

ENTRY = struct.Struct(">qiq")
assert ENTRY.size == ENTRY_BYTES
_write_entry = ENTRY.pack_into

BLANK_SIZE = 2**31 - 1
GAP_CODE = -1
"""Tags code of a blank between messages; RocketMQ has blanks only before the first one."""
_BEFORE = ENTRY.pack(0, BLANK_SIZE, 0)
_GAP = ENTRY.pack(0, BLANK_SIZE, GAP_CODE)

_RESERVE_BYTES_MAX = 16 * PAGE_BYTES
_LOW_COUNT = 1_024
_LOAD_COUNT = PAGE_BYTES // ENTRY_BYTES
_LOAD_BYTES = _LOAD_COUNT * ENTRY_BYTES
_ZEROS = bytes(PAGE_BYTES)
_STAGE_BYTES = 32 * ENTRY_BYTES
_STAGE_BYTES_MAX = 2048 * ENTRY_BYTES
_STAGE_AGAIN_BYTES_MAX = 256 * ENTRY_BYTES

Entry = tuple[int, int, int]
"""Log offset, record size, tags code."""


class ConsumeQueue:
    """The entries of one queue of one topic."""

    __slots__ = (
        "_limit", "_min", "_reserved", "_tail_is_zero", "end_log_offset", "ext", "flushed_offset",
        "low_offset", "next_offset", "queue_id", "segments", "topic", "writes_ext",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        root: Path,
        topic: str,
        queue_id: int,
        file_bytes: int,
        limit: MappingLimit,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = Segments(disk, root.joinpath(topic, str(queue_id)), file_bytes)
        self._limit = limit
        self.ext: QueueExt | None = None
        """The units that entries may point to, if there are such files."""
        self.writes_ext = False
        self._tail_is_zero = False
        """Nothing was ever written after the last loaded entry."""
        self._reserved = 0
        """Byte position up to which the last file certainly has disk blocks."""
        self.low_offset = 0
        """Queue offset from which the memory granted last is nearly full."""
        self.next_offset = 0
        """Queue offset that the next message gets."""
        self._min = (-1, 0)
        """First log offset, and the smallest queue offset for it."""
        self.flushed_offset = 0
        self.end_log_offset = 0
        """End of the record of the last entry."""

    # -- writing --------------------------------------------------------------------------------

    def ensure_space(self, count: int) -> None:
        """Reserves space for `count` more entries.

        Raises OSError, without a change that a reader could see.
        """
        stop = (self.next_offset + count) * ENTRY_BYTES
        if stop > self._reserved:
            self._reserve(stop)

    def ensure_mapped(self, count: int) -> None:
        """Reserves and maps space for `count` more entries, so that appending them cannot fail."""
        self.ensure_space(count)
        for file in reversed(self.segments.files):
            if file.stop <= self.next_offset * ENTRY_BYTES:
                break
            self._view(file)

    def extend(self) -> None:
        """Reserves more space in the last file, in memory or on disk. Raises OSError.

        Only `ensure_space` adds files.
        """
        file = self.segments.find(self.next_offset * ENTRY_BYTES)
        if file is not None and self._reserved < file.stop:
            self._reserve(self._reserved + ENTRY_BYTES)

    def _reserve(self, stop: int) -> None:
        position = self.next_offset * ENTRY_BYTES
        while position < stop:
            file = self.segments.find(position) or self._add_file(position)
            if file.staged or self._stages_again(file, position - file.first):
                end = self._grow_stage(file, min(stop, file.stop) - file.first)
            else:
                # Small queues take a page at a time, busy ones more.
                wanted = max(stop, position + min(position - file.first, _RESERVE_BYTES_MAX))
                end = min(-(-wanted // PAGE_BYTES) * PAGE_BYTES, file.stop)
                file.reserve(position - file.first, end - position)
            self._reserved = position = end

    def _add_file(self, position: int) -> MappedFile:
        file = self.segments.file_at(position - position % self.segments.size_bytes)
        file.stage(0)
        self.segments.add(file)
        return file

    def _stages_again(self, file: MappedFile, used_bytes: int) -> bool:
        """Stages a short file that is not mapped, like a new one."""
        if file.mapped or used_bytes > _STAGE_AGAIN_BYTES_MAX:
            return False
        size_bytes = min(used_bytes + _STAGE_BYTES, file.size_bytes)
        return file.stage_again(used_bytes, size_bytes)

    def _grow_stage(self, file: MappedFile, wanted_bytes: int) -> int:
        """Enlarges or ends a stage; returns the position up to which entries fit."""
        size_bytes = len(file.view())
        if size_bytes >= wanted_bytes:
            return file.first + size_bytes
        if file.made or wanted_bytes > _STAGE_BYTES_MAX:
            file.end_staging(size_bytes)
            self._limit.mapped(file)
            return file.first + size_bytes
        while size_bytes < wanted_bytes:
            size_bytes = size_bytes * 4 or _STAGE_BYTES
        size_bytes = min(size_bytes, _STAGE_BYTES_MAX, file.size_bytes)
        file.stage(size_bytes)
        return file.first + size_bytes

    def put(self, log_offset: int, size_bytes: int, tags_code: int) -> None:
        """Appends an entry; `ensure_space` was called before."""
        next_offset = self.next_offset
        position = next_offset * ENTRY_BYTES
        file = self.segments.files[-1]
        if position < file.first:
            found = self.segments.find(position)
            assert found is not None
            file = found
        view = file.view() if file.mapped else self._view(file)
        _write_entry(view, position - file.first, log_offset, size_bytes, tags_code)
        self.end_log_offset = log_offset + size_bytes
        self.next_offset = next_offset + 1

    def code_of(self, tags_code: int, store_time_ms: int) -> int:
        """The tags code field of the next entry: the code, or the address of a new unit with it."""
        if self.ext is None or not self.writes_ext:
            return tags_code
        return self.ext.put(tags_code, store_time_ms)

    @property
    def is_staged(self) -> bool:
        """Whether the next entries go to a stage and not to a mapped file."""
        file = self.segments.find(self.next_offset * ENTRY_BYTES)
        return file is not None and file.staged

    def writable_memory(self) -> tuple[memoryview, int, int] | None:
        """The memory for the next entries, the queue offset of its first entry, and of the first
        entry that does not fit; None if none fits."""
        file = self.segments.find(self.next_offset * ENTRY_BYTES)
        if file is None:
            return None
        limit = min(self._reserved, file.stop) // ENTRY_BYTES
        if limit <= self.next_offset:
            return None
        self.low_offset = limit - min(_LOW_COUNT, (limit - self.next_offset) // 2)
        return self._view(file), file.first // ENTRY_BYTES, limit

    def readable_memory(self, queue_offset: int) -> tuple[memoryview, int, int] | None:
        """The memory of the file with a queue offset, the queue offset of its first entry, and of
        the first entry after it; None if there is no such file, or entries may point to units.

        The writer may leave the memory of a staged file. Entries that are not in it are beyond its
        end or zero, which no entry is, and the feed declines such a pull.
        """
        file = self.segments.find(queue_offset * ENTRY_BYTES)
        if file is None or self.ext is not None:
            return None
        try:
            view = self._view(file)
        except FileNotFoundError:  # Deleted by retention after it was found.
            return None
        return view, file.first // ENTRY_BYTES, file.stop // ENTRY_BYTES

    def put_many(self, entries: bytes) -> None:
        """Appends entries in the format of the file; reserves the space itself."""
        log_offset, size_bytes, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)
        self.end_log_offset = log_offset + size_bytes
        self._write(entries)

    def _write(self, entries: bytes) -> None:
        while entries:
            position = self.next_offset * ENTRY_BYTES
            left = self.segments.size_bytes - position % self.segments.size_bytes
            piece = entries[:left]
            self.ensure_space(len(piece) // ENTRY_BYTES)
            file = self.segments.find(position)
            assert file is not None
            at = position - file.first
            self._view(file)[at : at + len(piece)] = piece
            self.next_offset += len(piece) // ENTRY_BYTES
            entries = entries[left:]

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry, not even a blank one."""
        files = self.segments.files
        return not files or self.next_offset * ENTRY_BYTES == files[0].first

    def skip_to(self, queue_offset: int) -> None:
        """Appends blank entries up to a queue offset: the messages before it are gone."""
        blank = _BEFORE if self.is_empty else _GAP
        if self.is_empty:
            # The file with the offset is the first one. A crash may have left another file.
            self.segments.remove_first(len(self.segments.files))
            self._end_at(queue_offset - queue_offset % (self.segments.size_bytes // ENTRY_BYTES))
        self._write(blank * (queue_offset - self.next_offset))
        self.ensure_space(1)

    # -- reading --------------------------------------------------------------------------------

    def _view(self, file: MappedFile) -> memoryview:
        if file.mapped:
            return file.view()
        view = file.view()
        self._limit.mapped(file)
        return view

    def entries(self, queue_offset: int, count: int) -> Iterator[Entry]:
        """Up to `count` entries from a queue offset on, within one file.

        If an entry points to a unit, its tags code is read there; the address stays if there is no
        such unit (`is_address`).
        """
        found = self.raw_entries(queue_offset, count)
        return found if self.ext is None else map(self._resolved, found)

    def _resolved(self, entry: Entry) -> Entry:
        log_offset, size_bytes, code = entry
        if self.ext is not None and is_address(code):
            found = self.ext.tags_code(code)
            code = code if found is None else found
        return log_offset, size_bytes, code

    def raw_entries(self, queue_offset: int, count: int) -> Iterator[Entry]:
        """The same without reading units."""
        stop = min(queue_offset + count, self.next_offset)
        file = self.segments.find(queue_offset * ENTRY_BYTES)
        if file is None or queue_offset >= stop:
            return iter(())
        start = queue_offset * ENTRY_BYTES - file.first
        end = min(stop * ENTRY_BYTES, file.stop) - file.first
        try:
            return ENTRY.iter_unpack(self._view(file)[start:end])
        except FileNotFoundError:  # Deleted by retention after it was found.
            return iter(())

    def entry(self, queue_offset: int) -> Entry | None:
        return next(self.entries(queue_offset, 1), None)

    # -- housekeeping ---------------------------------------------------------------------------

    def waiting_pages(self) -> int:
        """Pages with unflushed entries."""
        return -(-(self.next_offset - self.flushed_offset) * ENTRY_BYTES // PAGE_BYTES)

    def save(self) -> int:
        """Writes staged entries to the files; returns the queue offset up to which it did.

        `sync` makes them durable, and `flushed` is called when the names of files are durable, too.
        One thread calls these three. Raises StoreFull if there is no space for a new file; OSError.
        """
        target = self.next_offset
        for file, start, stop in self._waiting(target):
            with contextlib.suppress(FileNotFoundError):  # Deleted by retention or with its topic.
                self._save(file, start, stop)
        return target

    def sync(self, queue_offset: int) -> None:
        """Syncs what was saved up to a queue offset. Raises OSError."""
        for file, _, _ in self._waiting(queue_offset):
            with contextlib.suppress(FileNotFoundError):
                file.sync()

    def _waiting(self, queue_offset: int) -> list[tuple[MappedFile, int, int]]:
        """Files with unflushed entries, and the positions of those."""
        start, stop = self.flushed_offset * ENTRY_BYTES, queue_offset * ENTRY_BYTES
        return [
            (file, max(start - file.first, 0), min(stop - file.first, file.size_bytes))
            for file in self.segments.files
            if file.stop > start and file.first < stop
        ]

    def new_names(self) -> list[MappedFile]:
        """Files whose names may not be durable."""
        return [file for file in self.segments.files if file.new_name]

    def _save(self, file: MappedFile, start: int, stop: int) -> None:
        try:
            file.save(start, stop)
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                # Nothing is lost, and there may be space later.
                raise explained(e, f"make a file of queue {self.topic}/{self.queue_id}") from e
            raise

    def flushed(self, queue_offset: int, named: list[MappedFile]) -> None:
        """Entries before `queue_offset` and the names of these files are durable."""
        for file, _, stop in self._waiting(queue_offset):
            if file.staged and stop == file.size_bytes:
                file.drop_stage()
        self.flushed_offset = queue_offset
        for file in named:
            file.new_name = False

    def expire(self, first_log_offset: int) -> int:
        """Removes files whose messages are no longer in the log; returns how many.

        The last file stays, because it determines the next queue offset.
        """
        files = self.segments.files
        expired = 0
        while expired < len(files) - 1:
            entry = self.entry(files[expired].stop // ENTRY_BYTES - 1)
            if entry is None or entry[0] >= first_log_offset:
                break
            expired += 1
        if expired:
            self._min = (first_log_offset, self.min_offset(first_log_offset))
            self.segments.remove_first(expired)
            first = next(self.raw_entries(self.min_offset(first_log_offset), 1), None)
            if self.ext is not None and first is not None and is_address(first[2]):
                self.ext.expire(first[2])
        return expired

    def min_offset(self, first_log_offset: int) -> int:
        """Queue offset of the oldest message that is in a log with this first offset."""
        known_for, known = self._min
        if known_for != first_log_offset:
            known = self._find_min(first_log_offset)
            self._min = (first_log_offset, known)
        return known

    def _find_min(self, first_log_offset: int) -> int:
        def still_there(queue_offset: int) -> bool:
            while queue_offset < self.next_offset:
                entry = self.entry(queue_offset)
                if entry is None or (entry[1] == BLANK_SIZE and entry[2] == GAP_CODE):
                    queue_offset += 1  # A gap; the next message decides.
                    continue
                return entry[1] != BLANK_SIZE and entry[0] >= first_log_offset
            return True

        files = self.segments.files
        first = files[0].first // ENTRY_BYTES if files else self.next_offset
        candidates = range(first, self.next_offset)
        return first + bisect_left(candidates, True, key=still_there)

    # -- recovery -------------------------------------------------------------------------------

    def load(self, firsts: list[int], before_log_offset: int, *, check_tail: bool = False) -> None:
        """Loads files and finds the end: the first position without an entry below a log offset.

        Reads without mapping, so that many queues load fast. Entries below that log offset have no
        gaps; what follows may be anything. With `check_tail` that is read now, which saves `cut` an
        access to the disk.
        """
        self.segments.load(firsts)
        # The program that made the last file may have died before its name was durable.
        for file in self.segments.files[-1:]:
            file.new_name = True
        end = 0
        for file in reversed(self.segments.files):
            end = file.first // ENTRY_BYTES
            count, last, tail_is_zero = _valid_count(file, before_log_offset, check_tail)
            if last is not None:
                self.end_log_offset = last[0] + last[1] if last[1] != BLANK_SIZE else 0
                end += count
                self._tail_is_zero = tail_is_zero and file is self.segments.files[-1]
                break
        self._end_at(end)

    def _end_at(self, queue_offset: int) -> None:
        self._min = (-1, 0)
        self.next_offset = self.flushed_offset = queue_offset
        self._reserved = queue_offset * ENTRY_BYTES

    def cut(self, queue_offset: int, *, durable: bool = True) -> bool:
        """Removes everything from a queue offset on; False if nothing was there."""
        if self._tail_is_zero and queue_offset == self.next_offset:
            return False
        self._tail_is_zero = False
        position = queue_offset * ENTRY_BYTES
        files = self.segments.files
        changed = any(file.first >= position for file in files[1:])
        self.segments.remove_from(max(position, files[0].first + 1) if files else position)
        file = self.segments.files[-1] if self.segments.files else None
        if file is not None and (file.staged or file.has_data(max(position - file.first, 0))):
            file.cut(max(position - file.first, 0), durable=durable)
            changed = True
        self._end_at(queue_offset)
        return changed

    def drop_last_entry(self) -> None:
        """Removes the last entry, without a write."""
        self._tail_is_zero = False
        self._end_at(self.next_offset - 1)
        last = self.entry(self.next_offset - 1)
        self.end_log_offset = last[0] + last[1] if last and last[1] != BLANK_SIZE else 0

    def remove(self) -> None:
        """Removes the queue from the disk."""
        self.segments.remove_first(len(self.segments.files))
        self.segments.remove_directory()
        self._end_at(0)
        self.end_log_offset = 0
        if self.ext is not None:
            self.ext.remove()


def _valid_count(
    file: MappedFile, before_log_offset: int, check_tail: bool
) -> tuple[int, Entry | None, bool]:
    """The number of entries at the start of a file below a log offset, and the last of them.

    With `check_tail` also whether the rest of the file is certainly zero.
    """
    count = file.size_bytes // ENTRY_BYTES
    with file.opened() as handle:
        # Most queues are short, so one read is enough. Otherwise the last block that begins with
        # a valid entry is searched for.
        block = handle.read(0, PAGE_BYTES)
        at, low, high = 0, 0, -(-count // _LOAD_COUNT) - 1
        if not _is_valid(block, min(count, _LOAD_COUNT) - 1, before_log_offset):
            high = 0
        tail_is_zero = check_tail and high == 0 and not handle.has_data(PAGE_BYTES)
        while low < high:
            middle = (low + high + 1) // 2
            candidate = handle.read(middle * _LOAD_BYTES, PAGE_BYTES)
            if _is_valid(candidate, 0, before_log_offset):
                low, block, at = middle, candidate, middle
            else:
                high = middle - 1
    entry_count = min(len(block) // ENTRY_BYTES, count - at * _LOAD_COUNT)
    low, high = 0, 1
    while high <= entry_count and _is_valid(block, high - 1, before_log_offset):
        low, high = high, high * 2
    inside = range(low, min(high - 1, entry_count))
    valid = low + bisect_left(
        inside, True, key=lambda n: not _is_valid(block, n, before_log_offset)
    )
    if not valid:
        return 0, None, False
    last: Entry = ENTRY.unpack_from(block, (valid - 1) * ENTRY_BYTES)
    return (
        at * _LOAD_COUNT + valid,
        last,
        tail_is_zero and not _has_data(block[valid * ENTRY_BYTES :]),
    )


def _has_data(block: bytes) -> bool:
    return block != _ZEROS[: len(block)]


def _is_valid(block: bytes, number: int, before_log_offset: int) -> bool:
    if (number + 1) * ENTRY_BYTES > len(block):
        return False
    log_offset, size_bytes, _ = ENTRY.unpack_from(block, number * ENTRY_BYTES)
    return bool(size_bytes > 0 and 0 <= log_offset < before_log_offset)
