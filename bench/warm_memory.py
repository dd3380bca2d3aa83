"""Free memory that is cheap to use, as on a machine that has been up for long.

Hosts of virtual machines take free memory back. The first touch of a page that was free for some
seconds then costs several times the usual (on one such machine 17 us instead of 2.5), and a server
that writes faster reaches such pages sooner: after some gigabytes a message of 1 KiB cost twice as
much, for no fault of the server. A broker in use does not meet this, because the page cache has
filled its machine's memory long ago.

So the benchmark fills the page cache itself, with the pages of a sparse file, and gives them up
piece by piece just before they are needed. What servers leave behind is handled alike: their log
files stay in memory until somebody needs it. All these are file pages on purpose: memory that a
process holds would lower the kernel's limit of unwritten pages, and the servers would be held up.
The file is mapped: some machines throw out what no process maps and nobody has read for a minute.
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
"""Less free memory than the first: pieces are given up. More than the second: they are taken."""
HELD_MAX_BYTES = 40 << 30
LOOK_S = 0.02
_READ_BYTES = 1 << 20


def pieces_to_take(free_bytes: int, held_bytes: int, held_max_bytes: int) -> int:
    """How many pieces to take, or to give up if negative."""
    if free_bytes < LOW_BYTES:
        return -min(held_bytes // PIECE_BYTES, -(-(LOW_BYTES - free_bytes) // PIECE_BYTES))
    if free_bytes > HIGH_BYTES:
        room_bytes = max(held_max_bytes - held_bytes, 0)
        return min(room_bytes, free_bytes - HIGH_BYTES) // PIECE_BYTES
    return 0


class Cache:
    """File pages that are held in memory: of a sparse file, and of files that nobody reads."""

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
        for place in range(start, start + PIECE_BYTES, _READ_BYTES):
            self._mapped[place : place + _READ_BYTES : mmap.PAGESIZE]
        self._sparse_bytes += PIECE_BYTES

    def give_up(self) -> None:
        """Let one piece go, of the files that take room on the disk first."""
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
        """Keep the large files below a directory, which is about to be removed."""
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
                    # One at a time, since others may need memory meanwhile.
                    self._cache.take()
            if wanted <= 0:
                self._settled.set()
                self._ending.wait(LOOK_S)

    def settle(self) -> None:
        """Wait until nothing more has to be taken."""
        self._settled.clear()
        self._settled.wait()

    def adopt(self, directory: Path) -> None:
        """Keep what a server leaves behind in memory for as long as there is room."""
        with self._turn:
            self._cache.adopt(directory)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


@contextmanager
def kept(held_max_bytes: int = HELD_MAX_BYTES) -> Generator[WarmMemory]:
    """Fill the page cache now, and keep it so; with a limit of 0 only keep what servers leave."""
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as directory:
        cache = Cache(Path(directory))
        memory = WarmMemory(cache, held_max_bytes)
        try:
            if held_max_bytes:
                say("filling the page cache, so that free memory costs every server the same")
            memory.settle()
            yield memory
        finally:
            memory.close()
            cache.close()
