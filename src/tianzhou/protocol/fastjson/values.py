"""Values of fastjson bodies: limits, objects as keys."""

from collections.abc import Iterable
from typing import Any, TypeGuard

from tianzhou.errors import BodyError

DEPTH_LIMIT = 128
"""Deepest nesting read or written; RocketMQ's own bodies stay below ten."""
EXPANSION_LIMIT = 1_000_000
"""Values a body may hold after its references are resolved, if it has references at all."""

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


def is_object(value: Json) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_array(value: Json) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def containers_in(value: Json) -> Iterable[Json]:
    """The containers directly inside a container."""
    inner: Iterable[Json] = value.values() if is_object(value) else value
    return (item for item in inner if is_object(item) or is_array(item))


def too_deep() -> BodyError:
    return BodyError(f"the body is nested more than {DEPTH_LIMIT} levels deep")


def as_key(value: Json) -> Json:
    """The value in a form that can be a key of a dict."""
    if is_object(value):
        return ObjectKey((key, as_key(item)) for key, item in value.items())
    if is_array(value):
        return tuple(as_key(item) for item in value)
    return str(value) if isinstance(value, int) and not fits_long(value) else value


def fits_long(value: float) -> bool:
    """Larger integers stay text in keys: their hashes can be made to collide by the thousand."""
    return isinstance(value, int) and value.bit_length() < 64
