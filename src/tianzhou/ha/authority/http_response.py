"""Decodes one HTTP/1.1 response from bytes that arrive in pieces of any size; no I/O.

    head      HTTP/1.1 200 OK, lines "name: value", an empty line; at most HEAD_BYTES_MAX
    body      by Content-Length, in chunks (Transfer-Encoding: chunked), or up to the end of the
              connection; limited in total, unless it is a stream that the caller reads as it comes

Written for etcd's gateway, a Go server, on connections that carry one request at a time. A response
that could be read in two ways (two lengths, a length and chunks, a folded line) is refused, and so
are content encodings, as none was asked for. Interim responses (1xx) are skipped.
"""

import re
from enum import Enum, auto

from tianzhou.errors import ProtocolError

HEAD_BYTES_MAX = 16 * 1024
"""Of the head, and of the trailers."""
INTERIM_RESPONSES_MAX = 8
_CHUNK_LINE_BYTES_MAX = 256
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_LENGTH = re.compile(r"[0-9]{1,15}")
_QUOTED_BYTES = 80


class _Part(Enum):
    """What comes next."""

    HEAD = auto()
    LENGTH = auto()
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    TO_END = auto()
    NOTHING = auto()


class ResponseDecoder:
    """One response; `feed` raises ProtocolError for bytes that are not one."""

    def __init__(self, body_bytes_max: int | None) -> None:
        """`body_bytes_max` None: no limit of the whole; the caller takes the body as it comes."""
        self._body_bytes_max = body_bytes_max
        self._unread = bytearray()
        self._body = bytearray()
        self._body_bytes = 0
        self._part = _Part.HEAD
        self._left = 0
        self._interim_count = 0
        self._trailer_bytes = 0
        self.status = 0
        """0 until the head has arrived."""
        self.reason = ""
        self.headers: dict[str, str] = {}
        """By name in lower case."""
        self.is_reusable = False
        """Whether the connection may carry another request after this response."""

    @property
    def is_complete(self) -> bool:
        """Nothing is missing."""
        return self._part is _Part.NOTHING

    @property
    def has_head(self) -> bool:
        """Status and headers are there."""
        return self._part is not _Part.HEAD

    @property
    def untaken_bytes(self) -> int:
        """Of the body, since the last `take_body`."""
        return len(self._body)

    def feed(self, data: bytes) -> None:
        """More bytes of the connection."""
        self._unread += data
        while self._unread and self._step():
            pass
        if self.is_complete and self._unread:
            # An answer to nothing: the next request would take it for its own.
            self.is_reusable = False

    def feed_end(self) -> None:
        """The peer closed the connection."""
        self.is_reusable = False
        if self._part is _Part.TO_END:
            self._part = _Part.NOTHING
        elif not self.is_complete:
            raise ProtocolError(f"the connection ended in the middle of the {self._place()}")

    def take_body(self) -> bytes:
        """The bytes of the body since the last call."""
        body = bytes(self._body)
        self._body.clear()
        return body

    def _place(self) -> str:
        return "head of a response" if self._part is _Part.HEAD else "body of a response"

    # -- steps: True if something was read -------------------------------------------------------

    def _step(self) -> bool:
        part = self._part
        if part is _Part.HEAD:
            return self._read_head()
        if part in (_Part.LENGTH, _Part.CHUNK, _Part.TO_END):
            return self._read_body()
        if part in (_Part.CHUNK_LINE, _Part.CHUNK_END):
            return self._read_chunk_line()
        return part is _Part.TRAILERS and self._read_trailer()

    def _line(self, bytes_max: int) -> bytes | None:
        """The next line, which must end with CR LF; None if it is incomplete."""
        end = self._unread.find(b"\n", 0, bytes_max + 2)
        if end < 0:
            if len(self._unread) > bytes_max + 1:
                raise ProtocolError(f"a line of more than {bytes_max} bytes")
            return None
        line = bytes(self._unread[: end + 1])
        if not line.endswith(b"\r\n"):
            raise ProtocolError(f"a line that does not end with CR LF: {line[:_QUOTED_BYTES]!r}")
        del self._unread[: end + 1]
        return line[:-2]

    def _read_head(self) -> bool:
        if not b"HTTP/1.".startswith(self._unread[:7]):
            raise ProtocolError(f"no HTTP response: {bytes(self._unread[:_QUOTED_BYTES])!r}")
        end = self._unread.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._unread) >= HEAD_BYTES_MAX:
                raise ProtocolError(f"the head of a response has over {HEAD_BYTES_MAX} bytes")
            return False
        lines = bytes(self._unread[:end]).split(b"\r\n")
        del self._unread[: end + 4]
        minor = self._read_status(lines[0])
        self.headers = _headers(lines[1:])
        if 100 <= self.status < 200:
            self._skip_interim()
            return True
        tokens = _tokens(self.headers.get("connection", ""))
        self.is_reusable = "close" not in tokens and (minor == 1 or "keep-alive" in tokens)
        self._choose_body()
        return True

    def _read_status(self, line: bytes) -> int:
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError(f"no status line of HTTP/1: {line[:_QUOTED_BYTES]!r}")
        self.status = int(match[2])
        self.reason = (match[3] or b"").decode("latin-1")
        return int(match[1])

    def _skip_interim(self) -> None:
        self._interim_count += 1
        if self.status == 101 or self._interim_count > INTERIM_RESPONSES_MAX:
            raise ProtocolError(f"a response with status {self.status}, which was not asked for")
        self.status, self.headers = 0, {}

    def _choose_body(self) -> None:
        encoding = self.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise ProtocolError(f"Content-Encoding {encoding!r}, which was not asked for")
        length, transfer = self.headers.get("content-length"), self.headers.get("transfer-encoding")
        if length is not None and transfer is not None:
            raise ProtocolError("both Content-Length and Transfer-Encoding")
        if self.status in (204, 304):
            self._part = _Part.NOTHING
        elif transfer is not None:
            if transfer.lower() != "chunked":
                raise ProtocolError(f"Transfer-Encoding {transfer!r}")
            self._part = _Part.CHUNK_LINE
        elif length is not None:
            self._expect(_Part.LENGTH, _content_length(length))
        else:
            self.is_reusable = False
            self._part = _Part.TO_END

    def _expect(self, part: _Part, size_bytes: int) -> None:
        self._check_size(size_bytes)
        self._left = size_bytes
        self._part = part
        if part is _Part.LENGTH and not size_bytes:
            self._part = _Part.NOTHING

    def _check_size(self, further_bytes: int) -> None:
        limit = self._body_bytes_max
        if limit is not None and self._body_bytes + further_bytes > limit:
            raise ProtocolError(
                f"a body of at least {self._body_bytes + further_bytes} bytes, at most {limit}"
            )

    def _read_body(self) -> bool:
        is_limited = self._part is not _Part.TO_END
        piece = self._unread[: self._left] if is_limited else bytes(self._unread)
        if not is_limited:
            self._check_size(len(piece))
        del self._unread[: len(piece)]
        self._body += piece
        self._body_bytes += len(piece)
        if is_limited:
            self._left -= len(piece)
            if not self._left:
                was_chunk = self._part is _Part.CHUNK
                self._part = _Part.CHUNK_END if was_chunk else _Part.NOTHING
        return True

    def _read_chunk_line(self) -> bool:
        line = self._line(_CHUNK_LINE_BYTES_MAX)
        if line is None:
            return False
        if self._part is _Part.CHUNK_END:
            if line:
                raise ProtocolError(f"bytes behind a chunk: {line[:_QUOTED_BYTES]!r}")
            self._part = _Part.CHUNK_LINE
            return True
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError(f"no size of a chunk: {line[:_QUOTED_BYTES]!r}")
        size_bytes = int(match[1], 16)
        if size_bytes:
            self._expect(_Part.CHUNK, size_bytes)
        else:
            self._part = _Part.TRAILERS
        return True

    def _read_trailer(self) -> bool:
        line = self._line(HEAD_BYTES_MAX)
        if line is None:
            return False
        self._trailer_bytes += len(line)
        if self._trailer_bytes > HEAD_BYTES_MAX:
            raise ProtocolError(f"the trailers of a response have over {HEAD_BYTES_MAX} bytes")
        if not line:
            self._part = _Part.NOTHING
        return True


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError(f"no header of a response: {line[:_QUOTED_BYTES]!r}")
        name, value = match[1].decode("ascii").lower(), match[2].decode("latin-1")
        if name in ("content-length", "transfer-encoding") and name in headers:
            raise ProtocolError(f"two headers {name}: {headers[name]!r} and {value!r}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _content_length(text: str) -> int:
    if _LENGTH.fullmatch(text) is None:
        raise ProtocolError(f"Content-Length {text[:_QUOTED_BYTES]!r}")
    return int(text)


def _tokens(text: str) -> list[str]:
    return [token.strip().lower() for token in text.split(",")]
