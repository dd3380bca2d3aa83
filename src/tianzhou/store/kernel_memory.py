"""Memory of the store in the hands of the feed, and what the feed wrote there.

The store stays the owner of every position. It lends the ends of the busy queues and of the index,
and after some feeds it settles: it puts the records that they made behind the log in one write, and
only then does what they wrote count. Whoever else appends has to wait until everything is settled,
and makes the leases stale; they are renewed before the next feed, and a queue is lent once an
ordinary append has used it. A queue or an index that is lent gets more room before it is full.

Everything happens in the writer's thread.
"""

import contextlib
from collections.abc import Callable

from tianzhou.protocol.kernel import Feed
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.index import Index

IndexState = tuple[int, int, int, int, int, int]
"""Begin and end time, begin and end log offset, slots in use, item count."""


FedBatch = tuple[int, int, int, int, IndexState | None, list[tuple[ConsumeQueue, int, int, int]]]
"""What feeds did: messages, sends that brought them, bytes of records on the stage, keys, the index
header if there were keys, and each queue with its next offset, the end of its last record and the
tags code of that."""

_STAGE_BYTES = 512 * 1024
"""Larger messages are not the feed's."""
_INDEX_LOW_COUNT = 8_192


class KernelMemory:
    """The leases of one feed."""

    __slots__ = (
        "_admits", "_changed", "_feed", "_files", "_index", "_lent", "_limit", "_log", "_log_files",
        "settle", "stage", "stale",
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
        self._lent: set[ConsumeQueue] = set()
        """Those whose leases hold a mapping."""
        self._changed: dict[ConsumeQueue, None] = {}
        self._files: dict[ConsumeQueue, memoryview] = {}
        """What is lent for reading."""
        self._log_files: object = None
        self.stale = True
        """Something was written since the leases were made."""
        self.settle: Callable[[], None] = _nothing
        """Settles what was fed so far; set by whoever feeds."""
        self.stage = memoryview(bytearray(_STAGE_BYTES))
        """Where the feed puts records together."""
        feed.lend_stage(self.stage)

    def end_turn(self) -> None:
        """Somebody else is about to write."""
        self.settle()
        self.stale = True

    def note(self, queue: ConsumeQueue) -> None:
        """A queue got a message that the feed does not know of."""
        self._changed[queue] = None

    def renew(self) -> None:
        """Bring the leases up to date. Raises OSError if a file cannot be mapped now."""
        if self._log.segments.files is not self._log_files:
            # Files came or went; what is read is lent anew by the next who reads.
            self._feed.give_back_files()
            self._files.clear()
            self._log_files = self._log.segments.files
        if not self.stale:
            return
        memory, position = self._log.tail()
        if len(memory):
            self._feed.lend_log(memory, self._log.written - position, position)
        if self._index.files and self._index.files[-1].has_slots:
            self._feed.lend_index(*self._index.files[-1].writable_memory())
        for queue in tuple(self._changed):
            self._lend(queue)
            del self._changed[queue]
        self.stale = False

    def refill(self, done: FedBatch) -> None:
        """Make more room where little is left, so that no send must be stored by the handlers."""
        _, _, _, _, index_state, queues = done
        for queue, next_offset, _, _ in queues:
            if next_offset >= queue.low_offset:
                # If there is none, the next who stores a message is told.
                with contextlib.suppress(OSError):
                    queue.extend()
                self._changed[queue] = None
                self.stale = True
        if index_state is not None:
            file, count = self._index.files[-1], index_state[-1]
            if count + _INDEX_LOW_COUNT > file.reserved_count and file.room >= _INDEX_LOW_COUNT:
                with contextlib.suppress(OSError):
                    file.ensure_space(_INDEX_LOW_COUNT)
                self.stale = True

    def _lend(self, queue: ConsumeQueue) -> None:
        try:
            memory_range = queue.writable_memory()
        except OSError:
            # What was lent before ends here; the next renewal tries again.
            self._feed.give_back_queue(queue.topic, queue.queue_id)
            self._lent.discard(queue)
            raise
        if memory_range is None or not self._admits(queue.topic):
            # What was lent before does not hold any more.
            self._feed.give_back_queue(queue.topic, queue.queue_id)
            self._lent.discard(queue)
            return
        memory, first, limit = memory_range
        if queue.is_staged:
            # Its memory is no mapping, and there is no end of such queues.
            self._lent.discard(queue)
        elif queue not in self._lent:
            if len(self._lent) >= self._limit:
                # Each holds a mapping. Those in use come back with their next message.
                self._feed.give_back_queues()
                self._lent.clear()
            self._lent.add(queue)
        if not self._feed.lend_queue(
            queue.topic, queue.queue_id, queue, memory, first, queue.next_offset, limit
        ):
            self._lent.discard(queue)

    def lend_reading(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Lend what a reader who has come to a queue offset will need next, if it can be mapped."""
        with contextlib.suppress(OSError):
            self._lend_reading(queue, queue_offset)

    def _lend_reading(self, queue: ConsumeQueue, queue_offset: int) -> None:
        if self._log.segments.files is not self._log_files:
            return  # the next renewal would take it back
        memory_range = queue.readable_memory(queue_offset)
        if memory_range is not None and self._files.get(queue) is not memory_range[0]:
            self._lend_file(queue, *memory_range)
        entry = queue.entry(queue_offset)
        file = self._log.segments.find(entry[0]) if entry is not None else None
        if file is not None and file is not self._log.segments.files[-1]:
            # The last one is lent anyway.
            self._feed.lend_log_file(file.view(), file.first)

    def _lend_file(self, queue: ConsumeQueue, memory: memoryview, first: int, stop: int) -> None:
        if len(self._files) >= self._limit:
            self._feed.give_back_files()
            self._files.clear()
        low = queue.min_offset(self._log.first)
        self._feed.lend_queue_file(queue.topic, queue.queue_id, queue, memory, first, stop, low)
        self._files[queue] = memory

    def end(self) -> None:
        """Take everything back, for files are about to go; leases can be made anew."""
        self.settle()
        self._feed.give_back()
        self._lent.clear()
        self._files.clear()
        self._changed.clear()
        self.stale = True


def _nothing() -> None:
    """Nobody feeds."""
