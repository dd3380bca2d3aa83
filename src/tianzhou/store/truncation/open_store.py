"""Truncates the log of an open store; the steps are in `cutting.py`."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from tianzhou.errors import StoreBroken, StoreError, StoreFull
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.files.disk import explained
from tianzhou.store.flush import LogFlush
from tianzhou.store.housekeeping import Housekeeping
from tianzhou.store.preallocation import Preallocator
from tianzhou.store.recovery_plan import StoreFiles
from tianzhou.store.truncation import cutting, record, tail
from tianzhou.store.truncation.record import Truncation, describe

log = logging.getLogger(__name__)

_IS_TRUNCATED = StoreError(
    "the log was truncated, and the tables of the broker are not adapted yet; the next start of "
    "the broker does that"
)


class LogTruncation:
    """The truncation of one open store, by its writer's thread."""

    def __init__(
        self,
        files: StoreFiles,
        log_: CommitLog,
        flush: LogFlush,
        housekeeping: Housekeeping,
        preallocator: Preallocator,
        prepare: Callable[[], None],
        flush_all: Callable[[], None],
        done: Callable[[int], None],
    ) -> None:
        """`prepare` is called first; `done` with the new end when everything is cut."""
        self._files = files
        self._log = log_
        self._flush = flush
        self._housekeeping = housekeeping
        self._preallocator = preallocator
        self._prepare = prepare
        self._flush_all = flush_all
        self._done = done
        self.pending: Truncation | None = None
        """A truncation of which only the last step is missing: `finish`."""

    def begin(self, pending: Truncation | None) -> None:
        """Sets the truncation that the start has completed. Nothing is appended until `finish`."""
        self.pending = pending
        if pending is not None:
            self._housekeeping.refusal = _IS_TRUNCATED

    def run(self, wanted: Truncation, *, confirm: int) -> None:
        """Cuts the log at a record, durably, and all that is derived from it.

        `confirm` is the largest confirm offset that this replica has seen. Until `finish` nothing
        can be appended. A flush of the store before, in another thread, makes this call short.
        Raises TruncationRefused, or StoreError; if it is StoreBroken the next start completes the
        truncation, else nothing was changed.
        """
        self._prepare()
        refusal = self._flush.failure or self._housekeeping.refusal
        if refusal is not None and not isinstance(refusal, StoreFull):
            raise refusal
        if wanted.to is not None:
            cutting.check(self._log, wanted.to, confirm)
        self._flush_all()
        self._run(wanted)

    def _run(self, wanted: Truncation) -> None:
        root, to = self._files.config.root_directory, wanted.to or 0
        try:
            record.write_record(self._files.disk, root, wanted)
        except OSError as e:
            with contextlib.suppress(OSError):
                record.remove_record(self._files.disk, root)
            raise explained(e, "write the record of a truncation") from e
        log.warning("store %s: %s, it ended at %d", root, describe(wanted), self._log.written)
        try:
            with self._housekeeping.paused():
                with self._preallocator.paused(), self._flush.truncating(to):
                    # Readers see the end first.
                    self._log.start_at(to)
                    cutting.cut(self._files, wanted)
                    self._log.start_at(to)
                    self._log.last_store_time_ms = cutting.last_store_time_ms(self._files)
                    self._flush.flushed_time_ms = self._log.last_store_time_ms
                    self._done(to)
                # The log asks the preallocator for its next file.
                self._log.start_at(to)
                self._housekeeping.checkpoint_again()
        except (OSError, StoreError) as e:
            why = StoreBroken(f"{describe(wanted)} failed ({e}); the next start completes it")
            self._housekeeping.refusal = why
            raise why from e
        self.begin(wanted)

    def finish(self) -> None:
        """Ends a truncation, when the tables of the broker claim nothing beyond the log.

        Does nothing if there is none. Raises StoreError.
        """
        if self.pending is None:
            return
        try:
            cutting.drop_empty_queues(self._files)
            record.remove_record(self._files.disk, self._files.config.root_directory)
        except OSError as e:
            raise explained(e, "end a truncation") from e
        self.pending = None
        if self._housekeeping.refusal is _IS_TRUNCATED:
            self._housekeeping.refusal = None

    def save_tail(self, log_offset: int, epoch: int) -> Path | None:
        """Copies the log from a log offset on to a side file; see `tail`. Raises StoreError.

        In another thread than the writer's it does not block it; nothing may be appended meanwhile.
        """
        root = self._files.config.root_directory
        return tail.save_tail(self._log, self._files.disk, root, log_offset, epoch=epoch)
