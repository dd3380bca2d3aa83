"""The staging pool: locked memory that holds the end of the log until it is committed to its file.

RocketMQ's `transientStorePoolEnable`. The writer appends to a buffer as large as a log file, not to
the page cache; a thread copies new records to the file every 200 ms (commit), and only then are
they readable. A killed process loses uncommitted messages, even acknowledged ones. It is used with
ASYNC_FLUSH only.
"""

import ctypes
import logging
import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.store.files.mapped_file import MappedFile

Arrival = tuple[str, int, int, int, int]
"""Topic, queue id, queue offset, tags code and store time of a new message."""

log = logging.getLogger(__name__)


class StagingPool:
    """`count` buffers of one size, allocated and locked at the start."""

    def __init__(self, count: int, size_bytes: int) -> None:
        areas = [mmap.mmap(-1, size_bytes) for _ in range(count)]
        if not all([_lock(area, size_bytes) for area in areas]):
            log.warning(
                "staging pool: %d buffers of %d bytes could not be locked in memory and may be "
                "swapped out (raise the limit of locked memory, ulimit -l)", count, size_bytes,
            )  # fmt: skip
        self._free = [memoryview(area) for area in areas]

    def borrow(self) -> memoryview | None:
        """A buffer; None if all are in use."""
        return self._free.pop() if self._free else None

    def give_back(self, buffer: memoryview) -> None:
        self._free.append(buffer)


def _lock(area: mmap.mmap, size_bytes: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mlock"):
        return False
    held = ctypes.c_char.from_buffer(area)
    code: int = libc.mlock(ctypes.c_void_p(ctypes.addressof(held)), ctypes.c_size_t(size_bytes))
    return code == 0


class DeferredArrivals:
    """Messages that are not committed yet: they are announced when they are readable."""

    def __init__(self, announce: Callable[[*Arrival], None] | None, end: Callable[[], int]) -> None:
        """`end` returns the log offset after the last staged message."""
        self._announce = announce
        self._end = end
        self._waiting: deque[tuple[int, Arrival]] = deque()
        """Each with the log offset that makes it readable."""

    def add(self, *arrival: *Arrival) -> None:
        """A message is staged."""
        self._waiting.append((self._end(), arrival))

    def committed(self, log_offset: int) -> None:
        """The log is readable up to a log offset."""
        while self._waiting and self._waiting[0][0] <= log_offset:
            _, arrival = self._waiting.popleft()
            if self._announce is not None:
                self._announce(*arrival)

    def clear(self) -> None:
        """The log was cut."""
        self._waiting.clear()


@dataclass(slots=True)
class StagedFile:
    """A log file whose end is staged, or written directly if no buffer was free."""

    file: MappedFile
    buffer: memoryview | None
    end: int | None = None
    """Log offset after the filler, once the writer uses the next file."""

    def commit(self, start: int, stop: int) -> None:
        """Copies a range of log offsets to the file."""
        if self.buffer is None or start >= stop:
            return
        first = self.file.first
        with self.file.opened(writable=True) as handle:
            handle.write(start - first, self.buffer[start - first : stop - first])
