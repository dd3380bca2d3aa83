"""From JSON bytes to a typed body and back.

Most bodies are strict JSON, or would be if their integer keys had quotes, and go straight into
their struct; the others (object keys, references, nulls where a value is expected) take the slow
path through `fastjson.loads`. Unknown fields are ignored, missing ones have the default of
RocketMQ's class.
"""

from collections.abc import Generator
from typing import Any, TypeVar, cast

import msgspec

from tianzhou.errors import BodyError
from tianzhou.limits import LOOSE_JSON_BYTES_MAX
from tianzhou.protocol import fastjson
from tianzhou.protocol.fastjson import Json, is_array, is_object


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of all bodies; wire names are the camel case of ours unless a field says otherwise.

    A default of [] or {} is made anew for each body.

    No body refers to itself, so the garbage collector need not visit them: tables hold hundreds
    of thousands, and a full collection stops the event loop.
    """


T = TypeVar("T")


def decode(body_type: type[T], data: bytes, tolerated_max_bytes: int | None = None) -> T:
    """The body that `data` holds, in either dialect of fastjson.

    `body_type` may also be a plain container of bodies, such as list[str]. A longer one than
    `tolerated_max_bytes` must be strict JSON, except for integer keys: the slow path takes
    a hundred times longer. Raises BodyError.
    """
    steps = _decode_steps(body_type, data, tolerated_max_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


def _decode_steps(
    body_type: type[T], data: bytes, tolerated_max_bytes: int | None
) -> Generator[None, None, T]:
    if b"$ref" not in data:
        decoder = _decoder_of(body_type)
        for dialect in (bytes, fastjson.quote_integer_keys):
            text = dialect(data)
            if dialect is not bytes and text == data:
                break  # it has no integer keys, and cannot be read
            try:
                return cast("T", decoder.decode(text))
            except (ValueError, RecursionError):
                yield
    if tolerated_max_bytes is not None and len(data) > tolerated_max_bytes:
        raise BodyError(
            f"{len(data)} bytes that are no strict JSON, {tolerated_max_bytes} are read"
        )
    value = _without_nulls(fastjson.loads(data))
    try:
        return msgspec.convert(value, body_type, strict=False)
    except msgspec.ValidationError as e:
        return _decode_text_keys(body_type, value, e)


def decode_request(body_type: type[T], data: bytes) -> T:
    """The body of a request, from an untrusted client; see `LOOSE_JSON_BYTES_MAX`."""
    return decode(body_type, data, LOOSE_JSON_BYTES_MAX)


def decode_request_steps(body_type: type[T], data: bytes) -> Generator[None, None, T]:
    """`decode_request` with a pause between its attempts, for bodies of megabytes."""
    return _decode_steps(body_type, data, LOOSE_JSON_BYTES_MAX)


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}


def _decoder_of(body_type: type[T]) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False)
    return decoder


def _without_nulls(value: Json) -> Json:
    """To fastjson a null is an absent field; clients in other languages write it out."""
    if is_object(value):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if is_array(value):
        return [_without_nulls(item) for item in value]
    return value


def _decode_text_keys(body_type: type[T], value: Json, error: Exception) -> T:
    """Try once more with objects that serve as keys and are written as strings."""
    try:
        return msgspec.convert(_with_object_keys(value), body_type, strict=False)
    except (msgspec.ValidationError, BodyError):
        name = getattr(body_type, "__name__", str(body_type))
        raise BodyError(f"{name}: {error}") from error


def _with_object_keys(value: Json) -> Json:
    if is_object(value):
        return {_object_key(key): _with_object_keys(item) for key, item in value.items()}
    if is_array(value):
        return [_with_object_keys(item) for item in value]
    return value


def _object_key(key: Json) -> Json:
    if isinstance(key, str) and key.startswith("{") and key.endswith("}"):
        return fastjson.as_key(fastjson.loads(key))
    return key
