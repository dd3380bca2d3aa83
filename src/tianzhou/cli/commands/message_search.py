"""Searching for messages: what is searched for, walking the queues, and how finds are shown."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from tianzhou.admin.messages import Matches, QueueAt
from tianzhou.cli.commands.message_output import UTF_8, Charset, message_data, message_line
from tianzhou.cli.shared.command import Bundle, Session
from tianzhou.cli.shared.output import Shown, several, table
from tianzhou.cli.shared.times import parse_time
from tianzhou.message import StoredMessage

Begin = Annotated[str | None, typer.Option("--from", metavar="TIME", help="From this time on.")]
End = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time.")]
_SOON_MS = 60_000
"""Clocks of brokers may be a little ahead of ours."""


class KeyType(StrEnum):
    """What an index finds messages by, in RocketMQ's letters."""

    KEY = "K"
    TAG = "T"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Bundle):
    """How finds are shown."""

    charset: Charset = UTF_8
    bodies: Annotated[
        bool, typer.Option("--body/--no-body", help="Whether to show the bodies.")
    ] = True
    listed: Annotated[
        bool, typer.Option("--list/--no-list", help="Whether to list them, or only count.")
    ] = True
    count_tags: Annotated[bool, typer.Option("--count-tags", help="Also count them by tag.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for in queues."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    tags: str
    matches: Matches
    group: str
    """In whose name it is read."""


def stretch(now_ms: int, begin: str | None, end: str | None) -> tuple[int, int]:
    """The stretch of time that is meant, all of it if nothing is said. Raises ConfigError."""
    begin_ms = 0 if begin in (None, "earliest") else parse_time(begin or "", now_ms)
    return begin_ms, parse_time(end, now_ms) if end else now_ms + _SOON_MS


async def by_time(
    session: Session, queues: list[QueueAt], search: Search
) -> AsyncGenerator[tuple[str, StoredMessage]]:
    """The messages that were stored in a stretch of time, queue by queue."""
    messages, offsets = session.admin.messages, session.admin.offsets
    for at in queues:
        start = max(await offsets.begin(at.broker, at.topic, at.queue_id), search.begin_offset)
        if search.begin_ms > 0:
            then = await offsets.at_time(at.broker, at.topic, at.queue_id, search.begin_ms)
            start = max(start, then)
        stop = await offsets.end(at.broker, at.topic, at.queue_id)
        walking = messages.walk(
            at, start, stop, tags=search.tags, matches=search.matches, group=search.group
        )
        async with aclosing(walking):
            async for message in walking:
                if message.store_time_ms >= search.end_ms:
                    break
                if message.store_time_ms >= search.begin_ms:
                    yield at.broker.name, message


def show_found(
    found: list[tuple[str, StoredMessage]], look: Look, warnings: Sequence[str] = ()
) -> Shown:
    """Messages with the brokers that have them, the oldest first."""
    found.sort(key=lambda pair: pair[1].store_time_ms)
    parts: list[RenderableType] = []
    if look.listed and found:
        # Lines below each other, without the gaps that stand between tables.
        parts.append(
            Group(
                *(
                    message_line(message, name, look.charset, with_body=look.bodies)
                    for name, message in found
                )
            )
        )
    data: object = [
        message_data(message, name, charset=look.charset, with_body=look.bodies)
        for name, message in found
        if look.listed
    ]
    if look.count_tags:
        tags = Counter(message.tags for _, message in found if message.tags)
        parts.append(table(["tag", ">messages"], tags.most_common()))
        data = {"messages": data, "tags": dict(tags.most_common())}
    return Shown(data, parts, warnings, notes=[several(len(found), "message")])
