"""Messages on the screen and as JSON, and choosing among them by tag, SQL92 or pattern."""

import base64
import codecs
import re
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tianzhou.admin.messages import Matches, body_of
from tianzhou.cli.shared.output import facts, moment_ms, size
from tianzhou.errors import BodyError, ConfigError
from tianzhou.message import Host, StoredMessage
from tianzhou.protocol.filter import SUBSCRIBE_ALL, compile_sql
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.remoting.address import format_address

Tag = Annotated[
    str, typer.Option("--tag", metavar="TAGS", help="Only these: 'paid' or 'paid || sent'.")
]
Sql = Annotated[
    str | None, typer.Option("--sql", metavar="SQL92", help='Only these: "amount > 100".')
]
Grep = Annotated[
    str | None, typer.Option("--grep", metavar="REGEX", help="Only where the body matches.")
]
ALL_TAGS = SUBSCRIBE_ALL
UTF_8 = "utf-8"


def _known_charset(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError as e:
        raise typer.BadParameter(f"there is no character set {name!r}") from e


Charset = Annotated[
    str,
    typer.Option(
        "--charset", metavar="NAME", help="How bodies are written: utf-8, gbk, ...",
        callback=_known_charset,
    ),
]  # fmt: skip
_LINE_BYTES = 400


def text_of(message: StoredMessage, charset: str = UTF_8) -> tuple[str | None, bytes]:
    """The body as text, None if it is none, and its bytes."""
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


def build_matches(sql: str | None, grep: str | None) -> Matches | None:
    """A test of messages. Raises FilterError, ConfigError."""
    if sql is None and grep is None:
        return None
    compiled = compile_sql(sql) if sql is not None else None
    try:
        pattern = re.compile(grep.encode()) if grep is not None else None
    except re.error as e:
        raise ConfigError(f"--grep {grep!r}: {e}") from e

    def matches(message: StoredMessage) -> bool:
        if compiled is not None and not compiled.matches(message.properties.get):
            return False
        return pattern is None or pattern.search(text_of(message)[1]) is not None

    return matches


def message_data(
    message: StoredMessage,
    broker: str | None = None,
    *,
    charset: str = UTF_8,
    with_body: bool = True,
) -> dict[str, object]:
    """A message for programs."""
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
    """A message on one line, as `tail` and `query` show it."""
    text, body = text_of(message, charset)
    shown = text if text is not None else f"{size(len(body))} of bytes"
    shown = " ".join(shown.split())
    cut = shown if len(shown) <= _LINE_BYTES else shown[:_LINE_BYTES] + "..."
    where = f"{broker}/{message.queue_id}@{message.queue_offset}"
    line = Text()
    line.append(moment_ms(message.store_time_ms), style="dim")
    line.append(f"  {where}", style="cyan")
    if message.tags:
        line.append(f"  [{message.tags}]", style="green")
    if message.keys:
        line.append(f"  {' '.join(message.keys)}", style="yellow")
    if with_body:
        line.append(f"  {cut}")
    return line


def message_facts(message: StoredMessage, charset: str = UTF_8) -> list[RenderableType]:
    """A message with everything that is known of it."""
    text, body = text_of(message, charset)
    return [
        facts(
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
                ("size", f"{size(len(body))}, {size(message.size_bytes)} in the log"),
            ],
            title="Message",
        ),
        facts(sorted(message.properties.items()), title="Properties"),
        Text(text) if text is not None else Text(_hex(body)),
    ]  # fmt: skip


def _when(time_ms: int, word: str, host: Host) -> str:
    return f"{moment_ms(time_ms)} {word} {format_address(*host)}"


def _hex(body: bytes, lines_max: int = 32) -> str:
    """A body that is no text, 16 bytes a line."""
    lines = [
        f"{at:08x}  {body[at : at + 16].hex(' ')}"
        for at in range(0, min(len(body), 16 * lines_max), 16)
    ]
    if len(body) > 16 * lines_max:
        lines.append(f"... {len(body) - 16 * lines_max:,} bytes more")
    return "\n".join(lines)
