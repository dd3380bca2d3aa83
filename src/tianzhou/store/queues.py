"""All consume queues of a store, by topic and queue id."""

import contextlib

from tianzhou.descriptors import reserved_descriptors
from tianzhou.store.config import ENTRY_BYTES, StoreConfig
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.consume_queue_ext import QueueExt, is_address
from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapping_limit import MappingLimit
from tianzhou.store.files.segments import FoundFiles, list_files

SYNC_EACH_MAX = 32
"""More queues than this are synced with one call for the file system."""


def mapped_files_max(config: StoreConfig) -> int:
    """The most mapped queue files. Each holds a file descriptor, also while the kernel uses it."""
    return max(min(config.mapped_queue_files_max, reserved_descriptors() // 4), 16)


class QueueTable:
    """The existing queues. One thread adds and removes; any thread may read."""

    __slots__ = ("_config", "_disk", "_has_ext", "_limit", "by_topic", "directory")

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._config = config
        self._limit = MappingLimit(mapped_files_max(config))
        self.directory = config.queue_directory
        self._has_ext = config.enable_consume_queue_ext or disk.is_directory(
            config.queue_ext_directory
        )
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues else None

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no files until it has an entry."""
        found = self.get(topic, queue_id)
        if found is None:
            found = self._make(topic, queue_id)
            self.by_topic.setdefault(topic, {})[queue_id] = found
        return found

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        config = self._config
        queue = ConsumeQueue(
            self._disk, self.directory, topic, queue_id, config.queue_file_bytes, self._limit
        )
        if self._has_ext:
            queue.ext = QueueExt(
                self._disk, config.queue_ext_directory, topic, queue_id,
                config.mapped_file_size_consume_queue_ext,
            )  # fmt: skip
            queue.writes_ext = config.enable_consume_queue_ext
        return queue

    def all(self) -> list[ConsumeQueue]:
        return [queue for queues in list(self.by_topic.values()) for queue in list(queues.values())]

    @property
    def count(self) -> int:
        """Queues that have or had entries."""
        return sum(1 for queue in self.all() if queue.next_offset)

    @property
    def entry_count(self) -> int:
        """The sum of the next offsets of all queues."""
        return sum(queue.next_offset for queue in self.all())

    def forget(self, topic: str, queue_id: int) -> None:
        """Removes a queue from the table, not from the disk."""
        queues = self.by_topic.get(topic, {})
        queues.pop(queue_id, None)
        if not queues:
            self.by_topic.pop(topic, None)

    def remove(self, queue: ConsumeQueue) -> None:
        """Removes a queue from the table and from the disk."""
        self.forget(queue.topic, queue.queue_id)
        queue.remove()
        topic_directory = self.directory / queue.topic
        if self._disk.is_directory(topic_directory) and not self._disk.names(topic_directory):
            self._disk.remove_directory(topic_directory)
            self._disk.sync_directory(self.directory)

    # -- housekeeping ---------------------------------------------------------------------------

    def flush(self, queues: list[ConsumeQueue]) -> None:
        """Makes the entries of queues durable. Raises OSError, StoreFull.

        The directories of new files are synced once each. More than SYNC_EACH_MAX queues are synced
        with the whole file system, which costs as much as a few files.
        """
        for queue in queues:
            if queue.ext is not None:
                with contextlib.suppress(FileNotFoundError):  # Deleted with its topic.
                    queue.ext.flush()
        done = [(queue, queue.save(), queue.new_names()) for queue in queues]
        if len(done) <= SYNC_EACH_MAX or not self._disk.sync_file_system(self.directory):
            for queue, queue_offset, _ in done:
                queue.sync(queue_offset)
            self._sync_names([queue for queue, _, files in done if files])
        for queue, queue_offset, files in done:
            queue.flushed(queue_offset, files)

    def _sync_names(self, queues: list[ConsumeQueue]) -> None:
        directories = {queue.segments.directory for queue in queues}
        for directory in sorted(directories | {one.parent for one in directories}):
            with contextlib.suppress(FileNotFoundError):  # Deleted with its topic.
                self._disk.sync_directory(directory)

    def release_unused(self) -> None:
        """Unmaps files that were not used since the last call."""
        self._limit.release_unused()

    # -- recovery -------------------------------------------------------------------------------

    def load(self, before_log_offset: int, *, counted: bool, clean: bool) -> list[str]:
        """Loads the queues from disk, with entries below a log offset only; returns what is wrong.

        Files whose creation or truncation was interrupted are finished or removed. A queue with
        other damage is in the table without entries. If the caller compares the number of entries
        afterwards (`counted`), a queue is loaded up to its first damaged file without a complaint.
        """
        complaints: list[str] = []
        for topic in self._disk.names(self.directory):
            for name in self._disk.names(self.directory / topic):
                if not (name.isdecimal() and name.isascii() and str(int(name)) == name):
                    continue
                queue = self._make(topic, int(name))
                found = list_files(self._disk, queue.segments.directory)
                self._finish_last(queue, found)
                if counted:
                    self._drop_bad(queue, found)
                complaint = self._complaint(found)
                if complaint:
                    complaints.append(f"queue {topic}/{name}: {complaint}")
                    queue.segments.load(list(found.sizes))
                elif found.sizes:
                    queue.load(list(found.sizes), before_log_offset, check_tail=not clean)
                    self._load_ext(queue)
                else:
                    continue
                self.by_topic.setdefault(topic, {})[queue.queue_id] = queue
        return complaints

    def _load_ext(self, queue: ConsumeQueue) -> None:
        if queue.ext is not None:
            last = next(queue.raw_entries(max(queue.next_offset - 1, 0), 1), None)
            queue.ext.load(last[2] if last and is_address(last[2]) else None)

    def _finish_last(self, queue: ConsumeQueue, found: FoundFiles) -> None:
        """A shorter last file was being created or truncated at a crash."""
        size_bytes = self._config.queue_file_bytes
        last = max(found.sizes, default=None)
        if last is None or found.sizes[last] >= size_bytes:
            return
        if found.sizes[last] == 0:
            self._remove_files(queue, found, [last])
        else:
            with queue.segments.file_at(last).opened(writable=True) as handle:
                handle.resize(size_bytes)
            found.sizes[last] = size_bytes

    def _drop_bad(self, queue: ConsumeQueue, found: FoundFiles) -> None:
        """Removes the first file with a wrong size or without a predecessor, and all after it."""
        size_bytes = self._config.queue_file_bytes
        firsts = sorted(found.sizes)
        for number, first in enumerate(firsts):
            follows = number == 0 or first == firsts[number - 1] + size_bytes
            if found.sizes[first] != size_bytes or first % size_bytes or not follows:
                self._remove_files(queue, found, firsts[number:])
                return

    def _remove_files(self, queue: ConsumeQueue, found: FoundFiles, firsts: list[int]) -> None:
        for first in reversed(firsts):
            queue.segments.file_at(first).remove()
            del found.sizes[first]
        self._disk.sync_directory(queue.segments.directory)

    def _complaint(self, found: FoundFiles) -> str | None:
        size_bytes = self._config.queue_file_bytes
        for first, actual in sorted(found.sizes.items()):
            if actual != size_bytes:
                return f"file {first} has {actual} bytes instead of {size_bytes}"
            if first % ENTRY_BYTES or first % size_bytes:
                return f"file {first} does not begin at a multiple of {size_bytes}"
        gap = found.gap(size_bytes)
        return None if gap is None else f"file {gap} is missing"

    def clear(self) -> None:
        """Removes all queues from the disk and the table."""
        for queue in self.all():
            self.remove(queue)
