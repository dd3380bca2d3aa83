r"""The text format of `java.util.Properties`: read as Java reads it, edited line by line.

    # comment, also after spaces; so is a line that starts with !
    key = value        the separator is '=', ':' or blanks, with blanks around it
    key = first \      an odd number of backslashes at the end of a line continues it, and the
          second       blanks that open the next line are dropped
    path = C:\\tmp     \t \n \r \f \uXXXX are what they say, any other escaped character is itself

Lines end with \n, \r or \r\n. Java reads bytes as ISO-8859-1; files in UTF-8 are common, so bytes
that are valid UTF-8 are read as such and everything else as Java does.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tianzhou.errors import ConfigError

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_TRAILING_BACKSLASHES = re.compile(r"\\*\Z")
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u(?P<hex>[0-9a-fA-F]{4})?|.)", re.DOTALL)
_NAMED_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


class Property(NamedTuple):
    """One pair, and the number of the line on which it begins."""

    key: str
    value: str
    line: int


class _LogicalLine(NamedTuple):
    """The text of a pair before it is split, and the lines [first, last) that it spans.

    An unfinished one ends with a backslash at the end of the text.
    """

    text: str
    first: int
    last: int
    unfinished: bool


# -- reading ---------------------------------------------------------------------------------------


def decode_text(data: bytes) -> tuple[str, str]:
    """The text of a properties file and the encoding that gives the same bytes back."""
    for encoding in ("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8", "iso-8859-1"):
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise AssertionError("ISO-8859-1 decodes every byte")


def parse_properties(text: str, source: str) -> list[Property]:
    """Every pair in the order of the text, repeated keys included; for Java the last one counts.

    Raises ConfigError, naming `source` and the line, where Java raises IllegalArgumentException.
    """
    return [
        Property(*_split_pair(logical.text, source, logical.first + 1), logical.first + 1)
        for logical in _logical_lines(_LINE_END.split(text))
    ]


def _logical_lines(lines: list[str]) -> Iterator[_LogicalLine]:
    at = 0
    while at < len(lines):
        first, text = at, lines[at].lstrip(_BLANKS)
        at += 1
        if not text or text[0] in "#!":
            continue
        if text == "\\" and not _at_end(lines, at):
            continue  # The next line continues nothing, so it may be a comment.
        logical = text
        while _ends_open(text):
            text = lines[at].lstrip(_BLANKS) if at < len(lines) else ""
            logical = logical[:-1] + text
            at += 1
        yield _LogicalLine(logical, first, min(at, len(lines)), at >= len(lines) and not text)


def _at_end(lines: list[str], at: int) -> bool:
    return at == len(lines) or (at == len(lines) - 1 and not lines[at])


def _ends_open(text: str) -> bool:
    backslashes = _TRAILING_BACKSLASHES.search(text)
    return backslashes is not None and len(backslashes.group()) % 2 == 1


def _split_pair(text: str, source: str, line: int) -> tuple[str, str]:
    key = _KEY.match(text)
    assert key is not None, "the pattern matches the empty string"
    separator = _SEPARATOR.match(text, key.end())
    assert separator is not None, "the pattern matches the empty string"
    return _unescape(key.group(), source, line), _unescape(text[separator.end() :], source, line)


def _unescape(text: str, source: str, line: int) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match["hex"]:
            return chr(int(match["hex"], 16))
        character = match[1]
        if character == "u":
            raise ConfigError(f"{source}:{line}: \\u must be followed by four hexadecimal digits")
        return _NAMED_ESCAPES.get(character, character)

    # Java's characters are UTF-16 units: a pair of \u escapes is one character here. Half a pair
    # cannot be encoded and becomes the replacement character.
    units = _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass")
    return units.decode("utf-16", "replace")


# -- writing ---------------------------------------------------------------------------------------


def format_property(key: str, value: str) -> str:
    """One line in plain ASCII that Java reads back as exactly this pair."""
    escaped_key = "".join(f"\\{c}" if c in " =:#!" else _escape(c) for c in key)
    escaped_value = "".join(map(_escape, value))
    if value.startswith(" "):
        escaped_value = f"\\{escaped_value}"
    return f"{escaped_key}={escaped_value}"


def _escape(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def edit_properties(text: str, changes: Mapping[str, str]) -> str:
    """`text` with the values of `changes`; comments, order and all other pairs stay as they are.

    The last line of a repeated key is the one that counts, so it is the one that changes. New keys
    are added at the end.
    """
    pieces = re.split(f"({_LINE_END.pattern})", text)
    lines, line_ends = pieces[::2], [*pieces[1::2], ""]
    line_end = line_ends[0] or "\n"
    last: dict[str, _LogicalLine] = {}
    for logical in _logical_lines(lines):
        last[_split_pair(logical.text, "the file", logical.first + 1)[0]] = logical
    replaced = {last[key].first: key for key in changes if key in last}
    edited: list[str] = []
    at = 0
    while at < len(lines):
        key = replaced.get(at)
        if key is None:
            edited += (lines[at], line_ends[at])
            at += 1
        else:
            at = last[key].last
            edited += (format_property(key, changes[key]), line_ends[at - 1] or line_end)
    body = "".join(edited)
    if body.endswith("\r"):
        line_end = "\r"  # A lone \n here would become half of the line end before it.
    added = [format_property(key, value) for key, value in changes.items() if key not in last]
    if added and body and not body.endswith(("\n", "\r")):
        body += line_end
    # Without an empty line the first new pair would continue an unfinished one.
    if added and any(pair.unfinished for key, pair in last.items() if key not in changes):
        body += line_end
    return body + "".join(f"{pair}{line_end}" for pair in added)
