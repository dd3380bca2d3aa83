"""Answers the first request of a connection above the limit with SYSTEM_BUSY.

Clients then try another server, or the same one later; a connection that is just closed looks like
a network failure. Only the head of the first frame is stored, whatever body it announces; the rest
is discarded. The response is followed by the end of the stream, and the connection is cut when the
peer has ended its own, or at the time-out: closing at once, with unread bytes, would make the
kernel drop the response.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from tianzhou.errors import ProtocolError
from tianzhou.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, decode, encode
from tianzhou.remoting import error_responses

_LENGTHS = struct.Struct(">II")
_HEAD_LENGTH_MASK = 0xFFFFFF
_LENGTH_BYTES = 4
HEAD_MAX_BYTES = 64 * 1024
"""A connection that announces a longer head is cut."""


class OverLimitConnection(asyncio.Protocol):
    """One connection above the limit; `on_gone` is called when it has ended."""

    __slots__ = ("_head", "_on_gone", "_remark", "_timer", "_transport", "_wait_s")

    _transport: asyncio.Transport

    def __init__(
        self, remark: str, wait_s: float, on_gone: "Callable[[OverLimitConnection], None]"
    ) -> None:
        self._remark = remark
        self._wait_s = wait_s
        self._on_gone = on_gone
        self._head: bytearray | None = bytearray()
        """The received part of the first frame; None when it is answered."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A socket's transport reads and writes; the base class is for pipes and datagrams, too.
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._wait_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            return
        self._head += data
        try:
            request = read_head(self._head)
        except ProtocolError:
            self.cut()
            return
        if request is not None:
            self._head = None
            self._answer(request)

    def eof_received(self) -> None:
        self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._on_gone(self)

    def cut(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _answer(self, request: Command) -> None:
        if request.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
            self.cut()
            return
        response = error_responses.over_limit(self._remark)
        response.opaque, response.encoding = request.opaque, request.encoding
        response.flag = FLAG_RESPONSE
        self._transport.write(encode(response))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()  # TLS ends the stream itself


def read_head(received: bytes | bytearray) -> Command | None:
    """The first request without its body; None while its head is incomplete.

    Raises ProtocolError for an invalid frame, or for a head that is too long.
    """
    if len(received) < _LENGTHS.size:
        return None
    length_bytes, head_mark = _LENGTHS.unpack_from(received)
    head_bytes = head_mark & _HEAD_LENGTH_MASK
    if head_bytes > HEAD_MAX_BYTES or head_bytes + _LENGTH_BYTES > length_bytes:
        raise ProtocolError(f"a head of {head_bytes} bytes in a frame of {length_bytes}")
    end = _LENGTHS.size + head_bytes
    if len(received) < end:
        return None
    whole = _LENGTHS.pack(_LENGTH_BYTES + head_bytes, head_mark) + received[_LENGTHS.size : end]
    return decode(whole)
