"""The disk of this machine: files, mappings and locks of the operating system."""

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
from collections.abc import Callable, Generator
from pathlib import Path
from typing import ClassVar

from tianzhou.store.files.disk import PAGE_BYTES

_MADV_POPULATE_WRITE = 23
_DATA_READ_BYTES = 64 * 1024
_DATA_READS_MAX = 1024
_ZEROS = bytes(_DATA_READ_BYTES)
_PREFAULT_SLICE_BYTES = 256 * PAGE_BYTES

_RELEASE_SLICE_BYTES = 1024 * PAGE_BYTES


def _system_call(name: str, *arguments: type) -> Callable[..., int] | None:
    """A function of the C library that Python does not have; None if the system has none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None) if _IS_LINUX else None
    if call is not None:
        call.argtypes, call.restype = arguments, ctypes.c_int
    return call


def _is_at_least(major: int, minor: int) -> bool:
    release = platform.release().split(".")
    return [int(part) for part in release[:2] if part.isdecimal()] >= [major, minor]


_IS_LINUX = sys.platform == "linux"
# Before Linux 5.8 syncfs did not report errors.
_syncfs = _system_call("syncfs", ctypes.c_int) if _is_at_least(5, 8) else None
# Unlike `mmap.madvise` this call releases the interpreter lock.
_madvise = _system_call("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mincore = _system_call("mincore", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_fallocate = _system_call(
    "fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong
)
_PUNCH_HOLE = 0x01 | 0x02
"""Of `fallocate`: keep the size of the file, and give back the blocks of the range."""
_FLOCK = struct.Struct("@hhqqi4x")
"""The C structure `flock` of Linux: type, whence, start, length, process."""
_ODD = bytes(range(1, 256, 2))
"""Results of `mincore` for a page in memory; the other bits have no meaning."""


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

    def zero(self, position: int, count: int) -> None:
        if count <= 0 or (_fallocate and not _fallocate(self._fd, _PUNCH_HOLE, position, count)):
            return
        number = ctypes.get_errno()
        if _fallocate and number not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(number, os.strerror(number), str(self.path))
        self._write_zeros(position, position + count)

    def _write_zeros(self, position: int, stop: int) -> None:
        """Where there are other bytes: a sparse file stays sparse."""
        while position < stop:
            found = self.read(position, min(_DATA_READ_BYTES, stop - position))
            if not found:
                return
            if found != _ZEROS[: len(found)]:
                self.write(position, bytes(len(found)))
            position += len(found)

    def has_data(self, position: int) -> bool:
        # File systems call more "data" than was written (whole folios), so a little is read.
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
    def acquire(cls, path: Path) -> "LockedFile | None":
        key = path.resolve()
        with cls._holding:
            if key in cls._held:
                return None
            file = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), key)
            try:
                fcntl.lockf(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as e:
                RealFile.close(file)
                if e.errno in (errno.EACCES, errno.EAGAIN):
                    return None
                raise
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


@contextlib.contextmanager
def _directory(path: Path) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class RealDisk:
    """The file systems of this machine."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        return RealFile(path, os.open(path, flags, 0o644), writable=writable)

    def lock(self, path: Path) -> LockedFile | None:
        return LockedFile.acquire(path)

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

    def sync_directory(self, path: Path) -> None:
        with _directory(path) as fd:
            os.fsync(fd)

    def sync_file_system(self, path: Path) -> bool:
        if _syncfs is None:
            return False
        with _directory(path) as fd:
            if _syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
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

    def read_ahead(
        self, view: memoryview, *, enabled: bool, start: int = 0, stop: int | None = None
    ) -> None:
        area = view.obj
        assert isinstance(area, mmap.mmap)
        start = -(-start // PAGE_BYTES) * PAGE_BYTES
        count = (len(view) if stop is None else stop) - start
        if count > 0:
            area.madvise(mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM, start, count)
