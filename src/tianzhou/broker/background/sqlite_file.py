"""Opens, checkpoints, truncates and removes an SQLite file that can be rebuilt."""

import contextlib
import sqlite3
from pathlib import Path


def connect(
    path: Path, schema: str, version: int, page_bytes: int | None = None
) -> sqlite3.Connection:
    """Open a file, or create it with a schema. Raises sqlite3.Error, also for another version."""
    connection = sqlite3.connect(path, isolation_level="DEFERRED")
    try:
        if page_bytes is not None:
            connection.execute(f"PRAGMA page_size = {page_bytes}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        if _version_of(connection, version) == 0:
            connection.executescript(schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _version_of(connection: sqlite3.Connection, expected: int) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, expected):
        raise sqlite3.DatabaseError(f"it has version {version}, not {expected}")
    return int(version)


def checkpoint(path: Path) -> None:
    """Move committed pages into the main file. Call it in a thread: it syncs the disk."""
    existing = f"{path.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(existing, uri=True)) as own:
        own.execute("PRAGMA wal_checkpoint(PASSIVE)")


def shorten_log(path: Path, connection: sqlite3.Connection, log_bytes_max: int) -> None:
    """Truncate the write-ahead log if it has grown long; quick right after a `checkpoint`.

    Under load there are always pages that a concurrent checkpoint has not seen, so SQLite would
    never truncate the log by itself.
    """
    log_path = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        if log_path.stat().st_size > log_bytes_max:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def remove(path: Path) -> None:
    """Delete a file, its write-ahead log and its shared memory."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
