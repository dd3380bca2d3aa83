"""A store directory looked at from outside: nothing is locked, nothing is written.

The sizes of files are taken from the files themselves. While a broker works in the directory the
end of the log moves on, and so do the answers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tianzhou.errors import RecordError, StoreError
from tianzhou.message import StoredMessage
from tianzhou.protocol.pure_record import RecordFields
from tianzhou.protocol.record import decode_record
from tianzhou.store import commitlog, dispatch
from tianzhou.store.checkpoint import Checkpoint, read_checkpoint
from tianzhou.store.commitlog import Stop, find_record, walk
from tianzhou.store.config import ENTRY_BYTES, StoreConfig
from tianzhou.store.consumequeue import BLANK_SIZE, ENTRY
from tianzhou.store.disk import Disk, RealDisk
from tianzhou.store.index import HEADER, IndexFile
from tianzhou.store.mapped_file import MappedFile
from tianzhou.store.segments import Found, look

Progress = Callable[[int, int], None]
Filed = dict[int, tuple[int, set[int]]]
"""By log offset, the store time of a message and the hashes of its keys."""

_FINDINGS_MAX = 1000
_INDEX_RATIO = 4
"""Items for each slot, where nobody chose otherwise."""


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
    findings: list[str] = field(default_factory=list[str])

    def found(self, text: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(text)


class StoreDirectory:
    """The files of a store."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.disk = disk or RealDisk()
        self.root = root
        self.config = StoreConfig(store_path_root_dir=root)
        self.found = look(self.disk, self.config.log_directory)
        if not self.disk.is_directory(root) or not self.disk.is_directory(
            self.config.log_directory
        ):
            raise StoreError(f"{root} is no store: it has no directory commitlog")
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

    # -- shapes ---------------------------------------------------------------------------------

    def _queue_file_bytes(self) -> int:
        for topic in self.disk.names(self.config.queue_directory):
            for name in self.disk.names(self.config.queue_directory / topic):
                size = _common_size(look(self.disk, self.config.queue_directory / topic / name))
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
        index = self._index_files()
        return Facts(
            root=self.root,
            clean=not self.disk.exists(self.root / "abort"),
            log_files=len(self.found.sizes),
            log_file_bytes=self.log_file_bytes,
            first_log_offset=min(self.found.sizes, default=0),
            queues=list(self._queues()),
            index_files=len(index),
            index_items=sum(file.count - 1 for file in index),
            checkpoint=read_checkpoint(self.disk, self.root / "checkpoint"),
        )

    def _index_files(self) -> list[IndexFile]:
        slots, items = self._index_shape()
        files: list[IndexFile] = []
        for name in self.disk.names(self.config.index_directory):
            file = IndexFile(self.disk, self.config.index_directory / name, slots, items)
            if self.disk.size_bytes(file.path) == file.size_bytes:
                file.load()
                files.append(file)
        return files

    def _queues(self) -> Iterator[QueueFacts]:
        first_log_offset = min(self.found.sizes, default=0)
        for topic in self.disk.names(self.config.queue_directory):
            for name in self.disk.names(self.config.queue_directory / topic):
                if name.isdecimal():
                    yield self._queue(topic, int(name), first_log_offset)

    def _queue(self, topic: str, queue_id: int, first_log_offset: int) -> QueueFacts:
        entries = self._entries(topic, queue_id)
        low, high = -1, 0
        for queue_offset, (log_offset, size_bytes, _) in entries:
            if low < 0 and log_offset >= first_log_offset and size_bytes != BLANK_SIZE:
                low = queue_offset
            high = queue_offset + 1
        files = len(self.disk.names(self.config.queue_directory / topic / str(queue_id)))
        return QueueFacts(topic, queue_id, files, high if low < 0 else low, high)

    def _entries(self, topic: str, queue_id: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Queue offset and entry of all entries of a queue."""
        directory = self.config.queue_directory / topic / str(queue_id)
        for first in sorted(look(self.disk, directory).sizes):
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
        self, progress: Progress, found: Callable[[str], None], from_log_offset: int = 0
    ) -> Iterator[tuple[memoryview, RecordFields]]:
        """Every sound record of the log with its bytes; `found` is told of each unsound place.

        An unused end is sound if no record follows in any file: behind the last message there may
        be files that were prepared ahead.
        """
        hole: str | None = None
        files = [file for file in self.log_files() if file.stop > from_log_offset]
        total = len(files) * self.log_file_bytes
        for number, file in enumerate(files):
            view = file.view(writable=False)
            position = max(from_log_offset - file.first, 0)
            while position < file.size_bytes:
                try:
                    for fields in walk(view, file.first, position, check_crc=True):
                        position = (
                            fields[commitlog.LOG_OFFSET] - file.first + fields[commitlog.SIZE]
                        )
                        start = position - fields[commitlog.SIZE]
                        if hole is not None:
                            found(hole)
                            hole = None
                        yield view[start:position], fields
                    break
                except Stop as stop:
                    following = find_record(view, file.first, position + 1, file.size_bytes)
                    if following is None:
                        place = f"log {file.first + stop.position}: {stop.why}"
                        if stop.unused:
                            hole = hole or place
                        else:
                            found(place)
                        break
                    found(
                        f"log {file.first + stop.position} to {file.first + following}: {stop.why}"
                    )
                    position = following
            file.unmap()
            progress((number + 1) * self.log_file_bytes, total)

    def messages(self, from_log_offset: int = 0) -> Iterator[StoredMessage]:
        """Every sound message of the log, bodies included."""
        for record, _ in self.records(lambda done, total: None, lambda text: None, from_log_offset):
            try:
                yield decode_record(record)
            except RecordError:
                continue

    # -- verification ---------------------------------------------------------------------------

    def verify(self, progress: Progress) -> Verdict:
        """Checks every record, that each is in its queue and filed under its keys, and that queues
        and index hold nothing else."""
        verdict = Verdict()
        gap = self.found.gap(self.log_file_bytes)
        if gap is not None:
            verdict.found(f"log: the file that begins at {gap} is missing")
        for first, size in sorted(self.found.sizes.items()):
            if size != self.log_file_bytes:
                verdict.found(f"log: file {first} has {size} bytes, not {self.log_file_bytes}")
        expected: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        filed: Filed = {}
        for record, fields in self.records(progress, verdict.found):
            verdict.messages += 1
            verdict.log_bytes += len(record)
            verdict.end_log_offset = fields[commitlog.LOG_OFFSET] + fields[commitlog.SIZE]
            if dispatch.has_queue_entry(fields[commitlog.SYS_FLAG]):
                queue = expected.setdefault(
                    (fields[commitlog.TOPIC], fields[commitlog.QUEUE_ID]), {}
                )
                queue[fields[commitlog.QUEUE_OFFSET]] = (
                    fields[commitlog.LOG_OFFSET], fields[commitlog.SIZE],
                )  # fmt: skip
            keys = dispatch.index_keys(fields[commitlog.PROPERTIES], fields[commitlog.SYS_FLAG])
            if keys:
                topic = fields[commitlog.TOPIC]
                hashes = {dispatch.key_hash(topic, key) for key in keys}
                filed[fields[commitlog.LOG_OFFSET]] = (fields[commitlog.STORE_TIME], hashes)
        self._verify_queues(expected, verdict)
        self._verify_index(filed, verdict)
        return verdict

    def _verify_queues(
        self, expected: dict[tuple[str, int], dict[int, tuple[int, int]]], verdict: Verdict
    ) -> None:
        first_log_offset = min(self.found.sizes, default=0)
        there = {(queue.topic, queue.queue_id) for queue in self._queues()}
        for topic, queue_id in sorted(there | expected.keys()):
            wanted = dict(expected.get((topic, queue_id), {}))
            where = f"queue {topic}/{queue_id}"
            for queue_offset, (log_offset, size_bytes, _) in self._entries(topic, queue_id):
                if size_bytes == BLANK_SIZE or log_offset < first_log_offset:
                    continue
                if wanted.pop(queue_offset, None) != (log_offset, size_bytes):
                    verdict.found(
                        f"{where}: entry {queue_offset} leads to no message of this queue"
                    )
            if wanted:
                verdict.found(
                    f"{where}: {len(wanted)} messages of the log have no entry, the first is "
                    f"{min(wanted)}; deleted topics show like this, too"
                )

    def _verify_index(self, filed: Filed, verdict: Verdict) -> None:
        files = self._index_files()
        known = {file.path.name for file in files}
        for name in self.disk.names(self.config.index_directory):
            if name not in known:
                verdict.found(f"index: file {name} has a size of its own")
        seen: set[tuple[int, int]] = set()
        for file in files:
            if not file.plausible:
                verdict.found(f"index: file {file.path.name} has an impossible header")
                return
            self._verify_items(file, filed, seen, verdict)
        # Behind the last item the index may lag, for it is derived; before the first it was off.
        bounds = [(file.begin_log_offset, file.end_log_offset) for file in files if file.count > 1]
        missing = [
            log_offset
            for log_offset, (_, hashes) in filed.items()
            if bounds
            and bounds[0][0] <= log_offset <= bounds[-1][1]
            and any((log_offset, hashed) not in seen for hashed in hashes)
        ]
        if missing:
            verdict.found(
                f"index: keys of {len(missing)} messages are not filed, the first lies at log "
                f"offset {min(missing)}"
            )

    def _verify_items(
        self, file: IndexFile, filed: Filed, seen: set[tuple[int, int]], verdict: Verdict
    ) -> None:
        """Each item must name a message with such a key and time, and be on its slot's chain."""
        first_log_offset = min(self.found.sizes, default=0)
        newest: dict[int, int] = {}
        for number, (hashed, log_offset, seconds, previous) in file.items():
            where = f"index: item {number} of file {file.path.name}"
            slot = hashed % file.slot_count
            if previous != newest.get(slot, 0):
                verdict.found(f"{where} is not on the chain of its slot")
            newest[slot] = number
            if log_offset < first_log_offset:
                continue
            store_time_ms, hashes = filed.get(log_offset, (0, set[int]()))
            if hashed not in hashes:
                verdict.found(f"{where} leads to {log_offset}, where no message has such a key")
            elif number > 1 and seconds != max((store_time_ms - file.begin_time_ms) // 1000, 0):
                # RocketMQ reckons the first item of a file from the end of the file before it.
                verdict.found(f"{where} has not the time of its message at {log_offset}")
            seen.add((log_offset, hashed))
        for slot, number in newest.items():
            if file.slot(slot) != number:
                verdict.found(f"index: slot {slot} of file {file.path.name} is not at its newest")
        file.unmap()


def _common_size(found: Found) -> int | None:
    sizes = [size for size in found.sizes.values() if size]
    return max(set(sizes), key=sizes.count) if sizes else None
