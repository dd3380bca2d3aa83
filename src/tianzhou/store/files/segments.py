"""A sequence of files of one size, which form one growing range of bytes.

The tuple of files is replaced as a whole, never changed, so readers in other threads need no lock.
"""

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapped_file import MappedFile, parse_name


@dataclass(slots=True)
class FoundFiles:
    """The unchecked content of a directory."""

    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """Bytes of each file, by its first position."""
    unknown_names: list[str] = field(default_factory=list[str])
    """Names that are not positions."""

    def gap(self, size_bytes: int) -> int | None:
        """The first position that is missing between the files; None if there is none."""
        positions = sorted(self.sizes)
        for one, following in pairwise(positions):
            if following != one + size_bytes:
                return one + size_bytes
        return None


def list_files(disk: Disk, directory: Path) -> FoundFiles:
    """Lists the files of a directory."""
    found = FoundFiles()
    for name, size_bytes in disk.sizes(directory).items():
        first = parse_name(name)
        if first is None:
            found.unknown_names.append(name)
        else:
            found.sizes[first] = size_bytes
    return found


class Segments:
    """An ordered sequence of files without gaps."""

    __slots__ = ("_disk", "_read_ahead", "directory", "files", "size_bytes")

    _changing = threading.Lock()
    """Held while a tuple is replaced: the writer adds at one end, retention removes at the
    other."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self._disk = disk
        self.directory = directory
        self.size_bytes = size_bytes
        self.files: tuple[MappedFile, ...] = ()
        self._read_ahead = True

    def load(self, firsts: list[int]) -> None:
        """Uses existing files, whose sizes were checked."""
        self.files = tuple(self.file_at(first) for first in sorted(firsts))

    def file_at(self, first: int) -> MappedFile:
        """A file of this sequence, existing or not."""
        file = MappedFile(self._disk, self.directory, first, self.size_bytes)
        if not self._read_ahead:
            file.set_read_ahead(enabled=False)
        return file

    def set_read_ahead(self, *, enabled: bool) -> None:
        """Whether the operating system reads ahead in these files and those that follow."""
        self._read_ahead = enabled
        for file in self.files:
            file.set_read_ahead(enabled=enabled)

    def add(self, file: MappedFile) -> None:
        """Adds a file that was created, at the end."""
        with self._changing:
            assert not self.files or self.files[-1].stop == file.first
            self.files = (*self.files, file)

    def find(self, position: int) -> MappedFile | None:
        """The file with a position."""
        files = self.files
        if not files:
            return None
        index = (position - files[0].first) // self.size_bytes
        return files[index] if 0 <= index < len(files) else None

    def remove_first(self, count: int) -> None:
        """Removes the oldest files."""
        with self._changing:
            removed, self.files = self.files[:count], self.files[count:]
        self._remove(removed)

    def remove_from(self, position: int) -> None:
        """Removes the files that begin at or after a position, newest first."""
        with self._changing:
            removed = tuple(file for file in self.files if file.first >= position)
            self.files = self.files[: len(self.files) - len(removed)]
        self._remove(tuple(reversed(removed)))

    def _remove(self, files: tuple[MappedFile, ...]) -> None:
        made = any(file.made for file in files)
        for file in files:
            file.remove()
        if made:
            self._disk.sync_directory(self.directory)

    def make_directory(self, *, durable: bool = True) -> None:
        self._disk.make_directory(self.directory, durable=durable)

    def remove_directory(self) -> None:
        """Removes the directory if it is empty."""
        if self._disk.is_directory(self.directory) and not self._disk.names(self.directory):
            self._disk.remove_directory(self.directory)
            self._disk.sync_directory(self.directory.parent)
