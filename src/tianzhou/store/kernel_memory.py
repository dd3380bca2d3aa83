"""Memory of the store that the feed of the kernel may write, and the commit of what it wrote.

The store owns every position. It grants the feed the ends of the busy queues and of the index.
After some calls of the feed the store commits: it appends the staged records to the log in one
write, and only then moves its positions. An ordinary append first commits what the feed
wrote and makes the grants stale; they are renewed before the next call of the feed. A queue is
granted once an ordinary append has used it. Granted queues and index files get more space before
they are full.

Everything happens in the writer's thread.
"""

import contextlib
from collections.abc import Callable

from tianzhou.protocol.kernel import Feed
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.index import Index

FedBatch = tuple[int, int, int, int, list[tuple[ConsumeQueue, int, int, int]]]
"""What the feed wrote since the last commit: messages, sends, bytes of staged records, keys, and
each queue with its next offset and the end and tags code of its last record."""

_STAGE_BYTES = 512 * 1024
"""The feed declines larger messages."""
_INDEX_LOW_COUNT = 8_192


class KernelMemory:
    """The grants of one feed."""

    __slots__ = (
        "_admits", "_changed", "_feed", "_files", "_granted", "_index", "_limit", "_log",
        "_log_files", "commit", "stage", "stale",
    )  # fmt: skip

    def __init__(
        self,
        feed: Feed,
        log: CommitLog,
        index: Index,
        queue_max: int,
        admits: Callable[[str], bool],
    ) -> None:
        self._feed = feed
        self._log = log
        self._index = index
        self._limit = queue_max
        self._admits = admits
        self._granted: set[ConsumeQueue] = set()
        """Granted queues that hold a mapping."""
        self._changed: dict[ConsumeQueue, None] = {}
        self._files: dict[ConsumeQueue, memoryview] = {}
        """Queue files that are granted for reading."""
        self._log_files: object = None
        self.stale = True
        """Something was written since the grants were made."""
        self.commit: Callable[[], None] = _nothing
        """Commits what the feed wrote; set by the fast path."""
        self.stage = memoryview(bytearray(_STAGE_BYTES))
        """The buffer in which the feed collects records."""
        feed.grant_stage(self.stage)

    def before_append(self) -> None:
        """Called before an ordinary append."""
        self.commit()
        self.stale = True

    def note(self, queue: ConsumeQueue) -> None:
        """Called after an ordinary append to a queue."""
        self._changed[queue] = None

    def renew(self) -> None:
        """Brings the grants up to date. Raises OSError if a file cannot be mapped now."""
        if self._log.segments.files is not self._log_files:
            # Files were added or removed; the next read grants the files it needs.
            self._feed.revoke_files()
            self._files.clear()
            self._log_files = self._log.segments.files
        if not self.stale:
            return
        memory, position = self._log.tail()
        if len(memory):
            self._feed.grant_log(memory, self._log.written - position, position)
        if self._index.files and self._index.files[-1].has_slots:
            self._feed.grant_index(*self._index.files[-1].writable_memory())
        for queue in tuple(self._changed):
            self._grant(queue)
            del self._changed[queue]
        self.stale = False

    def refill(self, done: FedBatch) -> None:
        """Reserves more space where little is left, so that the feed need not decline sends."""
        _, _, _, key_count, queues = done
        for queue, next_offset, _, _ in queues:
            if next_offset >= queue.low_offset:
                # If there is none, the next append raises.
                with contextlib.suppress(OSError):
                    queue.extend()
                self._changed[queue] = None
                self.stale = True
        if key_count:
            file = self._index.files[-1]
            is_low = file.count + _INDEX_LOW_COUNT > file.reserved_count
            if is_low and file.free_count >= _INDEX_LOW_COUNT:
                with contextlib.suppress(OSError):
                    file.ensure_space(_INDEX_LOW_COUNT)
                self.stale = True

    def _grant(self, queue: ConsumeQueue) -> None:
        try:
            memory_range = queue.writable_memory()
        except OSError:
            # The old grant ends here; the next renewal tries again.
            self._feed.revoke_queue(queue.topic, queue.queue_id)
            self._granted.discard(queue)
            raise
        if memory_range is None or not self._admits(queue.topic):
            # The old grant is no longer valid.
            self._feed.revoke_queue(queue.topic, queue.queue_id)
            self._granted.discard(queue)
            return
        memory, first, limit = memory_range
        if queue.is_staged:
            # Its memory is no mapping, and the number of such queues is not limited.
            self._granted.discard(queue)
        elif queue not in self._granted:
            if len(self._granted) >= self._limit:
                # Each holds a mapping. Queues in use are granted again with their next message.
                self._feed.revoke_queues()
                self._granted.clear()
            self._granted.add(queue)
        if not self._feed.grant_queue(
            queue.topic, queue.queue_id, queue, memory, first, queue.next_offset, limit
        ):
            self._granted.discard(queue)

    def grant_reading(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Grants the files that a pull from a queue offset reads, if they can be mapped."""
        with contextlib.suppress(OSError):
            self._grant_reading(queue, queue_offset)

    def _grant_reading(self, queue: ConsumeQueue, queue_offset: int) -> None:
        if self._log.segments.files is not self._log_files:
            return  # the next renewal would revoke it
        memory_range = queue.readable_memory(queue_offset)
        if memory_range is not None and self._files.get(queue) is not memory_range[0]:
            self._grant_file(queue, *memory_range)
        entry = queue.entry(queue_offset)
        file = self._log.segments.find(entry[0]) if entry is not None else None
        if file is not None and file is not self._log.segments.files[-1]:
            # The last file is always granted.
            self._feed.grant_log_file(file.view(), file.first)

    def _grant_file(self, queue: ConsumeQueue, memory: memoryview, first: int, stop: int) -> None:
        if len(self._files) >= self._limit:
            self._feed.revoke_files()
            self._files.clear()
        low = queue.min_offset(self._log.first)
        self._feed.grant_queue_file(queue.topic, queue.queue_id, queue, memory, first, stop, low)
        self._files[queue] = memory

    def revoke(self) -> None:
        """Revokes everything before files are removed; grants can be made again."""
        self.commit()
        self._feed.revoke_memory()
        self._granted.clear()
        self._files.clear()
        self._changed.clear()
        self.stale = True


def _nothing() -> None:
    """No feed is attached."""
