"""Housekeeping of the store: flushes queues and index, writes the checkpoint, removes expired
files, checks the free disk space.

It runs in one thread and in callers of `checkpoint` and `expire`; a lock lets one of them work at a
time. It never blocks the writer: it reads the writer's state as one value.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import datetime

from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import StoreBroken, StoreError, StoreFull
from tianzhou.store import retention
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.files.checkpoint import Checkpoint, Derived, write_checkpoint
from tianzhou.store.files.disk import Disk, is_transient
from tianzhou.store.flush import LogFlush
from tianzhou.store.index import Index
from tianzhou.store.queues import QueueTable
from tianzhou.store.retention import FileAges

log = logging.getLogger(__name__)

Snapshot = tuple[int, int, int, int, int]
"""State of the writer: log offset up to which queues and index are derived, number of queues,
entries and index items, and the store time of the last message."""


class Housekeeping:
    """The periodic work of a store."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        clock: Clock,
        log_: CommitLog,
        queues: QueueTable,
        index: Index,
        flush: LogFlush,
        *,
        snapshot: Callable[[], Snapshot],
        steady: Clock = steady_ms,
    ) -> None:
        self._disk = disk
        self.config = config
        """Replaced by `MessageStore.apply_config`; retention follows it at once."""
        self._clock = clock
        self._file_ages = FileAges(clock, steady, self._last_alive_ms())
        self._log = log_
        self._queues = queues
        self._index = index
        self._flush = flush
        self._snapshot = snapshot
        self._working = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = Checkpoint()
        self.index_removed = 0
        """Items of removed index files; the writer's count still includes them."""
        self._postponed = False
        self.refusal: StoreError | None = None
        """The error that appends raise; None if the store accepts messages."""

    def begin(self, before: Checkpoint) -> None:
        """Writes the first checkpoint and checks the disk."""
        self._written = before
        self.checkpoint()
        self.check_disk()

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="store-housekeeping", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        config = self.config
        beat_ms = min(config.flush_interval_consume_queue, config.clean_resource_interval)
        next_flush = next_clean = 0
        next_thorough = config.flush_consume_queue_thorough_interval
        waited_ms = 0
        while not self._stopping.wait(beat_ms / 1000):
            waited_ms += beat_ms
            try:
                if waited_ms >= next_thorough:
                    self.checkpoint()
                    next_thorough = waited_ms + config.flush_consume_queue_thorough_interval
                elif waited_ms >= next_flush:
                    self._flush_queues(config.flush_consume_queue_least_pages)
                    next_flush = waited_ms + config.flush_interval_consume_queue
                if waited_ms >= next_clean:
                    self.expire()
                    with self._working:
                        self._queues.release_unused()
                        self._index.release()
                    next_clean = waited_ms + config.clean_resource_interval
            except StoreFull as e:
                # Only repeatable writes raise this; the next check of the disk decides.
                log.warning("store: %s; messages are refused", e)
                self.refusal = e
            except (OSError, StoreError) as e:
                if not self._is_transient(e):
                    self._broken(e)
                    return
            else:
                self._postponed = False

    def _is_transient(self, error: Exception) -> bool:
        """Whether the work can be repeated later; all its data can be derived from the log."""
        if not is_transient(error) and error is not self._flush.postponed:
            return False
        if not self._postponed:
            log.warning("store: housekeeping failed and will be retried: %s", error)
        self._postponed = True
        return True

    def _broken(self, error: Exception) -> None:
        self.refusal = StoreBroken(
            f"housekeeping of the store failed ({error}); no more messages are accepted until the "
            "store is opened again"
        )
        log.error("store: housekeeping failed, no more messages are accepted: %s", error)

    def paused(self) -> contextlib.AbstractContextManager[bool]:
        """While this is entered, the thread does nothing; the caller may call `checkpoint`."""
        return self._working

    # -- flushing -------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Flushes everything and writes the checkpoint. Raises OSError, StoreError."""
        with self._working:
            log_offset, queue_count, entry_count, index_count, time_ms = self._snapshot()
            self._flush_queues(0)
            self._disk.sync_directory(self.config.queue_directory)
            self._index.flush()
            self._flush.flush()
            index_count -= self.index_removed
            derived = Derived(log_offset, queue_count, entry_count, index_count)
            checkpoint = Checkpoint(time_ms, time_ms, time_ms, derived)
            if checkpoint != self._written:
                path = self.config.root_directory / "checkpoint"
                write_checkpoint(self._disk, path, checkpoint)
                self._written = checkpoint

    def checkpoint_again(self) -> None:
        """The same, whatever the file holds now."""
        with self._working:
            self._written = Checkpoint()
            self.checkpoint()

    def _flush_queues(self, least_pages: int) -> None:
        with self._working:
            least_pages = max(least_pages, 1)
            waiting = [q for q in self._queues.all() if q.waiting_pages() >= least_pages]
            if waiting:
                self._queues.flush(waiting)

    # -- old files ------------------------------------------------------------------------------

    def check_disk(self) -> float:
        """The used ratio of the disk; refuses appends while the disk is too full."""
        used = self._disk.used_ratio(self.config.log_directory)
        verdict = retention.judge(self.config, used, -1)
        if verdict.refuse_writes and self.refusal is None:
            log.warning("store: the disk is %.0f %% full, messages are refused", used * 100)
            self.refusal = StoreFull(
                f"the disk of {self.config.log_directory} is {used:.0%} full, from "
                f"{self.config.disk_space_warning_level_ratio}% on nothing is written; free some "
                "space or lower fileReservedTime"
            )
        elif not verdict.refuse_writes and isinstance(self.refusal, StoreFull):
            log.info("store: the disk is %.0f %% full, messages are accepted again", used * 100)
            self.refusal = None
        return used

    def expire(self, *, manual: bool = False) -> int:
        """Removes expired files; returns the number of log files removed."""
        with self._working:
            used = self.check_disk()
            now_ms = self._clock()
            hour = datetime.fromtimestamp(now_ms // 1000).hour  # noqa: DTZ006 - local by meaning
            verdict = retention.judge(self.config, used, hour, manual=manual)
            files = self._log.segments.files
            modified = [self._modified_ms(file.first) for file in files]
            # A manual request uses the wall clock; otherwise a changed clock deletes nothing.
            modified = [now_ms - age for age in self._file_ages.ages_ms(modified, by_wall=manual)]
            count = retention.expired_count(modified, now_ms, self.config, verdict)
            if count:
                self._remove(count)
            if verdict.delete_young:
                count += self._remove_young(retention.removable_count(len(modified)) - count)
            if count:
                self.check_disk()
            return count

    def _remove_young(self, count_max: int) -> int:
        """Removes files, oldest first, until the disk is no longer too full; returns how many."""
        count = 0
        while count < count_max:
            used = self._disk.used_ratio(self.config.log_directory)
            if not retention.judge(self.config, used, -1).delete_young:
                break
            log.warning(
                "store: the disk is %.0f %% full, so a log file is deleted whatever its age "
                "(cleanFileForciblyEnable); free some space or lower fileReservedTime",
                used * 100,
            )
            self._remove(1)
            count += 1
        return count

    def _last_alive_ms(self) -> int | None:
        """The time of the last checkpoint; None for a new store."""
        path = self.config.root_directory / "checkpoint"
        return self._disk.modified_ms(path) if self._disk.exists(path) else None

    def _modified_ms(self, first: int) -> int:
        file = self._log.segments.find(first)
        return self._disk.modified_ms(file.path) if file else 0

    def _remove(self, count: int) -> None:
        self._log.segments.remove_first(count)
        first = self._log.first
        log.info("store: %d log files expired, the log begins at %d", count, first)
        for queue in self._queues.all():
            with contextlib.suppress(FileNotFoundError):  # Deleted with its topic meanwhile.
                queue.expire(first)
        self.index_removed += self._index.expire(first)
        # The next start must not expect the removed files.
        self.checkpoint()
