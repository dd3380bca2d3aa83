"""Reads fastjson's dialect of JSON; see the package for what it accepts."""

import math
import re
from typing import Any, NoReturn

import msgspec

from tianzhou.errors import BodyError
from tianzhou.protocol.fastjson.references import resolve_references
from tianzhou.protocol.fastjson.values import (
    DEPTH_LIMIT,
    Json,
    as_key,
    containers_in,
    fits_long,
    is_array,
    is_object,
    too_deep,
)

_DIGIT_LIMIT = 400


def loads(data: bytes | bytearray | memoryview | str) -> Json:
    """The value that `data` holds. Raises BodyError if it holds none, or one nested too deeply."""
    try:
        value = msgspec.json.decode(data)
        references = "$ref" in data if isinstance(data, str) else b"$ref" in bytes(data)
    except (ValueError, RecursionError):
        text = _as_text(data)
        value = _Reader(text).read()
        references = "$ref" in text
    else:
        _check_depth(value)
    return resolve_references(value) if references else value


_INTEGER_KEY = re.compile(rb"([{,])(-?[0-9]+):")


def quote_integer_keys(data: bytes) -> bytes:
    """Strict JSON, if nothing but integer keys made `data` another dialect.

    It looks for keys without knowing where strings begin and end. A string that holds what looks
    like a key gets two quotes too many, with a digit after the first, which no reader of strict
    JSON accepts: the result is right, or it cannot be read.
    """
    return _INTEGER_KEY.sub(rb'\1"\2":', data)


def _as_text(data: bytes | bytearray | memoryview | str) -> str:
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return str(data, "utf-8-sig")
    except UnicodeDecodeError as e:
        raise BodyError(f"the body is not UTF-8: {e}") from e


def _check_depth(value: Json) -> None:
    level: list[Json] = [value] if is_object(value) or is_array(value) else []
    for _ in range(DEPTH_LIMIT):
        level = [inner for outer in level for inner in containers_in(outer)]
        if not level:
            return
    raise too_deep()


# Possessive quantifiers keep every pattern linear. Fastjson counts \b among the white space.
_SPACE = re.compile(r"(?:[ \t\n\r\f\v\x08]++|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_NUMBER = re.compile(r"([+-]?+[0-9]++)(\.[0-9]*+)?+([eE][+-]?+[0-9]++)?+([LSBFD]?+)")
_MEMBER = re.compile(
    r'(?:"([^"\\]*+)"|(-?+[0-9]{1,18}+)):'
    r'(?:"([^"\\]*+)"|(-?+[0-9]{1,18}+)|(true|false|null))(?:,|(?=\}))'
)
"""The common member of an object, read in one step: plain key, plain value, no white space."""
_NAME = re.compile(r"[A-Za-z_$\x80-\U0010ffff][\w$]*+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")

_ESCAPED = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "F": "\f", "n": "\n",
    "r": "\r", "t": "\t", "v": "\v",
} | {str(code): chr(code) for code in range(8)}  # fmt: skip

# Fastjson 1 reads the last two as null.
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}


class _Reader:
    """One pass over a text, left to right; every method leaves `at` after what it has read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> Json:
        value = self._value(0)
        if self._peek():
            self._fail("the end of the body")
        return value

    def _peek(self) -> str:
        """The next character that means something, "" at the end."""
        space = _SPACE.match(self.text, self.at)
        assert space is not None
        self.at = space.end()
        return self.text[self.at : self.at + 1]

    def _fail(self, expected: str) -> NoReturn:
        found = repr(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "the end"
        raise BodyError(
            f"the JSON body cannot be read at character {self.at}: {expected} expected, "
            f"{found} found"
        )

    def _value(self, depth: int) -> Json:
        first = self._peek()
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first in ('"', "'"):
            return self._string(first)
        number = _NUMBER.match(self.text, self.at)
        if number:
            return self._number(number)
        name = _NAME.match(self.text, self.at)
        if name and name[0] in _WORDS:
            self.at = name.end()
            return _WORDS[name[0]]
        self._fail("a value")

    def _object(self, depth: int) -> dict[Any, Any]:
        if depth > DEPTH_LIMIT:
            raise too_deep()
        self.at += 1
        pairs: dict[Any, Any] = {}
        while True:
            while member := _MEMBER.match(self.text, self.at):
                name, number = member.group(1, 2)
                pairs[int(number) if name is None else name] = _plain_value(member)
                self.at = member.end()
            first = self._peek()
            if first == ",":
                self.at += 1
                continue
            if first == "}":
                self.at += 1
                return pairs
            key = self._key(first, depth)
            if self._peek() != ":":
                self._fail("':'")
            self.at += 1
            pairs[key] = self._value(depth)
            if self._peek() not in (",", "}"):
                self._fail("',' or '}'")

    def _array(self, depth: int) -> list[Any]:
        if depth > DEPTH_LIMIT:
            raise too_deep()
        self.at += 1
        items: list[Any] = []
        while True:
            first = self._peek()
            if first == ",":
                self.at += 1
                continue
            if first == "]":
                self.at += 1
                return items
            items.append(self._value(depth))
            if self._peek() not in (",", "]"):
                self._fail("',' or ']'")

    def _key(self, first: str, depth: int) -> Json:
        if first in ('"', "'"):
            return self._string(first)
        if first in ("{", "["):
            return as_key(self._value(depth))
        start = self.at
        number = _NUMBER.match(self.text, self.at)
        if number:
            value = self._number(number)
            return value if fits_long(value) else self.text[start : self.at]
        name = _NAME.match(self.text, self.at)
        if name is None:
            self._fail("a key")
        self.at = name.end()
        return name[0]

    def _string(self, quote: str) -> str:
        pattern = _DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED
        string = pattern.match(self.text, self.at)
        if string is None:
            self._fail(f"the closing {quote} of a string")
        body = string[1]
        if "\\" in body:
            body = _SURROGATES.sub(_pair, _ESCAPE.sub(self._unescape, body))
        self.at = string.end()
        return body

    def _unescape(self, escape: re.Match[str]) -> str:
        code = escape[1] or escape[2]
        if code:
            return chr(int(code, 16))
        if escape[3] not in _ESCAPED:
            self._fail(f"a known escape (not \\{escape[3]}) in the string")
        return _ESCAPED[escape[3]]

    def _number(self, number: re.Match[str]) -> int | float:
        whole, fraction, exponent, suffix = number.groups()
        if number.end() - number.start() > _DIGIT_LIMIT:
            self._fail(f"a number of at most {_DIGIT_LIMIT} digits")
        if (fraction and fraction != ".") or exponent or suffix in ("F", "D"):
            value: int | float = float(f"{whole}{fraction or ''}{exponent or ''}")
            if math.isinf(value):
                self._fail("a number that fits a double")
        else:
            value = int(whole)
        self.at = number.end()
        return value


def _plain_value(member: re.Match[str]) -> Json:
    _, _, text, number, word = member.groups()
    if text is not None:
        return text
    return _WORDS[word] if number is None else int(number)


def _pair(surrogates: re.Match[str]) -> str:
    """A character written as two escapes; half of one becomes '?', as it does in Java's UTF-8."""
    pair = surrogates[0]
    return pair.encode("utf-16", "surrogatepass").decode("utf-16") if len(pair) == 2 else "?"
