"""The in-flight table of pop consumption on disk: the SQLite file `pop/inflight.sqlite`.

    places   id  grp  topic  queue_id  next_offset  batch      one row per group and queue
    flying   place  queue_offset  pop_time_ms  invisible_time_ms    one row per message in flight

`place` is the id of the row of `places`.

A change is in the file when `write` returns, so it survives a killed broker. Commits are not
synced: after a power cut the file may be slightly old, which redelivers some messages and loses
none, because offsets of messages in flight are never committed in `consumerOffset.json`. For the
same reason an unreadable file is removed: groups continue at their committed offsets and get the
messages that were in flight again.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator

import msgspec

from tianzhou.broker.background.sqlite_file import SqliteIndex
from tianzhou.broker.pop.inflight import Batch, Change, InFlight, Key

_SCHEMA = """
    CREATE TABLE places (
        id INTEGER PRIMARY KEY, grp TEXT NOT NULL, topic TEXT NOT NULL, queue_id INTEGER NOT NULL,
        next_offset INTEGER NOT NULL, batch BLOB, UNIQUE (grp, topic, queue_id)
    );
    CREATE TABLE flying (
        place INTEGER, queue_offset INTEGER, pop_time_ms INTEGER, invisible_time_ms INTEGER,
        PRIMARY KEY (place, queue_offset)
    ) WITHOUT ROWID;
"""
_BATCHES = msgspec.json.Decoder(Batch, strict=False)


class PopIndex(SqliteIndex):
    """An open file."""

    name = "pop index"
    schema = _SCHEMA
    log_bytes_max = 16 * 1024**2
    on_loss = "messages in flight are delivered again"

    def _load(self) -> None:
        self._known: dict[Key, tuple[int, int]] = {}
        """The row id and the next offset of each queue."""
        self._loaded = list(self._read())

    def _read(self) -> Iterator[Change]:
        rows: dict[int, list[InFlight]] = {}
        for ident, *row in self._connection.execute(
            "SELECT place, queue_offset, pop_time_ms, invisible_time_ms FROM flying "
            "ORDER BY place, queue_offset"
        ):
            rows.setdefault(ident, []).append(InFlight(*row))
        for ident, group, topic, queue_id, next_offset, batch in self._connection.execute(
            "SELECT id, grp, topic, queue_id, next_offset, batch FROM places"
        ):
            key = Key(group, topic, queue_id)
            self._known[key] = (ident, next_offset)
            yield Change(
                key,
                next_offset,
                put=tuple(rows.get(ident, ())),
                batch=None if batch is None else _BATCHES.decode(batch),
            )

    def loaded(self) -> list[Change]:
        """The content of the file when it was opened; releases it."""
        loaded, self._loaded = self._loaded, []
        return loaded

    # -- changing ----------------------------------------------------------------------------------

    def write(self, changes: Iterable[Change]) -> None:
        """Write all changes or, if it raises sqlite3.Error, none."""
        before: dict[Key, tuple[int, int] | None] = {}
        try:
            for change in changes:
                before.setdefault(change.key, self._known.get(change.key))
                self._write(change)
            self._connection.commit()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            for key, known in before.items():
                self._known.pop(key, None)
                if known is not None:
                    self._known[key] = known
            raise

    def _write(self, change: Change) -> None:
        run, key = self._connection.execute, change.key
        ident, next_offset = self._known.get(key, (None, None))
        if ident is not None and (change.clear or change.remove):
            run("DELETE FROM flying WHERE place = ?", (ident,))
            run("DELETE FROM places WHERE id = ?", (ident,))
            ident = None
            del self._known[key]
        if change.remove:
            return
        batch = None if change.batch is None else msgspec.json.encode(change.batch)
        if ident is None:
            ident = run(
                "INSERT INTO places (grp, topic, queue_id, next_offset, batch) "
                "VALUES (?, ?, ?, ?, ?)",
                (*key, change.next_offset, batch),
            ).lastrowid
            assert ident is not None, "an insertion has an id"
        elif batch is not None:
            run(
                "UPDATE places SET next_offset = ?, batch = ? WHERE id = ?",
                (change.next_offset, batch, ident),
            )
        elif next_offset != change.next_offset:
            run("UPDATE places SET next_offset = ? WHERE id = ?", (change.next_offset, ident))
        self._known[key] = (ident, change.next_offset)
        if change.put:
            self._connection.executemany(
                "INSERT OR REPLACE INTO flying VALUES (?, ?, ?, ?)",
                [(ident, *row) for row in change.put],
            )
        if change.drop:
            self._connection.executemany(
                "DELETE FROM flying WHERE place = ? AND queue_offset = ?",
                [(ident, queue_offset) for queue_offset in change.drop],
            )
