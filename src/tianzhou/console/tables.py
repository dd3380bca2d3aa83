"""The console's tables, and its database: SQLite, or PostgreSQL by URL.

Times are milliseconds since 1970 (UTC). Statements run in a few threads, so that a slow database
does not block the event loop. Steps of migration: `tianzhou.monitor.migrations`.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from tianzhou.errors import ConfigError, DatabaseUnavailable
from tianzhou.monitor.database import database_error, open_database, reading
from tianzhou.monitor.migrations import Step

T = TypeVar("T")

THREADS = 4
"""Statements at a time."""

metadata = MetaData()

_NAME, _HASH, _TIME = String(255), String(64), BigInteger()


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(f"console_{name}", metadata, *columns)


def _required(name: str, kind: Any = _TIME, default: str | None = None) -> Column[Any]:  # noqa: ANN401 - an SQLAlchemy type or its class
    return Column(name, kind, nullable=False, server_default=default)


versions = _table("schema", Column("version", Integer, primary_key=True))

people = _table(
    "people",
    Column("id", Integer, primary_key=True),
    # Case-folded.
    Column("login", _NAME, nullable=False, unique=True),
    _required("name", _NAME, ""),
    _required("mail", _NAME, ""),
    # argon2id; empty: no password, OIDC only.
    _required("password", _NAME, ""),
    # Issuer and subject; null: not linked.
    Column("oidc_subject", String(600), unique=True),
    _required("is_admin", Integer, "0"),
    # Empty: that of the browser.
    _required("language", String(8), ""),
    _required("zone", String(64), ""),
    _required("is_enabled", Integer, "1"),
    _required("created_ms"),
    Column("last_ms", _TIME),
)

sessions = _table(
    "sessions",
    # SHA-256 of what the cookie holds.
    Column("hash", _HASH, primary_key=True),
    _required("person", Integer),
    _required("created_ms"),
    _required("seen_ms"),
    _required("until_ms"),
    # When the password was last entered.
    _required("confirmed_ms"),
    _required("ip", String(64), ""),
    _required("agent", _NAME, ""),
)
Index("console_sessions_person", sessions.c.person)

tokens = _table(
    "tokens",
    Column("id", Integer, primary_key=True),
    Column("hash", _HASH, nullable=False, unique=True),
    _required("person", Integer),
    _required("name", _NAME),
    # Separated by spaces.
    _required("scopes", _NAME),
    _required("created_ms"),
    _required("until_ms"),
    Column("used_ms", _TIME),
    Column("revoked_ms", _TIME),
)
Index("console_tokens_person", tokens.c.person)

setup_codes = _table(
    "setup",
    Column("hash", _HASH, primary_key=True),
    _required("until_ms"),
    Column("used_ms", _TIME),
)

failures = _table(
    "failures",
    # SHA-256 of "login:NAME" or "ip:ADDRESS".
    Column("subject", _HASH, primary_key=True),
    _required("count", Integer),
    _required("last_ms"),
    _required("locked_until_ms", default="0"),
)

clusters = _table(
    "clusters",
    Column("name", String(64), primary_key=True),
    _required("namesrv", String(1024)),
    # A context of the command line, whose account and TLS files are used; may be empty.
    _required("context", _NAME, ""),
    _required("zone", String(64), ""),
    _required("added_ms"),
)

audit = _table(
    "audit",
    Column("id", Integer, primary_key=True),
    _required("at_ms"),
    # The login as it was; rows outlive people.
    _required("person", _NAME),
    # The name of the API token; empty: a browser.
    _required("token", _NAME, ""),
    _required("ip", String(64), ""),
    _required("agent", _NAME, ""),
    _required("cluster", String(64), ""),
    _required("tenant", String(16), ""),
    _required("verb", String(64)),
    _required("subject", String(512)),
    # JSON; secrets are never in it.
    _required("before", Text, ""),
    _required("after", Text, ""),
    # "ok", "failed" or "refused".
    _required("result", String(16)),
    _required("reason", Text, ""),
)
Index("console_audit_at", audit.c.at_ms)

jobs = _table(
    "jobs",
    Column("id", Integer, primary_key=True),
    _required("kind", String(32)),
    _required("cluster", String(64)),
    # JSON: the English text and its values.
    _required("title", Text),
    _required("person", _NAME),
    # JSON of the kind's struct.
    _required("body", Text),
    # JSON: where it continues; empty: it has not begun.
    _required("position", Text, ""),
    _required("state", String(16)),
    _required("done", Integer, "0"),
    _required("failed", Integer, "0"),
    _required("total", Integer, "0"),
    _required("is_cancelled", Integer, "0"),
    _required("reason", Text, ""),
    _required("created_ms"),
    Column("started_ms", _TIME),
    Column("ended_ms", _TIME),
    # The console that runs it, until it stores no progress any more.
    _required("holder", String(64), ""),
    _required("until_ms", default="0"),
    _required("output_name", _NAME, ""),
    _required("output_bytes", BigInteger, "0"),
)
Index("console_jobs_state", jobs.c.state)

job_items = _table(
    "job_items",
    Column("job", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _required("subject", _NAME),
    _required("is_ok", Integer),
    _required("detail", Text, ""),
)

job_output = _table(
    "job_output",
    Column("job", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)

STEPS: tuple[Step, ...] = ()
"""From version 1 on; `tianzhou.monitor.migrations`."""


def values_of(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a row of SQLAlchemy
    """The columns of a row by name, as plain strings."""
    return {str(name): value for name, value in row._mapping.items()}


class ConsoleDatabase:
    """The open database of one console; every statement runs in one of its threads."""

    def __init__(self, url: str) -> None:
        """Connect, lock an SQLite file, create and migrate the tables. Raises ConfigError."""
        self.url = url
        self._lock = _lock_file(url)
        try:
            self.engine: Engine = open_database(url, metadata, versions, STEPS)
            if self.engine.dialect.name == "sqlite":
                _use_wal(self.engine)
        except BaseException:
            self._unlock()
            raise
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console-database")

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return make_url(self.url).render_as_string()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """The result of `work` in a transaction that only reads. Raises DatabaseUnavailable."""

        def run() -> T:
            with reading(self.engine) as connection:
                return work(connection)

        return await self._run(run)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """The result of `work` in one transaction. Raises DatabaseUnavailable."""

        def run() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        return await self._run(run)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (OperationalError, InterfaceError) as e:
            raise DatabaseUnavailable(
                f"{database_error(self.url, e)}; the console goes on when it answers again"
            ) from e

    def close(self) -> None:
        """Wait for running statements, and disconnect."""
        self._threads.shutdown()
        self.engine.dispose()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock_file(url: str) -> int | None:
    """Lock an SQLite file against a second console; None for PostgreSQL. Raises ConfigError."""
    try:
        parsed = make_url(url)
    except SQLAlchemyError as e:
        raise database_error(url, e) from e
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    path = Path(f"{parsed.database}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sessions and hashes of passwords are nothing for other users of the machine.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(os.open(str(parsed.database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as e:
        raise ConfigError(f"database {parsed.database} cannot be created: {e.strerror}") from e
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"database {parsed.database} is in use by another console; several consoles need "
            "PostgreSQL: --database postgresql://..."
        ) from None
    return descriptor


def _use_wal(engine: Engine) -> None:
    """Readers do not wait for writers; an SQLite database keeps this setting."""
    connection = engine.raw_connection()
    try:
        # Not in a transaction, which SQLAlchemy's own connections begin.
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()
