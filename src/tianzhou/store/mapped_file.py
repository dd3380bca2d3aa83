"""One file of the store: a fixed size, a place in a sequence, and a mapping made when it is needed.

The name of a file is the position of its first byte in the sequence, in 20 digits. The mapping is a
plain memoryview; slices of it keep it alive, so `unmap` only lets go of our own hold.
"""

import contextlib
from collections.abc import Generator
from pathlib import Path

from tianzhou.store.disk import Disk, DiskFile

NAME_DIGITS = 20


def file_name(first: int) -> str:
    return f"{first:0{NAME_DIGITS}d}"


def parse_name(name: str) -> int | None:
    """The position in a file's name; None if it is not such a name."""
    return int(name) if len(name) == NAME_DIGITS and name.isdecimal() and name.isascii() else None


class MappedFile:
    """Bytes `first` to `stop` of a sequence of files."""

    __slots__ = ("_disk", "_view", "first", "path", "size_bytes", "stop", "touched")

    def __init__(self, disk: Disk, directory: Path, first: int, size_bytes: int) -> None:
        self._disk = disk
        self._view: memoryview | None = None
        self.first = first
        self.stop = first + size_bytes
        self.size_bytes = size_bytes
        self.path = directory / file_name(first)
        self.touched = True
        """Set on use, cleared by whoever limits the number of mappings."""

    @property
    def mapped(self) -> bool:
        return self._view is not None

    def create(self, *, reserve_bytes: int | None = None, durable: bool = True) -> None:
        """Makes the file, whole at once; `reserve_bytes` (all, unless said) get disk blocks.

        If it fails nothing is left behind. `durable` makes sure that it survives a power cut.
        """
        reserve_bytes = self.size_bytes if reserve_bytes is None else reserve_bytes
        handle = self._disk.open(self.path, create=True)
        try:
            handle.resize(self.size_bytes)
            if reserve_bytes:
                handle.reserve(0, reserve_bytes)
            if durable:
                handle.sync()
        except OSError:
            handle.close()
            with contextlib.suppress(OSError):
                self._disk.remove(self.path)
            raise
        handle.close()
        if durable:
            self._disk.sync_directory(self.path.parent)

    def view(self, *, writable: bool = True) -> memoryview:
        """The whole file. Whoever slices it may keep the slice as long as needed."""
        view = self._view
        if view is None:
            with self.opened(writable=writable) as handle:
                view = self._view = handle.map()
        self.touched = True
        return view

    def unmap(self) -> None:
        self._view = None

    def reserve(self, position: int, count: int) -> None:
        """Gives disk blocks to a range of the file."""
        with self.opened(writable=True) as handle:
            handle.reserve(position, count)

    @contextlib.contextmanager
    def opened(self, *, writable: bool = False) -> Generator[DiskFile]:
        """The file for calls that need no mapping."""
        handle = self._disk.open(self.path, writable=writable)
        try:
            yield handle
        finally:
            handle.close()

    def has_data(self, position: int) -> bool:
        """False only if everything from `position` on certainly reads as zero."""
        with self.opened() as handle:
            return handle.has_data(position)

    def cut(self, position: int, *, reserve: bool) -> None:
        """Makes everything from `position` on zero, durably. No slice of the mapping may be left.

        The file is short for a moment; a start after a power cut in that moment extends it again.
        """
        self.unmap()
        with self.opened(writable=True) as handle:
            handle.resize(position)
            handle.resize(self.size_bytes)
            if reserve:
                handle.reserve(0, self.size_bytes)
            handle.sync()

    def sync(self) -> None:
        with self.opened(writable=True) as handle:
            handle.sync()

    def remove(self) -> None:
        """Takes the name away; mapped memory stays readable while a slice is left."""
        self._disk.remove(self.path)
        self.unmap()
