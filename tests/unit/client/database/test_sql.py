"""Transactions on the connections of programs: one thread at a time has a sqlite3 connection."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianzhou.client.database import sql
from tianzhou.client.database.idempotence import TokenTable
from tianzhou.client.database.sql import transaction
from tianzhou.errors import ConfigError

DEADLINE_S = 60


class Counted(sqlite3.Connection):
    """A subclass, as programs define it."""


@pytest.fixture(params=[sqlite3.Connection, Counted])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """One connection for all threads."""
    connection = sqlite3.connect(
        tmp_path / "shared.db", check_same_thread=False, factory=request.param
    )
    TokenTable().create(connection)
    yield connection
    connection.close()


def claim(connection: sqlite3.Connection, token: str) -> bool:
    return TokenTable().claim(connection, "clerks", token)


def tokens(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT token FROM tianzhou_tokens")]


def wait_for_users(connection: sqlite3.Connection, count: int) -> None:
    """Wait until so many threads hold the connection or wait for it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while sql.shared_locks[id(connection)].user_count < count:
        assert time.monotonic() < deadline_s, "nobody came to wait for the connection"
        time.sleep(0.001)


def test_rollback_is_not_affected_by_another_thread(
    shared: sqlite3.Connection,
) -> None:
    """A claims, B waits to commit, A fails: nothing of A is committed."""
    seen: list[str] = []

    def commit_b() -> None:
        with transaction(lambda: shared) as connection:
            seen.append("b has the connection")
            claim(connection, "b")

    thread = threading.Thread(target=commit_b)

    def fail_a() -> None:
        with transaction(lambda: shared) as connection:
            claim(connection, "a")
            thread.start()
            wait_for_users(shared, 2)
            seen.append("a fails")
            raise RuntimeError("no paper")

    with pytest.raises(RuntimeError, match="no paper"):
        fail_a()
    thread.join(DEADLINE_S)
    assert seen == ["a fails", "b has the connection"]
    assert tokens(shared) == ["b"]


def test_open_transaction_is_rejected_and_left_alone(
    shared: sqlite3.Connection,
) -> None:
    claim(shared, "half-way")
    with pytest.raises(ConfigError, match="begun elsewhere"), transaction(lambda: shared):
        raise AssertionError("the connection is not lent")
    shared.rollback()
    with transaction(lambda: shared) as connection:
        claim(connection, "outer")
        with pytest.raises(ConfigError, match="begun elsewhere"), transaction(lambda: shared):
            raise AssertionError("its end would commit the outer one")
    assert tokens(shared) == ["outer"]


def test_lock_of_a_connection_is_removed_after_use(shared: sqlite3.Connection) -> None:
    with transaction(lambda: shared):
        assert id(shared) in sql.shared_locks
    assert id(shared) not in sql.shared_locks
