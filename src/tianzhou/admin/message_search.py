"""Searching the messages of a topic by store time, tag, SQL92 expression or body; following it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.messages import Matches, Messages, QueueRef, body_of, matching
from tianzhou.admin.offsets import EARLIEST_MS, Offsets
from tianzhou.errors import BodyError, ConfigError, TargetError
from tianzhou.message import StoredMessage
from tianzhou.protocol.filter import SUBSCRIBE_ALL, compile_sql


@dataclass(frozen=True, slots=True)
class TimeSearch:
    """Which messages to return from the queues that are searched."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    tags: str
    matches: Matches
    group: str
    """The consumer group named in the pull requests."""


def select_queues(
    queues: list[QueueRef], queue_id: int | None, broker: str | None
) -> list[QueueRef]:
    """The queues with this id on this broker (name or address). Raises TargetError if none is."""
    chosen = [
        at
        for at in queues
        if queue_id in (None, at.queue_id) and broker in (None, at.broker.name, at.broker.address)
    ]
    if not chosen:
        known = sorted({f"{at.broker.name}/{at.queue_id}" for at in queues})
        raise TargetError(f"no such queue; the topic has: {', '.join(known) or 'none'}")
    return chosen


def message_filter(sql: str | None, body_pattern: str | None) -> Matches | None:
    """A filter by SQL92 over properties and by a regular expression over the body.

    None if neither is given. Raises FilterError, ConfigError.
    """
    if sql is None and body_pattern is None:
        return None
    compiled = compile_sql(sql) if sql is not None else None
    try:
        pattern = re.compile(body_pattern.encode()) if body_pattern is not None else None
    except re.error as e:
        raise ConfigError(f"--grep {body_pattern!r}: {e}") from e

    def matches(message: StoredMessage) -> bool:
        if compiled is not None and not compiled.matches(message.properties.get):
            return False
        return pattern is None or pattern.search(_searchable_body(message)) is not None

    return matches


def _searchable_body(message: StoredMessage) -> bytes:
    """The uncompressed body; the stored bytes if they cannot be uncompressed."""
    try:
        return body_of(message)
    except BodyError:
        return message.body


async def start_offset(offsets: Offsets, queue: QueueRef, begin_ms: int | None) -> int:
    """The offset of the first message stored at or after a time; None: the end of the queue."""
    if begin_ms is None:
        return await offsets.end(queue.broker, queue.topic, queue.queue_id)
    if begin_ms <= EARLIEST_MS:
        return await offsets.begin(queue.broker, queue.topic, queue.queue_id)
    return await offsets.at_time(queue.broker, queue.topic, queue.queue_id, begin_ms)


async def search_by_time(
    admin: Admin, queues: list[QueueRef], search: TimeSearch
) -> AsyncGenerator[tuple[str, StoredMessage]]:
    """Broker name and message of each match, queue by queue, in queue order."""
    offsets = admin.offsets
    for at in queues:
        start = max(await offsets.begin(at.broker, at.topic, at.queue_id), search.begin_offset)
        if search.begin_ms > 0:
            first = await offsets.at_time(at.broker, at.topic, at.queue_id, search.begin_ms)
            start = max(start, first)
        stop = await offsets.end(at.broker, at.topic, at.queue_id)
        pages = admin.messages.walk(
            at, start, stop, tags=search.tags, matches=search.matches, group=search.group
        )
        async with aclosing(pages) as messages:
            async for message in messages:
                if message.store_time_ms >= search.end_ms:
                    break
                if message.store_time_ms >= search.begin_ms:
                    yield at.broker.name, message


async def follow(
    messages: Messages,
    starts: Sequence[tuple[QueueRef, int]],
    *,
    tags: str = SUBSCRIBE_ALL,
    matches: Matches | None = None,
    hold_ms: int = 15_000,
    queue_max: int = 1000,
) -> AsyncGenerator[tuple[QueueRef, StoredMessage]]:
    """Messages as they arrive in any of the queues, without end; raises if a broker is lost."""
    wanted = matching(tags, matches)
    arrived: asyncio.Queue[tuple[QueueRef, StoredMessage]] = asyncio.Queue(queue_max)

    async def watch(queue: QueueRef, queue_offset: int) -> None:
        while True:
            pulled = await messages.pull(queue, queue_offset, tags=tags, hold_ms=hold_ms)
            for message in pulled.messages:
                if wanted(message):
                    await arrived.put((queue, message))
            queue_offset = pulled.next_offset

    watchers = [asyncio.create_task(watch(queue, start)) for queue, start in starts]
    try:
        while True:
            taking = asyncio.create_task(arrived.get())
            try:
                done, _ = await asyncio.wait(
                    (taking, *watchers), return_when=asyncio.FIRST_COMPLETED
                )
                if taking not in done:
                    # A watcher ends only by failing; raise its error.
                    done.pop().result()
                yield taking.result()
            finally:
                taking.cancel()
    finally:
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
