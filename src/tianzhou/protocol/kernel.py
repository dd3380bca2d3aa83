"""Chooses between the compiled kernel and pure Python.

`TIANZHOU_PURE=1` switches the kernel off; if it is not installed, or was built for another
contract, the pure-Python codecs are used. Both have the contract of `protocol/pure/`, and the tests
run against both. A compiled function returns None when it declines: then the Python version is
called, which may raise.

The fast path (`Feed`) exists in the kernel only; without it the handlers serve every frame.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from tianzhou.protocol.pure import frames, record, walk
from tianzhou.protocol.pure.frames import Buffer

_P = ParamSpec("_P")
_R = TypeVar("_R")

CONTRACT = 8
"""Incremented with every change of the contract, here and in the crate."""

_import_error: str | None = None
try:
    import tianzhou_kernel as native
except ImportError as error:
    native = None  # type: ignore[assignment]  # the name of a module cannot be typed as optional
    _import_error = str(error)


def _why_pure() -> str | None:
    if os.environ.get("TIANZHOU_PURE", "0") not in ("", "0"):
        return "switched off by TIANZHOU_PURE"
    if native and native.CONTRACT != CONTRACT:
        return f"the kernel has contract {native.CONTRACT}, {CONTRACT} is needed: build it again"
    return _import_error


WHY_PURE = _why_pure()
"""Why pure Python is used; None while the compiled kernel is."""

if WHY_PURE is not None:
    native = None  # type: ignore[assignment]  # as above


if TYPE_CHECKING:
    from tianzhou_kernel import Feed as Feed
else:
    Feed = getattr(native, "Feed", None)


def new_feed() -> "Feed | None":
    """The kernel's fast path for sends and pulls; None without the kernel."""
    return native.Feed() if native else None


def description() -> str:
    """Which implementation is in use, for logs."""
    return "the compiled kernel" if WHY_PURE is None else f"pure-Python codecs ({WHY_PURE})"


def _compiled(pure: Callable[_P, _R]) -> Callable[_P, _R]:
    """The kernel's function of this name, which calls `pure` where it declines."""
    function: Callable[..., _R | None] | None = getattr(native, pure.__name__, None)
    if function is None:
        return pure
    fallback: Callable[..., _R] = pure

    def call(*arguments: object) -> _R:
        result = function(*arguments)
        return fallback(*arguments) if result is None else result

    def call_with_one(argument: object) -> _R:  # 45 ns less: no tuple of arguments
        result = function(argument)
        return fallback(argument) if result is None else result

    is_of_one = pure.__code__.co_argcount == 1
    return cast("Callable[_P, _R]", call_with_one if is_of_one else call)


# Arguments are positional: the kernel's functions have no names for them.
split_frames = _compiled(frames.split_frames)
decode_header = _compiled(frames.decode_header)
encode_frame = _compiled(frames.encode_frame)
body_crc = _compiled(record.body_crc)
decode_record = _compiled(record.decode_record)
decode_records = _compiled(record.decode_records)
encode_record = _compiled(record.encode_record)
walk_records = _compiled(walk.walk_records)
put_index_items = _compiled(walk.put_index_items)


def decode_columns(
    buffer: Buffer, starts: bytes | None, names: list[str], check_crc: bool
) -> tuple[int, list[Any]] | None:
    """The number of records, and the Arrow buffers of each wanted column.

    None if the kernel declines; `spark/columns/without_kernel.py` decodes them then.
    """
    return native.decode_columns(buffer, starts, names, check_crc) if native else None


def encode_rows(parts: tuple[Any, ...], numbers: bytes, ids: bytes) -> tuple[bytes, bytes] | None:
    """The items of a batch made of rows of Arrow columns, concatenated, and their end positions.

    None if the kernel declines; then messages are made one by one (`spark/sink/rows.py`).
    """
    return native.encode_rows(parts, numbers, ids) if native else None
