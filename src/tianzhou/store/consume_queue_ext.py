"""Units of variable size that queue entries point to: RocketMQ's ConsumeQueueExt.

    unit := size:i16  tags code:i64  store time:i64  bit map size:i16  bit map    20 bytes and more

Units are consecutive in files of one size and do not cross their ends; the size -1 means that no
further unit fits. The entry holds the address of the unit instead of the tags code: its position
minus 2^63, which no tags code is. These files are weakly reliable, as in RocketMQ: an entry whose
unit cannot be read matches every filter, and if a unit cannot be written the entry holds the tags
code itself.

RocketMQ's bit map holds which SQL subscriptions a message matches. It is not computed here, so our
units have none, like RocketMQ's without `enableCalcFilterBitMap`.
"""

import logging
import struct
from pathlib import Path

from tianzhou.store.files.disk import PAGE_BYTES, Disk
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.segments import Segments, list_files

log = logging.getLogger(__name__)

UNIT = struct.Struct(">hqqh")
assert UNIT.size == 20
_SIZE = struct.Struct(">h")
_FULL = _SIZE.pack(-1)
_END_BYTES = 4
"""Reserved at the end of a file."""
_RESERVE_BYTES_MAX = 16 * PAGE_BYTES
_BASE = -(2**63)
ADDRESS_MAX = -(2**31) - 1
_POSITION_MAX = ADDRESS_MAX - _BASE


def is_address(tags_code: int) -> bool:
    """Whether an entry holds the address of a unit instead of a tags code."""
    return tags_code <= ADDRESS_MAX


class QueueExt:
    """The units of one queue. One thread writes; any may read."""

    __slots__ = ("_disk", "_flushed", "_new_names", "end", "segments")

    def __init__(self, disk: Disk, root: Path, topic: str, queue_id: int, file_bytes: int) -> None:
        self._disk = disk
        self.segments = Segments(disk, root.joinpath(topic, str(queue_id)), file_bytes)
        self.end = 0
        """Position after the last unit."""
        self._flushed = 0
        self._new_names = False

    def tags_code(self, address: int) -> int | None:
        """The tags code in a unit; None if there is no such unit."""
        unit = self._unit(address - _BASE)
        return None if unit is None else unit[1]

    def _unit(self, position: int) -> tuple[int, int, int, int] | None:
        file = self.segments.find(position)
        at = position - file.first if file else 0
        if file is None or position >= self.end or at + UNIT.size > file.size_bytes:
            return None
        try:
            unit: tuple[int, int, int, int] = UNIT.unpack_from(file.view(), at)
        except FileNotFoundError:  # Deleted with its topic meanwhile.
            return None
        return unit if unit[0] >= UNIT.size else None

    def put(self, tags_code: int, store_time_ms: int) -> int:
        """Appends a unit; returns its address, or the tags code if that failed."""
        try:
            file = self._file_for_next()
        except OSError as e:
            log.warning("%s: no unit could be written: %s", self.segments.directory, e)
            return tags_code
        if self.end > _POSITION_MAX:
            return tags_code
        UNIT.pack_into(file.view(), self.end - file.first, UNIT.size, tags_code, store_time_ms, 0)
        address = self.end + _BASE
        self.end += UNIT.size
        return address

    def _file_for_next(self) -> MappedFile:
        """The file with space for the next unit. Raises OSError."""
        file = self.segments.find(self.end)
        if file is not None and self.end + UNIT.size + _END_BYTES > file.stop:
            view, at = file.view(), self.end - file.first
            if at + _SIZE.size <= len(view):
                self._ensure_space(file, at + _SIZE.size)
                view[at : at + _SIZE.size] = _FULL
            self.end, file = file.stop, None
        if file is None:
            file = self._add_file()
        self._ensure_space(file, self.end - file.first + UNIT.size)
        return file

    def _ensure_space(self, file: MappedFile, stop: int) -> None:
        used_bytes = self.end - file.first
        file.ensure_space(used_bytes, stop, more=min(used_bytes, _RESERVE_BYTES_MAX))

    def _add_file(self) -> MappedFile:
        self.segments.make_directory(durable=False)
        size_bytes = self.segments.size_bytes
        file = self.segments.file_at(self.end - self.end % size_bytes)
        file.create(durable=False)
        self._new_names = True
        self.segments.add(file)
        return file

    # -- housekeeping ---------------------------------------------------------------------------

    def flush(self) -> None:
        """Makes all units durable. Raises OSError."""
        target = self.end
        for file in self.segments.files:
            if file.stop > self._flushed and file.first < target:
                file.sync()
        if self._new_names and target > self._flushed:
            directory = self.segments.directory
            # Those of the queue, the topic, all units, and the store.
            for _ in range(4):
                self._disk.sync_directory(directory)
                directory = directory.parent
            self._new_names = False
        self._flushed = target

    def load(self, last_address: int | None) -> None:
        """Loads the files and drops everything after the unit of the last entry.

        If the last entry has no unit (None) the end is unknown, and units continue in a new file.
        """
        found = list_files(self._disk, self.segments.directory)
        size_bytes = self.segments.size_bytes
        whole = set(found.sizes.values()) <= {size_bytes} and found.gap(size_bytes) is None
        if not whole or any(first % size_bytes for first in found.sizes):
            log.warning(
                "%s: files with a wrong size or position are removed", self.segments.directory
            )
            self.segments.load(list(found.sizes))
            self.remove()
            return
        self.segments.load(list(found.sizes))
        files = self.segments.files
        self.end = files[-1].stop if files else 0
        if last_address is None:
            self._flushed = self.end
            return
        self.cut_after(last_address)

    def cut_after(self, last_address: int | None) -> None:
        """Removes everything after the unit of the last entry; nothing if that has none."""
        if last_address is not None:
            unit = self._unit(last_address - _BASE)
            self.cut(last_address - _BASE + unit[0] if unit else 0)

    def cut(self, position: int) -> None:
        """Removes everything from a position on."""
        files = self.segments.files
        first = files[0].first if files else 0
        self.end = self._flushed = max(position, first)
        self.segments.remove_from(max(self.end, first + 1))
        file = self.segments.find(self.end)
        if file is not None and file.has_data(self.end - file.first):
            file.cut(self.end - file.first)

    def expire(self, first_address: int) -> None:
        """Removes files before the unit of the first remaining entry."""
        expired = [f for f in self.segments.files[:-1] if f.stop < first_address - _BASE]
        self.segments.remove_first(len(expired))

    def remove(self) -> None:
        """Removes all units from the disk."""
        self.segments.remove_first(len(self.segments.files))
        self.segments.remove_directory()
        self.end = self._flushed = 0
