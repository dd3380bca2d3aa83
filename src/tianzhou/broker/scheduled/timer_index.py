"""The index of waiting messages on disk: which is due next, where it lies in the log.

One SQLite file, `timer/index.sqlite` of the store. It is derived: all of it can be made again from
the timer topic. Memory does not grow with the number of messages that wait.

    waiting   due_ms  queue_offset  log_offset  key_hash      ordered by time, then by place
    state     next_queue_offset     how far the timer topic is indexed
              log_end               the log ended at least here when the last change was made

Changes belong to one transaction until `commit`. Commits are not synced: after a power cut the file
may be older than the log, which the topic mends, or newer, which `log_end` tells.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tianzhou.broker.background import sqlite_file
from tianzhou.broker.scheduled.timer_rules import Recall, Waiting
from tianzhou.errors import StoreError

log = logging.getLogger(__name__)

_LOG_BYTES_MAX = 64 * 1024**2
_VERSION = 1
_PAGE_BYTES = 1024
"""Rows of random times land on random pages, and each page that changes is written whole."""
_SCHEMA = """
    CREATE TABLE waiting (
        due_ms INTEGER, queue_offset INTEGER, log_offset INTEGER, key_hash INTEGER,
        PRIMARY KEY (due_ms, queue_offset)
    ) WITHOUT ROWID;
    CREATE INDEX by_age ON waiting (queue_offset);
    CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
    INSERT INTO state VALUES ('next_queue_offset', 0), ('log_end', 0);
    PRAGMA user_version = 1;
"""
_RECALL_SLACK_MS = 1000
"""RocketMQ's recalls name a time that was rounded to its precision."""


class TimerIndex:
    """An open index; everything but `checkpoint` belongs to one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        state = dict(connection.execute("SELECT name, value FROM state").fetchall())
        self.next_queue_offset: int = state["next_queue_offset"]
        self.log_end: int = state["log_end"]
        (self.waiting_count,) = connection.execute("SELECT count(*) FROM waiting").fetchone()
        """How many messages wait; counted once, and kept from then on."""
        self._saved = (self.next_queue_offset, self.log_end)
        self._saved_count: int = self.waiting_count

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens it; what cannot be read is removed and an empty index begun. Raises StoreError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return cls(path, _connect(path))
            except sqlite3.DatabaseError as e:
                log.warning("timer index %s: cannot be read (%s), it is made again", path, e)
                sqlite_file.remove(path)
                return cls(path, _connect(path))
        except (OSError, sqlite3.Error) as e:
            raise StoreError(f"the timer index {path} cannot be opened: {e}") from e

    def clear(self, next_queue_offset: int) -> None:
        """Forget everything; index the topic from there."""
        self._connection.execute("DELETE FROM waiting")
        self.next_queue_offset, self.log_end, self.waiting_count = next_queue_offset, 0, 0

    # -- changing ----------------------------------------------------------------------------------

    def add(self, rows: Iterable[Waiting]) -> None:
        """What is there already stays as it is."""
        before = self._connection.total_changes
        self._connection.executemany("INSERT OR IGNORE INTO waiting VALUES (?, ?, ?, ?)", rows)
        self.waiting_count += self._connection.total_changes - before

    def remove(self, rows: Iterable[Waiting]) -> None:
        before = self._connection.total_changes
        self._connection.executemany(
            "DELETE FROM waiting WHERE due_ms = ? AND queue_offset = ?",
            [(row.due_ms, row.queue_offset) for row in rows],
        )
        self.waiting_count -= self._connection.total_changes - before

    def recall(self, recall: Recall) -> int:
        """Remove the messages that are recalled; answers how many there were."""
        first, last = recall.around_ms - _RECALL_SLACK_MS, recall.around_ms + _RECALL_SLACK_MS
        count = self._connection.execute(
            "DELETE FROM waiting WHERE due_ms BETWEEN ? AND ? AND key_hash = ?",
            (first, last, recall.key_hash),
        ).rowcount
        self.waiting_count -= count
        return count

    def commit(self) -> None:
        state = (self.next_queue_offset, self.log_end)
        if state != self._saved:
            self._connection.executemany(
                "UPDATE state SET value = ? WHERE name = ?",
                zip(state, ("next_queue_offset", "log_end"), strict=True),
            )
        self._connection.commit()
        self._saved, self._saved_count = state, self.waiting_count

    def roll_back(self) -> None:
        """As if nothing had been changed since the last commit."""
        self._connection.rollback()
        self.next_queue_offset, self.log_end = self._saved
        self.waiting_count = self._saved_count

    # -- asking ------------------------------------------------------------------------------------

    def due(self, now_ms: int, count: int) -> list[Waiting]:
        """Those whose time has come, earliest first."""
        found = self._connection.execute(
            "SELECT * FROM waiting WHERE due_ms <= ? ORDER BY due_ms, queue_offset LIMIT ?",
            (now_ms, count),
        )
        return [Waiting(*row) for row in found]

    def oldest(self, count: int) -> list[Waiting]:
        """Those that were stored first."""
        found = self._connection.execute(
            "SELECT * FROM waiting ORDER BY queue_offset LIMIT ?", (count,)
        )
        return [Waiting(*row) for row in found]

    def first_due_ms(self) -> int | None:
        (first,) = self._connection.execute("SELECT min(due_ms) FROM waiting").fetchone()
        return None if first is None else int(first)

    def due_count(self, now_ms: int, count_max: int) -> int:
        """How many are due, counted up to a limit: after a long pause it may be all of them."""
        query = "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE due_ms <= ? LIMIT ?)"
        count: int = self._connection.execute(query, (now_ms, count_max)).fetchone()[0]
        return count

    def count(self) -> int:
        """How many wait, by looking at all of them."""
        count: int = self._connection.execute("SELECT count(*) FROM waiting").fetchone()[0]
        return count

    # -- keeping -----------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Move what was committed into the main file; for another thread, it syncs the disk."""
        sqlite_file.checkpoint(self._path)

    def shorten_log(self) -> None:
        """Begin SQLite's own log anew if it has become long; soon after a `checkpoint`."""
        sqlite_file.shorten_log(self._path, self._connection, _LOG_BYTES_MAX)

    def close(self) -> None:
        """Commits and closes."""
        self.commit()
        self._connection.close()

    def abandon(self) -> None:
        """Closes what cannot be used any more."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite_file.connect(path, _SCHEMA, _VERSION, page_bytes=_PAGE_BYTES)
