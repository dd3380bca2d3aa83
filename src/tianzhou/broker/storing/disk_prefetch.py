"""Prefetches messages from disk into the page cache, in a thread.

A page fault on cold mapped memory blocks the whole process, because it holds the interpreter lock.
A read through a file descriptor releases the lock. So what the event loop is about to read, if it
is old, is first read in a thread and discarded; after that it is in the page cache.
"""

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import BLANK_SIZE, ConsumeQueue
from tianzhou.store.files.disk import DiskFile
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.message_store import MessageStore

HOT_BYTES = 32 * 1024**2
_NEXT_COUNT, _NEXT_BYTES = 512, 4 * 1024**2
"""How much is prefetched for a consumer that reads a queue in order."""


class QueueRange(NamedTuple):
    """A range of messages of one queue."""

    topic: str
    queue_id: int
    queue_offsets: range


def may_be_cold(store: MessageStore, log_offset: int) -> bool:
    """Whether a record is so old that it may not be in the page cache."""
    return store.end_log_offset - log_offset > HOT_BYTES


def needs_disk(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int, count: int
) -> bool:
    """Whether reading so many messages of a queue now would block on the disk."""
    queue = store.queues.get(topic, queue_id)
    if queue is None or not 0 <= queue_offset < queue.next_offset:
        return False
    try:
        if not _has_entries(queue, queue_offset):
            return True
        for log_offset, size_bytes, _ in queue.raw_entries(queue_offset, count):
            if not may_be_cold(store, log_offset):
                return False  # the following ones are newer
            file = store.log.segments.find(log_offset)
            start = log_offset - file.first if file is not None else 0
            if file is not None and not file.is_cached(start, start + size_bytes):
                return True
    except FileNotFoundError:  # deleted meanwhile; the reader notices, too
        return False
    return False


def _has_entries(queue: ConsumeQueue, queue_offset: int) -> bool:
    """Whether the page of an entry is in the page cache."""
    file = queue.segments.find(queue_offset * ENTRY_BYTES)
    if file is None:
        return True
    start = queue_offset * ENTRY_BYTES - file.first
    return file.is_cached(start, start + ENTRY_BYTES)


def prefetch_next(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> None:
    """Prefetch the next messages of a queue; blocks, so call it in a thread."""
    prefetch(
        store,
        [QueueRange(topic, queue_id, range(queue_offset, queue_offset + _NEXT_COUNT))],
        _NEXT_BYTES,
    )


def prefetch(
    store: MessageStore, ranges: Iterable[QueueRange], max_bytes: int | None = None
) -> None:
    """Read the entries and records of these messages; blocks, so call it in a thread.

    Messages that do not exist are left out. At most `max_bytes` are read, but at least one message.
    """
    total_bytes = 0
    with contextlib.ExitStack() as stack:
        opened: dict[int, DiskFile | None] = {}
        for topic, queue_id, queue_offsets in ranges:
            queue = store.queues.get(topic, queue_id)
            if queue is None:
                continue
            _prefetch_entries(queue, queue_offsets)
            for log_offset, size_bytes, _ in queue.raw_entries(
                queue_offsets.start, len(queue_offsets)
            ):
                file = store.log.segments.find(log_offset)
                if size_bytes == BLANK_SIZE or file is None:
                    continue
                if file.first not in opened:
                    opened[file.first] = _open(stack, file)
                total_bytes += size_bytes
                if max_bytes is not None and max_bytes < total_bytes != size_bytes:
                    return
                handle = opened[file.first]
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
