"""Keeps the page cache filled, so that free memory is cheap to allocate, as on a long-running host.

Hosts of virtual machines reclaim free memory. The first access to a page that was free for some
seconds then costs several times more (on one such machine 17 us instead of 2.5), and a faster
server reaches such pages sooner: after some gigabytes a message of 1 KiB cost twice as much. A
broker in production is not affected, because the page cache has filled the memory long before.

So the benchmark fills the page cache with the pages of a sparse file, and releases them piece by
piece just before they are needed. Log files of stopped servers are handled the same way: they stay
in memory until it is needed. All these are file pages on purpose: anonymous memory would lower the
kernel's limit of dirty pages and throttle the servers. The file is mapped, because some machines
evict pages that no process maps or has read for a minute.
"""

import mmap
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.progress import say

PIECE_BYTES = 64 << 20
LOW_BYTES, HIGH_BYTES = 512 << 20, 768 << 20
"""Below the first amount of free memory pieces are released, above the second allocated."""
HELD_MAX_BYTES = 40 << 30
LOOK_S = 0.02
_READ_BYTES = 1 << 20


def pieces_to_take(free_bytes: int, held_bytes: int, held_max_bytes: int) -> int:
    """How many pieces to allocate, or to release if negative."""
    if free_bytes < LOW_BYTES:
        return -min(held_bytes // PIECE_BYTES, -(-(LOW_BYTES - free_bytes) // PIECE_BYTES))
    if free_bytes > HIGH_BYTES:
        room_bytes = max(held_max_bytes - held_bytes, 0)
        return min(room_bytes, free_bytes - HIGH_BYTES) // PIECE_BYTES
    return 0


class Cache:
    """File pages held in memory: of a sparse file, and of files of stopped servers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sparse = (directory / "sparse").open("w+b")
        os.ftruncate(self._sparse.fileno(), HELD_MAX_BYTES)
        self._mapped = mmap.mmap(
            self._sparse.fileno(), HELD_MAX_BYTES, mmap.MAP_SHARED, mmap.PROT_READ
        )
        self._sparse_bytes = 0
        self._left: list[Path] = []
        self._left_count = 0

    @property
    def held_bytes(self) -> int:
        return self._sparse_bytes + sum(path.stat().st_size for path in self._left)

    def take(self) -> None:
        """Read one more piece, which is a hole, so nothing comes from the disk."""
        start = self._sparse_bytes
        for offset in range(start, start + PIECE_BYTES, _READ_BYTES):
            self._mapped[offset : offset + _READ_BYTES : mmap.PAGESIZE]
        self._sparse_bytes += PIECE_BYTES

    def give_up(self) -> None:
        """Release one piece, first of the files that use disk space."""
        if self._left:
            path = self._left[-1]
            rest_bytes = path.stat().st_size - PIECE_BYTES
            if rest_bytes > 0:
                os.truncate(path, rest_bytes)
            else:
                self._left.pop().unlink()
            return
        self._sparse_bytes -= PIECE_BYTES
        self._mapped.madvise(mmap.MADV_DONTNEED, self._sparse_bytes, PIECE_BYTES)
        os.posix_fadvise(
            self._sparse.fileno(), self._sparse_bytes, PIECE_BYTES, os.POSIX_FADV_DONTNEED
        )

    def adopt(self, directory: Path) -> None:
        """Move the large files here from a directory that is about to be removed."""
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.stat().st_size >= PIECE_BYTES:
                self._left_count += 1
                self._left.append(path.rename(self._directory / str(self._left_count)))

    def close(self) -> None:
        self._mapped.close()
        self._sparse.close()


class WarmMemory:
    """Keeps free memory between the two limits until it is closed."""

    def __init__(self, cache: Cache, held_max_bytes: int) -> None:
        self._cache = cache
        self._held_max_bytes = held_max_bytes
        self._turn = threading.Lock()
        self._ending = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="warm memory", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._ending.is_set():
            with self._turn:
                wanted = pieces_to_take(
                    psutil.virtual_memory().free, self._cache.held_bytes, self._held_max_bytes
                )
                for _ in range(-wanted):
                    self._cache.give_up()
                if wanted > 0:
                    # One at a time, since other processes may need memory meanwhile.
                    self._cache.take()
            if wanted <= 0:
                self._settled.set()
                self._ending.wait(LOOK_S)

    def rebalance(self) -> None:
        """Wait until nothing more has to be allocated."""
        self._settled.clear()
        self._settled.wait()

    def adopt(self, directory: Path) -> None:
        """Keep the files of a stopped server in memory as long as there is enough."""
        with self._turn:
            self._cache.adopt(directory)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


@contextmanager
def kept(held_max_bytes: int = HELD_MAX_BYTES) -> Generator[WarmMemory]:
    """Fill the page cache and keep it filled; with a limit of 0 only add files of servers."""
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as directory:
        cache = Cache(Path(directory))
        memory = WarmMemory(cache, held_max_bytes)
        try:
            if held_max_bytes:
                say("filling the page cache, so that free memory costs every server the same")
            memory.rebalance()
            yield memory
        finally:
            memory.close()
            cache.close()
