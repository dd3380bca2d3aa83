"""Writes JSON as fastjson does, in its own dialect or as strict JSON."""

import math
import re
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

import msgspec

from tianzhou.errors import BodyError
from tianzhou.protocol.fastjson.values import DEPTH_LIMIT, Json, too_deep

_SAFE_INTEGER = 2**53 - 1


def dumps(value: Json, *, standard: bool = False) -> bytes:
    """The JSON text of a value in UTF-8.

    Structs are written with their fields in alphabetical order and without those that are None; map
    entries with a None value are left out too, as fastjson does.

    With `standard` the text is strict JSON as a 5.x nameserver writes it: keys are strings in
    natural order, integers beyond 2**53 are strings. An object that serves as a key becomes the
    string of its JSON text, which fastjson 1 reads back but fastjson 2 does not. Without `standard`
    the text is what fastjson 1 writes by default and every RocketMQ reads.

    Raises BodyError for what JSON cannot hold, or what is nested too deeply.
    """
    writer = _Writer(standard)
    writer.write(value, 0)
    return "".join(writer.parts).encode("utf-8", "replace")


def dumps_steps(value: Json, *, standard: bool = False) -> Generator[None, None, bytes]:
    """`dumps` with pauses, for values that may be large; returns the text."""
    writer = _Writer(standard)
    parts, pieces = writer.parts, list[bytes]()
    for _ in writer.steps(value, 0):
        if len(parts) >= _PARTS_MAX:
            pieces.append("".join(parts).encode("utf-8", "replace"))
            parts.clear()
        yield
    pieces.append("".join(parts).encode("utf-8", "replace"))
    return b"".join(pieces)


_PARTS_MAX = 4096
"""Parts of a text that are joined at a time: joining all of a large text takes too long."""
_SCALARS = (str, int, float)

_SPECIAL = re.compile(r"[^ !#-\[\]-~]")

_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n",
                  "\r": "\\r", "\t": "\\t"}  # fmt: skip
_NATIVE_ESCAPES = str.maketrans(
    {chr(c): f"\\u{c:04X}" for c in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
    | _SHORT_ESCAPES
)
_STANDARD_ESCAPES = str.maketrans({chr(c): f"\\u{c:04x}" for c in range(0x20)} | _SHORT_ESCAPES)


def _native_string(text: str) -> str:
    return f'"{text.translate(_NATIVE_ESCAPES) if _SPECIAL.search(text) else text}"'


def _standard_string(text: str) -> str:
    return f'"{text.translate(_STANDARD_ESCAPES) if _SPECIAL.search(text) else text}"'


@cache
def _members_of(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, str], ...]:
    """Attribute, text before its value if it comes first, and if it does not; by wire name."""
    fields = sorted(msgspec.structs.fields(struct), key=lambda field: field.encode_name)
    return tuple(
        (field.name, f'{{"{field.encode_name}":', f',"{field.encode_name}":') for field in fields
    )


class _Writer:
    """Gathers the pieces of one text in one of the two dialects."""

    def __init__(self, standard: bool) -> None:
        self.standard = standard
        self.string = _standard_string if standard else _native_string
        self.parts: list[str] = []
        self.put = self.parts.append

    def write(self, value: object, depth: int) -> None:
        if isinstance(value, str):
            self.put(self.string(value))
        elif value is None or isinstance(value, (int, float)):
            self.put(self._number(value))
        else:
            for _ in self.steps(value, depth):
                pass

    def steps(self, value: object, depth: int) -> Iterator[None]:
        """Write a container, with a pause after each of its items.

        What it holds is copied before the first pause: it may change in between.
        """
        if depth >= DEPTH_LIMIT:
            raise too_deep()
        kind = type(value)
        if isinstance(value, msgspec.Struct):
            return self._struct_steps(value, depth + 1)
        if issubclass(kind, dict):
            return self._map_steps(value, depth + 1)
        if issubclass(kind, (list, tuple, set, frozenset)):
            return self._array_steps(value, depth + 1)
        raise BodyError(f"{kind.__name__} cannot be written to a JSON body")

    def _number(self, value: int | float | None) -> str:
        text = _scalar(value)
        if self.standard and isinstance(value, int) and abs(value) > _SAFE_INTEGER:
            return f'"{text}"'
        return text

    def _struct_steps(self, value: msgspec.Struct, depth: int) -> Iterator[None]:
        put, string, before = self.put, self.string, "{"
        for attribute, first, following in _members_of(type(value)):
            member = getattr(value, attribute)
            if member is None:
                continue
            name = first if before else following
            if isinstance(member, str):
                put(name + string(member))
            elif isinstance(member, (int, float)):
                put(name + self._number(member))
            else:
                put(name)
                yield from self.steps(member, depth)
            before = ""
        put(before + "}")

    def _map_steps(self, value: Json, depth: int) -> Iterator[None]:
        put, before = self.put, "{"
        items: list[tuple[Json, Json]] = list(value.items())
        if self.standard and len(items) > 1:
            items.sort(key=_natural_order)
        for key, item in items:
            if item is not None:
                put(before)
                self._write_key(key, depth)
                put(":")
                if isinstance(item, _SCALARS):
                    self.write(item, depth)
                else:
                    yield from self.steps(item, depth)
                before = ","
                yield
        put("{}" if before == "{" else "}")

    def _array_steps(self, value: Json, depth: int) -> Iterator[None]:
        put, before = self.put, "["
        for item in list(value):
            put(before)
            if item is None or isinstance(item, _SCALARS):
                self.write(item, depth)
            else:
                yield from self.steps(item, depth)
            before = ","
            yield
        put("[]" if before == "[" else "]")

    def _write_key(self, key: Json, depth: int) -> None:
        if isinstance(key, str):
            self.put(self.string(key))
        elif not self.standard:
            self.write(key, depth)
        elif key is None or isinstance(key, int | float):
            self.put(f'"{_scalar(key)}"')
        else:
            inner = _Writer(standard=True)
            inner.write(key, depth)
            self.put(self.string("".join(inner.parts)))


def _natural_order(entry: tuple[Json, Json]) -> tuple[int, Any]:
    """Numbers by value, strings as Java compares them."""
    key = entry[0]
    if isinstance(key, int | float):
        return 0, key
    if isinstance(key, str):
        # Java compares UTF-16 units, which order rare characters otherwise than code points do.
        return 1, key.encode("utf-16-be", "surrogatepass")
    return 2, str(key)


def _scalar(value: int | float | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # An IntEnum has a str of its own.
        return int.__str__(value)
    return _double(value)


def _double(value: float) -> str:
    """As Java's Double.toString writes it: 1.0, 1.0E7, 1.5E-5."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{power}"
