"""A consume queue: for each message of one queue, in order, where it lies in the log.

    entry := log offset:i64  record size:i32  tags code:i64            20 bytes, big-endian

The tags code is the hash of the tags, or the time of delivery for delayed messages. A queue whose
beginning is gone starts inside a file; the places before it hold blanks (log offset 0, size
2^31-1), as RocketMQ writes them. After the last entry there are zeros.

Entries are derived from the log. One thread writes; `next_offset` moves after the entry is there.
"""

import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.disk import PAGE_BYTES, Disk
from tianzhou.store.mapped_file import MappedFile
from tianzhou.store.segments import Segments

ENTRY = struct.Struct(">qiq")
assert ENTRY.size == ENTRY_BYTES

BLANK_SIZE = 2**31 - 1
_GAP_CODE = -1
"""Tags code of a blank between messages; RocketMQ has blanks only before the first one."""
_BEFORE = ENTRY.pack(0, BLANK_SIZE, 0)
_GAP = ENTRY.pack(0, BLANK_SIZE, _GAP_CODE)

_RESERVE_BYTES_MAX = 16 * PAGE_BYTES

Entry = tuple[int, int, int]
"""Log offset, record size, tags code."""


class MappingLimit:
    """Keeps the number of mapped queue files below a limit by letting go of those not in use.

    Linux allows 65,530 mappings a process, and each holds a file descriptor.
    """

    __slots__ = ("_files", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._files: list[MappedFile] = []

    def mapped(self, file: MappedFile) -> None:
        """Told of each new mapping."""
        self._files.append(file)
        if len(self._files) > self.limit:
            self._sweep()

    def _sweep(self) -> None:
        """Second chance: what was used since the last sweep stays, unless all were."""
        files, kept = self._files, list[MappedFile]()
        for file in files:
            if file.mapped and file.touched:
                file.touched = False
                kept.append(file)
            else:
                file.unmap()
        surplus = len(kept) - self.limit * 3 // 4
        for file in kept[: max(surplus, 0)]:
            file.unmap()
        self._files = kept[max(surplus, 0) :]


class ConsumeQueue:
    """The entries of one queue of one topic."""

    __slots__ = (
        "_limit", "_min", "_new_names", "_reserved", "end_log_offset", "flushed_offset",
        "next_offset", "queue_id", "segments", "topic",
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
        self.segments = Segments(disk, root / topic / str(queue_id), file_bytes)
        self._limit = limit
        self._new_names = False
        """Files were made whose names no flush has seen."""
        self._reserved = 0
        """Byte position up to which the last file has disk blocks for certain."""
        self.next_offset = 0
        """Queue offset that the next message gets."""
        self._min = (-1, 0)
        """First log offset, and the smallest queue offset that goes with it."""
        self.flushed_offset = 0
        self.end_log_offset = 0
        """Where the record of the last entry ends."""

    # -- writing --------------------------------------------------------------------------------

    def make_room(self, count: int) -> None:
        """Makes sure that `count` more entries can be written without asking the disk.

        Raises OSError; then nothing has changed that a reader could see.
        """
        stop = (self.next_offset + count) * ENTRY_BYTES
        if stop > self._reserved:
            self._reserve(stop)

    def _reserve(self, stop: int) -> None:
        position = self.next_offset * ENTRY_BYTES
        while position < stop:
            file = self.segments.find(position) or self._add_file(position)
            # Small queues take a page at a time, busy ones more.
            wanted = max(stop, position + min(position - file.first, _RESERVE_BYTES_MAX))
            end = min(-(-wanted // PAGE_BYTES) * PAGE_BYTES, file.stop)
            file.reserve(position - file.first, end - position)
            self._reserved = position = end

    def _add_file(self, position: int) -> MappedFile:
        size_bytes = self.segments.size_bytes
        if not self.segments.files:
            self.segments.make_directory(durable=False)
        file = self.segments.file_at(position - position % size_bytes)
        # Making it durable is left to the flush: the log can make the queue again until then.
        file.create(reserve_bytes=0, durable=False)
        self._new_names = True
        self.segments.add(file)
        return file

    def put(self, log_offset: int, size_bytes: int, tags_code: int) -> None:
        """Writes the next entry; `make_room` was called before."""
        position = self.next_offset * ENTRY_BYTES
        file = self.segments.find(position)
        assert file is not None
        view = self._view(file)
        ENTRY.pack_into(view, position - file.first, log_offset, size_bytes, tags_code)
        self.end_log_offset = log_offset + size_bytes
        self.next_offset += 1

    def skip_to(self, queue_offset: int) -> None:
        """Blanks up to a queue offset: the messages before it are gone."""
        blank = _GAP
        if not self.segments.files:
            # Nothing was ever written: the file that holds the offset is the first one.
            self._end_at(queue_offset - queue_offset % (self.segments.size_bytes // ENTRY_BYTES))
            blank = _BEFORE
        while self.next_offset < queue_offset:
            self.make_room(1)
            position = self.next_offset * ENTRY_BYTES
            file = self.segments.find(position)
            assert file is not None
            at = position - file.first
            self._view(file)[at : at + ENTRY_BYTES] = blank
            self.next_offset += 1
        self.make_room(1)

    # -- reading --------------------------------------------------------------------------------

    def _view(self, file: MappedFile) -> memoryview:
        if file.mapped:
            return file.view()
        view = file.view()
        self._limit.mapped(file)
        return view

    def entries(self, queue_offset: int, count: int) -> Iterator[Entry]:
        """Up to `count` entries from a queue offset on, within one file."""
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

    # -- keeping --------------------------------------------------------------------------------

    def waiting_pages(self) -> int:
        """Pages with entries that no flush has seen."""
        return -(-(self.next_offset - self.flushed_offset) * ENTRY_BYTES // PAGE_BYTES)

    def flush(self) -> None:
        """Makes all entries durable; called by one thread."""
        target = self.next_offset
        if target == self.flushed_offset:
            return
        for file in self.segments.files:
            if file.stop > self.flushed_offset * ENTRY_BYTES and file.first < target * ENTRY_BYTES:
                try:
                    file.sync()
                except FileNotFoundError:  # Deleted by retention or with its topic.
                    continue
        if self._new_names:
            self._new_names = False
            with contextlib.suppress(FileNotFoundError):  # Deleted with its topic.
                self.segments.sync_directories(2)
        self.flushed_offset = target

    def expire(self, first_log_offset: int) -> int:
        """Removes files whose messages the log no longer has; answers how many.

        The last file stays, for it tells the next queue offset.
        """
        files = self.segments.files
        gone = 0
        while gone < len(files) - 1:
            entry = self.entry(files[gone].stop // ENTRY_BYTES - 1)
            if entry is None or entry[0] >= first_log_offset:
                break
            gone += 1
        if gone:
            self._min = (first_log_offset, self.min_offset(first_log_offset))
            self.segments.remove_first(gone)
        return gone

    def min_offset(self, first_log_offset: int) -> int:
        """Queue offset of the oldest message that the log still has, if it begins there."""
        known_for, known = self._min
        if known_for != first_log_offset:
            known = self._find_min(first_log_offset)
            self._min = (first_log_offset, known)
        return known

    def _find_min(self, first_log_offset: int) -> int:
        def still_there(queue_offset: int) -> bool:
            while queue_offset < self.next_offset:
                entry = self.entry(queue_offset)
                if entry is None or (entry[1] == BLANK_SIZE and entry[2] == _GAP_CODE):
                    queue_offset += 1  # Nothing is known of it; the next message decides.
                    continue
                return entry[1] != BLANK_SIZE and entry[0] >= first_log_offset
            return True

        files = self.segments.files
        first = files[0].first // ENTRY_BYTES if files else self.next_offset
        candidates = range(first, self.next_offset)
        return first + bisect_left(candidates, True, key=still_there)

    # -- recovery -------------------------------------------------------------------------------

    def load(self, firsts: list[int], before_log_offset: int) -> None:
        """Takes over files and finds the end: the first place without an entry below a log offset.

        Reads without mapping, so that many queues load fast. Entries below that log offset must lie
        without holes; what comes after may be anything.
        """
        self.segments.adopt(firsts)
        # Whoever made the last file may not have lived to make its name durable.
        self._new_names = True
        end = 0
        for file in reversed(self.segments.files):
            end = file.first // ENTRY_BYTES
            count = _valid_count(file, before_log_offset)
            if count:
                with file.opened() as handle:
                    last = ENTRY.unpack(handle.read((count - 1) * ENTRY_BYTES, ENTRY_BYTES))
                self.end_log_offset = last[0] + last[1] if last[1] != BLANK_SIZE else 0
                end += count
                break
        self._end_at(end)

    def _end_at(self, queue_offset: int) -> None:
        self._min = (-1, 0)
        self.next_offset = self.flushed_offset = queue_offset
        self._reserved = queue_offset * ENTRY_BYTES

    def cut(self, queue_offset: int) -> bool:
        """Nothing remains from a queue offset on; False if nothing was there."""
        position = queue_offset * ENTRY_BYTES
        files = self.segments.files
        changed = any(file.first >= position for file in files[1:])
        self.segments.remove_from(max(position, files[0].first + 1) if files else position)
        file = self.segments.files[-1] if self.segments.files else None
        if file is not None and file.has_data(max(position - file.first, 0)):
            file.cut(max(position - file.first, 0), reserve=False)
            changed = True
        self._end_at(queue_offset)
        return changed

    def step_back(self) -> None:
        """The last entry does not count."""
        self._end_at(self.next_offset - 1)
        last = self.entry(self.next_offset - 1)
        self.end_log_offset = last[0] + last[1] if last and last[1] != BLANK_SIZE else 0

    def remove(self) -> None:
        """Takes the queue off the disk."""
        self.segments.remove_first(len(self.segments.files))
        self.segments.remove_directory()
        self._end_at(0)
        self.end_log_offset = 0


def _valid_count(file: MappedFile, before_log_offset: int) -> int:
    """How many entries at the beginning of a file are below a log offset."""
    with file.opened() as handle:

        def valid(index: int) -> bool:
            raw = handle.read(index * ENTRY_BYTES, ENTRY_BYTES)
            log_offset, size_bytes, _ = ENTRY.unpack(raw)
            return bool(size_bytes > 0 and 0 <= log_offset < before_log_offset)

        # Most queues are short, so the search first doubles its step and then halves the rest.
        count = file.size_bytes // ENTRY_BYTES
        low, high = 0, 1
        while high <= count and valid(high - 1):
            low, high = high, high * 2
        high = min(high - 1, count)
        while low < high:
            middle = (low + high) // 2
            if valid(middle):
                low = middle + 1
            else:
                high = middle
        return low
