"""Leases: which console instance does a job that only one may do, such as collecting a cluster.

A lease is a row with its holder and its end, by the clock of the database, so that the clocks of
the instances do not matter. The holder renews it every `RENEW_S`; an instance that stops renewing
loses it after `LEASE_MS`, and another one gets it: a job is without a holder for at most 20 s.
What the holder writes is written in a transaction that checks the lease first (`require`), so that
an instance that was suspended cannot write after it has lost the lease.
"""

import logging

from sqlalchemy import Connection, Engine, delete, or_, select, update

from tianzhou.console.collect import tables
from tianzhou.errors import TianzhouError
from tianzhou.monitor.database import insert_new

log = logging.getLogger(__name__)

LEASE_MS = 15_000
RENEW_S = 5.0


class LeaseLost(TianzhouError, retriable=True):
    """Another instance holds the lease."""


def acquire(engine: Engine, name: str, holder: str, lease_ms: int = LEASE_MS) -> bool:
    """Get or renew a lease; returns whether `holder` has it now. Raises SQLAlchemyError."""
    table = tables.leases
    with engine.begin() as connection:
        now = tables.database_now(connection)
        until = now + lease_ms
        mine_or_over = or_(table.c.holder == holder, table.c.until_ms <= now)
        renewed = connection.execute(
            update(table)
            .where(table.c.name == name, mine_or_over)
            .values(holder=holder, until_ms=until)
        )
        if renewed.rowcount:
            return True
        return insert_new(connection, table, {"name": name, "holder": holder, "until_ms": until})


def release(engine: Engine, name: str, holder: str) -> None:
    """Give up a lease, so that another instance need not wait for its end."""
    table = tables.leases
    with engine.begin() as connection:
        connection.execute(delete(table).where(table.c.name == name, table.c.holder == holder))


def holder_of(engine: Engine, name: str) -> str | None:
    """The instance that holds a lease now."""
    table = tables.leases
    with engine.connect() as connection:
        now = tables.database_now(connection)
        found = select(table.c.holder).where(table.c.name == name, table.c.until_ms > now)
        return connection.execute(found).scalar_one_or_none()


def require(connection: Connection, name: str, holder: str) -> None:
    """Check in a transaction that `holder` has a lease, and lock it until the end of that.

    Raises LeaseLost.
    """
    table = tables.leases
    now = tables.database_now(connection)
    mine = select(table.c.name).where(
        table.c.name == name, table.c.holder == holder, table.c.until_ms > now
    )
    if connection.execute(mine.with_for_update()).first() is None:
        raise LeaseLost(f"the lease {name} is not held by {holder} any more: nothing is written")
