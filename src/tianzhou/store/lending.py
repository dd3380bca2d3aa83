"""Memory of the store in the hands of the compiled feed, and what the feed wrote there.

The store stays the owner of every position. It lends the ends of the busy queues and of the index,
and after each feed it settles: it puts the records that the feed made behind the log, and only then
does what the feed wrote count. Whoever else
appends makes the leases stale; they are renewed before the next feed, and a queue is lent once an
ordinary append has used it.

Everything happens in the writer's thread.
"""

from collections.abc import Callable

from tianzhou.protocol.kernel import Feed
from tianzhou.store.commitlog import CommitLog
from tianzhou.store.consumequeue import ConsumeQueue
from tianzhou.store.index import Index

IndexState = tuple[int, int, int, int, int, int]
"""Begin and end time, begin and end log offset, slots in use, item count."""


Settlement = tuple[
    int, int, bytes, int, IndexState | None, list[tuple[ConsumeQueue, int, int, int]]
]
"""What a feed did: messages, sends that brought them, records for the log, keys, the index header
if there were keys, and each queue with its next offset, the end of its last record and the tags
code of that."""


class Lending:
    """The leases of one feed."""

    __slots__ = (
        "_admits", "_changed", "_feed", "_files", "_index", "_lent", "_limit", "_log", "_log_files",
        "stale",
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
        self._changed: dict[ConsumeQueue, None] = {}
        self._files: dict[ConsumeQueue, memoryview] = {}
        """What is lent for reading."""
        self._log_files: object = None
        self.stale = True
        """Something was written since the leases were made."""

    def note(self, queue: ConsumeQueue) -> None:
        """A queue got a message that the feed does not know of."""
        self._changed[queue] = None

    def renew(self) -> None:
        """Bring the leases up to date."""
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
        if self._index.files:
            self._feed.lend_index(*self._index.files[-1].lease())
        changed, self._changed = self._changed, {}
        for queue in changed:
            self._lend(queue)
        self.stale = False

    def _lend(self, queue: ConsumeQueue) -> None:
        lease = queue.lease()
        if lease is None or not self._admits(queue.topic):
            # What was lent before does not hold any more.
            self._feed.give_back_queue(queue.topic, queue.queue_id)
            self._lent.discard(queue)
            return
        if len(self._lent) >= self._limit and queue not in self._lent:
            # Each holds a mapping. Those in use come back with their next message.
            self._feed.give_back_queues()
            self._lent.clear()
        memory, first, limit = lease
        if self._feed.lend_queue(
            queue.topic, queue.queue_id, queue, memory, first, queue.next_offset, limit
        ):
            self._lent.add(queue)

    def lend_reading(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Lend what a reader who has come to a queue offset will need next."""
        if self._log.segments.files is not self._log_files:
            return  # the next renewal would take it back
        lease = queue.reading_lease(queue_offset)
        if lease is not None and self._files.get(queue) is not lease[0]:
            self._lend_file(queue, *lease)
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
        self._feed.give_back()
        self._lent.clear()
        self._files.clear()
        self._changed.clear()
        self.stale = True
