"""Tables that never truncate a value: columns that do not fit go into further tables below.

    fits             one table
    text is long     columns of text are wrapped between words, down to 20 characters
    still too wide   the columns are distributed over several tables below each other, each of
                     which repeats the columns that identify the rows
    a single value   wider than the screen: it is folded, so that no character is lost

Numbers, addresses, ids and names are never wrapped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 3
"""Width between two columns."""
_FACT_GAP = 2
_TEXT_WIDTH = 20
"""The smallest width to which text is wrapped: enough for a date and time."""


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column and the layout of its cells."""

    name: str
    right: bool = False
    whole: bool = False
    """Whether cells are never wrapped: numbers, addresses, ids."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """The largest width of a column, and the smallest that breaks no word."""

    widest: int
    narrowest: int


class FittedTable:
    """A table that fits the screen without truncating values; see the module docstring."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(row) for row in rows]
        self._extents = [self._extent(at) for at in range(len(self.columns))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        for number, chosen in enumerate(self._dealt(options.max_width)):
            if number:
                yield Text()
            yield self._table(chosen, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        del console
        widest = self._width(range(len(self.columns)), [each.widest for each in self._extents])
        narrowest = max((each.narrowest for each in self._extents), default=0)
        return Measurement(min(narrowest, options.max_width), min(widest, options.max_width))

    # -- which columns go together -----------------------------------------------------------------

    def _dealt(self, width: int) -> Iterator[list[int]]:
        """The columns of each table, by number."""
        keys = self._keys(width)
        rest = [at for at in range(len(self.columns)) if at not in keys]
        chosen = list(keys)
        for at in rest:
            if len(chosen) > len(keys) and not self._fit([*chosen, at], width):
                yield chosen
                chosen = list(keys)
            if len(chosen) == len(keys) and keys and not self._fit([*chosen, at], width):
                # Too wide even beside the keys alone: it gets its own table.
                yield [at]
                continue
            chosen.append(at)
        if len(chosen) > len(keys) or not rest:
            yield chosen

    def _keys(self, width: int) -> list[int]:
        """The first columns that identify the rows, at most two thirds of the width."""
        everything = list(range(len(self.columns)))
        if self._fit(everything, width):
            return []
        keys: list[int] = []
        for at in everything[:-1]:
            if not self._fit([*keys, at], width * 2 // 3):
                break
            keys.append(at)
            if len({tuple(row[key].plain for key in keys) for row in self.rows}) == len(self.rows):
                break
        return keys

    def _fit(self, chosen: Sequence[int], width: int) -> bool:
        return self._width(chosen, [self._extents[at].narrowest for at in chosen]) <= width

    @staticmethod
    def _width(chosen: Sequence[int], widths: Sequence[int]) -> int:
        return sum(widths) + _GAP * max(len(chosen) - 1, 0)

    # -- how wide they are -------------------------------------------------------------------------

    def _extent(self, at: int) -> _Extent:
        column = self.columns[at]
        cells = [Text(column.name), *(row[at] for row in self.rows)]
        widest = max(_line_width(cell) for cell in cells)
        if column.right or column.whole:
            return _Extent(widest, widest)
        longest_word = max(_word_width(cell) for cell in cells)
        return _Extent(widest, max(longest_word, min(widest, _TEXT_WIDTH)))

    def _table(self, chosen: Sequence[int], width: int) -> Table:
        made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for at, column_width in zip(chosen, self._widths(chosen, width), strict=True):
            column = self.columns[at]
            made.add_column(
                column.name,
                justify="right" if column.right else "left",
                width=column_width,
                overflow="fold",
                header_style="bold",
            )
        for row in self.rows:
            made.add_row(*(row[at] for at in chosen))
        return made

    def _widths(self, chosen: Sequence[int], width: int) -> list[int]:
        """Each as wide as its cells; if too wide, text columns shrink to their longest word."""
        widths = [self._extents[at].widest for at in chosen]
        surplus = self._width(chosen, widths) - width
        while surplus > 0:
            slack = [
                have - self._extents[at].narrowest for at, have in zip(chosen, widths, strict=True)
            ]
            if not any(slack):
                # A single value is wider than the screen.
                widest = widths.index(max(widths))
                widths[widest] = max(widths[widest] - surplus, 1)
                break
            loosest = slack.index(max(slack))
            widths[loosest] -= 1
            surplus -= 1
        return widths


def _line_width(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n", allow_blank=True)), default=0)


def _word_width(cell: Text) -> int:
    return max((Text(word).cell_len for word in cell.plain.split()), default=0)


class KeyValues:
    """Names and values, one pair per line; a value that does not fit goes below its name."""

    def __init__(self, pairs: Iterable[tuple[Text, Text]]) -> None:
        self.pairs = list(pairs)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        name_width = max((name.cell_len for name, _ in self.pairs), default=0)
        left = options.max_width - name_width - _FACT_GAP
        beside: list[tuple[Text, Text]] = []
        for name, value in self.pairs:
            if _word_width(value) <= left:
                beside.append((name, value))
                continue
            if beside:
                yield _beside(beside, name_width, left)
                beside = []
            yield _folding(name)
            yield Padding(_folding(value), (0, 0, 0, _FACT_GAP))
        if beside:
            yield _beside(beside, name_width, left)


def _folding(text: Text) -> Text:
    folding = text.copy()
    folding.overflow = "fold"
    return folding


def _beside(pairs: Sequence[tuple[Text, Text]], name_width: int, left: int) -> Table:
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, _FACT_GAP, 0, 0))
    made.add_column(width=name_width)
    widest = max(_line_width(value) for _, value in pairs)
    made.add_column(overflow="fold", width=min(widest, left))
    for name, value in pairs:
        made.add_row(name, value)
    return made
