"""For tests of sinks and pipelines: the messages of a topic, the rows of a table."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Table

from tianzhou.admin import Admin
from tianzhou.message import StoredMessage
from tianzhou.monitor import tables
from tianzhou.testing import Cluster

DEADLINE_S = 300.0


def stored(cluster: Cluster, topic: str) -> list[StoredMessage]:
    """All messages of a topic, queue by queue."""
    return stored_at(cluster.namesrv_address, topic)


def stored_at(namesrv: str, topic: str) -> list[StoredMessage]:
    """All messages of a topic, queue by queue."""

    async def read() -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async with Admin(namesrv) as admin:
            for at in await admin.messages.read_queues(topic):
                end = await admin.offsets.end(at.broker, topic, at.queue_id)
                found += [message async for message in admin.messages.walk(at, 0, end)]
        return found

    return asyncio.run(read())


def rows(url: str, table: Table, **wanted: object) -> list[Any]:
    """Rows of a table of the pipelines."""
    engine = tables.open_database(url)
    try:
        with engine.connect() as connection:
            return list(tables.rows_of(connection, table, **wanted))
    finally:
        engine.dispose()


def until(is_so: Callable[[], bool], describe: Callable[[], str]) -> None:
    """Wait for a condition; `describe` returns the text of the failure."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s, describe()
        time.sleep(0.1)
