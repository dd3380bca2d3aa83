"""Messages that the system may have dropped from its cache, brought back there by a thread.

Whoever touches mapped memory that must come from the disk waits for the disk, and with him the
whole process, for the interpreter is held meanwhile. A read through a file descriptor lets go of
the interpreter. So what the event loop is about to look at, and nobody has looked at for long, is
read in a thread first and thrown away; after that the loop finds it in memory.
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
_AHEAD_COUNT, _AHEAD_BYTES = 512, 4 * 1024**2
"""What is read ahead for someone who reads a queue in order."""


class Stretch(NamedTuple):
    """Messages of one queue that are needed soon."""

    topic: str
    queue_id: int
    queue_offsets: range


def may_be_cold(store: MessageStore, log_offset: int) -> bool:
    """Whether a record was written so long ago that it need not be in memory any more."""
    return store.end_log_offset - log_offset > HOT_BYTES


def needs_disk(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int, count: int
) -> bool:
    """Whether whoever reads so many messages of a queue now would wait for the disk."""
    queue = store.queues.get(topic, queue_id)
    if queue is None or not 0 <= queue_offset < queue.next_offset:
        return False
    try:
        if not _has_entries(queue, queue_offset):
            return True
        for log_offset, size_bytes, _ in queue.raw_entries(queue_offset, count):
            if not may_be_cold(store, log_offset):
                return False  # nor are those behind it, which are newer
            file = store.log.segments.find(log_offset)
            start = log_offset - file.first if file is not None else 0
            if file is not None and not file.is_cached(start, start + size_bytes):
                return True
    except FileNotFoundError:  # deleted meanwhile, which the reader finds out, too
        return False
    return False


def _has_entries(queue: ConsumeQueue, queue_offset: int) -> bool:
    """Whether the place of an entry is in memory."""
    file = queue.segments.find(queue_offset * ENTRY_BYTES)
    if file is None:
        return True
    start = queue_offset * ENTRY_BYTES - file.first
    return file.is_cached(start, start + ENTRY_BYTES)


def warm_ahead(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> None:
    """Have what comes next in a queue in memory; for a thread."""
    warm(
        store,
        [Stretch(topic, queue_id, range(queue_offset, queue_offset + _AHEAD_COUNT))],
        _AHEAD_BYTES,
    )


def warm(store: MessageStore, stretches: Iterable[Stretch], max_bytes: int | None = None) -> None:
    """Have entries and records of these messages in memory; for a thread, it waits for the disk.

    What is not there, or not any more, is left out; with a limit, what would exceed it, too.
    """
    total_bytes = 0
    with contextlib.ExitStack() as stack:
        opened: dict[int, DiskFile | None] = {}
        for topic, queue_id, queue_offsets in stretches:
            queue = store.queues.get(topic, queue_id)
            if queue is None:
                continue
            _warm_entries(queue, queue_offsets)
            for log_offset, size_bytes, _ in _entries(queue, queue_offsets):
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


def _warm_entries(queue: ConsumeQueue, queue_offsets: range) -> None:
    file = queue.segments.find(queue_offsets.start * ENTRY_BYTES)
    if file is not None:
        with contextlib.ExitStack() as stack:
            handle = _open(stack, file)
            if handle is not None:
                start = queue_offsets.start * ENTRY_BYTES - file.first
                handle.read(start, len(queue_offsets) * ENTRY_BYTES)


def _entries(queue: ConsumeQueue, queue_offsets: range) -> Iterable[tuple[int, int, int]]:
    return queue.raw_entries(queue_offsets.start, len(queue_offsets))


def _open(stack: contextlib.ExitStack, file: MappedFile) -> DiskFile | None:
    """None for a file that is in memory only, or gone."""
    try:
        return stack.enter_context(file.opened())
    except FileNotFoundError:
        return None
