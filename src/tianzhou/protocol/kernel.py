"""Chooses between the compiled kernel and pure Python.

`TIANZHOU_PURE=1` switches the kernel off; if it is not installed, or was built for another
contract, the pure-Python codecs are used. Both have the contract of `protocol/pure/`, and the tests
run against both. A compiled function returns None when it declines: then the Python version is
called, which may raise.

The fast path (`Feed`) exists in the kernel only; without it every frame takes the handlers.
"""

import os
from typing import TYPE_CHECKING, Any

from tianzhou.protocol.pure import frames
from tianzhou.protocol.pure import record as pure_record
from tianzhou.protocol.pure import walk as pure_walk
from tianzhou.protocol.pure.frames import Buffer, Header
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.protocol.pure.walk import Walk

CONTRACT = 5
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


def split_frames(buffer: Buffer, limit_bytes: int) -> tuple[list[tuple[int, int]], int]:
    """See `pure.split_frames`."""
    found = native.split_frames(buffer, limit_bytes) if native else None
    return frames.split_frames(buffer, limit_bytes) if found is None else found


def decode_header(frame: Buffer) -> Header:
    """See `pure.decode_header`."""
    header = native.decode_header(frame) if native else None
    return frames.decode_header(frame) if header is None else header


def encode_frame(
    code: int,
    language: int,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str] | None,
    encoding: int,
    body: Buffer,
) -> bytes:
    """See `pure.encode_frame`."""
    arguments = (code, language, version, opaque, flag, remark, ext_fields, encoding, body)
    frame = native.encode_frame(*arguments) if native else None
    return frames.encode_frame(*arguments) if frame is None else frame


# -- records ---------------------------------------------------------------------------------------


def body_crc(body: Buffer) -> int:
    """See `pure_record.body_crc`."""
    crc = native.body_crc(body) if native else None
    return pure_record.body_crc(body) if crc is None else crc


def decode_record(buffer: Buffer, start: int, check_crc: bool, read_body: bool) -> RecordFields:
    """See `pure_record.decode_record`."""
    fields = native.decode_record(buffer, start, check_crc, read_body) if native else None
    if fields is None:
        return pure_record.decode_record(buffer, start, check_crc, read_body)
    return fields


def decode_records(buffer: Buffer, check_crc: bool, read_body: bool) -> list[RecordFields]:
    """See `pure_record.decode_records`."""
    records = native.decode_records(buffer, check_crc, read_body) if native else None
    if records is None:
        return pure_record.decode_records(buffer, check_crc, read_body)
    return records


def encode_record(
    topic: str,
    body: Buffer,
    properties_text: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    flag: int,
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_count: int,
    prepared_log_offset: int,
) -> bytes:
    """See `pure_record.encode_record`."""
    arguments = (
        topic, body, properties_text, queue_id, queue_offset, log_offset, flag, sys_flag,
        born_time_ms, born_host, store_time_ms, store_host, reconsume_count, prepared_log_offset,
    )  # fmt: skip
    record = native.encode_record(*arguments) if native else None
    return pure_record.encode_record(*arguments) if record is None else record


def decode_columns(
    buffer: Buffer, starts: bytes | None, names: list[str], check_crc: bool
) -> tuple[int, list[Any]] | None:
    """The number of records, and the Arrow buffers of each wanted column.

    None if the kernel declines; the version with numpy is `spark/columns/without_kernel.py`.
    """
    return native.decode_columns(buffer, starts, names, check_crc) if native else None


def encode_rows(parts: tuple[Any, ...], numbers: bytes, ids: bytes) -> tuple[bytes, bytes] | None:
    """The items of a batch made of rows of Arrow columns, concatenated, and their end positions.

    None if the kernel declines, or is of a build before it had this; then messages are made one by
    one (`spark/sink/rows.py`).
    """
    encode = getattr(native, "encode_rows", None)
    return encode(parts, numbers, ids) if encode else None


# -- walking ---------------------------------------------------------------------------------------


def walk_records(
    buffer: Buffer,
    first: int,
    start: int,
    stop: int,
    queues_from: int,
    index_from: int,
    keys_max: int,
    delay_levels_ms: tuple[int, ...],
    check_crc: bool,
    torn: bool,
) -> Walk:
    """See `pure_walk.walk_records`."""
    arguments = (
        buffer, first, start, stop, queues_from, index_from, keys_max, delay_levels_ms, check_crc,
        torn,
    )  # fmt: skip
    walk = native.walk_records(*arguments) if native else None
    return pure_walk.walk_records(*arguments) if walk is None else walk


def put_index_items(
    file: memoryview, slot_count: int, number: int, begin_time_ms: int, items: bytes
) -> int:
    """See `pure_walk.put_index_items`."""
    arguments = (file, slot_count, number, begin_time_ms, items)
    used = native.put_index_items(*arguments) if native else None
    return pure_walk.put_index_items(*arguments) if used is None else used


if WHY_PURE is not None and not TYPE_CHECKING:
    # Skip one call per message.
    split_frames, decode_header = frames.split_frames, frames.decode_header
    encode_frame, encode_record = frames.encode_frame, pure_record.encode_record
