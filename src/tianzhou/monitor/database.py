"""Databases of the console, of pipelines and of sinks: opening, transactions, upserts.

Tables are created and migrated (`tianzhou.monitor.migrations`); nothing else in a database is
changed. SQLite and PostgreSQL, by an SQLAlchemy URL.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    Table,
    create_engine,
    event,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.errors import ConfigError
from tianzhou.monitor.migrations import Step, migrate

_ROWS_MAX = 400
_LOCK_TIMEOUT_S = 30
_READS = "tianzhou_reads"


# -- opening ---------------------------------------------------------------------------------------


def open_database(
    url: str, metadata: MetaData, versions: Table, steps: Sequence[Step] = ()
) -> Engine:
    """Connect, and bring the tables of `metadata` to their newest version. Raises ConfigError.

    `versions` is the table of `metadata` whose only row is the schema version, which is one more
    than there are steps (see `tianzhou.monitor.migrations`).
    """
    engine = engine_of(url)
    try:
        if engine.dialect.name == "sqlite":
            _lock_on_begin(engine)
        migrate(engine, metadata, versions, steps)
    except BaseException as e:
        engine.dispose()
        if isinstance(e, SQLAlchemyError):
            raise database_error(url, e) from e
        raise
    return engine


@contextmanager
def reading(engine: Engine) -> Generator[Connection]:
    """A transaction that only reads. In SQLite it does not wait for writers that have not begun.

    Other transactions lock an SQLite database when they begin (see `_lock_on_begin`).
    """
    with engine.connect().execution_options(**{_READS: True}) as connection:
        yield connection


def engine_of(url: str) -> Engine:
    """The engine of a supported database, not yet connected. Raises ConfigError."""
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ConfigError(
                f"database {parsed.render_as_string()}: only SQLite and PostgreSQL are supported"
            )
        is_sqlite = parsed.get_backend_name() == "sqlite"
        return create_engine(parsed, connect_args={"timeout": _LOCK_TIMEOUT_S} if is_sqlite else {})
    except (SQLAlchemyError, ImportError) as e:
        raise database_error(url, e) from e


def is_missing_file(engine: Engine) -> bool:
    """Whether this is an SQLite file that does not exist; connecting would create it."""
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    return bool(file) and file != ":memory:" and not Path(str(file)).is_file()


def database_error(url: str, error: BaseException) -> ConfigError:
    """A database error as one line without the password."""
    shown = url if "@" not in url else url.partition("://")[0] + "://..."
    reason, _, _ = str(error).partition("\n")
    return ConfigError(f"database {shown}: {reason}")


def _lock_on_begin(engine: Engine) -> None:
    """Lock an SQLite database when a transaction begins.

    Otherwise two programs that both hold read locks block each other's write, and one fails.
    """

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction]  # noqa: ANN401 - the driver's own
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        reads = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


# -- writing ---------------------------------------------------------------------------------------

Row = Mapping[str, object]


def upsert(connection: Connection, table: Table, rows: Iterable[Row]) -> int:
    """Insert rows, replacing those with the same primary key; returns their number."""
    return upsert_where(connection, table, rows)


def upsert_where(
    connection: Connection,
    table: Table,
    rows: Iterable[Row],
    replaced: ColumnElement[bool] | None = None,
    *,
    added: Collection[str] = (),
) -> int:
    """The same, but existing rows are replaced only if they meet a condition.

    The columns `added` get the sum of the existing and the new value.
    """
    ready = list(rows)
    key = [column.name for column in table.primary_key.columns]
    for start in range(0, len(ready), _ROWS_MAX):
        part = [dict(row) for row in ready[start : start + _ROWS_MAX]]
        rest = [name for name in part[0] if name not in key]
        statement = _insert(connection, table).values(part)
        changes = {
            name: table.c[name] + statement.excluded[name]
            if name in added
            else statement.excluded[name]
            for name in rest
        }
        connection.execute(
            statement.on_conflict_do_update(index_elements=key, set_=changes, where=replaced)
        )
    return len(ready)


def insert_new(connection: Connection, table: Table, row: Row) -> bool:
    """Insert a row unless its primary key exists; returns whether it was inserted."""
    statement = _insert(connection, table).values(**row).on_conflict_do_nothing()
    # Not every driver counts the rows of such a statement, but all return them.
    first = next(iter(table.primary_key.columns))
    return connection.execute(statement.returning(first)).first() is not None


def _insert(connection: Connection, table: Table) -> Any:  # noqa: ANN401 - of either dialect, alike
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def rows_of(connection: Connection, table: Table, **wanted: object) -> Sequence[Any]:
    """All rows of a table whose columns have these values."""
    found = select(table)
    for name, value in wanted.items():
        found = found.where(table.c[name] == value)
    return connection.execute(found).all()
