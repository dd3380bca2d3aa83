"""Schema versions of a set of tables, and the numbered steps from one version to the next.

    version 1        the tables of the first release
    version n + 1    version n after steps[n - 1]

Each set of tables (those of the pipelines, of a sink, of the console) has its own table with one
row: the version. A new database gets the newest tables at once. An old one gets the missing steps,
each in one transaction with its number, so that a step that fails or is interrupted changes
nothing and the next start repeats it. Missing tables and columns are then added, which needs no
step. A database of a newer release is rejected.

A step must not use the current definition of a table: that one changes again. It names tables and
columns, and uses `add_columns` and `change_key`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    inspect,
    select,
    text,
)

from tianzhou.errors import ConfigError

Step = Callable[[Connection], None]
"""Changes tables of one version to the next one, in the transaction of the connection."""

_LOCK = 7305190
"""The advisory lock of PostgreSQL: two programs that start together must not both migrate."""


def migrate(engine: Engine, metadata: MetaData, versions: Table, steps: Sequence[Step]) -> None:
    """Bring the tables of `metadata` to the newest version. Raises ConfigError, SQLAlchemyError.

    `versions` is the table of `metadata` with the version.
    """
    while not _migrate_once(engine, metadata, versions, steps):
        pass


def _migrate_once(
    engine: Engine, metadata: MetaData, versions: Table, steps: Sequence[Step]
) -> bool:
    """Do one step, or the rest if no step is missing; returns whether all is done."""
    newest = len(steps) + 1
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        version = _version(connection, metadata, versions, newest)
        if version > newest:
            raise ConfigError(
                f"table {versions.name} has schema version {version}, this release supports "
                f"{newest}: upgrade Tianzhou"
            )
        if version < newest:
            steps[version - 1](connection)
            _record(connection, versions, version + 1)
            return False
        present = set(inspect(connection).get_table_names())
        metadata.create_all(connection)
        for table in metadata.tables.values():
            if table.name in present:
                _add_missing(connection, table)
        _record(connection, versions, newest)
        return True


def _version(connection: Connection, metadata: MetaData, versions: Table, newest: int) -> int:
    present = set(inspect(connection).get_table_names())
    if versions.name in present:
        recorded = connection.execute(select(versions.c.version)).scalar()
        if recorded is not None:
            return int(recorded)
    # The first release created tables before it recorded their version.
    return 1 if present & {table.name for table in metadata.tables.values()} else newest


def _record(connection: Connection, versions: Table, version: int) -> None:
    versions.create(connection, checkfirst=True)
    recorded = connection.execute(select(versions.c.version)).scalars().all()
    if list(recorded) != [version]:
        connection.execute(versions.delete())
        connection.execute(versions.insert().values(version=version))


# -- columns ---------------------------------------------------------------------------------------


def has_table(connection: Connection, name: str) -> bool:
    """Whether a table exists; a step skips those that it does not find."""
    return inspect(connection).has_table(name)


def add_columns(connection: Connection, table_name: str, *columns: Column[Any]) -> None:
    """Add columns; those that are not null need a server default, which existing rows get."""
    quote = connection.dialect.identifier_preparer.quote
    for column in columns:
        kind = column.type.compile(connection.dialect)
        default: Any = getattr(column.server_default, "arg", None)
        more = "" if default is None else f" DEFAULT '{default}'"
        if default is not None and not column.nullable:
            more += " NOT NULL"
        statement = f"ALTER TABLE {quote(table_name)} ADD COLUMN {quote(column.name)} {kind}{more}"
        connection.execute(text(statement))


def _add_missing(connection: Connection, table: Table) -> None:
    known = {column["name"] for column in inspect(connection).get_columns(table.name)}
    add_columns(connection, table.name, *(each for each in table.columns if each.name not in known))


# -- keys ------------------------------------------------------------------------------------------


def change_key(
    connection: Connection, table_name: str, added: Sequence[Column[Any]], key: Sequence[str]
) -> None:
    """Add columns, with a server default, and change the primary key; rows and indexes stay.

    SQLite cannot change a primary key, so there the table is created again and its rows are copied.
    """
    if connection.dialect.name == "sqlite":
        _rebuild(connection, table_name, added, key)
        return
    add_columns(connection, table_name, *added)
    quote = connection.dialect.identifier_preparer.quote
    table = quote(table_name)
    old = inspect(connection).get_pk_constraint(table_name)["name"]
    if old is not None:
        connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {quote(old)}"))
    columns = ", ".join(map(quote, key))
    connection.execute(text(f"ALTER TABLE {table} ADD PRIMARY KEY ({columns})"))


def _rebuild(
    connection: Connection, table_name: str, added: Sequence[Column[Any]], key: Sequence[str]
) -> None:
    """In the order of SQLite's manual: create, copy, drop, rename."""
    old = Table(table_name, MetaData(), autoload_with=connection)
    indexes = inspect(connection).get_indexes(table_name)
    same = [
        Column(each.name, each.type, nullable=each.nullable, server_default=each.server_default)
        for each in old.columns
    ]
    new = Table(
        f"{table_name}__new", MetaData(), *added, *same, PrimaryKeyConstraint(*key)
    )  # fmt: skip
    new.create(connection)
    names = [each.name for each in old.columns]
    connection.execute(new.insert().from_select(names, select(old)))
    quote = connection.dialect.identifier_preparer.quote
    connection.execute(text(f"DROP TABLE {quote(table_name)}"))
    connection.execute(text(f"ALTER TABLE {quote(new.name)} RENAME TO {quote(table_name)}"))
    renamed = Table(table_name, MetaData(), autoload_with=connection)
    for index in indexes:
        columns = [renamed.c[name] for name in index["column_names"] if name is not None]
        Index(index["name"], *columns, unique=index["unique"]).create(connection)
