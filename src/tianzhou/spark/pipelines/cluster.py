"""What only a cluster can tell a pipeline: its topics, and how far its groups are.

Blocking functions, for the driver; each opens a connection of its own and closes it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tianzhou.admin import Admin
from tianzhou.admin.fanout import Gathered, gather
from tianzhou.admin.topics import extents
from tianzhou.errors import TargetError
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.spark.options import ClusterOptions

T = TypeVar("T")
_AT_ONCE_MAX = 16


class Committed(NamedTuple):
    """How far a group is in a queue."""

    topic: str
    broker: str
    queue: int
    group: str
    committed: int


class End(NamedTuple):
    """The offset that the next message of a queue gets."""

    topic: str
    broker: str
    queue: int
    end: int


def ask(options: ClusterOptions, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Do something with an admin client. Raises what that raises, and ConfigError."""
    settings = options.client_settings()

    async def run() -> T:
        async with Admin(
            ";".join(settings.namesrv_addresses()),
            timeout_ms=options.request_timeout,
            credentials=settings.credentials,
            tls=settings.tls,
        ) as admin:
            return await work(admin)

    return asyncio.run(run())


def complete(told: Gathered[T]) -> Gathered[T]:
    """Answers of all that were asked. Raises what kept one from answering.

    Half of the answers would look like groups that are gone.
    """
    for error in told.missing.values():
        raise error
    return told


def topics(options: ClusterOptions, *, with_retries: bool = False) -> list[str]:
    """The topics of programs: without those of the system, and those of dead letters."""

    async def names(admin: Admin) -> list[str]:
        own = set(await admin.topics.system_names())
        return [
            name
            for name in await admin.topics.names()
            if name not in own
            and not name.startswith(DLQ_TOPIC_PREFIX)
            and (with_retries or not name.startswith(RETRY_TOPIC_PREFIX))
        ]

    return ask(options, names)


def dead_letter_topics(options: ClusterOptions) -> list[str]:
    """The topics of dead letters that there are."""

    async def names(admin: Admin) -> list[str]:
        return [name for name in await admin.topics.names() if name.startswith(DLQ_TOPIC_PREFIX)]

    return ask(options, names)


def committed_offsets(options: ClusterOptions) -> list[Committed]:
    """How far all groups are in all queues, as the masters keep it."""

    async def read(admin: Admin) -> list[Committed]:
        masters = await admin.clusters.brokers(masters=True)
        told = complete(await gather(masters, admin.offsets.all_committed))
        found: list[Committed] = []
        for at, table in told.found.items():
            for place, queues in table.items():
                topic, _, group = place.partition("@")
                found += [
                    Committed(topic, at.name, *each[:1], group, each[1]) for each in queues.items()
                ]
        return found

    return ask(options, read)


def end_offsets(options: ClusterOptions, names: list[str]) -> list[End]:
    """Where the queues of some topics end; topics that are gone meanwhile are left out."""

    async def read(admin: Admin) -> list[End]:
        turns = asyncio.Semaphore(_AT_ONCE_MAX)

        async def one(topic: str) -> list[End]:
            async with turns:
                try:
                    stats = complete(await admin.topics.stats(topic))
                except TargetError:
                    return []
            return [
                End(topic, queue.broker_name or "", queue.queue_id, extent.max_offset)
                for queue, extent in extents(stats)
            ]

        return [end for ends in await asyncio.gather(*map(one, names)) for end in ends]

    return ask(options, read)
