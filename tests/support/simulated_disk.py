"""A disk in memory that loses unsynced data.

Each file has the content that programs see (the page cache) and the durable content.
`after_power_cut` returns the disk that the next start finds. Every unsynced page is randomly the
old one, the new one, or torn between sectors; pages of one file and of different files are
independent, so writes are durable in any order. Unsynced names are durable up to a random point of
the order in which they were created. `write_back` simulates the operating system writing some pages
on its own.

A failed sync is as Linux has it: the pages count as clean afterwards, so a later sync that
succeeds has not written them.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tianzhou.store.files.disk import PAGE_BYTES

SECTOR_BYTES = 512


@dataclass(eq=False)
class Inode:
    cache: bytearray = field(default_factory=bytearray)
    platter: bytes = b""
    lost: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Pages, by number, whose content was dropped by a failed sync."""
    modified_ms: int = 0
    locked: bool = False

    def dirty_pages(self) -> list[int]:
        """Numbers of the pages that a sync would have to write."""
        if bytes(self.cache) == self.platter:
            return []
        pages = range((max(len(self.cache), len(self.platter)) + PAGE_BYTES - 1) // PAGE_BYTES)
        cache, platter = memoryview(self.cache), memoryview(self.platter)
        return [
            page
            for page in pages
            if _page(cache, page) != _page(platter, page)
            and self.lost.get(page) != bytes(_page(cache, page))
        ]

    def write_pages(self, pages: list[int]) -> None:
        platter = bytearray(self.platter[: len(self.cache)].ljust(len(self.cache), b"\0"))
        for page in pages:
            platter[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = _page(
                memoryview(self.cache), page
            )
            self.lost.pop(page, None)
        self.platter = bytes(platter)


def _page(content: memoryview, page: int) -> memoryview:
    return content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]


class SimulatedFile:
    def __init__(self, disk: "SimulatedDisk", path: Path, inode: Inode, *, writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._inode = inode
        self._writable = writable
        self._locked = False

    def size_bytes(self) -> int:
        return len(self._inode.cache)

    def read(self, position: int, count: int) -> bytes:
        self._disk.called("read", self.path)
        return bytes(self._inode.cache[position : position + count])

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._disk.called("write", self.path)
        self._grow(position + len(data))
        self._inode.cache[position : position + len(data)] = data
        self._inode.modified_ms = self._disk.now_ms

    def reserve(self, position: int, count: int) -> None:
        self._disk.called("reserve", self.path)
        self._grow(position + count)

    def resize(self, size_bytes: int) -> None:
        self._disk.called("resize", self.path)
        del self._inode.cache[size_bytes:]
        self._grow(size_bytes)

    def _grow(self, size_bytes: int) -> None:
        missing = size_bytes - len(self._inode.cache)
        if missing > 0:
            self._inode.cache.extend(bytes(missing))

    def zero(self, position: int, count: int) -> None:
        self._disk.called("zero", self.path)
        stop = min(position + count, len(self._inode.cache))
        if stop > position:
            self._inode.cache[position:stop] = bytes(stop - position)

    def has_data(self, position: int) -> bool:
        return any(self._inode.cache[position:])

    def map(self) -> memoryview:
        self._disk.called("map", self.path)
        view = memoryview(self._inode.cache)
        return view if self._writable else view.toreadonly()

    def sync(self) -> None:
        dirty = self._inode.dirty_pages()
        try:
            self._disk.called("sync", self.path)
        except OSError:
            cache = memoryview(self._inode.cache)
            self._inode.lost.update({page: bytes(_page(cache, page)) for page in dirty})
            raise
        self._inode.write_pages(dirty)

    def lock(self) -> bool:
        if self._inode.locked:
            return False
        self._inode.locked = self._locked = True
        return True

    def close(self) -> None:
        if self._locked:
            self._inode.locked = self._locked = False


class SimulatedDisk:
    """Paths are absolute; only "/" exists at first."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.used = 0.1
        self.free = 1 << 40
        self.cached = True
        self.now_ms = 0
        self._names: dict[Path, Inode | None] = {Path("/"): None}  # None is a directory
        self._synced_names: dict[Path, Inode | None] = {Path("/"): None}
        self._pending: list[tuple[Path, Callable[[dict[Path, Inode | None]], None]]] = []
        self._failures: list[tuple[str, str, int]] = []

    # -- faults ---------------------------------------------------------------------------------

    def fail(self, call: str, error_number: int, path_part: str = "") -> None:
        """Makes the next `call` on a path with `path_part` in it fail; can be called repeatedly."""
        self._failures.append((call, path_part, error_number))

    def heal(self) -> None:
        self._failures.clear()

    def called(self, call: str, path: Path) -> None:
        self.calls[call] += 1
        for index, (name, part, number) in enumerate(self._failures):
            if name == call and part in str(path):
                del self._failures[index]
                raise OSError(number, os.strerror(number), str(path))

    def write_back(self, dice: random.Random) -> None:
        """The operating system writes some dirty pages without a sync."""
        for inode in self._inodes():
            inode.write_pages([page for page in inode.dirty_pages() if dice.random() < 0.3])

    def after_power_cut(self, dice: random.Random) -> "SimulatedDisk":
        after = SimulatedDisk()
        names = dict(self._synced_names)
        for _, change in self._pending[: dice.randint(0, len(self._pending))]:
            change(names)
        for path, inode in sorted(names.items()):
            if path.parent in after._names:
                after._names[path] = None if inode is None else _survivor(inode, dice)
        after._synced_names = dict(after._names)
        after.now_ms = self.now_ms
        after.used, after.free = self.used, self.free
        return after

    def after_kill(self) -> "SimulatedDisk":
        """The disk as a new process finds it when only the old process died."""
        after = SimulatedDisk()
        copies: dict[int, Inode] = {}
        for path, inode in self._names.items():
            if inode is not None and id(inode) not in copies:
                copies[id(inode)] = Inode(
                    cache=bytearray(inode.cache),
                    platter=inode.platter,
                    lost=dict(inode.lost),
                    modified_ms=inode.modified_ms,
                )
            after._names[path] = None if inode is None else copies[id(inode)]
        after._synced_names = {
            path: None if inode is None else copies.get(id(inode), inode)
            for path, inode in self._synced_names.items()
        }
        after.now_ms = self.now_ms
        after.used, after.free = self.used, self.free
        # Names created by the old process are still unsynced.
        for path in self._names.keys() - self._synced_names.keys():
            after._pending.append((path.parent, _setting(path, after._names[path])))
        for path in self._synced_names.keys() - self._names.keys():
            after._pending.append((path.parent, _dropping(path)))
        return after

    def damage(self, path: Path, content: bytes | None) -> None:
        """Another program replaced a file, or removed it."""
        if content is None:
            del self._names[path]
            self._synced_names.pop(path, None)
        else:
            self._file(path).cache = bytearray(content)
            self._file(path).platter = content

    def file_bytes(self, path: Path) -> bytes:
        return bytes(self._file(path).cache)

    def files(self) -> list[Path]:
        return sorted(path for path, inode in self._names.items() if inode is not None)

    # -- the seam -------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        self.called("open", path)
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.called("create", path)
            if self._names.get(path.parent, self) is not None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._change(path.parent, _setting(path, Inode(modified_ms=self.now_ms)))
        return SimulatedFile(self, path, self._file(path), writable=writable)

    def lock(self, path: Path) -> SimulatedFile | None:
        self.called("lock", path)
        file = self.open(path, create=True)
        return file if file.lock() else None

    def is_locked(self, path: Path) -> bool:
        inode = self._names.get(path)
        return inode is not None and inode.locked

    def exists(self, path: Path) -> bool:
        return path in self._names

    def names(self, path: Path) -> list[str]:
        return sorted(p.name for p in self._names if p.parent == path and p != path)

    def sizes(self, path: Path) -> dict[str, int]:
        return {
            name: len(inode.cache) if inode else 0
            for name in self.names(path)
            for inode in (self._names[path / name],)
        }

    def is_directory(self, path: Path) -> bool:
        return path in self._names and self._names[path] is None

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if path in self._names:
            return
        self.make_directory(path.parent, durable=durable)
        self.called("create", path)
        self._change(path.parent, _setting(path, None))
        if durable:
            self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        self.called("remove", path)
        self._file(path)
        self._change(path.parent, _dropping(path))

    def remove_directory(self, path: Path) -> None:
        self.called("remove", path)
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self._change(path.parent, _dropping(path))

    def sync_directory(self, path: Path) -> None:
        self.called("sync_directory", path)
        for _, change in [entry for entry in self._pending if entry[0] == path]:
            change(self._synced_names)
        self._pending = [entry for entry in self._pending if entry[0] != path]

    def sync_file_system(self, path: Path) -> bool:
        for file, inode in [*self._names.items()]:
            if inode is not None:
                SimulatedFile(self, file, inode, writable=True).sync()
        for directory in {directory for directory, _ in self._pending}:
            self.sync_directory(directory)
        return True

    def size_bytes(self, path: Path) -> int:
        return len(self._file(path).cache)

    def modified_ms(self, path: Path) -> int:
        return self._file(path).modified_ms

    def used_ratio(self, path: Path) -> float:
        self.called("used_ratio", path)
        return self.used

    def free_bytes(self, path: Path) -> int:
        return self.free

    def prefault(self, view: memoryview, start: int, stop: int) -> None:
        self.calls["prefault"] += 1

    def is_cached(self, view: memoryview, start: int, stop: int) -> bool:
        return self.cached

    def release(self, view: memoryview, start: int, stop: int) -> None:
        self.calls["release"] += 1

    def read_ahead(
        self, view: memoryview, *, enabled: bool, start: int = 0, stop: int | None = None
    ) -> None:
        self.calls["read_ahead"] += 1

    # -- inside ---------------------------------------------------------------------------------

    def _file(self, path: Path) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _inodes(self) -> list[Inode]:
        return [inode for inode in self._names.values() if inode is not None]

    def _change(self, directory: Path, change: Callable[[dict[Path, Inode | None]], None]) -> None:
        change(self._names)
        self._pending.append((directory, change))


def _setting(path: Path, inode: Inode | None) -> Callable[[dict[Path, Inode | None]], None]:
    def change(names: dict[Path, Inode | None]) -> None:
        names[path] = inode

    return change


def _dropping(path: Path) -> Callable[[dict[Path, Inode | None]], None]:
    def change(names: dict[Path, Inode | None]) -> None:
        names.pop(path, None)

    return change


def _survivor(inode: Inode, dice: random.Random) -> Inode:
    """The durable file after the power cut."""
    sizes = (len(inode.platter), len(inode.cache))
    content = bytearray(inode.platter[: max(sizes)].ljust(max(sizes), b"\0"))
    cache = memoryview(inode.cache)
    for page in inode.dirty_pages():
        fate = dice.random()
        if fate < 0.4:
            continue
        start = page * PAGE_BYTES
        new = _page(cache, page)
        if fate < 0.8:
            content[start : start + len(new)] = new
            continue
        for sector in range(0, len(new), SECTOR_BYTES):
            if dice.random() < 0.5:
                piece = new[sector : sector + SECTOR_BYTES]
                content[start + sector : start + sector + len(piece)] = piece
    del content[dice.choice(sizes) :]
    return Inode(cache=content, platter=bytes(content), modified_ms=inode.modified_ms)
