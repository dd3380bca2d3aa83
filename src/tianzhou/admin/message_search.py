"""Searching the messages of a topic by store time, tag, SQL92 expression or body; following it.

`search_by_time` reads all of a range, queue by queue. `search_page` reads a bounded number of
messages, in order of their store time, and says how far it came and where to continue.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import run_limited
from tianzhou.admin.messages import PULL_COUNT, Matches, Messages, QueueRef, body_of, matching
from tianzhou.admin.offsets import EARLIEST_MS, Offsets
from tianzhou.clock import wall_ms
from tianzhou.errors import BodyError, ConfigError, TargetError, TianzhouError
from tianzhou.message import StoredMessage
from tianzhou.protocol.filter import SUBSCRIBE_ALL, compile_sql

T = TypeVar("T")


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


# -- in pages --------------------------------------------------------------------------------------


BROKER_S = 2.0


class Stop(StrEnum):
    """Why a page of a search ends."""

    END = "end"
    """All messages of the range were read."""
    SHOWN = "shown"
    """As many as wanted were found."""
    LOOKED_AT = "looked_at"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one page of a search."""

    shown_max: int = 50
    looked_at_max: int = 10_000
    """Messages read from brokers, matching or not."""
    time_s: float = 5.0
    broker_s: float = BROKER_S
    """Time-out of each request: a broker that hangs does not use up the time of the others."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets [begin, end) of a queue."""

    queue: QueueRef
    begin: int
    end: int


Cursor = Mapping[str, Mapping[int, int]]
"""Where a search continues: by broker name and queue id, the first offset that was not looked at;
newest first, the offset behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """One page of a search."""

    messages: list[tuple[QueueRef, StoredMessage]]
    looked_at: int
    """Messages of the range that this page covers."""
    left: int
    """Messages of the range that were not looked at."""
    stop: Stop
    reached_ms: int | None
    """Store time of the last message that was looked at; None if there was none."""
    cursor: Cursor
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Why brokers did not answer, by broker name; their messages are missing."""


class _Reader:
    """The messages of one range in order, read in windows."""

    def __init__(self, given: QueueRange, position: int, *, newest_first: bool) -> None:
        self.range = given
        self.newest_first = newest_first
        self.next = position
        """The first offset to read; newest first, the one behind it."""
        self.ready: deque[StoredMessage] = deque()
        self.looked_at = 0

    @property
    def is_read(self) -> bool:
        end = self.range.begin if self.newest_first else self.range.end
        return self.next <= end if self.newest_first else self.next >= end

    @property
    def position(self) -> int:
        """Where a later page continues."""
        if not self.ready:
            return self.next
        return self.ready[0].queue_offset + (1 if self.newest_first else 0)

    @property
    def left(self) -> int:
        if self.newest_first:
            return max(self.position - self.range.begin, 0)
        return max(self.range.end - self.position, 0)

    def pop(self) -> StoredMessage:
        return self.ready.popleft()

    async def fill(self, messages: Messages, size: int, tags: str) -> None:
        """Read one window; it may hold no message that matches."""
        if self.newest_first:
            low, high = max(self.range.begin, self.next - size), self.next
        else:
            low, high = self.next, min(self.range.end, self.next + size)
        found: list[StoredMessage] = []
        at = low
        while at < high:
            count = min(PULL_COUNT, high - at)
            pulled = await messages.pull(self.range.queue, at, max_count=count, tags=tags)
            found += [each for each in pulled.messages if at <= each.queue_offset < high]
            if pulled.next_offset <= at:
                break
            at = pulled.next_offset
        self.ready.extend(reversed(found) if self.newest_first else found)
        self.looked_at += high - low
        self.next = low if self.newest_first else high


async def ranges(
    admin: Admin,
    queues: Iterable[QueueRef],
    begin_ms: int,
    end_ms: int,
    *,
    broker_s: float = BROKER_S,
) -> tuple[list[QueueRange], dict[str, str]]:
    """The offsets of a range of store time; and why brokers did not answer, by name.

    Ranges may hold a few messages of other times at their ends.
    """
    failures: dict[str, str] = {}
    now_ms = wall_ms()

    async def one(at: QueueRef) -> QueueRange | None:
        offsets, where = admin.offsets, (at.broker, at.topic, at.queue_id)
        if at.broker.name in failures:
            return None
        try:
            async with asyncio.timeout(broker_s):
                begin, end = await offsets.begin(*where), await offsets.end(*where)
                if begin_ms > EARLIEST_MS and begin < end:
                    begin = max(begin, await offsets.at_time(*where, begin_ms))
                if end_ms < now_ms and begin < end:
                    # Behind the last message of the range; Apache answers with that message.
                    end = min(end, await offsets.at_time(*where, end_ms) + 1)
        except (TianzhouError, TimeoutError) as e:
            failures[at.broker.name] = _reason(e, broker_s)
            return None
        return QueueRange(at, begin, max(begin, end))

    found = await run_limited(queues, one)
    known = [each for each in found if each is not None]
    return [each for each in known if each.queue.broker.name not in failures], failures


def _reason(error: BaseException, broker_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {broker_s:g} s"
    return str(error) or type(error).__name__


async def search_page(
    admin: Admin,
    queues: Sequence[QueueRef],
    begin_ms: int,
    end_ms: int,
    *,
    tags: str = SUBSCRIBE_ALL,
    matches: Matches | None = None,
    newest_first: bool = True,
    cursor: Cursor | None = None,
    limits: Limits = Limits(),
) -> SearchPage:
    """The next matching messages stored in [begin_ms, end_ms), in order of their store time.

    Raises TianzhouError only if no broker answers.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limits.time_s
    known, failures = await _within(
        ranges(admin, queues, begin_ms, end_ms, broker_s=limits.broker_s), deadline_s, ([], {})
    )
    if not known and not failures and queues:
        failures = {at.broker.name: _reason(TimeoutError(), limits.time_s) for at in queues}
    if queues and not known:
        raise TargetError(
            "no broker answered: " + "; ".join(f"{at}: {why}" for at, why in failures.items())
        )
    readers = [_reader(each, cursor or {}, newest_first=newest_first) for each in known]
    total = sum(each.left for each in readers)
    size = _window(len(readers), limits, is_filtered=tags != SUBSCRIBE_ALL)
    wanted = matching(tags, matches)
    found: list[tuple[QueueRef, StoredMessage]] = []
    reached_ms: int | None = None

    async def fill(reader: _Reader) -> None:
        try:
            async with asyncio.timeout(limits.broker_s):
                await reader.fill(admin.messages, size, tags)
        except (TianzhouError, TimeoutError) as e:
            failures[reader.range.queue.broker.name] = _reason(e, limits.broker_s)

    async def fill_all(empty: list[_Reader]) -> bool:
        await run_limited(empty, fill)
        return True

    stop = Stop.END
    while True:
        open_readers = [at for at in readers if at.range.queue.broker.name not in failures]
        empty = [at for at in open_readers if not at.ready and not at.is_read]
        if empty:
            if sum(at.looked_at for at in readers) >= limits.looked_at_max:
                stop = Stop.LOOKED_AT
                break
            if not await _within(fill_all(empty), deadline_s, otherwise=False):
                stop = Stop.TIME
                break
            continue
        ready = [at for at in open_readers if at.ready]
        if not ready:
            break
        first = (max if newest_first else min)(ready, key=_order)
        if len(found) >= limits.shown_max:
            stop = Stop.SHOWN
            break
        message = first.pop()
        reached_ms = message.store_time_ms
        if begin_ms <= message.store_time_ms < end_ms and wanted(message):
            found.append((first.range.queue, message))
    left = sum(each.left for each in readers)
    positions: dict[str, dict[int, int]] = {}
    for each in readers:
        at = each.range.queue
        positions.setdefault(at.broker.name, {})[at.queue_id] = each.position
    return SearchPage(
        messages=found, looked_at=total - left, left=left, stop=stop, reached_ms=reached_ms,
        cursor=positions, failures=failures,
    )  # fmt: skip


def _reader(given: QueueRange, cursor: Cursor, *, newest_first: bool) -> _Reader:
    start = given.end if newest_first else given.begin
    wanted = cursor.get(given.queue.broker.name, {}).get(given.queue.queue_id, start)
    return _Reader(given, min(max(wanted, given.begin), given.end), newest_first=newest_first)


def _order(reader: _Reader) -> tuple[int, str, int]:
    """By store time; messages of one broker and millisecond as they are in its log."""
    message = reader.ready[0]
    return message.store_time_ms, reader.range.queue.broker.name, message.log_offset


def _window(readers: int, limits: Limits, *, is_filtered: bool) -> int:
    """Messages to read at a time from each queue; brokers skip other tags cheaply."""
    size = 8 * PULL_COUNT if is_filtered else PULL_COUNT
    return max(1, min(size, limits.looked_at_max // max(readers, 1)))


async def _within(work: Awaitable[T], deadline_s: float, otherwise: T) -> T:
    """The result of `work`, or `otherwise` at the deadline."""
    try:
        async with asyncio.timeout_at(deadline_s):
            return await work
    except TimeoutError:
        return otherwise
