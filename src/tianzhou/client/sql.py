"""One face for the database connections that programs have: sqlite3, psycopg and SQLAlchemy's.

Statements are written once, with :name for values, for SQLite and PostgreSQL. A statement runs in
whatever transaction the connection is in; nothing here begins, commits or rolls back.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tianzhou.errors import ConfigError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
Connection = Any
"""A sqlite3.Connection, a psycopg.Connection, a SQLAlchemy Connection or Session."""

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
    if origin == "sqlite3":
        return SQLITE
    if origin == "psycopg":
        return POSTGRESQL
    if _is_sqlalchemy(connection):
        bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
        name = str(bound.dialect.name)
        if name in (SQLITE, POSTGRESQL):
            return name
        origin = f"SQLAlchemy for {name}"
    raise ConfigError(
        f"a connection of {origin} is not understood: give one of sqlite3, psycopg or SQLAlchemy, "
        "to SQLite or PostgreSQL"
    )


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
