"""RemotingCommand: the request or response that one frame carries.

    frame  := length:u32be  headline:u32be  header  body
    length    counts everything after itself
    headline  header encoding in the top byte, header length in the low 24 bits

Two header encodings exist: JSON (0) and ROCKETMQ (1, binary). A server answers in the encoding of
the request. The codec itself is the kernel's (`protocol/kernel.py`); this module gives it a type.
"""

import re
from collections.abc import Mapping
from enum import IntEnum

import msgspec

from tianzhou.protocol import kernel
from tianzhou.protocol.version import CURRENT_VERSION

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2


class HeaderEncoding(IntEnum):
    """How the header of a frame is written."""

    JSON = 0
    ROCKETMQ = 1


class Language(IntEnum):
    """Implementation languages as RocketMQ numbers them; JSON headers carry the name."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Command(msgspec.Struct, kw_only=True):
    """One request or response. `ext_fields` is None when the header has none at all."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext_fields: dict[str, str] | None = None
    body: bytes = b""
    language: int = Language.PYTHON
    version: int = CURRENT_VERSION
    encoding: HeaderEncoding = HeaderEncoding.JSON

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @property
    def fields(self) -> Mapping[str, str]:
        """The ext fields, empty where the header has none."""
        return self.ext_fields or {}


_ENCODINGS = (HeaderEncoding.JSON, HeaderEncoding.ROCKETMQ)


def decode(frame: bytes | bytearray | memoryview) -> Command:
    """Read one whole frame, length prefix included.

    Raises HeaderError if the frame cannot be read. The body is copied out of the frame.
    """
    code, language, version, opaque, flag, remark, ext_fields, encoding, body_start = (
        kernel.decode_header(frame)
    )
    return Command(
        code=code,
        language=language,
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark,
        ext_fields=ext_fields,
        encoding=_ENCODINGS[encoding],
        body=bytes(frame[body_start:]),
    )


def header_bytes(frame: memoryview) -> int:
    """The length of the header of a whole frame, which is not decoded."""
    return int.from_bytes(frame[_HEADLINE_AT + 1 : _HEADER_AT], "big")


def origin_of(frame: memoryview) -> tuple[int, HeaderEncoding]:
    """Opaque and encoding of a whole frame whose header is not decoded; 0 if none is found."""
    header = frame[_HEADER_AT : _HEADER_AT + header_bytes(frame)]
    if frame[_HEADLINE_AT] == HeaderEncoding.ROCKETMQ:
        at = _BINARY_OPAQUE_AT
        return int.from_bytes(header[at : at + 4], "big", signed=True), HeaderEncoding.ROCKETMQ
    found = _JSON_OPAQUE.search(header)
    return int(found[1]) if found else 0, HeaderEncoding.JSON


_HEADLINE_AT, _HEADER_AT = 4, 8
_BINARY_OPAQUE_AT = 5
"""Behind code, language and version."""
_JSON_OPAQUE = re.compile(rb'"opaque"\s*+:\s*+(-?[0-9]{1,10})')


def encode(command: Command) -> bytes:
    """The whole frame. Raises HeaderError for a command that no frame can carry."""
    return kernel.encode_frame(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.ext_fields,
        command.encoding,
        command.body,
    )


def response_to(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """A response that the sender of `request` can match and read."""
    return Command(
        code=code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        ext_fields=ext_fields,
        body=body,
        encoding=request.encoding,
    )
