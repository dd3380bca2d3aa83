"""Tables of pages: `?find=`, `?sort=-lag`, `?page=2`; found, sorted and cut on the server.

    class Topics(msgspec.Struct, frozen=True):
        topics: Listing[TopicRow]

    listing(ask, rows, find=lambda row: (row.name,), sort={"name": ..., "lag": ...}, first="-lag")

Rows whose value is unknown (None) come last, whichever way the column is sorted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tianzhou.console.web.ask import Ask

R = TypeVar("R")

PAGE_ROWS = 50
EXPORT_ROWS = 100_000
"""Rows of a `.csv`."""
PAGES_MAX = 1_000_000


class Listing(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The rows of one page of a table."""

    rows: tuple[R, ...]
    matching: int
    """Rows that match `find`."""
    total: int
    page: int
    pages: int
    sort: str
    """A column; with "-" in front the largest first."""
    find: str
    sortable: tuple[str, ...] = ()
    first: int = 0
    """Number of the first row, from 1; 0 without rows."""


def listing(
    ask: Ask,
    rows: Iterable[R],
    *,
    find: Callable[[R], Iterable[str]],
    sort: Mapping[str, Callable[[R], Any]],
    first: str,
) -> Listing[R]:
    """The rows of the page that the query names; `first` is the order without a query.

    `find` gives the texts of a row that are searched. Rows of equal value keep their order.
    """
    all_rows = list(rows)
    text, order = text_of(ask), order_of(ask, sort, first)
    matching = matching_rows(all_rows, text, find)
    ordered = sorted_rows(matching, sort[order.removeprefix("-")], order.startswith("-"))
    size = EXPORT_ROWS if ask.form == "csv" else PAGE_ROWS
    number, pages = page_of(ask, len(ordered), size)
    return cut(
        ordered[(number - 1) * size : number * size], size, matching=len(matching),
        total=len(all_rows), page=number, pages=pages, sort=order, find=text, sortable=tuple(sort),
    )  # fmt: skip


def cut(rows: Sequence[R], size: int, **values: Any) -> Listing[R]:  # noqa: ANN401 - the fields of Listing
    """A listing of rows that a database has found, sorted and cut."""
    first = (values["page"] - 1) * size + 1 if rows else 0
    return Listing(rows=tuple(rows), first=first, **values)


def text_of(ask: Ask) -> str:
    """What is searched for."""
    return ask.query.get("find", "").strip()[:200]


def order_of(ask: Ask, sortable: Iterable[str], first: str) -> str:
    """The column of the order; the usual one if the query names none that there is."""
    wanted = ask.query.get("sort", first)
    return wanted if wanted.removeprefix("-") in set(sortable) else first


def page_of(ask: Ask, rows: int, size: int = PAGE_ROWS) -> tuple[int, int]:
    """The number of the page, within bounds, and how many pages there are."""
    pages = max(1, -(-rows // size))
    text = ask.query.get("page", "1")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 1
    return min(max(number, 1), pages), pages


def matching_rows(rows: Sequence[R], text: str, find: Callable[[R], Iterable[str]]) -> Sequence[R]:
    """The rows that contain every word of a text, in any case."""
    parts = text.casefold().split()
    if not parts:
        return rows
    return [
        row for row in rows if all(part in "\n".join(find(row)).casefold() for part in parts)
    ]  # fmt: skip


def sorted_rows(rows: Sequence[R], key: Callable[[R], Any], is_descending: bool) -> list[R]:
    """The rows in order; unknown values last."""
    keyed = [(key(row), row) for row in rows]
    known = [pair for pair in keyed if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [row for _, row in known] + [row for value, row in keyed if value is None]
