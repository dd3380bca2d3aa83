"""An SQLite file that can be rebuilt: the base of the indexes of pops and of timed messages.

Commits are not synced. An unreadable file is replaced by an empty one.
"""

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from tianzhou.errors import StoreError

log = logging.getLogger(__name__)

_VERSION = 1


class SqliteIndex:
    """An open file; only `checkpoint` may be called from another thread."""

    name: ClassVar[str]
    """For logs and errors."""
    schema: ClassVar[str]
    log_bytes_max: ClassVar[int]
    """How long the write-ahead log may be."""
    page_bytes: ClassVar[int | None] = None
    on_loss: ClassVar[str]
    """What follows from an unreadable file, for the log."""

    def __init__(self, path: Path) -> None:
        """Raises sqlite3.Error, also for a file of another version."""
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level="DEFERRED")
        try:
            self._prepare()
            self._load()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        run = self._connection.execute
        if self.page_bytes is not None:
            run(f"PRAGMA page_size = {self.page_bytes}")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("PRAGMA wal_autocheckpoint = 0")
        (version,) = run("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"it has version {version}, not {_VERSION}")
        if version == 0:
            self._connection.executescript(f"{self.schema} PRAGMA user_version = {_VERSION};")

    def _load(self) -> None:
        """Read what is in memory, too. Raises sqlite3.Error, MsgspecError."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file; an unreadable one is replaced by an empty one. Raises StoreError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return cls(path)
            except (sqlite3.DatabaseError, msgspec.MsgspecError) as e:
                log.warning("%s %s: cannot be read (%s); %s", cls.name, path, e, cls.on_loss)
                remove(path)
                return cls(path)
        except (OSError, sqlite3.Error) as e:
            raise StoreError(f"the {cls.name} {path} cannot be opened: {e}") from e

    def checkpoint(self) -> None:
        """Move committed pages into the main file. Call it in a thread: it syncs the disk."""
        existing = f"{self._path.absolute().as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(existing, uri=True)) as own:
            own.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def shorten_log(self) -> None:
        """Truncate the write-ahead log if it has grown long; quick right after a `checkpoint`.

        Under load there are always pages that a concurrent checkpoint has not seen, so SQLite would
        never truncate the log by itself.
        """
        log_path = self._path.with_name(f"{self._path.name}-wal")
        with contextlib.suppress(FileNotFoundError):
            if log_path.stat().st_size > self.log_bytes_max:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._connection.close()


def remove(path: Path) -> None:
    """Delete a file, its write-ahead log and its shared memory."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
