"""From a map of strings to a typed header and back.

A field is required where RocketMQ marks it so in every release that has it. RocketMQ itself only
logs a missing or malformed field and continues with null; here the header is refused, because a
handler must not guess. Unknown fields are ignored.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from tianzhou.errors import FieldError
from tianzhou.protocol.integers import Int32


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all headers; wire names are the camel case of ours unless a field says otherwise."""


class RpcHeader(Header, frozen=True, kw_only=True):
    """What 5.x may add to most requests (4.9.5 and later know `bname` only)."""

    namespace: str | None = msgspec.field(default=None, name="ns")
    namespaced: bool | None = msgspec.field(default=None, name="nsd")
    """Whether the names in the request carry their namespace already."""
    target_broker: str | None = msgspec.field(default=None, name="bname")
    """Name of the broker (or logical broker of a static topic) that is meant."""
    oneway: bool | None = msgspec.field(default=None, name="oway")


class TopicHeader(RpcHeader, frozen=True, kw_only=True):
    """A request about one topic."""

    logical: bool | None = msgspec.field(default=None, name="lo")
    """Whether queue ids are those of a static topic; False once a broker has mapped them."""


class GroupQueueHeader(TopicHeader, frozen=True, kw_only=True):
    """A request of a consumer group about one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32


H = TypeVar("H", bound=Header)


def decode(header_type: type[H], fields: Mapping[str, str]) -> H:
    """The header that `fields` hold.

    Integers are what Java's parseInt and parseLong read: a sign and decimal digits, within the
    range of int or long; `1e3` and `123.0` are refused. Booleans are true or false in any case; 1
    and 0 pass as well. An optional integer or boolean may be the text null. Raises FieldError,
    which names the field, its value and what is expected.

    Access control and the handlers both read a request by this function, so they cannot differ.
    """
    try:
        header = msgspec.convert(fields, header_type, strict=False)
    except msgspec.ValidationError:
        return msgspec.convert(_as_java_reads(header_type, fields), header_type)
    for name in _integers_of(header_type):
        text = fields.get(name)
        # msgspec reads fractions and exponents, too. The first character may be a sign.
        if text is not None and not (text.isdecimal() or text[1:].isdecimal()):
            return msgspec.convert(_as_java_reads(header_type, fields), header_type)
    return header


def encode(header: Header) -> dict[str, str]:
    """The fields as RocketMQ writes them: absent ones left out, numbers in decimal."""
    fields: dict[str, str] = {}
    for attribute, name in _names_of(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if value is True or value is False:
            fields[name] = "true" if value else "false"
        else:
            fields[name] = str(value)
    return fields


@cache
def _names_of(header_type: type[Header]) -> tuple[tuple[str, str], ...]:
    """Our name and the wire's of every field."""
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(header_type))


# -- the slow path: what msgspec refuses is read field by field, to accept or to explain -----------


class _Field(NamedTuple):
    name: str
    required: bool
    nullable: bool
    """Whether the text null means that it is absent."""
    read: Callable[[str], str | int]
    expected: str


def _as_java_reads(header_type: type[Header], fields: Mapping[str, str]) -> dict[str, str | int]:
    values: dict[str, str | int] = {}
    for field in _fields_of(header_type):
        value = fields.get(field.name)
        if value is None:
            if field.required:
                raise FieldError(
                    f"{header_type.__name__}: field {field.name!r} is missing, "
                    f"{field.expected} is expected"
                )
            continue
        if field.nullable and value.lower() == "null":
            continue
        try:
            values[field.name] = field.read(value)
        except (ValueError, KeyError):
            raise FieldError(
                f"{header_type.__name__}: field {field.name!r} is {_excerpt(value)}, "
                f"{field.expected} is expected"
            ) from None
    return values


@cache
def _fields_of(header_type: type[Header]) -> tuple[_Field, ...]:
    info = inspect.type_info(header_type)
    assert isinstance(info, inspect.StructType)
    return tuple(
        _Field(
            field.encode_name, field.required, _is_nullable(field.type), *_reader_of(field.type)
        )
        for field in info.fields
    )  # fmt: skip


@cache
def _integers_of(header_type: type[Header]) -> tuple[str, ...]:
    """The wire names of the fields that hold integers."""
    return tuple(
        field.name for field in _fields_of(header_type) if field.expected.startswith(_INTEGER)
    )


def _is_nullable(kind: inspect.Type) -> bool:
    """A string field may hold the text null."""
    return isinstance(kind, inspect.UnionType) and not any(
        isinstance(member, inspect.StrType) for member in kind.types
    )


_INTEGER = "an integer"


def _reader_of(kind: inspect.Type) -> tuple[Callable[[str], str | int], str]:
    if isinstance(kind, inspect.UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
    if isinstance(kind, inspect.BoolType):
        return _read_bool, "true or false"
    if isinstance(kind, inspect.IntType):
        assert kind.le is not None
        bits = kind.le.bit_length() + 1
        return lambda text: _read_int(text, bits), f"{_INTEGER} of {bits} bits"
    assert isinstance(kind, inspect.StrType)
    return str, "a string"


def _read_bool(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _read_int(text: str, bits: int) -> int:
    """As Java's parseInt, which allows a plus sign and leading zeros, and nothing else."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Python refuses to parse thousands of digits; no number that fits is that long.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGIT_LIMIT:
        raise ValueError
    number = int(text)
    if number.bit_length() >= bits and number != -(1 << (bits - 1)):
        raise ValueError
    return number


_DIGIT_LIMIT = 1000


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
