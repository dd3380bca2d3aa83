"""One face for the connections that programs have: sqlite3's, psycopg's, psycopg2's, SQLAlchemy's.

Statements are written once, with :name for values, for SQLite and PostgreSQL. A statement runs in
whatever transaction the connection is in; only `transaction` begins and ends one, by means of the
program's own context manager.
"""

import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

from tianzhou.errors import ConfigError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
Connection = Any
"""A connection of sqlite3, psycopg or psycopg2, a Connection or Session of SQLAlchemy."""

_NAME = re.compile(r"(?<!:):([a-z_]+)")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class Result(NamedTuple):
    """What a statement did."""

    row_count: int
    rows: Sequence[Sequence[Any]]


def checked_table(name: str) -> str:
    """A name that may stand in a statement. Raises ConfigError."""
    if not _TABLE.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a table: letters, digits and _ make one")
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
        f"a connection of {origin} is not understood: give one of sqlite3, psycopg, psycopg2 or "
        "SQLAlchemy, to SQLite or PostgreSQL"
    )


def _is_of(connection: Connection, *packages: str) -> bool:
    """Whether it is a connection of one of the packages, or of a class derived from theirs."""
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


# -- transactions ----------------------------------------------------------------------------------

C = TypeVar("C")


class _SharedLock:
    """Whose shared a connection is, and how many want it."""

    __slots__ = ("lock", "user_count")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.user_count = 0


_IDLE = 0
"""libpq's PQTRANS_IDLE."""
shared_locks: dict[int, _SharedLock] = {}
"""Of the connections that are in use, by their ids."""
_locks_guard = threading.Lock()


@contextmanager
def transaction(begin: Callable[[], AbstractContextManager[C]]) -> Generator[C]:
    """One transaction of a program's `begin`, committed at its end, rolled back on an exception.

    A connection of sqlite3 or psycopg2 may be its own context manager, again and again. It has one
    transaction then, for all its users: a commit of one thread would commit the half of another's
    work. So it is lent to one thread at a time, and not at all while a transaction is open that was
    begun elsewhere: ConfigError. (Connections of psycopg end with their block.)
    """
    scope = begin()
    if not _is_of(scope, "sqlite3", "psycopg2"):
        with scope as connection:
            _refuse_autocommit(connection)
            yield connection
        return
    with _exclusive(scope):
        if _is_in_transaction(scope):
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
    """Raises ConfigError if every statement would be committed by itself.

    What belongs together would not stay together; a transaction that was begun by hand is one.
    """
    if not _is_of(connection, "sqlite3", "psycopg2", "psycopg"):
        return
    is_automatic = getattr(connection, "autocommit", None) is True
    if _is_of(connection, "sqlite3"):
        is_automatic = is_automatic or getattr(connection, "isolation_level", "") is None
    if is_automatic and not _is_in_transaction(connection):
        raise ConfigError(
            "the connection commits every statement by itself (autocommit), so there is no "
            "transaction; switch that off"
        )


@contextmanager
def _exclusive(connection: Connection) -> Generator[None]:
    """Wait until a connection is this thread's alone.

    Connections cannot be referred to weakly, so they are known by their ids, for as long as
    somebody here uses them.
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
