"""New messages of a topic as they arrive, for one open page: bounded, one per person.

Server-sent events with one JSON object each:

    event: message    a row of a list
    event: state      {"shown": 12, "skipped": 3}: at most 20 messages a second are sent
    event: end        {"why": "time" | "replaced" | "failed" | "stopped", "text": "..."}

It commits no offset and disturbs no consumer. After 2 minutes it ends, and the page offers to begin
again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import msgspec

from tianzhou.admin import Admin
from tianzhou.admin.fanout import run_limited
from tianzhou.admin.message_search import follow, start_offset
from tianzhou.admin.messages import Matches, QueueRef
from tianzhou.console.messages.content import row_of
from tianzhou.console.web.slots import TAIL_S
from tianzhou.errors import TianzhouError
from tianzhou.message import StoredMessage

RATE = 20
"""Messages a second."""
QUEUES_MAX = 256
HOLD_MS = 10_000
_BEAT_S = 1.0
_QUIET_BEATS = 10
"""After this many seconds without a message a comment shows whether the browser is still there."""


async def events(
    admin: Admin, queues: list[QueueRef], replaced: asyncio.Event, *, tags: str,
    matches: Matches | None, length_s: float = TAIL_S, rate: int = RATE,
) -> AsyncGenerator[bytes]:  # fmt: skip
    """The events of one tail, until it ends by itself or is closed."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + length_s
    arrived: asyncio.Queue[tuple[QueueRef, StoredMessage] | TianzhouError] = asyncio.Queue(rate)
    skipped = 0

    async def read() -> None:
        """Follow the topic; what comes faster than it is shown is counted only."""
        nonlocal skipped
        try:
            ends = await run_limited(queues, lambda at: start_offset(admin.offsets, at, None))
            starts = list(zip(queues, ends, strict=True))
            arriving = follow(admin.messages, starts, tags=tags, matches=matches, hold_ms=HOLD_MS)
            async with aclosing(arriving) as found:
                async for each in found:
                    try:
                        arrived.put_nowait(each)
                    except asyncio.QueueFull:
                        skipped += 1
        except TianzhouError as e:
            await arrived.put(e)

    reader = loop.create_task(read())
    shown = quiet = 0
    second_s, in_second = loop.time(), 0
    try:
        yield b": begins\n\n"
        while True:
            if replaced.is_set():
                yield _event("end", {"why": "replaced"})
                return
            if loop.time() >= deadline_s:
                yield _event("end", {"why": "time"})
                return
            batch: list[tuple[QueueRef, StoredMessage]] = []
            failure: TianzhouError | None = None
            each = await _first(arrived, min(_BEAT_S, deadline_s - loop.time()))
            if loop.time() - second_s >= 1:
                second_s, in_second = loop.time(), 0
            while each is not None:
                if isinstance(each, TianzhouError):
                    failure = each
                else:
                    batch.append(each)
                is_full = failure is not None or in_second + len(batch) >= rate or arrived.empty()
                each = None if is_full else arrived.get_nowait()
            for at, message in batch:
                yield _event("message", row_of(message, at.broker.name))
            shown += len(batch)
            quiet = 0 if batch else quiet + 1
            if batch:
                yield _event("state", {"shown": shown, "skipped": skipped})
            elif quiet % _QUIET_BEATS == 0:
                yield b": quiet\n\n"
            if failure is not None:
                yield _event("end", {"why": "failed", "text": str(failure)})
                return
            in_second += len(batch)
            if in_second >= rate:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(second_s + 1 - loop.time(), 0)):
                        await replaced.wait()
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _first(
    arrived: asyncio.Queue[tuple[QueueRef, StoredMessage] | TianzhouError], time_s: float
) -> tuple[QueueRef, StoredMessage] | TianzhouError | None:
    try:
        async with asyncio.timeout(max(time_s, 0)):
            return await arrived.get()
    except TimeoutError:
        return None


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
