"""The JSON of RocketMQ's bodies: what fastjson writes and reads, which is not quite JSON.

RocketMQ 4.9 and the first releases of 5.x use fastjson 1, 5.5 uses fastjson 2. Both write map keys
that are not strings as they are, so a body may read

    {"brokerAddrs":{0:"10.0.0.1:10911"}}           integer keys without quotes
    {"offsetTable":{{"topic":"t","queueId":0}:1}}  objects as keys
    {"a":[1],"b":{"$ref":"$.a"}}                   fastjson 1: the second place of a shared object

`loads` reads strict JSON and all of these, and what else fastjson 1 lets pass: single quotes, keys
without quotes, superfluous commas, comments, a byte order mark, control characters in strings,
numbers with a plus, leading zeros or one of Java's suffixes. It does not read Java expressions
(`new Date`, `Set[...]`, `x'00'`). Time and memory are linear in the size of the input; nesting is
limited.

`dumps` writes either dialect. Plain values become:

    object            dict; unquoted integer keys are int, all others str
    object as a key   ObjectKey, a dict that can be hashed
    array             list, as a key tuple
"""

import math
import re
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from typing import Any, NoReturn, TypeGuard

import msgspec

from tianzhou.errors import BodyError

DEPTH_LIMIT = 128
"""Deepest nesting read or written; RocketMQ's own bodies stay below ten."""
EXPANSION_LIMIT = 1_000_000
"""Values a body may hold after its references are resolved, if it has references at all."""

_SAFE_INTEGER = 2**53 - 1
_DIGIT_LIMIT = 400

Json = Any
"""Whatever JSON can hold; the caller gives it a type."""


class ObjectKey(dict[Any, Any]):
    """An object that serves as a key. Nothing may change it, since its hash is of its contents."""

    __slots__ = ("_hash",)

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:
            pass
        self._hash: int = hash(
            frozenset((_salted(key), _salted(item)) for key, item in self.items())
        )
        return self._hash


def _salted(value: Json) -> int:
    """The hash of a text is salted; that of numbers is not, and can be made to collide."""
    return hash(value) if isinstance(value, ObjectKey) else hash(repr(value))


# -- reading --------------------------------------------------------------------------------------


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
    return _resolve_references(value) if references else value


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


def is_object(value: Json) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_array(value: Json) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _containers_in(value: Json) -> Iterable[Json]:
    """The containers directly inside a container."""
    inner: Iterable[Json] = value.values() if is_object(value) else value
    return (item for item in inner if is_object(item) or is_array(item))


def _check_depth(value: Json) -> None:
    level: list[Json] = [value] if is_object(value) or is_array(value) else []
    for _ in range(DEPTH_LIMIT):
        level = [inner for outer in level for inner in _containers_in(outer)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> BodyError:
    return BodyError(f"the body is nested more than {DEPTH_LIMIT} levels deep")


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
    """One pass over a text, left to right; every method leaves `at` behind what it has read."""

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
            raise _too_deep()
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
            raise _too_deep()
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
            return value if _fits_long(value) else self.text[start : self.at]
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


def as_key(value: Json) -> Json:
    """The value in a form that can be a key of a dict."""
    if is_object(value):
        return ObjectKey((key, as_key(item)) for key, item in value.items())
    if is_array(value):
        return tuple(as_key(item) for item in value)
    return str(value) if isinstance(value, int) and not _fits_long(value) else value


def _fits_long(value: float) -> bool:
    """Larger integers stay text in keys: their hashes can be made to collide by the thousand."""
    return isinstance(value, int) and value.bit_length() < 64


# -- references -----------------------------------------------------------------------------------

_STEP = re.compile(r"\.((?:\\.|[^.\[\\])*+)|\[(-?+[0-9]{1,10}+)\]", re.DOTALL)


def _resolve_references(root: Json) -> Json:
    """Put the object meant in the place of every {"$ref": path}.

    A path starts at the root ("$.a.b[0]"; a backslash stands before a special character of a key).
    One that leads nowhere is null, as fastjson has it. The short forms "$", "@" and ".." mean
    something around the reference; no body of RocketMQ contains itself, and we refuse it.
    """
    targets: dict[int, Json] = {}
    containers: list[Json] = [root] if is_object(root) or is_array(root) else []
    for container in containers:
        slots = container.items() if is_object(container) else enumerate(container)
        for key, item in list(slots):
            if _is_reference(item):
                container[key] = _target_of(root, item, targets, 0)
            elif is_object(item) or is_array(item):
                containers.append(item)
    if targets:
        _check_expansion(root)
    return root


def _is_reference(value: Json) -> TypeGuard[dict[str, str]]:
    return is_object(value) and len(value) == 1 and isinstance(value.get("$ref"), str)


def _target_of(root: Json, reference: dict[str, str], targets: dict[int, Json], depth: int) -> Json:
    if id(reference) in targets:
        return targets[id(reference)]
    path = reference["$ref"]
    if path in ("$", "@", ".."):
        raise _contains_itself()
    if not path.startswith("$") or depth > DEPTH_LIMIT:
        raise BodyError(f"reference {path[:60]!r} leads nowhere")
    # Until it is known, the target of a reference is null; so a ring of references ends.
    targets[id(reference)] = None
    value, at = root, 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise BodyError(f"reference {path[:60]!r} cannot be read at character {at}")
        value, at = _follow(value, step), step.end()
        if _is_reference(value):
            value = _target_of(root, value, targets, depth + 1)
    targets[id(reference)] = value
    return value


def _follow(value: Json, step: re.Match[str]) -> Json:
    if step[2] is not None:
        index = int(step[2])
        if is_array(value):
            return value[index] if 0 <= index < len(value) else None
        return value.get(index, value.get(step[2])) if is_object(value) else None
    if not is_object(value):
        return None
    name = re.sub(r"\\(.)", r"\1", step[1], flags=re.DOTALL)
    if name in value:
        return value[name]
    return value.get(int(name)) if re.fullmatch("-?[0-9]{1,19}", name) else None


def _check_expansion(root: Json) -> None:
    """Refuse a body that contains itself, or that its references make too deep or too large."""
    measures: dict[int, tuple[int, int]] = {}
    pending = {id(root)}
    stack = [(root, iter(_containers_in(root)))]
    while stack:
        container, inner = stack[-1]
        for item in inner:
            if id(item) in pending:
                raise _contains_itself()
            if id(item) not in measures:
                pending.add(id(item))
                stack.append((item, iter(_containers_in(item))))
                break
        else:
            measures[id(container)] = _measure(container, measures)
            pending.discard(id(container))
            stack.pop()


def _measure(container: Json, measures: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Values in the container at all levels, and how many levels there are."""
    size, height = len(container), 1
    for item in _containers_in(container):
        inner_size, inner_height = measures[id(item)]
        size, height = size + inner_size, max(height, inner_height + 1)
    if height > DEPTH_LIMIT:
        raise _too_deep()
    if size > EXPANSION_LIMIT:
        raise BodyError(f"references multiply the body beyond {EXPANSION_LIMIT} values")
    return size, height


def _contains_itself() -> BodyError:
    return BodyError("a reference makes the body contain itself")


# -- writing --------------------------------------------------------------------------------------


def dumps(value: Json, *, standard: bool) -> bytes:
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


def dumps_steps(value: Json, *, standard: bool) -> Generator[None, None, bytes]:
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
            raise _too_deep()
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
