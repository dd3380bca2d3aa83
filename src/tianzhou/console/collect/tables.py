"""The tables of the collectors: leases, snapshots, marks of the daily counts, history, members.

Times are ms since 1970 unless the column says minute or hour (since 1970). `open_tables` creates
and migrates them, together with the tables that the console shares with the pipelines.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    func,
    literal_column,
    select,
)

from tianzhou.monitor import database
from tianzhou.monitor import tables as shared
from tianzhou.monitor.migrations import Step

metadata = MetaData()

_NAME = String(255)

STEPS: Sequence[Step] = ()

versions = Table("console_collect_schema", metadata, Column("version", Integer, primary_key=True))

leases = Table(
    "console_leases",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("holder", _NAME, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
)

snapshots = Table(
    "console_snapshots",
    metadata,
    Column("cluster", _NAME, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

marks = Table(
    "console_marks",
    metadata,
    Column("cluster", _NAME, primary_key=True),
    Column("topic", _NAME, primary_key=True),
    # Empty: what was produced.
    Column("consumer_group", _NAME, primary_key=True),
    # The first day that is counted completely.
    Column("since", String(10), nullable=False),
    # By broker: the offsets up to which is counted, and when they were read; MessagePack.
    Column("offsets", LargeBinary, nullable=False),
)

series = Table(
    "console_series",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("cluster", _NAME, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("name", _NAME, nullable=False),
    Column("topic", _NAME, nullable=False),
    UniqueConstraint("cluster", "kind", "name", "topic"),
)

samples = Table(
    "console_samples",
    metadata,
    Column("series", Integer, primary_key=True, autoincrement=False),
    Column("minute", Integer, primary_key=True, autoincrement=False),
    # Null: not known.
    Column("lag", BigInteger),
    Column("done", BigInteger),
    Index("console_samples_minute", "minute"),
    sqlite_with_rowid=False,
)

hours = Table(
    "console_hours",
    metadata,
    Column("series", Integer, primary_key=True, autoincrement=False),
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("lag_max", BigInteger),
    Column("lag_mean", Float),
    Column("done", BigInteger),
    Index("console_hours_hour", "hour"),
    sqlite_with_rowid=False,
)

member_events = Table(
    "console_member_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("cluster", _NAME, nullable=False),
    Column("consumer_group", _NAME, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("client_id", _NAME, nullable=False),
    # came, went, address or version.
    Column("what", String(16), nullable=False),
    Column("address", _NAME, nullable=False),
    Column("version", String(64), nullable=False),
    Column("language", String(64), nullable=False),
    Index("console_member_events_group", "cluster", "consumer_group", "at_ms"),
)


def open_tables(url: str) -> Engine:
    """Connect, and create or migrate the tables, those shared with the pipelines included.

    Raises ConfigError.
    """
    shared.open_database(url).dispose()
    return database.open_database(url, metadata, versions, STEPS)


_SQLITE_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRESQL_NOW_MS = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


def database_now(connection: Connection) -> Any:  # noqa: ANN401 - an SQL expression
    """The time of the database as an SQL expression, ms since 1970."""
    is_sqlite = connection.dialect.name == "sqlite"
    return literal_column(_SQLITE_NOW_MS if is_sqlite else _POSTGRESQL_NOW_MS, BigInteger())


def count_of(connection: Connection, table: Table) -> int:
    """The number of rows of a table."""
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
