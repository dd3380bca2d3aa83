"""The seam between the store and the disk: every file, directory, mapping and sync passes here.

`RealDisk` is the operating system. Tests put a simulated disk in its place, which forgets what
was not synced, tears pages, reorders writes and fails calls. What the seam promises, and the
store relies on:

- `DiskFile.map` gives a writable view of the whole file. The mapping lives until the last view (and
  the last slice of a view) is gone, so whoever reads a slice may keep it as long as needed.
- `DiskFile.sync` returns when everything written to that file before the call, mapped writes
  included, would survive a power cut; it raises if the disk could not promise that. A name
  (creation, removal, renaming) survives only after `Disk.sync_directory`.
- `DiskFile.reserve` gives disk blocks to a range, so that a mapped write there cannot find the disk
  full. A mapped write to a range without blocks on a full disk would end the process.
- All of them raise OSError; `explained` turns one into words and the right kind of `StoreError`.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from tianzhou.errors import StoreBroken, StoreError, StoreFull, StoreReadOnly

PAGE_BYTES = 4096

_MADV_POPULATE_WRITE = 23
_DATA_READ_BYTES = 64 * 1024
_DATA_READS_MAX = 1024
_ZEROS = bytes(_DATA_READ_BYTES)
_PREFAULT_SLICE_BYTES = 256 * PAGE_BYTES

_RELEASE_SLICE_BYTES = 1024 * PAGE_BYTES


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
        """Takes the lock that RocketMQ takes (the first byte of the file, made if it is missing).

        None if another program has it, or this one. Closing the file gives it back.
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

    def rename(self, source: Path, target: Path) -> None: ...

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
        """Whether no page of a mapped range must come from the disk; True if nobody can tell."""
        ...

    def release(self, view: memoryview, start: int, stop: int) -> None:
        """Takes the pages of a mapped range out of this process's memory; nothing is lost.

        Whoever touches them again finds them where the operating system keeps them.
        """
        ...

    def read_ahead(self, view: memoryview, *, enabled: bool) -> None:
        """Whether the operating system reads ahead when mapped pages are read."""
        ...


# -- the operating system ------------------------------------------------------------------------


def _find_syncfs() -> Callable[[int], int] | None:
    """Linux has it, and Python does not; before Linux 5.8 it kept errors to itself."""
    release = platform.release().split(".")
    if sys.platform != "linux" or [int(part) for part in release[:2] if part.isdecimal()] < [5, 8]:
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return None
    call.argtypes, call.restype = [ctypes.c_int], ctypes.c_int
    found: Callable[[int], int] = call
    return found


_syncfs = _find_syncfs()


def _find_madvise() -> Callable[[int, int, int], int] | None:
    """Python's own keeps the interpreter lock all the while, this one lets others work."""
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    call.restype = ctypes.c_int
    found: Callable[[int, int, int], int] = call
    return found


_madvise = _find_madvise()


def _find_mincore() -> Callable[[int, int, object], int] | None:
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).mincore
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    call.restype = ctypes.c_int
    found: Callable[[int, int, object], int] = call
    return found


_mincore = _find_mincore()
_FLOCK = struct.Struct("@hhqqi4x")
"""The C structure `flock` of Linux: type, whence, start, length, process."""
_ODD = bytes(range(1, 256, 2))
"""What `mincore` says of a page that is in memory; its other bits mean nothing."""


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd", "_writable", "path")

    def __init__(self, path: Path, fd: int, *, writable: bool) -> None:
        self.path = path
        self._fd = fd
        self._writable = writable

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, count: int) -> bytes:
        return os.pread(self._fd, count, position)

    def write(self, position: int, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._fd, rest, position)
            rest, position = rest[written:], position + written

    def reserve(self, position: int, count: int) -> None:
        os.posix_fallocate(self._fd, position, count)

    def resize(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def has_data(self, position: int) -> bool:
        # File systems call more "data" than was written (whole folios), so a little is looked at.
        for _ in range(_DATA_READS_MAX):
            try:
                position = os.lseek(self._fd, position, os.SEEK_DATA)
            except OSError as e:
                if e.errno == errno.ENXIO:
                    return False
                raise
            found = self.read(position, _DATA_READ_BYTES)
            if found != _ZEROS[: len(found)]:
                return True
            position += _DATA_READ_BYTES
        return True

    def map(self) -> memoryview:
        access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(self._fd, 0, access=access))

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def lock(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as e:
            if e.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class LockedFile(RealFile):
    """A file whose lock this process holds.

    Record locks belong to processes, and closing any descriptor of a file gives up the process's
    lock on it. So a file that is locked here must not even be opened here a second time.
    """

    __slots__ = ("_key",)

    _held: ClassVar[set[Path]] = set()
    _holding: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path, fd: int, key: Path) -> None:
        super().__init__(path, fd, writable=True)
        self._key = key

    @classmethod
    def take(cls, path: Path) -> "LockedFile | None":
        key = path.resolve()
        with cls._holding:
            if key in cls._held:
                return None
            file = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), key)
            try:
                free = file.lock()
            except OSError:
                RealFile.close(file)
                raise
            if not free:
                RealFile.close(file)
                return None
            cls._held.add(key)
            return file

    @classmethod
    def is_held(cls, path: Path) -> bool:
        """Whether this process or another holds the lock of a file."""
        with cls._holding:
            if path.resolve() in cls._held:
                return True
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                return _is_locked(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        with self._holding:
            super().close()
            self._held.discard(self._key)


def _is_locked(fd: int) -> bool:
    """Whether another process has the first byte of a file locked."""
    if sys.platform != "linux":
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError as e:
            if e.errno in (errno.EACCES, errno.EAGAIN):
                return True
            raise
        return False
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)


class RealDisk:
    """The file systems of this machine."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        return RealFile(path, os.open(path, flags, 0o644), writable=writable)

    def lock(self, path: Path) -> LockedFile | None:
        return LockedFile.take(path)

    def is_locked(self, path: Path) -> bool:
        return LockedFile.is_held(path)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not 20,000 paths
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, path: Path) -> dict[str, int]:
        try:
            with os.scandir(path) as entries:
                return {entry.name: entry.stat().st_size for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent, durable=durable)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
        if durable:
            self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, path: Path) -> bool:
        if _syncfs is None:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        finally:
            os.close(fd)
        return True

    def size_bytes(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def used_ratio(self, path: Path) -> float:
        figures = os.statvfs(path)
        used = figures.f_blocks - figures.f_bfree
        reachable = used + figures.f_bavail
        return used / reachable if reachable else 1.0

    def free_bytes(self, path: Path) -> int:
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def prefault(self, view: memoryview, start: int, stop: int) -> None:
        if _madvise is None:
            return
        start -= start % PAGE_BYTES
        stop = min(stop, len(view))
        if start >= stop:
            return
        # As long as it lives, the mapping does.
        first_byte = ctypes.c_char.from_buffer(view, start)
        address = ctypes.addressof(first_byte)
        for at in range(start, stop, _PREFAULT_SLICE_BYTES):
            count = min(_PREFAULT_SLICE_BYTES, len(view) - at)
            if _madvise(address + at - start, count, _MADV_POPULATE_WRITE):
                # Older kernels do not know this advice; the writer then takes the faults itself.
                return

    def is_cached(self, view: memoryview, start: int, stop: int) -> bool:
        start -= start % PAGE_BYTES
        stop = min(stop, len(view))
        if _mincore is None or view.readonly or start >= stop:
            return True
        first_byte = ctypes.c_char.from_buffer(view, start)  # keeps the mapping, as above
        found = (ctypes.c_ubyte * -(-(stop - start) // PAGE_BYTES))()
        if _mincore(ctypes.addressof(first_byte), stop - start, found):
            return True
        return not bytes(found).translate(None, _ODD)

    def release(self, view: memoryview, start: int, stop: int) -> None:
        area = view.obj
        assert isinstance(area, mmap.mmap)
        start = -(-start // PAGE_BYTES) * PAGE_BYTES
        stop -= stop % PAGE_BYTES
        for at in range(start, stop, _RELEASE_SLICE_BYTES):
            area.madvise(mmap.MADV_DONTNEED, at, min(_RELEASE_SLICE_BYTES, stop - at))

    def read_ahead(self, view: memoryview, *, enabled: bool) -> None:
        area = view.obj
        assert isinstance(area, mmap.mmap)
        area.madvise(mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM)


# -- errors ---------------------------------------------------------------------------------------


_PASSING = frozenset((
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR,
    errno.ENAMETOOLONG,
))  # fmt: skip


def is_passing(error: BaseException) -> bool:
    """Whether a call failed for want of something that comes back, or for its own name only.

    Nothing that was written is lost by it, so it is tried again and never ends the writing. A
    failed sync does not end like this: it needs neither a descriptor nor a mapping.
    """
    return isinstance(error, OSError) and error.errno in _PASSING


def explained(error: OSError, doing: str) -> StoreError:
    """The error in words that say what to do. `doing` completes "could not ..."."""
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
