"""Leases: one holder at a time, by the clock of the database, on both databases."""

import threading
import time

import pytest
from sqlalchemy import Engine, select, update

from tianzhou.console.collect import leases, tables
from tianzhou.console.collect.leases import LeaseLost, acquire, holder_of, release, require


def expire(engine: Engine, name: str) -> None:
    """Move the end of a lease to the past, as time would."""
    with engine.begin() as connection:
        table = tables.leases
        connection.execute(update(table).where(table.c.name == name).values(until_ms=1))


def test_one_instance_holds_a_lease_and_renews_it(engine: Engine) -> None:
    assert acquire(engine, "collect:c", "one")
    assert not acquire(engine, "collect:c", "two")
    assert acquire(engine, "collect:c", "one")
    assert acquire(engine, "collect:other", "two")
    assert holder_of(engine, "collect:c") == "one"


def test_a_lease_that_ended_goes_to_the_next(engine: Engine) -> None:
    assert acquire(engine, "l", "one")
    expire(engine, "l")
    assert holder_of(engine, "l") is None
    assert acquire(engine, "l", "two")
    assert not acquire(engine, "l", "one")


def test_a_released_lease_is_free_at_once(engine: Engine) -> None:
    assert acquire(engine, "l", "one")
    release(engine, "l", "two")
    assert holder_of(engine, "l") == "one"
    release(engine, "l", "one")
    assert acquire(engine, "l", "two")


def test_the_end_of_a_lease_is_by_the_clock_of_the_database(engine: Engine) -> None:
    assert acquire(engine, "l", "one", lease_ms=60_000)
    with engine.connect() as connection:
        (row,) = connection.execute(tables.leases.select()).all()
        now_ms = connection.execute(select(tables.database_now(connection))).scalar_one()
    # The database runs on this machine.
    assert abs(now_ms - time.time() * 1000) < 30_000
    assert 0 < row.until_ms - now_ms <= 60_000


def test_what_is_written_without_the_lease_is_undone(engine: Engine) -> None:
    assert acquire(engine, "l", "one")
    expire(engine, "l")
    row = {"cluster": "c", "version": 1, "at_ms": 1, "body": b""}

    def write() -> None:
        with engine.begin() as connection:
            connection.execute(tables.snapshots.insert().values(row))
            require(connection, "l", "one")

    with pytest.raises(LeaseLost, match="nothing is written"):
        write()
    with engine.connect() as connection:
        assert tables.count_of(connection, tables.snapshots) == 0
    assert acquire(engine, "l", "one")
    write()


def test_of_many_instances_one_gets_the_lease(engine: Engine) -> None:
    gate, won = threading.Barrier(6), list[str]()

    def attempt(name: str) -> None:
        gate.wait()
        if acquire(engine, "l", name, leases.LEASE_MS):
            won.append(name)

    threads = [threading.Thread(target=attempt, args=(f"i{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 1
    assert holder_of(engine, "l") == won[0]
