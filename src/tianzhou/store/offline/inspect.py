"""Reads a store directory without a broker: nothing is locked, nothing is written.

The sizes of files are taken from the files themselves. While a broker uses the directory the end of
the log advances, and the results change. Verification then ends at a consistent point: the
broker's last checkpoint, before which everything was derived and written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tianzhou.errors import RecordError, StoreError
from tianzhou.message import StoredMessage
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.protocol.records.record import decode_record
from tianzhou.store import commit_log
from tianzhou.store.commit_log import WalkStopped, find_record, walk
from tianzhou.store.config import ENTRY_BYTES, StoreConfig
from tianzhou.store.consume_queue import BLANK_SIZE, ENTRY
from tianzhou.store.files.checkpoint import Checkpoint, read_checkpoint
from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.real_disk import RealDisk
from tianzhou.store.files.segments import FoundFiles, list_files
from tianzhou.store.index_file import HEADER, IndexFile

Progress = Callable[[int, int], None]
_FINDINGS_MAX = 1000
_INDEX_RATIO = 4
"""Items per slot by default."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What one queue's files hold."""

    topic: str
    queue_id: int
    files: int
    min_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A store in numbers."""

    root: Path
    clean: bool
    log_files: int
    log_file_bytes: int
    first_log_offset: int
    queues: list[QueueFacts]
    index_files: int
    index_items: int
    checkpoint: Checkpoint


@dataclass(slots=True)
class Verdict:
    """What a verification found."""

    messages: int = 0
    log_bytes: int = 0
    end_log_offset: int = 0
    running: bool = False
    """A program has the store open; what it wrote after its last checkpoint was not checked."""
    findings: list[str] = field(default_factory=list[str])

    def add(self, text: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(text)


class StoreDirectory:
    """The files of a store."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.disk = disk or RealDisk()
        self.root = root
        self.config = StoreConfig(store_path_root_dir=root)
        self.found = list_files(self.disk, self.config.log_directory)
        if not self.disk.is_directory(root) or not self.disk.is_directory(
            self.config.log_directory
        ):
            raise StoreError(f"{root} is not a store: it has no directory commitlog")
        self.log_file_bytes = _common_size(self.found) or self.config.mapped_file_size_commit_log
        self.queue_file_bytes = self._queue_file_bytes()

    def inferred_config(self) -> StoreConfig:
        """Settings under which a program opens this directory."""
        slots, items = self._index_shape()
        return StoreConfig(
            store_path_root_dir=self.root,
            mapped_file_size_commit_log=self.log_file_bytes,
            mapped_file_size_consume_queue=self.queue_file_bytes,
            max_hash_slot_num=slots,
            max_index_num=items,
        )

    # -- sizes ----------------------------------------------------------------------------------

    def _queue_file_bytes(self) -> int:
        for topic in self.disk.names(self.config.queue_directory):
            for name in self.disk.names(self.config.queue_directory / topic):
                size = _common_size(
                    list_files(self.disk, self.config.queue_directory / topic / name)
                )
                if size and size % ENTRY_BYTES == 0:
                    return size
        return self.config.queue_file_bytes

    def _index_shape(self) -> tuple[int, int]:
        default = (self.config.max_hash_slot_num, self.config.max_index_num)
        for name in self.disk.names(self.config.index_directory):
            size = self.disk.size_bytes(self.config.index_directory / name) - HEADER.size
            if size == default[0] * 4 + default[1] * 20:
                return default
            slots, rest = divmod(size, 4 + 20 * _INDEX_RATIO)
            if rest == 0 and slots > 0:
                return slots, slots * _INDEX_RATIO
        return default

    def log_files(self) -> list[MappedFile]:
        """The log files of the right size, oldest first."""
        return [
            MappedFile(self.disk, self.config.log_directory, first, self.log_file_bytes)
            for first, size in sorted(self.found.sizes.items())
            if size == self.log_file_bytes
        ]

    # -- numbers --------------------------------------------------------------------------------

    def facts(self) -> Facts:
        index = self.index_files()
        return Facts(
            root=self.root,
            clean=not self.disk.exists(self.root / "abort"),
            log_files=len(self.found.sizes),
            log_file_bytes=self.log_file_bytes,
            first_log_offset=min(self.found.sizes, default=0),
            queues=list(self.queues()),
            index_files=len(index),
            index_items=sum(file.count - 1 for file in index),
            checkpoint=read_checkpoint(self.disk, self.root / "checkpoint"),
        )

    def index_files(self) -> list[IndexFile]:
        slots, items = self._index_shape()
        files: list[IndexFile] = []
        for name in self.disk.names(self.config.index_directory):
            file = IndexFile(self.disk, self.config.index_directory / name, slots, items)
            if self.disk.size_bytes(file.path) == file.size_bytes:
                file.load()
                files.append(file)
        return files

    def is_running(self) -> bool:
        """Whether a program has the store open."""
        return self.disk.is_locked(self.root / "lock")

    def queue_names(self) -> Iterator[tuple[str, int]]:
        """Topic and id of each queue that has a directory."""
        for topic in self.disk.names(self.config.queue_directory):
            for name in self.disk.names(self.config.queue_directory / topic):
                if name.isdecimal():
                    yield topic, int(name)

    def has_queue_files(self, topic: str, queue_id: int) -> bool:
        directory = self.config.queue_directory / topic / str(queue_id)
        return bool(list_files(self.disk, directory).sizes)

    def queues(self) -> Iterator[QueueFacts]:
        first_log_offset = min(self.found.sizes, default=0)
        for topic, queue_id in self.queue_names():
            yield self._queue(topic, queue_id, first_log_offset)

    def _queue(self, topic: str, queue_id: int, first_log_offset: int) -> QueueFacts:
        entries = self.entries(topic, queue_id)
        low, high = -1, 0
        for queue_offset, (log_offset, size_bytes, _) in entries:
            if low < 0 and log_offset >= first_log_offset and size_bytes != BLANK_SIZE:
                low = queue_offset
            high = queue_offset + 1
        files = len(self.disk.names(self.config.queue_directory / topic / str(queue_id)))
        return QueueFacts(topic, queue_id, files, high if low < 0 else low, high)

    def entries(self, topic: str, queue_id: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Queue offset and entry of all entries of a queue."""
        directory = self.config.queue_directory / topic / str(queue_id)
        for first in sorted(list_files(self.disk, directory).sizes):
            file = MappedFile(self.disk, directory, first, self.queue_file_bytes)
            with file.opened() as handle:
                content = handle.read(0, self.queue_file_bytes)
            whole = len(content) // ENTRY_BYTES * ENTRY_BYTES
            for number, entry in enumerate(ENTRY.iter_unpack(content[:whole])):
                if entry[1] <= 0:
                    return
                yield first // ENTRY_BYTES + number, entry

    # -- messages -------------------------------------------------------------------------------

    def records(
        self,
        progress: Progress,
        on_invalid: Callable[[str], None],
        from_log_offset: int = 0,
        *,
        stop: int = 2**63 - 1,
    ) -> Iterator[tuple[memoryview, RecordFields]]:
        """Every valid record of the log with its bytes; reports each invalid position.

        Reads nothing from log offset `stop` on.

        An unused end is valid if no record follows in any file: after the last message there may be
        preallocated files.
        """
        hole: str | None = None
        files = [
            file for file in self.log_files() if file.stop > from_log_offset and file.first < stop
        ]
        total = len(files) * self.log_file_bytes
        for number, file in enumerate(files):
            view = file.view(writable=False)
            position = max(from_log_offset - file.first, 0)
            while position < min(file.size_bytes, stop - file.first):
                try:
                    for fields in walk(view, file.first, position, check_crc=True):
                        if fields[commit_log.LOG_OFFSET] >= stop:
                            return
                        position = (
                            fields[commit_log.LOG_OFFSET] - file.first + fields[commit_log.SIZE]
                        )
                        start = position - fields[commit_log.SIZE]
                        if hole is not None:
                            on_invalid(hole)
                            hole = None
                        yield view[start:position], fields
                    break
                except WalkStopped as end:
                    if file.first + end.position >= stop:
                        return
                    following = None
                    if not end.unused or file.has_data(end.position):
                        following = find_record(view, file.first, position + 1, file.size_bytes)
                    if following is None:
                        finding = f"log {file.first + end.position}: {end.why}"
                        if end.unused:
                            hole = hole or finding
                        else:
                            on_invalid(finding)
                        break
                    finding = (
                        f"log {file.first + end.position} to {file.first + following}: {end.why}"
                    )
                    on_invalid(finding)
                    position = following
            file.unmap()
            progress((number + 1) * self.log_file_bytes, total)

    def messages(self, from_log_offset: int = 0) -> Iterator[StoredMessage]:
        """Every valid message of the log, with bodies."""
        for record, _ in self.records(lambda done, total: None, lambda text: None, from_log_offset):
            try:
                yield decode_record(record)
            except RecordError:
                continue


def _common_size(found: FoundFiles) -> int | None:
    sizes = [size for size in found.sizes.values() if size]
    return max(set(sizes), key=sizes.count) if sizes else None
