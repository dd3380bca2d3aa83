"""Creates log files and faults in their pages before the writer needs them.

Creating a file, allocating disk blocks and the first page fault on each page cost more than all
other work per message, so a thread does them ahead of the writer: the next file as soon as the last
one is in use, and blocks and pages for a window ahead of the writer's position. A file has its full
length from the start but blocks only for that window, so the disk usage of a log follows its
content. Without the thread (tools, tests) files and blocks are made on demand.
"""

import contextlib
import logging
import threading
from collections.abc import Generator

from tianzhou.store.commit_log import log_space_ahead, reserve_log_space
from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.segments import Segments

log = logging.getLogger(__name__)

_NEVER = 2**63 - 1


class Preallocator:
    """The file supply of a commit log."""

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
        """First byte of the file faulted in last, and the position up to which that is done."""
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-preallocation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and removes a file that was created but not used."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with contextlib.suppress(OSError):
            self.discard()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """While this is entered, the thread does not run, and no file waits to be used.

        Raises OSError.
        """
        self.discard()
        is_running = self._thread is not None
        self.stop()
        try:
            yield
        finally:
            self._warmed = (-1, 0)
            if is_running:
                self.start()

    def discard(self) -> None:
        """Removes a file that was created but not used. Raises OSError."""
        with self._change:
            self._wanted = self._warm = None
            while self._making is not None:
                self._change.wait()
            ready, self._ready = self._ready, None
        if ready is not None:
            ready.remove()
            self._disk.sync_directory(self._segments.directory)

    def stop_warming(self) -> None:
        """Stops page faults in advance, because the log is not written through mappings."""
        with self._change:
            self._window_bytes = 0

    # -- the writer's side ----------------------------------------------------------------------

    def next_file(self, first: int, reserve_bytes: int = 0) -> MappedFile:
        """The file that begins at `first`, mapped, with disk blocks for its first bytes.

        Waits if the thread is creating it. Raises OSError; a created file is reserved for the next
        call.
        """
        with self._change:
            while self._making == first:
                self._change.wait()
            if self._wanted == first:
                # The thread has not started it; created later it would count as the next file.
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
        """Requests the next file and window; returns the position at which to call again."""
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
        file.create()
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
            # The writer tries again when it needs the file, and then the append raises.
            log.warning("log file %d: could not be created in advance: %s", first, e)
        with self._change:
            self._ready, self._making = made, None
            self._change.notify_all()

    def _warm_window(self, file: MappedFile, position: int) -> None:
        start = position
        if self._warmed[0] == file.first:
            start = max(position, self._warmed[1])
        with contextlib.suppress(OSError):  # The writer gets the error itself.
            # At the next call at least a quarter of the window has blocks.
            half = position + log_space_ahead(position) // 2
            reserve_log_space(file, position, min(half, file.size_bytes))
            # Pages without blocks must not be touched.
            stop = min(position + self._window_bytes, file.reserved_bytes)
            if start < stop:
                self._disk.prefault(file.view(), start, stop)
                self._warmed = (file.first, stop)
