"""The files of a store directory as a pipeline reads them: mapped, read-only, many entries at once.

The directory may be a running broker's, Apache's or ours; nothing is locked or written. What the
files say is believed only as far as it makes sense: an entry of no size ends a queue, and a record
must name its own place in the log.
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

from tianzhou.errors import StoreError
from tianzhou.protocol.pure.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, SIZE_MIN
from tianzhou.protocol.records.record import LOG_OFFSET_AT, SYS_FLAG_AT, store_time_at
from tianzhou.spark.offsets import Bounds
from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import BLANK_SIZE
from tianzhou.store.offline.inspect import StoreDirectory

ENTRY = np.dtype([("log", ">i8"), ("size", ">i4"), ("tags", ">i8")])
assert ENTRY.itemsize == ENTRY_BYTES

Entries = npt.NDArray[np.void]


@dataclass
class StoreFiles:
    """The log and the queues of a directory; files are mapped when they are needed."""

    root: Path
    _mapped: dict[Path, mmap.mmap] = field(default_factory=dict[Path, mmap.mmap], repr=False)

    def __post_init__(self) -> None:
        """Raises StoreError if this is no store."""
        directory = StoreDirectory(self.root)
        self.log_directory = directory.config.log_directory
        self.queue_directory = directory.config.queue_directory
        self.log_file_bytes = directory.log_file_bytes
        self.log_firsts = sorted(
            first for first, size in directory.found.sizes.items() if size == self.log_file_bytes
        )
        self.is_open = (self.root / "abort").exists()
        """Whether a broker works here, or ended without a goodbye."""

    @property
    def first_log_offset(self) -> int:
        return self.log_firsts[0] if self.log_firsts else 0

    def close(self) -> None:
        """Let go of what nobody looks at any more."""
        self._mapped.clear()

    def map(self, path: Path) -> mmap.mmap | None:
        """The bytes of a file, None if it is gone or empty."""
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
        """The mapped file that holds a place of the log, and where it begins."""
        first = log_offset - (log_offset - self.first_log_offset) % self.log_file_bytes
        mapped = self.map(self.log_directory / f"{first:020d}")
        return None if mapped is None else (mapped, first)

    def has_record(self, log_offset: int) -> bool:
        """Whether a record begins at a place of the log."""
        found = self.log_file(log_offset) if log_offset >= self.first_log_offset else None
        if found is None:
            return False
        mapped, first = found
        return record_size(mapped, log_offset - first, log_offset) > 0

    def is_unwritten(self, log_offset: int) -> bool:
        """Whether nothing is in the files at a place of the log; a damaged record is something."""
        found = self.log_file(log_offset) if log_offset >= self.first_log_offset else None
        if found is None:
            return True
        mapped, first = found
        at = log_offset - first
        return not any(mapped[at : at + SIZE_AND_MAGIC.size])

    def store_time_ms(self, log_offset: int) -> int | None:
        """When the record at a place of the log was stored."""
        found = self.log_file(log_offset) if self.has_record(log_offset) else None
        if found is None:
            return None
        mapped, first = found
        start = log_offset - first
        flags = mapped[start + SYS_FLAG_AT : start + SYS_FLAG_AT + 4]
        at = start + store_time_at(int.from_bytes(flags, "big", signed=True))
        return int.from_bytes(mapped[at : at + 8], "big", signed=True)

    def walk(self, log_offset: int) -> Iterator[list[int]]:
        """Where in their file the records from one on begin, in groups, until none follows."""
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

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[int, Entries]]:
        """The entries of each file and the queue offset of the first, up to a gap."""
        folder = self.queue_directory / topic / str(queue_id)
        files: list[tuple[int, Entries]] = []
        for name in _names(folder):
            mapped = self.map(folder / name) if len(name) == 20 and name.isdigit() else None
            if mapped is not None and len(mapped) >= ENTRY_BYTES:
                whole = len(mapped) // ENTRY_BYTES
                files.append((int(name) // ENTRY_BYTES, np.frombuffer(mapped, ENTRY, whole)))
        for (one, entries), (following, _) in pairwise(files):
            if following != one + len(entries):
                raise StoreError(f"queue {topic}/{queue_id}: a file is missing before {following}")
        return files

    def bounds(self, topic: str, queue_id: int) -> Bounds:
        """What a queue holds: entries whose records are in the log."""
        files = self.queue_files(topic, queue_id)
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
            there = (entries["log"] >= self.first_log_offset) & (entries["size"] != BLANK_SIZE)
            there &= entries["size"] > 0
            if there.any():
                low = min(first + int(np.argmax(there)), high)
                break
        if self.is_open:
            # A broker that stages its log has entries of records that are not in the files yet.
            def is_missing(queue_offset: int) -> bool:
                entry = self.entries(topic, queue_id, queue_offset, queue_offset + 1)[0]
                return entry["size"] != BLANK_SIZE and self.is_unwritten(int(entry["log"]))

            high = low + bisect_left(range(low, high), True, key=is_missing)
        return Bounds(low, high)

    def entries(self, topic: str, queue_id: int, first: int, stop: int) -> Entries:
        """Entries of a queue from one queue offset to before another."""
        parts = self._entry_parts(topic, queue_id, first, stop)
        return np.concatenate(parts) if parts else np.empty(0, ENTRY)

    def log_edges(self, topic: str, queue_id: int, first: int, stop: int) -> list[int]:
        """Where in the log the first and the last message of a range lie; nothing without any."""
        edges: list[int] = []
        for entries in self._entry_parts(topic, queue_id, first, stop):
            places = entries["log"][entries["size"] != BLANK_SIZE].astype(np.int64)
            if len(places):
                edges += [int(places.min()), int(places.max())]
        return [min(edges), max(edges)] if edges else []

    def _entry_parts(self, topic: str, queue_id: int, first: int, stop: int) -> list[Entries]:
        """The same, of each file, without a copy."""
        return [
            entries[max(first - begin, 0) : max(stop - begin, 0)]
            for begin, entries in self.queue_files(topic, queue_id)
            if begin < stop and begin + len(entries) > first
        ]

    def time_offset(self, topic: str, queue_id: int, held: Bounds, time_ms: int) -> int:
        """The queue offset of the first message stored at a time or later.

        An entry without a record counts as stored when the next one with a record was.
        """
        files = self.queue_files(topic, queue_id)
        if not files:
            return held.low
        last_begin, last_entries = files[-1]
        low = max(held.low, files[0][0])
        high = min(held.high, last_begin + len(last_entries))
        while low < high:
            # What is passed over on the way to a record lies on one side with it: nothing is
            # looked at twice, however long a stretch without records is.
            middle = at = (low + high) // 2
            while (found := self._stored_ms(files, at)) is None and at + 1 < high:
                at += 1
            if found is not None and found < time_ms:
                low = at + 1
            else:
                high = middle
        return low

    def _stored_ms(self, files: Sequence[tuple[int, Entries]], queue_offset: int) -> int | None:
        """When the message of a queue offset was stored; None for a blank or a record that is gone.

        A blank names place 0 of the log, where a record of anybody may be.
        """
        first, entries = files[bisect_right(files, queue_offset, key=itemgetter(0)) - 1]
        entry = entries[queue_offset - first]
        return None if entry["size"] == BLANK_SIZE else self.store_time_ms(int(entry["log"]))


GROUP_BYTES = 4 * 1024 * 1024
GROUP_COUNT = 8192


def record_size(mapped: mmap.mmap, at: int, log_offset: int) -> int:
    """The size of the record at a place, 0 or less if none begins there.

    A filler is none: what follows it in its file means nothing.
    """
    if at < 0 or at + SIZE_MIN > len(mapped):
        return 0
    size: int
    magic: int
    size, magic = SIZE_AND_MAGIC.unpack_from(mapped, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or not SIZE_MIN <= size <= len(mapped) - at:
        return 0
    place = mapped[at + LOG_OFFSET_AT : at + LOG_OFFSET_AT + 8]
    return size if int.from_bytes(place, "big") == log_offset else 0


def is_end(mapped: mmap.mmap, at: int) -> bool:
    """Whether the records of a file end here as they should: a filler, or nothing at all yet."""
    if at + SIZE_AND_MAGIC.size > len(mapped):
        return True
    size: int
    magic: int
    size, magic = SIZE_AND_MAGIC.unpack_from(mapped, at)
    return magic == MAGIC_BLANK or (size, magic) == (0, 0)


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
