"""Compressed bodies: which kinds there are, how a system flag names them, packing and unpacking.

A body is compressed when the system flag has COMPRESSED; bits 8 to 10 name the kind, and 0 there
means zlib, from the days when there was no other. Formats are those of the Java client: a zlib
stream, an LZ4 frame, a zstd frame.

Unpacking takes a limit, because a few bytes can unpack to gigabytes: the work stops there, and the
memory in use stays below twice the limit (plus zstd's window of 8 MiB).
"""

import sys
import zlib
from enum import IntEnum
from typing import Protocol

import lz4.frame

from tianzhou.errors import BodyError
from tianzhou.protocol.sysflag import COMPRESSED, COMPRESSION_MASK

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 5
"""Compression level of the Java client."""

_KIND_SHIFT = 8
# zstd reserves the window that a frame asks for. 8 MiB serve every level up to 19.
_ZSTD_WINDOW_LOG_MIN = 23
_ZSTD_WINDOW_LOG_MAX = 31


class CompressionType(IntEnum):
    """Kinds by their number in the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class _Decompressor(Protocol):
    """What the streams of all kinds have."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def type_of(sys_flag: int) -> CompressionType:
    """The kind that a flag names, whether or not COMPRESSED is set. Raises BodyError."""
    number = (sys_flag & COMPRESSION_MASK) >> _KIND_SHIFT
    try:
        return CompressionType(number) if number else CompressionType.ZLIB
    except ValueError as e:
        raise BodyError(f"compression type {number} is unknown (1 lz4, 2 zstd, 3 zlib)") from e


def flag_of(kind: CompressionType) -> int:
    """The bits to set in the system flag of a message compressed so."""
    return COMPRESSED | kind << _KIND_SHIFT


def compress(body: bytes, kind: CompressionType, level: int = LEVEL) -> bytes:
    """`level` counts for zlib and zstd; LZ4 has one here, as in the Java client."""
    try:
        if kind is CompressionType.LZ4:
            return lz4.frame.compress(
                body,
                block_size=lz4.frame.BLOCKSIZE_MAX4MB,
                block_linked=False,
                store_size=False,
            )
        if kind is CompressionType.ZSTD:
            return zstd.compress(body, level)
        return zlib.compress(body, level)
    except (zlib.error, zstd.ZstdError, ValueError) as e:
        raise BodyError(f"a body cannot be compressed by {kind.name} level {level}: {e}") from e


def decompress(body: bytes, kind: CompressionType, limit_bytes: int) -> bytes:
    """The plain body. Raises BodyError if it is damaged, incomplete, or longer than the limit."""
    try:
        stream = _decompressor(kind, limit_bytes + 1)
        plain = stream.decompress(body, limit_bytes + 1)
    except (zlib.error, zstd.ZstdError, RuntimeError, ValueError) as e:
        raise BodyError(f"a body said to be {kind.name} cannot be unpacked: {e}") from e
    if len(plain) > limit_bytes:
        raise BodyError(f"a {kind.name} body unpacks to more than {limit_bytes} bytes")
    if not stream.eof or stream.unused_data:
        raise BodyError(f"a {kind.name} body ends too early or has bytes after its end")
    return plain


def plain_body(body: bytes, sys_flag: int, limit_bytes: int) -> bytes:
    """The body as the program sent it, unpacked if the system flag says that it is compressed."""
    if not sys_flag & COMPRESSED:
        return body
    return decompress(body, type_of(sys_flag), limit_bytes)


def _decompressor(kind: CompressionType, most: int) -> _Decompressor:
    """Of a stream that unpacks to at most `most` bytes."""
    if kind is CompressionType.ZLIB:
        return zlib.decompressobj()
    if kind is CompressionType.LZ4:
        return lz4.frame.LZ4FrameDecompressor()
    window_log = min(max(_ZSTD_WINDOW_LOG_MIN, most.bit_length()), _ZSTD_WINDOW_LOG_MAX)
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})
