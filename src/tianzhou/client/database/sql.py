"""One interface to connections of sqlite3, psycopg, psycopg2 and SQLAlchemy.

Statements are written once, with :name for values, for SQLite and PostgreSQL. A statement runs in
the current transaction of the connection; only `transaction` begins and ends one, by means of the
program's own context manager.
"""

import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from tianzhou.clock import Clock
from tianzhou.errors import ConfigError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
Connection = Any
"""A connection of sqlite3, psycopg or psycopg2, a Connection or Session of SQLAlchemy."""

_NAME = re.compile(r"(?<!:):([a-z_]+)")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


_NOW_MS = {
    SQLITE: "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    POSTGRESQL: "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)",
}


class Result(NamedTuple):
    """The result of a statement."""

    row_count: int
    rows: Sequence[Sequence[Any]]


def checked_table(name: str) -> str:
    """The name, if it may be part of a statement. Raises ConfigError."""
    if not _TABLE.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid table name; use letters, digits and _")
    return name


def dialect_of(connection: Connection) -> str:
    """SQLITE or POSTGRESQL. Raises ConfigError for a connection to something else."""
    origin = type(connection).__module__.partition(".")[0]
    if _is_of(connection, "sqlite3"):
        return SQLITE
    if _is_of(connection, "psycopg", "psycopg2"):
        return POSTGRESQL
    if _is_sqlalchemy(connection):
        bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
        name = str(bound.dialect.name)
        if name in (SQLITE, POSTGRESQL):
            return name
        origin = f"SQLAlchemy for {name}"
    raise ConfigError(
        f"a connection of {origin} is not supported: use one of sqlite3, psycopg, psycopg2 or "
        "SQLAlchemy, to SQLite or PostgreSQL"
    )


def _is_of(connection: Connection, *packages: str) -> bool:
    """Whether its class, or a base class of it, is from one of the packages."""
    return any(kind.__module__.partition(".")[0] in packages for kind in type(connection).__mro__)


def _is_sqlalchemy(connection: Connection) -> bool:
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)


def run(connection: Connection, statement: str, values: Mapping[str, Any] | None = None) -> Result:
    """Run one statement with its values."""
    values = dict(values or {})
    if _is_sqlalchemy(connection):
        from sqlalchemy import text

        done = connection.execute(text(statement), values)
        return Result(done.rowcount, done.fetchall() if done.returns_rows else ())
    if dialect_of(connection) == POSTGRESQL:
        statement = _NAME.sub(r"%(\1)s", statement)
    cursor = connection.cursor()
    try:
        cursor.execute(statement, values)
        rows = cursor.fetchall() if cursor.description is not None else ()
        return Result(cursor.rowcount, rows)
    finally:
        cursor.close()


class Table:
    """A table; its methods run in the transaction of the given connection.

    Unless a clock is given, times are those of the database: clocks of clients may differ.
    """

    def __init__(self, name: str, clock: Clock | None) -> None:
        """Raises ConfigError for an invalid table name."""
        self.name = checked_table(name)
        self.clock = clock

    def run(self, connection: Connection, statement: str, **values: object) -> Result:
        """Run a statement in which {table} is the name of the table and {now} the time in ms."""
        now = str(self.clock()) if self.clock else _NOW_MS[dialect_of(connection)]
        return run(connection, statement.format(table=self.name, now=now), values)

    def now_ms(self, connection: Connection) -> int:
        """The time of the table."""
        return int(self.run(connection, "SELECT {now}").rows[0][0])


# -- transactions ----------------------------------------------------------------------------------

C = TypeVar("C")


class _SharedLock:
    """The lock of a connection, and how many threads hold it or wait for it."""

    __slots__ = ("lock", "user_count")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.user_count = 0


_IDLE = 0
"""libpq's PQTRANS_IDLE."""
shared_locks: dict[int, _SharedLock] = {}
"""The locks of connections in use, by the id of the connection."""
_locks_guard = threading.Lock()


@contextmanager
def transaction(begin: Callable[[], AbstractContextManager[C]]) -> Generator[C]:
    """One transaction of a program's `begin`, committed at its end, rolled back on an exception.

    A connection of sqlite3 or psycopg2 can be its own context manager, repeatedly. Then all its
    users share one transaction, and a commit of one thread would commit unfinished work of another.
    So one thread at a time gets it, and none while a transaction is open that was begun elsewhere:
    ConfigError. (Connections of psycopg end with their block.)
    """
    scope = begin()
    is_shared = _is_of(scope, "sqlite3", "psycopg2")
    with _exclusive(scope) if is_shared else nullcontext():
        if is_shared and _is_in_transaction(scope):
            raise ConfigError(
                "the connection is in a transaction that was begun elsewhere; use a separate "
                "connection, or one for each transaction"
            )
        with scope as connection:
            _refuse_autocommit(connection)
            yield connection


def _is_in_transaction(connection: Connection) -> bool:
    if _is_of(connection, "sqlite3"):
        return bool(connection.in_transaction)
    if _is_of(connection, "psycopg2"):
        return bool(connection.get_transaction_status() != _IDLE)
    return bool(connection.info.transaction_status != _IDLE)


def _refuse_autocommit(connection: object) -> None:
    """Raises ConfigError if every statement would be committed separately.

    A transaction that was begun explicitly is accepted.
    """
    if not _is_of(connection, "sqlite3", "psycopg2", "psycopg"):
        return
    is_automatic = getattr(connection, "autocommit", None) is True
    if _is_of(connection, "sqlite3"):
        is_automatic = is_automatic or getattr(connection, "isolation_level", "") is None
    if is_automatic and not _is_in_transaction(connection):
        raise ConfigError(
            "the connection commits every statement separately (autocommit), so there is no "
            "transaction; turn autocommit off"
        )


@contextmanager
def _exclusive(connection: Connection) -> Generator[None]:
    """Wait for exclusive use of a connection.

    Connections cannot be referred to weakly, so their ids are the keys while they are in use.
    """
    with _locks_guard:
        shared = shared_locks.setdefault(id(connection), _SharedLock())
        shared.user_count += 1
    try:
        with shared.lock:
            yield
    finally:
        with _locks_guard:
            shared.user_count -= 1
            if not shared.user_count:
                del shared_locks[id(connection)]
