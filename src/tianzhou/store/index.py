"""The index of keys: finds messages by topic and key. The layout is in `index_file.py`."""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import repeat

from tianzhou.clock import Clock
from tianzhou.protocol.derived import key_hash
from tianzhou.protocol.pure.walk import LOOSE_ITEM
from tianzhou.store.config import StoreConfig
from tianzhou.store.files.disk import Disk
from tianzhou.store.index_file import IndexFile

log = logging.getLogger(__name__)


class Index:
    """The files, oldest first. One thread writes; the tuple of files is replaced as a whole."""

    __slots__ = ("_changing", "_clock", "_disk", "directory", "files", "item_max", "slot_count")

    def __init__(self, disk: Disk, config: StoreConfig, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._changing = threading.Lock()
        self.directory = config.index_directory
        self.slot_count = config.max_hash_slot_num
        self.item_max = config.max_index_num
        self.files: tuple[IndexFile, ...] = ()

    @property
    def item_count(self) -> int:
        return sum(file.count - 1 for file in self.files)

    # -- writing --------------------------------------------------------------------------------

    def has_space(self, count: int) -> bool:
        """Whether this many keys fit without a call to the disk."""
        files = self.files
        return bool(files) and (last := files[-1]).count + count <= last.ready_count

    def ensure_space(self, count: int, hashes: Iterable[int] = ()) -> None:
        """Reserves space for the keys of one message. Raises OSError.

        With few `hashes` only the needed pages of slots are allocated.
        """
        files = self.files
        if self.has_space(count):
            return
        if not files or files[-1].free_count < count:
            self._add_file()
        self.files[-1].ensure_space(count, hashes)

    def _add_file(self) -> None:
        self._disk.make_directory(self.directory)
        before = self.files[-1] if self.files else None
        now_ms = self._clock()
        path = self.directory / _name(now_ms)
        while self._disk.exists(path) or (before and path.name <= before.path.name):
            now_ms += 1
            path = self.directory / _name(now_ms)
            if before and path.name <= before.path.name:
                path = self.directory / str(int(before.path.name) + 1)
        file = IndexFile(self._disk, path, self.slot_count, self.item_max)
        if before is not None:
            before.flush()
        file.create(
            end_log_offset=before.end_log_offset if before else 0,
            end_time_ms=before.end_time_ms if before else 0,
            # A feed that was granted the file before must be granted this one next.
            whole=before is not None,
        )
        with self._changing:
            self.files = (*self.files, file)

    def put(self, topic: str, keys: list[str], log_offset: int, store_time_ms: int) -> None:
        """Adds the keys of a message; `ensure_space` was called before."""
        self.files[-1].put(map(key_hash, repeat(topic), keys), log_offset, store_time_ms)

    def put_many(self, items: bytes) -> None:
        """Adds the keys of many messages, given as LOOSE_ITEMs. Raises OSError."""
        while items:
            count = self.reserve(items)
            self.files[-1].put_many(items[: count * LOOSE_ITEM.size])
            items = items[count * LOOSE_ITEM.size :]

    def reserve(self, items: bytes) -> int:
        """Reserves and maps space for LOOSE_ITEMs in one file; returns for how many.

        The others belong to the next file. Raises OSError.
        """
        first_count = _first_count(items)
        self.ensure_space(first_count, _hashes(items, first_count))
        file = self.files[-1]
        count = min(file.free_count, len(items) // LOOSE_ITEM.size)
        if count * LOOSE_ITEM.size < len(items):
            # The items of one message stay together.
            log_offset = item_log_offset(items, count)
            while item_log_offset(items, count - 1) == log_offset:
                count -= 1
        file.ensure_space(count, _hashes(items, count))
        file.ensure_mapped()
        return count

    # -- reading --------------------------------------------------------------------------------

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Log offsets of messages whose key has the same hash, newest first."""
        hashed = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                with contextlib.suppress(FileNotFoundError):  # Deleted by retention meanwhile.
                    found += file.find(hashed, begin_ms, end_ms, limit - len(found))
            if len(found) >= limit or file.begin_time_ms < begin_ms:
                break
        return found

    # -- housekeeping ---------------------------------------------------------------------------

    def flush(self) -> None:
        for file in self.files:
            with contextlib.suppress(FileNotFoundError):
                file.flush()

    def expire(self, first_log_offset: int) -> int:
        """Removes files whose messages are gone, except the last; returns the number of items."""
        files = self.files
        expired = 0
        while expired < len(files) - 1 and files[expired].end_log_offset < first_log_offset:
            expired += 1
        self._remove(files[:expired])
        return sum(file.count - 1 for file in files[:expired])

    def _remove(self, removed: tuple[IndexFile, ...]) -> None:
        if not removed:
            return
        with self._changing:
            self.files = tuple(file for file in self.files if file not in removed)
        for file in removed:
            file.unmap()
            self._disk.remove(file.path)
        self._disk.sync_directory(self.directory)

    def release(self) -> None:
        """Releases resident memory; queries map the files again."""
        files = self.files
        for file in files[:-1]:
            file.unmap()
        for file in files[-1:]:
            file.release()

    # -- recovery -------------------------------------------------------------------------------

    def load(self) -> list[str]:
        """Loads the existing files; returns what is wrong with damaged ones, without a change."""
        complaints: list[str] = []
        files: list[IndexFile] = []
        names = self._disk.names(self.directory)
        if names and self._disk.size_bytes(self.directory / names[-1]) == 0:
            # It was being created at a crash. Missing items are detected by their number.
            self._disk.remove(self.directory / names.pop())
        for name in names:
            file = IndexFile(self._disk, self.directory / name, self.slot_count, self.item_max)
            if not (name.isdecimal() and name.isascii()):
                log.warning("index directory: %s is not an index file, ignored", name)
            elif self._disk.size_bytes(file.path) != file.size_bytes:
                size_bytes = self._disk.size_bytes(file.path)
                complaints.append(
                    f"index file {name} has {size_bytes} bytes instead of {file.size_bytes}"
                )
                files.append(file)
            else:
                file.load()
                if not file.plausible:
                    complaints.append(f"index file {name} has an impossible header")
                files.append(file)
        self.files = tuple(files)
        return complaints

    def cut(self, before_log_offset: int, *, counted: bool = False) -> int:
        """Retains items below a log offset; returns the log offset from which to add keys again."""
        while self.files:
            file = self.files[-1]
            if file.begin_log_offset < before_log_offset and file.count > 1:
                if file.cut(before_log_offset, counted=counted):
                    return before_log_offset
                if file.count > 1:
                    return file.end_log_offset + 1
                resume = file.begin_log_offset
                self._remove((file,))
                return resume
            self._remove((file,))
        return before_log_offset

    def drop_from(self, log_offset: int) -> None:
        """Removes the items from a log offset on, durably, from an index that is not damaged."""
        useless = [
            file for file in self.files if file.count == 1 or file.begin_log_offset >= log_offset
        ]
        for file in reversed(useless):
            self._remove((file,))
        for file in self.files[-1:]:
            file.drop_from(log_offset)

    def clear(self) -> None:
        self._remove(self.files)

    def unmap(self) -> None:
        for file in self.files:
            file.unmap()


def item_log_offset(items: bytes, number: int) -> int:
    """Log offset of the message of one of many LOOSE_ITEMs."""
    found: int = LOOSE_ITEM.unpack_from(items, number * LOOSE_ITEM.size)[1]
    return found


def _hashes(items: bytes, count: int) -> Iterator[int]:
    return (LOOSE_ITEM.unpack_from(items, at * LOOSE_ITEM.size)[0] for at in range(count))


def _first_count(items: bytes) -> int:
    """The number of items of the first message."""
    total, count = len(items) // LOOSE_ITEM.size, 1
    while count < total and item_log_offset(items, count) == item_log_offset(items, 0):
        count += 1
    return count


def _name(time_ms: int) -> str:
    # RocketMQ names index files in the local time of the machine.
    moment = datetime.fromtimestamp(time_ms // 1000)  # noqa: DTZ006 - local by format
    return f"{moment:%Y%m%d%H%M%S}{time_ms % 1000:03d}"
