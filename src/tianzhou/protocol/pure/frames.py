"""Frames and headers in pure Python, and the contract of the kernel.

The kernel works on whole buffers and never raises on their content: it declines unusual and damaged
input, and the Python version handles it, so every error text is written once. The Python version is
the reference in tests, and is used alone where the kernel is not installed.

Binary header (encoding 1), all big-endian:

    code:i16 language:u8 version:i16 opaque:i32 flag:i32
    remark length:i32, remark in UTF-8
    ext fields length:i32, then pairs of (key length:i16, key, value length:i32, value)
"""

import struct
from operator import index
from typing import Annotated, Any

import msgspec

from tianzhou.errors import FrameError, HeaderError

Buffer = bytes | bytearray | memoryview

Header = tuple[int, int, int, int, int, str | None, dict[str, str] | None, int, int]
"""code, language, version, opaque, flag, remark, ext fields, encoding, start of the body"""

_Fields = tuple[int, int, int, int, int, str | None, dict[str, str] | None]
"""The first seven of them."""

ENCODING_JSON = 0
ENCODING_BINARY = 1

LANGUAGE_NAMES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)  # fmt: skip
_LANGUAGE_OTHER = 7
_LANGUAGE_COUNT = len(LANGUAGE_NAMES)
_LANGUAGE_NUMBERS = {name: number for number, name in enumerate(LANGUAGE_NAMES)}

_WORD = struct.Struct(">I")
_FRAME_HEAD = struct.Struct(">II")
_read_head, _pack_head = _FRAME_HEAD.unpack_from, _FRAME_HEAD.pack
_BINARY_HEAD = struct.Struct(">hBhiii")
_LENGTH = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
_read_length, _read_key_length = _LENGTH.unpack_from, _KEY_LENGTH.unpack_from

_HEADER_LENGTH_MASK = 0xFFFFFF
_FRAME_LENGTH_MAX = 0xFFFFFFFF
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT16_MIN, _INT16_MAX = -(2**15), 2**15 - 1

_Int32 = Annotated[int, msgspec.Meta(ge=_INT32_MIN, le=_INT32_MAX)]


class _JsonHeader(msgspec.Struct, omit_defaults=True):
    """The JSON header in the order in which RocketMQ writes it; absent fields are not written."""

    code: _Int32
    extFields: dict[str, str] | None = None
    # What has a value in every header RocketMQ writes is always written, hence no plain defaults.
    flag: _Int32 = msgspec.field(default_factory=int)
    language: str | None = None
    opaque: _Int32 = msgspec.field(default_factory=int)
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None
    version: _Int32 = msgspec.field(default_factory=int)


_json_decoder = msgspec.json.Decoder(_JsonHeader)
_encode = msgspec.json.Encoder().encode


# -- frames ------------------------------------------------------------------------------------


def split_frames(buffer: Buffer, limit_bytes: int) -> tuple[list[tuple[int, int]], int]:
    """(start, stop) of every complete frame, length prefix included, and the index of the first
    byte beyond them.

    However a stream is split, the same frames come out; an incomplete frame consumes nothing.
    An impossible length (below 4, or above the limit) at the start of the buffer raises FrameError,
    before the bytes that it announces have arrived. After complete frames it ends the search,
    because those frames are valid.
    """
    frames: list[tuple[int, int]] = []
    start, stop = 0, len(buffer)
    while stop - start >= 4:
        (length,) = _WORD.unpack_from(buffer, start)
        if not 4 <= length <= limit_bytes:
            if frames:
                break
            raise _impossible(length, limit_bytes)
        if stop - start - 4 < length:
            break
        frames.append((start, start + 4 + length))
        start += 4 + length
    return frames, start


def _impossible(length: int, limit_bytes: int) -> FrameError:
    if length < 4:
        return FrameError(f"frame of {length} bytes announced, the shortest possible has 4")
    return FrameError(
        f"frame of {length} bytes announced, the limit is {limit_bytes}: "
        "the peer does not speak RocketMQ's protocol, or its message is too large"
    )


def decode_header(frame: Buffer) -> Header:
    """The header of one whole frame (length prefix included)."""
    frame_length = len(frame)
    if frame_length < 8:
        raise HeaderError(f"a frame has at least 8 bytes, this one {frame_length}")
    length, headline = _read_head(frame)
    if length != frame_length - 4:
        raise HeaderError(f"the frame says {length} bytes, {frame_length - 4} are there")
    header_length, encoding = headline & _HEADER_LENGTH_MASK, headline >> 24
    body_start = 8 + header_length
    if body_start > frame_length:
        raise HeaderError(f"header of {header_length} bytes in a frame of {length}")
    if encoding == ENCODING_JSON:
        return _decode_json(frame, body_start)
    if encoding == ENCODING_BINARY:
        try:
            return _decode_binary(frame, body_start)
        except UnicodeDecodeError as e:
            raise HeaderError(f"header text is not UTF-8: {e}") from e
    raise HeaderError(f"header encoding {encoding} is unknown (0 is JSON, 1 is ROCKETMQ)")


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
    """One whole frame.

    Codes of 32,768 and above (pop consumption) do not fit the binary header's 16 bits; such a frame
    is written with a JSON header, which every peer reads, instead of with a wrong code.
    """
    fields = (code, language, version, opaque, flag, remark, ext_fields)
    headline = ENCODING_JSON << 24
    try:
        if encoding == ENCODING_BINARY and _INT16_MIN <= code <= _INT16_MAX:
            headline = ENCODING_BINARY << 24
            header = _encode_binary(fields)
        else:
            header = _encode_json(fields)
    except (struct.error, UnicodeEncodeError, TypeError, AttributeError, msgspec.MsgspecError) as e:
        raise HeaderError(f"command {code} does not fit a header: {e}") from e
    header_length = len(header)
    if header_length > _HEADER_LENGTH_MASK:
        raise HeaderError(
            f"header of {header_length} bytes, the format allows {_HEADER_LENGTH_MASK}"
        )
    length = 4 + header_length + len(body)
    if length > _FRAME_LENGTH_MAX:
        raise HeaderError(f"frame of {length} bytes, the format allows {_FRAME_LENGTH_MAX}")
    return b"".join((_pack_head(length, headline | header_length), header, body))


# -- JSON header -------------------------------------------------------------------------------


def _decode_json(frame: Buffer, body_start: int) -> Header:
    raw = memoryview(frame)[8:body_start]
    try:
        header = _json_decoder.decode(raw)
    except (ValueError, RecursionError):
        header = _decode_loose_json(raw)
    language = _LANGUAGE_NUMBERS.get(header.language or "", _LANGUAGE_OTHER)
    return (
        header.code,
        language,
        header.version,
        header.opaque,
        header.flag,
        header.remark,
        header.extFields,
        ENCODING_JSON,
        body_start,
    )


def _decode_loose_json(raw: memoryview) -> _JsonHeader:
    """Headers of clients that write numbers and booleans where RocketMQ writes strings."""
    try:
        loose = msgspec.json.decode(raw, type=dict[str, Any])
        if isinstance(loose.get("extFields"), dict):
            ext_fields: dict[str, Any] = loose["extFields"]
            loose["extFields"] = {
                key: _as_text(value) for key, value in ext_fields.items() if value is not None
            }
        return msgspec.convert(loose, _JsonHeader, strict=False)
    except (ValueError, RecursionError) as e:
        raise HeaderError(f"the JSON header cannot be read: {e}") from e


def _as_text(value: Any) -> str:  # noqa: ANN401 - whatever JSON can hold arrives here
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise HeaderError(f"an ext field holds {type(value).__name__}, a string is expected")


def _encode_json(fields: _Fields) -> bytes:
    code, language, version, opaque, flag, remark, ext_fields = fields
    # Plain integers only: msgspec would write True as true, which no peer takes for a number.
    code = index(code)
    if not type(version) is type(opaque) is type(flag) is int:
        version, opaque, flag = index(version), index(opaque), index(flag)
    # One test for all bounds, if none is negative.
    if (code | version | opaque | flag) >> 31:
        for number in (code, version, opaque, flag):
            if not _INT32_MIN <= number <= _INT32_MAX:
                raise HeaderError(f"header number {number} does not fit 32 bits")
    name = LANGUAGE_NAMES[language] if 0 <= language < _LANGUAGE_COUNT else "OTHER"
    return _encode(_JsonHeader(code, ext_fields, flag, name, opaque, remark, "JSON", version))


# -- binary header -----------------------------------------------------------------------------


def _decode_binary(frame: Buffer, body_start: int) -> Header:
    header = bytes(frame[8:body_start])  # slices of bytes are far cheaper than those of views
    end = len(header)
    if end < _BINARY_HEAD.size + 4:
        raise HeaderError(f"a binary header has at least 21 bytes, this one {end}")
    code, language, version, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(header)
    at = _BINARY_HEAD.size
    # Four bytes stay reserved for the length of the ext fields that must follow the remark.
    if not 0 <= remark_length <= end - 4 - at:
        raise HeaderError(f"a remark of {remark_length} bytes does not fit its header")
    remark = header[at : at + remark_length].decode() if remark_length else None
    at += remark_length
    (ext_length,) = _LENGTH.unpack_from(header, at)
    at += 4
    if not 0 <= ext_length <= end - at:
        raise HeaderError(f"ext fields of {ext_length} bytes do not fit their header")
    ext_fields = _decode_pairs(header, at, at + ext_length) if ext_length else None
    return (
        code, language, version, opaque, flag, remark, ext_fields, ENCODING_BINARY, body_start,
    )  # fmt: skip


def _decode_pairs(header: bytes, at: int, stop: int) -> dict[str, str]:
    pairs: dict[str, str] = {}
    while at < stop:
        if stop - at < 2:
            raise HeaderError("the ext fields end inside a key length")
        (key_length,) = _read_key_length(header, at)
        at += 2
        if not 0 <= key_length <= stop - at - 4:
            raise HeaderError(f"a key of {key_length} bytes does not fit the ext fields")
        key = header[at : at + key_length].decode()
        at += key_length
        (value_length,) = _read_length(header, at)
        at += 4
        if not 0 <= value_length <= stop - at:
            raise HeaderError(f"the value of {key!r}, {value_length} bytes, does not fit")
        pairs[key] = header[at : at + value_length].decode()
        at += value_length
    return pairs


def _encode_binary(fields: _Fields) -> bytes:
    code, language, version, opaque, flag, remark, ext_fields = fields
    remark_bytes = remark.encode() if remark else b""
    parts = [
        _BINARY_HEAD.pack(code, language, version, opaque, flag, len(remark_bytes)),
        remark_bytes,
        b"",
    ]
    ext_length = 0
    for key, value in (ext_fields or {}).items():
        key_bytes, value_bytes = key.encode(), value.encode()
        parts += (_KEY_LENGTH.pack(len(key_bytes)), key_bytes)
        parts += (_LENGTH.pack(len(value_bytes)), value_bytes)
        ext_length += 6 + len(key_bytes) + len(value_bytes)
    parts[2] = _LENGTH.pack(ext_length)
    return b"".join(parts)
