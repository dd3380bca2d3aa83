"""Output of messages and traces: tables, lines, JSON data; options of lists of messages."""

import base64
import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tianzhou.admin.messages import Sent, body_of
from tianzhou.admin.trace import TraceEvent
from tianzhou.cli.shared.command import OptionGroup
from tianzhou.cli.shared.output import (
    CommandResult,
    format_size,
    format_time_ms,
    key_values,
    plural,
    table,
    table_of,
)
from tianzhou.cli.shared.parameters import option
from tianzhou.cli.shared.times import parse_time
from tianzhou.errors import BodyError
from tianzhou.message import Host, StoredMessage
from tianzhou.protocol.filter import SUBSCRIBE_ALL
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.remoting.address import format_address

Tag = Annotated[str, option("--tag TAGS", "Only these tags: 'paid' or 'paid || sent'.")]
Sql = Annotated[str | None, option("--sql SQL92", 'Only messages that match: "amount > 100".')]
Grep = Annotated[str | None, option("--grep REGEX", "Only messages whose body matches.")]
ALL_TAGS = SUBSCRIBE_ALL
UTF_8 = "utf-8"


def _known_charset(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError as e:
        raise typer.BadParameter(f"unknown character set {name!r}") from e


Charset = Annotated[
    str,
    option("--charset NAME", "Character set of bodies: utf-8, gbk, ...", callback=_known_charset),
]
_LINE_BYTES = 400


def text_of(message: StoredMessage, charset: str = UTF_8) -> tuple[str | None, bytes]:
    """The body as text, None if it is binary, and its bytes."""
    try:
        body = body_of(message)
    except BodyError:
        return None, message.body
    try:
        text = body.decode(charset)
    except UnicodeDecodeError:
        return None, body
    printable = all(each.isprintable() or each in "\r\n\t" for each in text)
    return (text if printable else None), body


def message_data(
    message: StoredMessage,
    broker: str | None = None,
    *,
    charset: str = UTF_8,
    with_body: bool = True,
) -> dict[str, object]:
    """A message as JSON data."""
    text, body = text_of(message, charset)
    data: dict[str, object] = {
        "id": id_of(message),
        "offset_id": offset_id_of(message),
        "topic": message.topic,
        "tags": message.tags,
        "keys": message.keys,
        "broker": broker,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "born_ms": message.born_time_ms,
        "born_host": format_address(*message.born_host),
        "stored_ms": message.store_time_ms,
        "store_host": format_address(*message.store_host),
        "retries": message.reconsume_count,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "properties": message.properties,
    }
    if not with_body:
        return data
    if text is not None:
        data["body"] = text
    else:
        data["body_base64"] = base64.b64encode(body).decode()
    return data


def message_line(
    message: StoredMessage, broker: str, charset: str = UTF_8, *, with_body: bool = True
) -> Text:
    """A message on one line, as `tail` and `query` print it."""
    text, body = text_of(message, charset)
    shown = text if text is not None else f"{format_size(len(body))} binary"
    shown = " ".join(shown.split())
    cut = shown if len(shown) <= _LINE_BYTES else shown[:_LINE_BYTES] + "..."
    where = f"{broker}/{message.queue_id}@{message.queue_offset}"
    line = Text()
    line.append(format_time_ms(message.store_time_ms), style="dim")
    line.append(f"  {where}", style="cyan")
    if message.tags:
        line.append(f"  [{message.tags}]", style="green")
    if message.keys:
        line.append(f"  {' '.join(message.keys)}", style="yellow")
    if with_body:
        line.append(f"  {cut}")
    return line


def message_facts(message: StoredMessage, charset: str = UTF_8) -> list[RenderableType]:
    """A message with all fields, properties and body."""
    text, body = text_of(message, charset)
    return [
        key_values(
            [
                ("id", id_of(message)),
                ("offset id", offset_id_of(message)),
                ("topic", message.topic),
                ("queue", f"{message.queue_id} at offset {message.queue_offset:,}"),
                ("tags", message.tags),
                ("keys", " ".join(message.keys) or None),
                ("sent", _when(message.born_time_ms, "by", message.born_host)),
                ("stored", _when(message.store_time_ms, "on", message.store_host)),
                ("retries", message.reconsume_count),
                ("size", f"{format_size(len(body))}, {format_size(message.size_bytes)} in the log"),
            ],
            title="Message",
        ),
        key_values(sorted(message.properties.items()), title="Properties"),
        Text(text) if text is not None else Text(_hex(body)),
    ]  # fmt: skip


def _when(time_ms: int, word: str, host: Host) -> str:
    return f"{format_time_ms(time_ms)} {word} {format_address(*host)}"


def _hex(body: bytes, lines_max: int = 32) -> str:
    """A hex dump of a binary body, 16 bytes a line."""
    lines = [
        f"{at:08x}  {body[at : at + 16].hex(' ')}"
        for at in range(0, min(len(body), 16 * lines_max), 16)
    ]
    if len(body) > 16 * lines_max:
        lines.append(f"... {len(body) - 16 * lines_max:,} more bytes")
    return "\n".join(lines)


# -- lists of messages -----------------------------------------------------------------------------


Begin = Annotated[str | None, option("--from TIME", "Stored at or after this time.")]
End = Annotated[str | None, option("--to TIME", "Stored before this time.")]
_CLOCK_SKEW_MS = 60_000
"""Clocks of brokers may be ahead of ours."""


class KeyType(StrEnum):
    """Index types, in RocketMQ's letters."""

    KEY = "K"
    TAG = "T"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions(OptionGroup):
    """Output options of a list of messages."""

    charset: Charset = UTF_8
    bodies: Annotated[bool, option("--body/--no-body", "Whether to print the bodies.")] = True
    listed: Annotated[
        bool, option("--list/--no-list", "Whether to list the messages or only count them.")
    ] = True
    count_tags: Annotated[bool, option("--count-tags", "Also print counts by tag.")] = False


def time_range(now_ms: int, begin: str | None, end: str | None) -> tuple[int, int]:
    """Begin and end in milliseconds; by default all times. Raises ConfigError."""
    begin_ms = 0 if begin in (None, "earliest") else parse_time(begin or "", now_ms)
    return begin_ms, parse_time(end, now_ms) if end else now_ms + _CLOCK_SKEW_MS


def list_result(
    found: list[tuple[str, StoredMessage]], listing: ListOptions, warnings: Sequence[str] = ()
) -> CommandResult:
    """The result of a search: messages with their brokers, oldest first."""
    found.sort(key=lambda pair: pair[1].store_time_ms)
    sections: list[RenderableType] = []
    if listing.listed and found:
        # One group: separate sections would have blank lines between them.
        sections.append(
            Group(
                *(
                    message_line(message, name, listing.charset, with_body=listing.bodies)
                    for name, message in found
                )
            )
        )
    data: object = [
        message_data(message, name, charset=listing.charset, with_body=listing.bodies)
        for name, message in found
        if listing.listed
    ]
    if listing.count_tags:
        tags = Counter(message.tags for _, message in found if message.tags)
        sections.append(table(["tag", ">messages"], tags.most_common()))
        data = {"messages": data, "tags": dict(tags.most_common())}
    return CommandResult(data, sections, warnings, notes=[plural(len(found), "message")])


def sent_table(sent: Sequence[Sent]) -> RenderableType:
    """The results of sends."""
    return table_of(
        sent,
        "!message_id=id, broker_name=broker, >queue_id=queue, >queue_offset=offset, status",
    )


# -- traces ----------------------------------------------------------------------------------------


_KINDS = {
    "Pub": "sent", "SubBefore": "consuming", "SubAfter": "consumed",
    "EndTransaction": "transaction ended", "Recall": "recalled",
}  # fmt: skip


def trace_table(events: Sequence[TraceEvent]) -> RenderableType:
    """The events of a message trace."""
    return table(
        ["time", "event", "group", "client", ">took ms", "result", "details"],
        (
            (
                format_time_ms(event.time_ms), _KINDS.get(event.kind, event.kind), event.group,
                event.client, event.cost_ms, _result(event), _more(event),
            )
            for event in events
        ),
    )  # fmt: skip


def _result(event: TraceEvent) -> Text | None:
    if event.success is None:
        return None
    return Text("ok", style="green") if event.success else Text("failed", style="red")


def _more(event: TraceEvent) -> str | None:
    details = [f"retry {event.retries}" if event.retries else "", event.keys or ""]
    if event.kind == "EndTransaction":
        details.append(event.detail or "")
    return ", ".join(each for each in details if each) or None
