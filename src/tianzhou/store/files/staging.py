"""The staging pool: locked memory in which the end of the log waits to be committed to its file.

RocketMQ's `transientStorePoolEnable`. The writer appends to a buffer as large as a log file and
never touches the page cache; a thread copies what waits there to the file every 200 ms (commit),
and only then is it readable. A killed process loses what was not committed, acknowledged or not,
so this is for those who can bear that. It counts with ASYNC_FLUSH only.
"""

import ctypes
import logging
import mmap
from dataclasses import dataclass

from tianzhou.store.files.mapped_file import MappedFile

log = logging.getLogger(__name__)


class StagingPool:
    """So many buffers of one size, made and locked at once."""

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


@dataclass(slots=True)
class Part:
    """A log file whose end is staged, or, where no buffer was free, written directly."""

    file: MappedFile
    buffer: memoryview | None
    end: int | None = None
    """Log offset behind the filler, once the writer has gone on to the next file."""

    def commit(self, start: int, stop: int) -> None:
        """Copies a range of log offsets to the file."""
        if self.buffer is None or start >= stop:
            return
        first = self.file.first
        with self.file.opened(writable=True) as handle:
            handle.write(start - first, self.buffer[start - first : stop - first])
