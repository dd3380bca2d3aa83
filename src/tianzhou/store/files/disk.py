"""The interface between the store and the disk: every file, directory, mapping and sync.

`RealDisk` (`real_disk.py`) is the operating system. Tests use a simulated disk, which loses what
was not synced, tears pages, reorders writes and fails calls. The store relies on these promises:

- `DiskFile.map` gives a writable view of the whole file. The mapping lives as long as a view or a
  slice of it.
- `DiskFile.sync` returns when everything written to the file before, mapped writes included,
  survives a power cut; it raises if that is not certain. A name (creation, removal, renaming)
  survives only after `Disk.sync_directory`.
- `DiskFile.reserve` allocates disk blocks for a range. A mapped write without blocks on a
  full disk would kill the process.
- All of them raise OSError; `explained` turns it into a `StoreError` with a message for operators.
"""

import errno
from pathlib import Path
from typing import Protocol

from tianzhou.errors import StoreBroken, StoreError, StoreFull, StoreReadOnly

PAGE_BYTES = 4096


class DiskFile(Protocol):
    """One open file."""

    @property
    def path(self) -> Path: ...

    def size_bytes(self) -> int: ...

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...

    def write(self, position: int, data: bytes | memoryview) -> None: ...

    def reserve(self, position: int, count: int) -> None:
        """Gives blocks to the range and grows the file to its end; new bytes read as zero."""
        ...

    def resize(self, size_bytes: int) -> None:
        """Cuts the file, or grows it by bytes that read as zero and have no blocks yet."""
        ...

    def zero(self, position: int, count: int) -> None:
        """Makes a range read as zero, for mappings too; it may lose its disk blocks."""
        ...

    def has_data(self, position: int) -> bool:
        """False only if everything from `position` on certainly reads as zero."""
        ...

    def map(self) -> memoryview: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files by name."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> DiskFile: ...

    def lock(self, path: Path) -> DiskFile | None:
        """Acquires the lock that RocketMQ uses (the first byte of the file, created if missing).

        None if another program has it, or this one. Closing the file releases it.
        """
        ...

    def is_locked(self, path: Path) -> bool:
        """Whether a program has that lock; nothing is changed."""
        ...

    def exists(self, path: Path) -> bool: ...

    def names(self, path: Path) -> list[str]:
        """Sorted names in a directory, none if it is missing."""
        ...

    def sizes(self, path: Path) -> dict[str, int]:
        """Names in a directory with their sizes in bytes, none if it is missing."""
        ...

    def is_directory(self, path: Path) -> bool: ...

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """With its parents; `durable` syncs every new name."""
        ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Removes an empty directory."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def sync_file_system(self, path: Path) -> bool:
        """Does what `DiskFile.sync` and `sync_directory` do for all files of a file system at once.

        False if the system cannot do that; then nothing was done.
        """
        ...

    def size_bytes(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int: ...

    def used_ratio(self, path: Path) -> float:
        """How full the file system of `path` is, from 0 to 1, for a user without privileges."""
        ...

    def free_bytes(self, path: Path) -> int:
        """What a user without privileges can still write to the file system of `path`."""
        ...

    def prefault(self, view: memoryview, start: int, stop: int) -> None:
        """Makes the pages of a mapped range ready for writing, so that the writer does not wait."""
        ...

    def is_cached(self, view: memoryview, start: int, stop: int) -> bool:
        """Whether all pages of a mapped range are in memory; True if that is unknown."""
        ...

    def release(self, view: memoryview, start: int, stop: int) -> None:
        """Releases the resident pages of a mapped range; nothing is lost.

        They stay in the page cache, and are mapped again when touched.
        """
        ...

    def read_ahead(
        self, view: memoryview, *, enabled: bool, start: int = 0, stop: int | None = None
    ) -> None:
        """Whether the operating system reads ahead when mapped pages of a range are read."""
        ...


# -- errors ---------------------------------------------------------------------------------------


_TRANSIENT = frozenset((
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR,
    errno.ENAMETOOLONG,
))  # fmt: skip


def is_transient(error: BaseException) -> bool:
    """Whether a call failed for lack of descriptors or memory, or only because of its file name.

    No written data is lost, so the call is retried and the store stays writable. A failed sync does
    not raise such an error: it needs neither a descriptor nor a mapping.
    """
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def explained(error: OSError, doing: str) -> StoreError:
    """The error with advice for the operator. `doing` completes "could not ..."."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(
            f"could not {doing}: too many files and connections are open{where}; try again, or "
            "raise the limit of open files (ulimit -n)"
        )
    if error.errno == errno.ENOMEM:
        return StoreError(
            f"could not {doing}: no memory, or too many mapped files{where}; try again, or raise "
            "vm.max_map_count"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"could not {doing}: no space left on the disk{where}; free some, or lower "
            "fileReservedTime"
        )
    if error.errno == errno.EROFS:
        return StoreReadOnly(f"could not {doing}: the file system is read-only{where}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return StoreReadOnly(
            f"could not {doing}: permission denied{where}; the user of this process must own the "
            "store directory"
        )
    if error.errno == errno.EIO:
        return StoreBroken(f"could not {doing}: the disk reports an input/output error{where}")
    return StoreError(f"could not {doing}: {error.strerror or error}{where}")
