"""Makes log files before they are needed, and log pages ready before they are written.

Creating a file, giving it disk blocks and taking the first fault on each of its pages cost more
than everything else on the way of a message, so a thread does it ahead of the writer: the next file
as soon as the last one is in use, and blocks and pages for a window in front of the writer. A file
has its full length from the beginning and blocks only for that window, so the disk space of a log
follows its content. Without the thread (tools, tests) files and blocks are made when they are asked
for.
"""

import contextlib
import logging
import threading

from tianzhou.store.commit_log import log_space_ahead, reserve_log_space
from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.segments import Segments

log = logging.getLogger(__name__)

_NEVER = 2**63 - 1


class Preallocator:
    """The supply of a commit log."""

    def __init__(self, disk: Disk, segments: Segments, window_bytes: int) -> None:
        self._disk = disk
        self._segments = segments
        self._window_bytes = window_bytes
        self._change = threading.Condition()
        self._wanted: int | None = None
        self._making: int | None = None
        self._ready: MappedFile | None = None
        self._warm: tuple[MappedFile, int] | None = None
        self._warmed: tuple[int, int] = (-1, 0)
        """First byte of the file warmed last, and the position up to which it is warm."""
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-preallocation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and removes a file that was made but not used."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        ready, self._ready = self._ready, None
        if ready is not None:
            with contextlib.suppress(OSError):
                ready.remove()
                self._disk.sync_directory(self._segments.directory)

    def stop_warming(self) -> None:
        """Only make files and room from now on: the log is written in another way."""
        with self._change:
            self._window_bytes = 0

    # -- the writer's side ----------------------------------------------------------------------

    def take(self, first: int, reserve_bytes: int = 0) -> MappedFile:
        """The file that begins at `first`, mapped, with disk blocks for its first bytes.

        Waits if it is just being made. Raises OSError; a file that was made is kept for the next
        time.
        """
        with self._change:
            while self._making == first:
                self._change.wait()
            if self._wanted == first:
                # The thread did not come to it. Made again later it would pass for a spare file.
                self._wanted = None
            ready, self._ready = self._ready, None
        if ready is None or ready.first != first:
            ready = self._make(first)
        try:
            ready.view()
            reserve_log_space(ready, 0, reserve_bytes)
        except OSError:
            self._ready = ready
            raise
        return ready

    def wrote(self, file: MappedFile, position: int) -> int:
        """Asks for the next file and the next window; answers where to ask again."""
        if self._thread is None:
            return _NEVER
        with self._change:
            self._wanted = file.stop
            self._warm = (file, position)
            self._change.notify_all()
        return position + log_space_ahead(position) // 4

    def _make(self, first: int) -> MappedFile:
        if not self._segments.files:
            self._segments.make_directory()
        file = self._segments.file_at(first)
        file.create(reserve_bytes=0)
        return file

    # -- the thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._change:
                while not (self._stopping or self._warm or self._must_make()):
                    self._change.wait()
                if self._stopping:
                    return
                warm, self._warm = self._warm, None
                making = None if warm else self._wanted
                self._making, self._wanted = making, self._wanted if warm else None
            if warm:
                self._warm_window(*warm)
            elif making is not None:
                self._make_ready(making)

    def _must_make(self) -> bool:
        return self._wanted is not None and (
            self._ready is None or self._ready.first != self._wanted
        )

    def _make_ready(self, first: int) -> None:
        made: MappedFile | None = None
        try:
            made = self._make(first)
            made.view()
        except OSError as e:
            # The writer tries again when it needs the file, and then the sender is told.
            log.warning("log file %d: could not be made ahead: %s", first, e)
        with self._change:
            self._ready, self._making = made, None
            self._change.notify_all()

    def _warm_window(self, file: MappedFile, position: int) -> None:
        start = position
        if self._warmed[0] == file.first:
            start = max(position, self._warmed[1])
        with contextlib.suppress(OSError):  # The writer finds out itself.
            # At the next call at least a quarter of the window has blocks.
            half = position + log_space_ahead(position) // 2
            reserve_log_space(file, position, min(half, file.size_bytes))
            # Pages without blocks must not be written, and none is warmed that has no blocks.
            stop = min(position + self._window_bytes, file.reserved_bytes)
            if start < stop:
                self._disk.prefault(file.view(), start, stop)
                self._warmed = (file.first, stop)
