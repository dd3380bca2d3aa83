"""Read-only, memory-mapped access to the files of a store directory.

The store may belong to a running broker, Tianzhou's or Apache's; nothing is locked or written.
Contents are validated: an entry without a size ends a queue, and a record must contain its own log
offset.
"""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tianzhou.client.queues import Queue
from tianzhou.errors import StoreError
from tianzhou.protocol.pure.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, SIZE_MIN
from tianzhou.protocol.records.record import LOG_OFFSET_AT
from tianzhou.spark.columns.malformed import store_time_ms
from tianzhou.spark.offsets import Bounds, Range
from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import BLANK_SIZE
from tianzhou.store.offline.inspect import StoreDirectory

ENTRY = np.dtype([("log", ">i8"), ("size", ">i4"), ("tags", ">i8")])
assert ENTRY.itemsize == ENTRY_BYTES

Entries = npt.NDArray[np.void]


@dataclass
class StoreFiles:
    """The log and the queues of a directory; files are mapped on first use."""

    root: Path
    _mapped: dict[Path, mmap.mmap] = field(default_factory=dict[Path, mmap.mmap], repr=False)

    def __post_init__(self) -> None:
        """Raises StoreError if this is not a store directory."""
        directory = StoreDirectory(self.root)
        self.log_directory = directory.config.log_directory
        self.queue_directory = directory.config.queue_directory
        self.log_file_bytes = directory.log_file_bytes
        self.log_firsts = sorted(
            first for first, size in directory.found.sizes.items() if size == self.log_file_bytes
        )
        self.is_open = (self.root / "abort").exists()
        """Whether a broker runs here or has crashed."""

    @property
    def first_log_offset(self) -> int:
        return self.log_firsts[0] if self.log_firsts else 0

    def close(self) -> None:
        """Release the mapped files; those with live views stay until these are gone."""
        self._mapped.clear()

    def map(self, path: Path) -> mmap.mmap | None:
        """The mapped file, None if it is missing or empty."""
        if path not in self._mapped:
            try:
                with path.open("rb") as file:
                    self._mapped[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError):
                return None
            except OSError as e:
                raise StoreError(f"{path} cannot be read: {e}") from e
        return self._mapped[path]

    # -- log ---------------------------------------------------------------------------------------

    def log_file(self, log_offset: int) -> tuple[mmap.mmap, int] | None:
        """The mapped file that contains a log offset, and its first offset."""
        if log_offset < self.first_log_offset:
            return None
        first = log_offset - (log_offset - self.first_log_offset) % self.log_file_bytes
        mapped = self.map(self.log_directory / f"{first:020d}")
        return None if mapped is None else (mapped, first)

    def is_unwritten(self, log_offset: int) -> bool:
        """Whether nothing is written at a log offset; a damaged record counts as written."""
        found = self.log_file(log_offset)
        if found is None:
            return True
        mapped, first = found
        at = log_offset - first
        return not any(mapped[at : at + SIZE_AND_MAGIC.size])

    def store_time_ms(self, log_offset: int) -> int | None:
        """The store time of the record at a log offset; None without a record."""
        found = self.log_file(log_offset)
        if found is None:
            return None
        mapped, first = found
        at = log_offset - first
        if record_size(mapped, at, log_offset) <= 0:
            return None
        return store_time_ms(memoryview(mapped), at)

    def walk(self, log_offset: int) -> Iterator[list[int]]:
        """Positions in the file of the records from an offset on, in groups, until none follows."""
        found = self.log_file(log_offset)
        if found is None:
            return
        mapped, first = found
        at, group, size_bytes = log_offset - first, list[int](), 0
        while at < len(mapped):
            size = record_size(mapped, at, first + at)
            if size <= 0:
                break
            group.append(at)
            at, size_bytes = at + size, size_bytes + size
            if size_bytes >= GROUP_BYTES or len(group) >= GROUP_COUNT:
                yield group
                group, size_bytes = [], 0
        if group:
            yield group

    # -- queues ------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return _names(self.queue_directory)

    def queue_ids(self, topic: str) -> list[int]:
        names = _names(self.queue_directory / topic)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def queue_files(self, queue: Queue) -> list[tuple[int, Entries]]:
        """The first queue offset and the entries of each file. Raises StoreError for a gap."""
        folder = self.queue_directory / queue.topic / str(queue.queue_id)
        files: list[tuple[int, Entries]] = []
        for name in _names(folder):
            mapped = self.map(folder / name) if len(name) == 20 and name.isdigit() else None
            if mapped is not None and len(mapped) >= ENTRY_BYTES:
                whole = len(mapped) // ENTRY_BYTES
                files.append((int(name) // ENTRY_BYTES, np.frombuffer(mapped, ENTRY, whole)))
        for (one, entries), (following, _) in pairwise(files):
            if following != one + len(entries):
                raise StoreError(f"queue {queue}: a file is missing before {following}")
        return files

    def bounds(self, queue: Queue) -> Bounds:
        """The offsets of a queue whose records are in the log."""
        files = self.queue_files(queue)
        if not files:
            return Bounds(0, 0)
        high = files[0][0]
        for first, entries in files:
            empty = entries["size"] <= 0
            if empty.any():
                high = first + int(np.argmax(empty))
                break
            high = first + len(entries)
        low = high
        for first, entries in files:
            valid = (entries["log"] >= self.first_log_offset) & (entries["size"] != BLANK_SIZE)
            valid &= entries["size"] > 0
            if valid.any():
                low = min(first + int(np.argmax(valid)), high)
                break
        if self.is_open:
            # A broker with a staging buffer has entries of records that are not in the files yet.
            def is_missing(queue_offset: int) -> bool:
                entry = self.entries(Range(queue, queue_offset, queue_offset + 1))[0]
                return entry["size"] != BLANK_SIZE and self.is_unwritten(int(entry["log"]))

            high = low + bisect_left(range(low, high), True, key=is_missing)
        return Bounds(low, high)

    def entries(self, part: Range) -> Entries:
        """Entries of a range."""
        parts = self._entry_parts(part)
        return np.concatenate(parts) if parts else np.empty(0, ENTRY)

    def log_edges(self, part: Range) -> list[int]:
        """The lowest and highest log offset of a range; empty without messages."""
        edges: list[int] = []
        for entries in self._entry_parts(part):
            log_offsets = entries["log"][entries["size"] != BLANK_SIZE].astype(np.int64)
            if len(log_offsets):
                edges += [int(log_offsets.min()), int(log_offsets.max())]
        return [min(edges), max(edges)] if edges else []

    def _entry_parts(self, part: Range) -> list[Entries]:
        """Entries of a range as one view per file."""
        return [
            entries[max(part.first - begin, 0) : max(part.stop - begin, 0)]
            for begin, entries in self.queue_files(part.queue)
            if begin < part.stop and begin + len(entries) > part.first
        ]

    def time_offset(self, queue: Queue, held: Bounds, time_ms: int) -> int:
        """The queue offset of the first message stored at a time or later.

        An entry without a record counts as stored at the time of the next one with a record.
        """
        files = self.queue_files(queue)
        if not files:
            return held.low
        last_begin, last_entries = files[-1]
        low = max(held.low, files[0][0])
        high = min(held.high, last_begin + len(last_entries))
        while low < high:
            # Entries skipped on the way to a record lie on the same side as the record, so no
            # entry is read twice, however many consecutive entries lack a record.
            middle = at = (low + high) // 2
            while (found := self._stored_ms(files, at)) is None and at + 1 < high:
                at += 1
            if found is not None and found < time_ms:
                low = at + 1
            else:
                high = middle
        return low

    def _stored_ms(self, files: Sequence[tuple[int, Entries]], queue_offset: int) -> int | None:
        """The store time at a queue offset; None for a blank entry or a deleted record.

        A blank entry has log offset 0, where a record of any queue may be.
        """
        log_offset, size = entry_at(files, queue_offset)
        return None if size == BLANK_SIZE else self.store_time_ms(log_offset)


def entry_at(files: Sequence[tuple[int, Entries]], queue_offset: int) -> tuple[int, int]:
    """Log offset and size of the entry at a queue offset; zeros if there is none."""
    number = bisect_right(files, queue_offset, key=itemgetter(0)) - 1
    first, entries = files[number] if number >= 0 else (0, ())
    if queue_offset - first >= len(entries):
        return 0, 0
    entry = entries[queue_offset - first]
    return int(entry["log"]), int(entry["size"])


GROUP_BYTES = 4 * 1024 * 1024
GROUP_COUNT = 8192


def record_size(mapped: mmap.mmap, at: int, log_offset: int) -> int:
    """The size of the record at a position, 0 or less if none begins there.

    A blank record at the end of a file counts as none.
    """
    if at < 0 or at + SIZE_MIN > len(mapped):
        return 0
    size: int
    magic: int
    size, magic = SIZE_AND_MAGIC.unpack_from(mapped, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or not SIZE_MIN <= size <= len(mapped) - at:
        return 0
    stored = mapped[at + LOG_OFFSET_AT : at + LOG_OFFSET_AT + 8]
    return size if int.from_bytes(stored, "big") == log_offset else 0


def is_end(mapped: mmap.mmap, at: int) -> bool:
    """Whether the records of a file end here regularly: a blank record, or nothing written."""
    if at + SIZE_AND_MAGIC.size > len(mapped):
        return True
    size: int
    magic: int
    size, magic = SIZE_AND_MAGIC.unpack_from(mapped, at)
    return magic == MAGIC_BLANK or (size, magic) == (0, 0)


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
