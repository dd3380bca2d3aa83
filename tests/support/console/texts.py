"""All texts of the console that people read, found in its source and templates."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tianzhou.console

FOLDER = Path(tianzhou.console.__file__).parent
_IN_TEMPLATES = re.compile(r"""(?<![\w.])_\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_TITLED = ("page", "answer")
"""Functions of the route table whose third argument is a title."""


def texts() -> dict[str, str]:
    """Each text, and a file that has it."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.rglob("*.py")):
        for text in _of_source(ast.parse(path.read_text("utf-8"))):
            found.setdefault(text, path.name)
    for path in sorted((FOLDER / "templates").glob("*.html")):
        for literal in _IN_TEMPLATES.findall(path.read_text("utf-8")):
            found.setdefault(str(ast.literal_eval(literal)), path.name)
    return found


def _of_source(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            place = 0 if node.func.id == "Text" else 2 if node.func.id in _TITLED else None
            if place is not None and len(node.args) > place:
                text = node.args[place]
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value


def names_in(text: str) -> set[str]:
    """The placeholders of a text."""
    return set(re.findall(r"\{(\w+)\}", text))


def is_only_names(text: str) -> bool:
    """Whether nothing of it is to be translated, such as "{why}"."""
    return not re.sub(r"\{\w+\}", "", text).strip()
