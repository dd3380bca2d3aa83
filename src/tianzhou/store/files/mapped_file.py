"""One file of the store: a fixed size, a position in a sequence, and a mapping made on demand.

The name of a file is the position of its first byte in the sequence, in 20 digits. The mapping is a
memoryview; slices of it keep it alive, so `unmap` only drops our reference.

A file may begin *staged*: its bytes are in ordinary memory, and nothing is on disk. Creating a file
and the first page fault cost milliseconds, which the writer of a new queue does not wait for. One
thread writes to the stage and ends it with `end_staging`; another may `save` its content meanwhile.
"""

import contextlib
import errno
import os
import threading
from pathlib import Path

from tianzhou.store.files.disk import PAGE_BYTES, Disk, DiskFile

NAME_DIGITS = 20


def file_name(first: int) -> str:
    return f"{first:0{NAME_DIGITS}d}"


def parse_name(name: str) -> int | None:
    """The position in a file's name; None if it is not such a name."""
    return int(name) if len(name) == NAME_DIGITS and name.isdecimal() and name.isascii() else None


def _page_up(position: int) -> int:
    return -(-position // PAGE_BYTES) * PAGE_BYTES


class MappedFile:
    """Bytes `first` to `stop` of a sequence of files."""

    __slots__ = (
        "_directory", "_disk", "_read_ahead", "_removed", "_view", "_written", "first", "made",
        "new_name", "reserved_bytes", "size_bytes", "staged", "stop", "touched",
    )  # fmt: skip

    _making = threading.Lock()
    """Held while a staged file is created or removed, which two threads may do at a time."""
    _viewing = threading.Lock()
    """Held while a file is mapped, unmapped or staged."""

    def __init__(self, disk: Disk, directory: Path, first: int, size_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._view: memoryview | None = None
        self.first = first
        self.stop = first + size_bytes
        self.size_bytes = size_bytes
        self.staged = False
        """The bytes are in memory; the file, if there is one, has what was saved."""
        self.made = True
        """The file exists; False only while it is staged."""
        self.new_name = False
        """It was created, and its name is not durable yet."""
        self._removed = False
        self._read_ahead = True
        self._written: int | None = None
        """Position from which on nothing was written when `expect_writes` was called."""
        self.reserved_bytes = 0
        """Position up to which `ensure_space` has allocated disk blocks."""
        self.touched = True
        """Set on use, cleared by the limit of mappings."""

    @property
    def path(self) -> Path:
        return self._directory / file_name(self.first)

    @property
    def mapped(self) -> bool:
        return self._view is not None

    def create(self, *, durable: bool = True) -> None:
        """Creates the file with its full size and without disk blocks.

        If it fails the file is removed. With `durable` it survives a power cut.
        """
        handle = self._disk.open(self.path, create=True)
        try:
            handle.resize(self.size_bytes)
            if durable:
                handle.sync()
                self._disk.sync_directory(self.path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.remove(self.path)
            raise
        finally:
            handle.close()

    def view(self, *, writable: bool = True) -> memoryview:
        """The whole file. A slice stays valid as long as it is referenced."""
        view = self._view
        if view is None:
            with self._viewing:
                view = self._view
                if view is None:
                    with self.opened(writable=writable) as handle:
                        view = handle.map()
                    self._advise(view)
                    self._view = view
        self.touched = True
        return view

    def set_read_ahead(self, *, enabled: bool) -> None:
        """Whether the operating system reads ahead when the file is read."""
        with self._viewing:
            self._read_ahead = enabled
            if self._view is not None and not self.staged:
                self._disk.read_ahead(self._view, enabled=enabled)
                self._advise(self._view)

    def expect_writes(self, position: int) -> None:
        """Have the operating system read ahead before `position` only, not in what is reserved.

        Behind the last write there is nothing to read. With read-ahead a reader of what was just
        written, as the one that sends it to slaves, would fill megabytes of the page cache with
        zeros each time, which costs more than the rest of its work.
        """
        with self._viewing:
            self._written = position
            if self._view is not None and not self.staged:
                self._advise(self._view)

    def _advise(self, view: memoryview) -> None:
        """Say where to read ahead."""
        if not self._read_ahead:
            self._disk.read_ahead(view, enabled=False)
        elif self._written is not None:
            self._disk.read_ahead(view, enabled=True, stop=self._written)
            self._disk.read_ahead(
                view, enabled=False, start=self._written, stop=self.reserved_bytes
            )

    def unmap(self) -> None:
        with self._viewing:
            if not self.staged:
                self._view = None

    def release(self, start: int, stop: int) -> None:
        """Releases resident pages; they are read again when touched."""
        view = self._view
        if view is not None and not self.staged:
            self._disk.release(view, start, stop)

    def is_cached(self, start: int, stop: int) -> bool:
        """Whether a range can be read without waiting for the disk; True if that is unknown.

        Raises FileNotFoundError if the file was deleted.
        """
        return self.staged or self._disk.is_cached(self.view(), start, stop)

    def reserve(self, position: int, count: int) -> None:
        """Allocates disk blocks for a range of the file."""
        with self.opened(writable=True) as handle:
            handle.reserve(position, count)

    def ensure_space(self, used_bytes: int, stop: int, *, more: int) -> None:
        """Allocates disk blocks from `used_bytes` up to `stop`. Raises OSError.

        Allocates `more` bytes in addition, if the disk has space for them.
        """
        if stop <= self.reserved_bytes:
            return
        start = max(self.reserved_bytes, used_bytes)
        needed = min(_page_up(stop), self.size_bytes)
        wanted = min(_page_up(stop + more), self.size_bytes)
        with self.opened(writable=True) as handle:
            try:
                handle.reserve(start, wanted - start)
            except OSError as e:
                if e.errno not in (errno.ENOSPC, errno.EDQUOT) or needed == wanted:
                    raise
                wanted = needed
                handle.reserve(start, wanted - start)
        self.reserved_bytes = max(self.reserved_bytes, wanted)

    def open(self) -> DiskFile:
        """Opens the file; the caller closes it."""
        return self._disk.open(self.path)

    def opened(self, *, writable: bool = False) -> "contextlib.closing[DiskFile]":
        """The file for calls that need no mapping."""
        return contextlib.closing(self._disk.open(self.path, writable=writable))

    def has_data(self, position: int) -> bool:
        """False only if everything from `position` on certainly reads as zero."""
        with self.opened() as handle:
            return handle.has_data(position)

    def cut(self, position: int, *, durable: bool = True) -> None:
        """Zeroes everything from `position` on; slices of the mapping read zeros then.

        The file never becomes shorter: touching a mapped page behind its end is fatal. Without
        `durable` the caller syncs the file.
        """
        if self.staged and self._view is not None and position < len(self._view):
            self._view[position:] = bytes(len(self._view) - position)
        if not self.made:
            return
        with self.opened(writable=True) as handle:
            self.reserved_bytes = 0
            handle.zero(position, self.size_bytes - position)
            if handle.size_bytes() < self.size_bytes:
                handle.resize(self.size_bytes)
            if durable:
                handle.sync()

    def sync(self) -> None:
        with self.opened(writable=True) as handle:
            handle.sync()

    def remove(self) -> None:
        """Removes the file; mapped memory stays readable while a slice is referenced."""
        with self._making:
            self._removed = True
            if self.made:
                self._disk.remove(self.path)
        self.unmap()

    # -- the stage ------------------------------------------------------------------------------

    def stage(self, size_bytes: int) -> None:
        """Begins or enlarges the stage, which then holds the first `size_bytes` of the file."""
        grown = bytearray(size_bytes)
        before = self._view if self.staged else None
        if before is None:
            self.made = False
        else:
            grown[: len(before)] = before
        self._view, self.staged = memoryview(grown), True

    def stage_again(self, used_bytes: int, size_bytes: int) -> bool:
        """Stages the start of an existing file; False if it is mapped."""
        with self.opened() as handle:
            content = handle.read(0, used_bytes)
        grown = bytearray(size_bytes)
        grown[:used_bytes] = content.ljust(used_bytes, b"\0")
        with self._viewing:
            if self._view is not None:
                return False
            self._view, self.staged = memoryview(grown), True
        return True

    def end_staging(self, used_bytes: int) -> None:
        """Writes the stage to the file and maps it. Raises OSError; then it stays staged."""
        staged = self._view
        assert self.staged
        assert staged is not None
        self._make()
        with self.opened(writable=True) as handle:
            handle.write(0, bytes(staged[:used_bytes]))
            view = handle.map()
        self._view, self.staged = view, False

    def drop_stage(self) -> None:
        """Frees the stage of a full file that was saved."""
        self.staged = False
        self._view = None

    def save(self, start: int, stop: int) -> None:
        """Writes a part of the stage to the file. Raises OSError."""
        view = self._view
        if not self.staged or view is None:
            return
        content = bytes(view[start:stop])
        self._make()
        with self.opened(writable=True) as handle:
            handle.write(start, content)

    def _make(self) -> None:
        with self._making:
            if self._removed:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
            if not self.made:
                self._disk.make_directory(self._directory, durable=False)
                self.create(durable=False)
                self.new_name = self.made = True
