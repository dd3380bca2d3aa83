"""Tables of the command line never cut a value, however narrow the screen is."""

import ast
import io
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

import tianzhou.cli
from tianzhou.cli.shared.output import key_values, table

WIDTHS = st.sampled_from([40, 60, 80, 100, 120, 160])
NUMBERS = st.integers(0, 10**15)
WORDS = st.text("abcdefghijklmnop-_%.:[]0123456789", min_size=1, max_size=38)
ADDRESSES = st.sampled_from(
    ["127.0.0.1:10911", "255.255.255.255:65535", "[2001:db8:1:2:3:4:5:6]:10911"]
)
SENTENCES = st.lists(WORDS, max_size=8).map(" ".join)
NAMES = st.sampled_from(["id", "broker", "out today", "consumed/s", "first failure"])
Value = str | int
KINDS: dict[str, st.SearchStrategy[Value]] = {
    ">": NUMBERS,
    "!": st.one_of(ADDRESSES, WORDS),
    "": SENTENCES,
}


def drawn(shown: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(shown)
    text = out.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return text


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[Value]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12))
    columns = [kind + draw(NAMES) for kind in kinds]
    count = draw(st.integers(0, 4))
    rows = [[draw(KINDS[kind]) for kind in kinds] for _ in range(count)]
    return columns, rows


def tokens_of(value: Value) -> list[str]:
    """Text that is not split over lines: a number, or a word."""
    return [f"{value:,}"] if isinstance(value, int) else value.split()


@given(made=tables(), width=WIDTHS)
def test_every_value_is_shown_whole(made: tuple[list[str], list[list[Value]]], width: int) -> None:
    columns, rows = made
    shown = drawn(table(columns, rows), width)
    tokens = re.split(r"\s+", shown)
    for row in rows:
        for value in row:
            for token in tokens_of(value):
                assert token in tokens, (token, shown)
    assert "…" not in shown


@given(width=st.integers(20, 60), number=st.integers(10**30, 10**40))
def test_value_wider_than_the_screen_loses_no_character(width: int, number: int) -> None:
    value = f"b{number}" * 3
    shown = drawn(table(["!name", ">count"], [(value, 1)]), width)
    assert value in re.sub(r"[\s─]", "", shown)


@given(
    pairs=st.lists(st.tuples(NAMES, st.one_of(NUMBERS, ADDRESSES, SENTENCES)), max_size=6),
    width=WIDTHS,
)
def test_facts_are_shown_whole(pairs: list[tuple[str, str | int]], width: int) -> None:
    tokens = re.split(r"\s+", drawn(key_values(pairs), width))
    for _, value in pairs:
        for token in tokens_of(value):
            assert token in tokens


def test_all_tables_are_rendered_by_one_module() -> None:
    folder = Path(tianzhou.cli.__file__).parent
    others = [
        path.name
        for path in folder.rglob("*.py")
        if path.name != "tables.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "rich.table"
    ]
    assert not others
