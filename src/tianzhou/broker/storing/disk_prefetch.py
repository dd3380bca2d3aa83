"""Prefetches messages from disk into the page cache, in a thread.

A page fault on cold mapped memory blocks the whole process, because it holds the interpreter lock.
A read through a file descriptor releases the lock. So what the event loop is about to read, if it
is old, is first read in a thread and discarded; after that it is in the page cache.

The limits of a pull depend on this, too: messages in the page cache cost the same however old they
are. RocketMQ estimates by their distance from the end of the log; here the system is asked. The
kernel's feed has the same rule (`feed/pull.rs`).
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Self

from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import BLANK_SIZE, ConsumeQueue
from tianzhou.store.consume_queue_ext import is_address
from tianzhou.store.files.disk import DiskFile
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import ENTRIES_PER_READ

HOT_BYTES = 32 * 1024**2
_NEXT_COUNT, _NEXT_BYTES = 512, 4 * 1024**2
"""How much is prefetched for a consumer that reads a queue in order."""
_CLOSE_BYTES = 1024**2
"""Records within this many bytes are checked for presence in the page cache with one call."""

_Records = list[tuple[int, int]]
"""Log offset and size of each."""
AcceptTags = Callable[[int], bool] | None


class QueueRange(NamedTuple):
    """A range of messages of one queue."""

    topic: str
    queue_id: int
    queue_offsets: range


def may_be_cold(store: MessageStore, log_offset: int) -> bool:
    """Whether a record is so old that it may not be in the page cache."""
    return store.end_log_offset - log_offset > HOT_BYTES


def needs_disk(
    store: MessageStore,
    topic: str,
    queue_id: int,
    queue_offset: int,
    max_count: int,
    accept_tags: AcceptTags = None,
) -> bool:
    """Whether reading so many messages of a queue now would block on the disk."""
    queue = store.queues.get(topic, queue_id)
    if queue is None or not 0 <= queue_offset < queue.next_offset:
        return False
    queue_offsets = _offsets_of_read(store, queue_offset, max_count)
    try:
        return not _has_entries(queue, queue_offsets) or not _are_cached(
            store, _records_of_read(store, queue, queue_offsets, max_count, accept_tags)
        )
    except FileNotFoundError:  # deleted meanwhile; the reader notices, too
        return False


def _offsets_of_read(store: MessageStore, queue_offset: int, max_count: int) -> range:
    """The entries that a read examines."""
    count_max, _ = store.limit(max_count)
    return range(queue_offset, queue_offset + max(ENTRIES_PER_READ, count_max))


def _has_entries(queue: ConsumeQueue, queue_offsets: range) -> bool:
    """Whether entries are in the page cache, as far as they exist and are in one file."""
    file = queue.segments.find(queue_offsets.start * ENTRY_BYTES)
    if file is None:
        return True
    stop = min(min(queue_offsets.stop, queue.next_offset) * ENTRY_BYTES, file.stop)
    return file.is_cached(queue_offsets.start * ENTRY_BYTES - file.first, stop - file.first)


def _records_of_read(
    store: MessageStore,
    queue: ConsumeQueue,
    queue_offsets: range,
    max_count: int,
    accept_tags: AcceptTags,
) -> _Records:
    """The records that a read returns if they are in memory; empty if the first one is recent."""
    count_max, bytes_max = store.limit(max_count)
    records: _Records = []
    total_bytes = 0
    for log_offset, size_bytes in _accepted(queue, queue_offsets, accept_tags):
        if records and (len(records) >= count_max or total_bytes + size_bytes > bytes_max):
            break
        if not records and not may_be_cold(store, log_offset):
            break  # the following ones are newer
        records.append((log_offset, size_bytes))
        total_bytes += size_bytes
    return records


def _accepted(
    queue: ConsumeQueue, queue_offsets: range, accept_tags: AcceptTags = None
) -> Iterator[tuple[int, int]]:
    """Log offset and size of the records of these entries that a read by tags returns."""
    entries = queue.raw_entries if accept_tags is None else queue.entries
    for log_offset, size_bytes, tags_code in entries(queue_offsets.start, len(queue_offsets)):
        if size_bytes != BLANK_SIZE and (
            accept_tags is None or is_address(tags_code) or accept_tags(tags_code)
        ):
            yield log_offset, size_bytes


def _are_cached(store: MessageStore, records: _Records) -> bool:
    """Whether records can be read without waiting for the disk.

    Raises FileNotFoundError if a file was deleted.
    """
    if not records:
        return True
    # Mostly they are close together; then one system call is enough.
    first, _ = records[0]
    last, last_bytes = records[-1]
    file, stop = store.log.segments.find(first), last + last_bytes
    if (
        file is not None
        and first < stop <= min(file.stop, first + _CLOSE_BYTES)
        and file.is_cached(first - file.first, stop - file.first)
    ):
        return True
    return all(
        not may_be_cold(store, log_offset) or _is_cached(store, log_offset, size_bytes)
        for log_offset, size_bytes in records
    )


def _is_cached(store: MessageStore, log_offset: int, size_bytes: int) -> bool:
    file = store.log.segments.find(log_offset)
    if file is None:
        return True  # nothing to wait for
    start = log_offset - file.first
    return file.is_cached(start, start + size_bytes)


def prefetch_next(
    store: MessageStore,
    topic: str,
    queue_id: int,
    queue_offset: int,
    max_count: int,
    accept_tags: AcceptTags = None,
) -> bool:
    """Prefetch the next messages of a queue; blocks, so call it in a thread.

    Returns whether messages of the next read were not in memory.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return False
    queue_offsets = _offsets_of_read(store, queue_offset, max_count)
    _prefetch_entries(queue, queue_offsets)
    try:
        records = _records_of_read(store, queue, queue_offsets, max_count, accept_tags)
        from_disk = not _are_cached(store, records)
    except FileNotFoundError:  # deleted meanwhile; the reader notices, too
        return False
    total_bytes = 0
    with _OpenFiles(store) as files:
        accepted = _accepted(queue, queue_offsets, accept_tags)
        for log_offset, size_bytes in islice(accepted, _NEXT_COUNT):
            total_bytes += size_bytes
            if _NEXT_BYTES < total_bytes != size_bytes:
                break
            files.read(log_offset, size_bytes)
    return from_disk


def prefetch(store: MessageStore, ranges: Iterable[QueueRange]) -> None:
    """Read the entries and records of these messages; blocks, so call it in a thread.

    Messages that do not exist are left out.
    """
    with _OpenFiles(store) as files:
        for topic, queue_id, queue_offsets in ranges:
            queue = store.queues.get(topic, queue_id)
            if queue is not None:
                _prefetch_entries(queue, queue_offsets)
                for record in _accepted(queue, queue_offsets):
                    files.read(*record)


class _OpenFiles:
    """Files of the log, each opened once."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._stack = contextlib.ExitStack()
        self._opened: dict[int, DiskFile | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, log_offset: int, size_bytes: int) -> None:
        """Read a record, if its file exists."""
        file = self._store.log.segments.find(log_offset)
        if file is None:
            return
        if file.first not in self._opened:
            self._opened[file.first] = _open(self._stack, file)
        handle = self._opened[file.first]
        if handle is not None:
            handle.read(log_offset - file.first, size_bytes)


def _prefetch_entries(queue: ConsumeQueue, queue_offsets: range) -> None:
    file = queue.segments.find(queue_offsets.start * ENTRY_BYTES)
    if file is not None:
        with contextlib.ExitStack() as stack:
            handle = _open(stack, file)
            if handle is not None:
                start = queue_offsets.start * ENTRY_BYTES - file.first
                handle.read(start, len(queue_offsets) * ENTRY_BYTES)


def _open(stack: contextlib.ExitStack, file: MappedFile) -> DiskFile | None:
    """None for a file that is in memory only, or deleted."""
    try:
        return stack.enter_context(file.opened())
    except FileNotFoundError:
        return None
