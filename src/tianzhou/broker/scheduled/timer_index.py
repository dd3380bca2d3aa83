"""The index of timed messages on disk: the SQLite file `timer/index.sqlite`.

It is derived data: it can be rebuilt from the timer topic. Memory does not grow with the number of
pending messages.

    waiting   due_ms  queue_offset  log_offset  key_hash      ordered by due time, then by offset
    state     next_queue_offset     the next message of the timer topic to index
              log_end               the log ended here or later when the last change was made

Changes belong to one transaction until `commit`. Commits are not synced: after a power cut the file
may be older than the log, then the rest of the topic is indexed, or newer, which `log_end` shows.
"""

import contextlib
import sqlite3
from collections.abc import Iterable

from tianzhou.broker.background.sqlite_file import SqliteIndex
from tianzhou.broker.scheduled.timer_rules import Recall, Waiting

_SCHEMA = """
    CREATE TABLE waiting (
        due_ms INTEGER, queue_offset INTEGER, log_offset INTEGER, key_hash INTEGER,
        PRIMARY KEY (due_ms, queue_offset)
    ) WITHOUT ROWID;
    CREATE INDEX by_age ON waiting (queue_offset);
    CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
    INSERT INTO state VALUES ('next_queue_offset', 0), ('log_end', 0);
"""
_RECALL_SLACK_MS = 1000
"""Recalls by RocketMQ contain a time that was rounded to its precision."""


class TimerIndex(SqliteIndex):
    """An open index."""

    name = "timer index"
    schema = _SCHEMA
    log_bytes_max = 64 * 1024**2
    page_bytes = 1024
    """Random due times change random pages, and each changed page is written whole."""
    on_loss = "it is rebuilt"

    def _load(self) -> None:
        connection = self._connection
        state = dict(connection.execute("SELECT name, value FROM state").fetchall())
        self.next_queue_offset: int = state["next_queue_offset"]
        self.log_end: int = state["log_end"]
        (self.waiting_count,) = connection.execute("SELECT count(*) FROM waiting").fetchone()
        """How many messages are pending; counted at the start, updated from then on."""
        self._saved = (self.next_queue_offset, self.log_end)
        self._saved_count: int = self.waiting_count

    def clear(self, next_queue_offset: int) -> None:
        """Remove all rows; the topic is indexed from this offset."""
        self._connection.execute("DELETE FROM waiting")
        self.next_queue_offset, self.log_end, self.waiting_count = next_queue_offset, 0, 0

    def clear_durably(self) -> None:
        """Remove all rows; a power cut does not bring them back."""
        self._connection.rollback()
        self._connection.execute("PRAGMA synchronous = FULL")
        try:
            self.clear(0)
            self.commit()
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    # -- changing ----------------------------------------------------------------------------------

    def add(self, rows: Iterable[Waiting]) -> None:
        """Add rows; existing ones stay."""
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
        """Remove recalled messages; returns how many."""
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
        """Undo all changes since the last commit."""
        self._connection.rollback()
        self.next_queue_offset, self.log_end = self._saved
        self.waiting_count = self._saved_count

    # -- reading -----------------------------------------------------------------------------------

    def due(self, now_ms: int, count: int) -> list[Waiting]:
        """Due messages, earliest first."""
        rows = self._connection.execute(
            "SELECT * FROM waiting WHERE due_ms <= ? ORDER BY due_ms, queue_offset LIMIT ?",
            (now_ms, count),
        )
        return [Waiting(*row) for row in rows]

    def oldest(self, count: int) -> list[Waiting]:
        """The messages that were stored first."""
        rows = self._connection.execute(
            "SELECT * FROM waiting ORDER BY queue_offset LIMIT ?", (count,)
        )
        return [Waiting(*row) for row in rows]

    def first_due_ms(self) -> int | None:
        (first,) = self._connection.execute("SELECT min(due_ms) FROM waiting").fetchone()
        return None if first is None else int(first)

    def due_count(self, now_ms: int, count_max: int) -> int:
        """How many are due, up to a limit: after a long pause it may be all of them."""
        query = "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE due_ms <= ? LIMIT ?)"
        count: int = self._connection.execute(query, (now_ms, count_max)).fetchone()[0]
        return count

    def count(self) -> int:
        """How many are pending, by counting all rows."""
        count: int = self._connection.execute("SELECT count(*) FROM waiting").fetchone()[0]
        return count

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit and close."""
        self.commit()
        super().close()

    def abandon(self) -> None:
        """Close a damaged index."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
