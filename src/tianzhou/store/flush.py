"""Flushes the log: group commit for waiting sends, a fixed interval otherwise.

One thread flushes. Callers register a callback for a log offset; all that are registered while one
fdatasync runs share the next one. Callbacks run in the flush thread, in the order of registration,
and must not block.

A flush that cannot start because descriptors or memory are short is retried. But after a failed
sync the pages may be lost although a second sync would succeed. So the first failure is final:
`failure` is set, all callbacks get it, and nothing is reported as flushed until the store is opened
again and has recovered.

With a staging pool a second thread commits: it moves staged records to the files, which makes them
readable. Every flush commits first.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from time import monotonic

from tianzhou.errors import StoreBroken, StoreClosed, StoreError
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.files.disk import PAGE_BYTES, Disk, DiskFile, explained, is_transient
from tianzhou.store.files.mapped_file import MappedFile

log = logging.getLogger(__name__)

_RELEASE_INTERVAL_S = 1.0
_POSTPONED_S = 0.1

FlushCallback = Callable[[StoreError | None], None]
"""Called once: with None when the log is on disk up to the offset, or with the error."""


class LogFlush:
    """The flushed log offset, and the threads that advance it."""

    def __init__(
        self,
        disk: Disk,
        log_: CommitLog,
        config: StoreConfig,
        on_commit: Callable[[int], None] = lambda log_offset: None,
    ) -> None:
        self._disk = disk
        self._log = log_
        self._config = config
        self._sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._change = threading.Condition()
        self._flushing = threading.Lock()
        """Held during a sync, by the flush thread or the thread that writes the checkpoint."""
        self._waiters: list[tuple[int, FlushCallback]] = []
        self._handles: dict[int, DiskFile] = {}
        self._thread: threading.Thread | None = None
        self._committer: threading.Thread | None = None
        self._on_commit = on_commit
        """Called after each commit, in order, by the committing thread."""
        self._committing = threading.Lock()
        self._stop_committing = threading.Event()
        self._stopping = False
        self.flushed = log_.written
        """Log offset up to which everything is on disk."""
        self.flushed_time_ms = 0
        """Store time of the newest message known to be on disk."""
        self.syncing_since_s: float | None = None
        """Since when (monotonic) a sync runs; None while none does."""
        self.failure: StoreError | None = None
        self.postponed: StoreError | None = None
        """Why the last flush could not start; the next one retries."""

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-flush", daemon=True)
        self._thread.start()
        if self._config.is_staged:
            self._stop_committing.clear()
            self._committer = threading.Thread(
                target=self._run_commits, name="store-commit", daemon=True
            )
            self._committer.start()

    def stop(self) -> None:
        """Ends the threads; pending callbacks get StoreClosed."""
        self._stop_committing.set()
        if self._committer is not None:
            self._committer.join()
            self._committer = None
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._notify(self._waiters, StoreClosed("the store was closed"))
        self._waiters = []
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None:
        """Calls `callback` once the log is on disk up to `log_offset`, at once if it is."""
        with self._change:
            waits = self.failure is None and self.flushed < log_offset and not self._stopping
            if waits:
                self._waiters.append((log_offset, callback))
                self._change.notify_all()
        if not waits:
            callback(self.failure or (None if self.flushed >= log_offset else _closed()))
        elif self._thread is None:
            # Tools and tests run without the thread; the caller flushes.
            with self._flushing:
                self._flush()
            if self.postponed is not None:
                self._waiters.remove((log_offset, callback))
                callback(self.postponed)

    def future(self, log_offset: int) -> Future[None]:
        """The same as a future."""
        future: Future[None] = Future()

        def on_flushed(reason: StoreError | None) -> None:
            if not future.set_running_or_notify_cancel():
                return  # cancelled
            if reason is None:
                future.set_result(None)
            else:
                future.set_exception(reason)

        self.when_flushed(log_offset, on_flushed)
        return future

    def flush(self) -> None:
        """Flushes everything written so far. Raises StoreError."""
        with self._flushing:
            self._flush()
        reason = self.failure or self.postponed
        if reason is not None:
            raise reason

    def restart_at(self, log_offset: int) -> None:
        """The log has no records any more, and begins at another log offset."""
        with self._flushing:
            self._end_at(log_offset)

    @contextlib.contextmanager
    def truncating(self, log_offset: int) -> Generator[None]:
        """While this is entered, nothing is committed or flushed, and the caller cuts the log."""
        with self._flushing:
            with self._committing:
                yield
            self._end_at(log_offset)
            with self._change:
                waiters, self._waiters = self._waiters, []
        self._notify(waiters, StoreError(f"the log was truncated to {log_offset}"))

    def _end_at(self, log_offset: int) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()
        self.flushed = log_offset

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        beat_s = self._config.flush_interval_commit_log / 1000
        thorough_s = self._config.flush_commit_log_thorough_interval / 1000
        last_s = monotonic()
        released_s = last_s
        while not self._stopping and self.failure is None:
            with self._change:
                if self.postponed is not None and not self._stopping:
                    self._change.wait(_POSTPONED_S)
                elif not self._waiters and not self._stopping:
                    self._change.wait(beat_s)
            if monotonic() - released_s >= _RELEASE_INTERVAL_S:
                self._log.release_resident(self._config.resident_log_bytes)
                released_s = monotonic()
            if self._waiters or self._due(monotonic() - last_s >= thorough_s):
                with self._flushing:
                    self._flush()
                last_s = monotonic()

    def _run_commits(self) -> None:
        config, last_s = self._config, monotonic()
        while not self._stop_committing.wait(config.commit_interval_commit_log / 1000):
            waiting = self._log.written - self._log.readable
            thorough_s = config.commit_commit_log_thorough_interval / 1000
            thorough = monotonic() - last_s >= thorough_s
            if waiting and (
                thorough or waiting >= config.commit_commit_log_least_pages * PAGE_BYTES
            ):
                try:
                    self.commit()
                except OSError as e:
                    if is_transient(e):
                        self._postpone(e)
                        continue
                    with self._flushing:
                        self._fail(e)
                    return
                last_s = monotonic()

    def commit(self) -> int:
        """Makes staged records readable. Raises OSError."""
        with self._committing:
            before = self._log.readable
            committed = self._log.commit()
            if committed > before:
                self._on_commit(committed)
            return committed

    def _due(self, thorough: bool) -> bool:
        waiting = self._log.written - self.flushed
        pages = 0 if thorough or self._sync else self._config.flush_commit_log_least_pages
        return waiting > 0 and waiting >= pages * PAGE_BYTES

    def _flush(self) -> None:
        if self.failure is None:
            # The time is read before the position, so messages of that time are before it.
            time_ms = self._log.last_store_time_ms
            self._flush_to_disk(time_ms)
        with self._change:
            due = [waiter for waiter in self._waiters if self.failure or waiter[0] <= self.flushed]
            if due:
                self._waiters = [
                    waiter
                    for waiter in self._waiters
                    if not self.failure and waiter[0] > self.flushed
                ]
        self._notify(due, self.failure)

    def _flush_to_disk(self, time_ms: int) -> None:
        try:
            target = self.commit()
            files = self._open_files(target)
        except OSError as e:
            # No page was lost, unlike after a failed sync.
            if is_transient(e):
                self._postpone(e)
            else:
                self._fail(e)
            return
        try:
            self._sync_files(files, target)
        except OSError as e:
            self._fail(e)
            return
        self.flushed, self.flushed_time_ms = target, time_ms
        self.postponed = None

    def _open_files(self, target: int) -> list[tuple[MappedFile, DiskFile]]:
        """The files with unsynced data."""
        files: list[tuple[MappedFile, DiskFile]] = []
        for file in self._log.segments.files:
            if file.stop > self.flushed and file.first < target:
                handle = self._handles.get(file.first)
                if handle is None:
                    handle = self._handles[file.first] = self._disk.open(file.path)
                files.append((file, handle))
        return files

    def _sync_files(self, files: list[tuple[MappedFile, DiskFile]], target: int) -> None:
        for file, handle in files:
            self.syncing_since_s = monotonic()
            try:
                handle.sync()
            finally:
                self.syncing_since_s = None
            if file.stop <= target:
                del self._handles[file.first]
                handle.close()
                # A full file is rarely read; it is mapped again when needed.
                file.unmap()

    def _postpone(self, error: OSError) -> None:
        if self.postponed is None:
            log.warning("log: flush at %d failed and will be retried: %s", self.flushed, error)
        self.postponed = explained(error, "flush the log")

    def _fail(self, error: OSError) -> None:
        self.failure = StoreBroken(
            f"the log could not be put on the disk ({error.strerror or error}); messages after "
            f"log offset {self.flushed} are not safe, nothing more is accepted, and the store "
            "must be opened anew once the disk is sound"
        )
        log.error("log: flush failed at %d: %s", self.flushed, error)

    def _notify(self, waiters: list[tuple[int, FlushCallback]], reason: StoreError | None) -> None:
        for _, callback in waiters:
            try:
                callback(reason)
            except Exception:
                log.exception("log: a callback of the flush failed")


def _closed() -> StoreClosed:
    return StoreClosed("the store was closed")
