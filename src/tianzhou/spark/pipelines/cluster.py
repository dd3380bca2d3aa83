"""Queries of a cluster for pipelines: topics, queue bounds, consumer groups and their offsets.

Blocking functions for the driver; each opens and closes its own connections.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tianzhou.admin import Admin
from tianzhou.admin.fanout import BrokerRef, Gathered, gather
from tianzhou.admin.topics import extents
from tianzhou.errors import TargetError
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies.clients import BROADCASTING, ConsumerConnection
from tianzhou.spark.options import ClusterOptions
from tianzhou.spark.source.cluster_reader import gather_limited

T = TypeVar("T")


class Committed(NamedTuple):
    """The committed offset of a group in a queue."""

    topic: str
    broker: str
    queue: int
    group: str
    committed: int


class Extent(NamedTuple):
    """The bounds of a queue: the oldest offset, and the next one to be written."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int


class Members(NamedTuple):
    """The subscriptions of a group with consumers online."""

    topics: frozenset[str]
    is_broadcast: bool
    """Whether it is broadcasting: consumers store their offsets locally."""


_NO_MEMBERS = Members(frozenset[str](), is_broadcast=False)


def ask(options: ClusterOptions, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run `work` with an admin client. Raises ConfigError and the errors of `work`."""
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


def complete(gathered: Gathered[T]) -> Gathered[T]:
    """The responses of all brokers. Raises the error of any that failed.

    With a part of the responses, groups would seem to be gone.
    """
    for error in gathered.failures.values():
        raise error
    return gathered


def topics(options: ClusterOptions, *, with_retries: bool = False) -> list[str]:
    """The user topics: without system topics and dead-letter topics."""

    async def names(admin: Admin) -> list[str]:
        own = set(await admin.topics.system_names())
        return [name for name in await admin.topics.names() if name not in own]

    hidden = (DLQ_TOPIC_PREFIX,) if with_retries else (DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX)
    return [name for name in ask(options, names) if not name.startswith(hidden)]


def dead_letter_topics(options: ClusterOptions) -> list[str]:
    """The existing dead-letter topics."""
    names = ask(options, lambda admin: admin.topics.names())
    return [name for name in names if name.startswith(DLQ_TOPIC_PREFIX)]


def committed_offsets(options: ClusterOptions) -> list[Committed]:
    """The committed offsets of all groups, from all masters."""

    async def read(admin: Admin) -> list[Committed]:
        masters = await admin.clusters.brokers(masters=True)
        committed = complete(await gather(masters, admin.offsets.all_committed))
        found: list[Committed] = []
        for at, table in committed.responses.items():
            for key, queues in table.items():
                topic, _, group = key.partition("@")
                found += [
                    Committed(topic, at.name, queue, group, each) for queue, each in queues.items()
                ]
        return found

    return ask(options, read)


def members_online(options: ClusterOptions) -> dict[str, Members]:
    """The groups with consumers online, by name."""

    async def read(admin: Admin) -> dict[str, Members]:
        masters = await admin.clusters.brokers(masters=True)
        configs = complete(await gather(masters, admin.groups.all_configs))

        async def one(asked: tuple[BrokerRef, str]) -> tuple[str, ConsumerConnection | None]:
            at, group = asked
            return group, await admin.groups.connection(at, group)

        asked = [(at, group) for at, groups in configs.responses.items() for group in groups]
        found: dict[str, Members] = {}
        for group, connection in await gather_limited(asked, one):
            if connection is not None:
                # Consumers that are starting or stopping are known to some brokers only.
                before = found.get(group, _NO_MEMBERS)
                topics = before.topics | frozenset(connection.subscriptions)
                found[group] = Members(topics, connection.message_model == BROADCASTING)
        return found

    return ask(options, read)


def extents_of(options: ClusterOptions, names: list[str]) -> list[Extent]:
    """The bounds of the queues of topics; topics deleted meanwhile are skipped."""

    async def read(admin: Admin) -> list[Extent]:
        async def one(topic: str) -> list[Extent]:
            try:
                stats = complete(await admin.topics.stats(topic))
            except TargetError:
                return []
            return [
                Extent(
                    topic, queue.broker_name or "", queue.queue_id, extent.min_offset,
                    extent.max_offset,
                )
                for queue, extent in extents(stats)
            ]  # fmt: skip

        return [extent for found in await gather_limited(names, one) for extent in found]

    return ask(options, read)
