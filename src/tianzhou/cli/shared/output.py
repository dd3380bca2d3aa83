"""Results of commands: tables for the terminal, JSON for programs, warnings.

A command returns a `CommandResult`; `command` prints it as tables or JSON, once or repeatedly.
Numbers have thousands separators and are right-aligned. No value is truncated: a column that does
not fit goes into a second table below (`tables`).
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tianzhou.cli.shared.tables import Column, FittedTable, KeyValues

PIPE_WIDTH = 160
"""Width of output into a file or a pipe if COLUMNS is not set."""

Cell = str | int | float | None | Text | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    data: object
    """What --json prints."""
    sections: Sequence[RenderableType] = ()
    """Tables and texts for the terminal."""
    warnings: Sequence[str] = ()
    """One line each, for standard error."""
    exit_code: int = 0
    notes: Sequence[str] = field(default=())
    """Lines below the tables; not printed with --json."""


def console(*, stderr: bool = False) -> Console:
    """A console on the current standard output or error."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and not os.environ.get("COLUMNS")
    return Console(file=stream, width=PIPE_WIDTH if piped else None, highlight=False)


def bar_width(screen: Console) -> int:
    """Width of a progress bar, less the space for the figures beside it."""
    return max(min(screen.width - 50, 40), 5)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str | None = None
) -> RenderableType:
    """A table; a column ">lag" is right-aligned, and one "!id" is not wrapped."""
    heads = [
        Column(each.lstrip(">!"), right=">" in each[:2], whole="!" in each[:2]) for each in columns
    ]
    return titled(title, FittedTable(heads, (tuple(map(cell, row)) for row in rows)))


def table_of(
    rows: Iterable[object],
    columns: str,
    *,
    title: str | None = None,
    **formats: Callable[[Any], Cell],
) -> RenderableType:
    """A table of rows as --json prints them: dicts or dataclasses.

    `columns` are "topic, >read_queues, >lag=backlog": key and, if it differs, head; marks as in
    `table`. `formats` are functions by key, for values that a table shows in another way.
    """
    parsed = [_parse_column(each) for each in columns.split(", ")]
    shown = (
        [formats.get(key, _as_it_is)(_value(row, key)) for _, key, _ in parsed] for row in rows
    )
    return table([mark + head for mark, _, head in parsed], shown, title=title)


def _parse_column(text: str) -> tuple[str, str, str]:
    """Marks, key and head of a column."""
    key, _, head = text.lstrip(">!").partition("=")
    return text[: len(text) - len(text.lstrip(">!"))], key, head or key.replace("_", " ")


def _value(row: object, key: str) -> Any:  # noqa: ANN401 - of any type that a cell can show
    return cast("dict[str, Any]", row)[key] if isinstance(row, dict) else getattr(row, key)


def _as_it_is(value: Cell) -> Cell:
    return value


def titled(title: str | None, made: RenderableType) -> RenderableType:
    """A table below its title, which may be wider."""
    return Group(Text(title, style="bold"), made) if title else made


def key_values(pairs: Iterable[tuple[str, Cell]], *, title: str | None = None) -> RenderableType:
    """Names and values, one pair a line."""
    return titled(title, KeyValues((Text(name, style="dim"), cell(value)) for name, value in pairs))


def cell(value: Cell) -> Text:
    """A value as text of a table cell; markup in it is not interpreted."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, float):
        return Text(f"{value:,.1f}")
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, Mapping):
        return cell(" ".join(f"{key}={each}" for key, each in value.items()) or None)
    return cell(", ".join(value) or None)


def highlight(value: int, *, above: int = 0) -> Text:
    """A number, coloured if it is above a threshold."""
    return Text(f"{value:,}", style="yellow" if value > above else "")


def up_or_down(responds: bool) -> Text:
    """The state of a server."""
    return Text("up", style="green") if responds else Text("down", style="red")


def plural(count: int, noun: str) -> str:
    """ "1 topic", "2 topics"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# -- units -----------------------------------------------------------------------------------------


def format_time(time_ms: int | None) -> str | None:
    """A local date and time, "2026-01-31 23:59:59"; None if there is none."""
    if time_ms is None or time_ms <= 0:
        return None
    return datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def format_time_ms(time_ms: int) -> str:
    """The same with milliseconds."""
    return f"{format_time(time_ms) or '-'}.{time_ms % 1000:03d}"


def format_duration(length_ms: int) -> str:
    """A duration in two units: "3 d 4 h", "2.5 s".

    >>> format_duration(2500), format_duration(90_000), format_duration(100_000_000)
    ('2.5 s', '1 min 30 s', '1 d 3 h')
    """
    seconds = length_ms // 1000
    if seconds < 60:
        return f"{length_ms / 1000:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds // 60 % 60} min"
    return f"{seconds // 86_400} d {seconds // 3600 % 24} h"


def format_size(count_bytes: int | float) -> str:
    """Bytes in the largest unit that fits: "1.5 GiB".

    >>> format_size(1536), format_size(100)
    ('1.5 KiB', '100 B')
    """
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
