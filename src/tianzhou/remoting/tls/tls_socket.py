"""TLS over a non-blocking socket, with the methods of a socket, for code that reads and writes
sockets itself.

Plain text and records pass through memory, at most one piece of `_SEND_BYTES` or `_RECEIVE_BYTES`
in each direction. Every error of TLS is an OSError (`ssl.SSLError`), like those of the socket.

    shake              one step of the handshake, whenever the socket is readable
    recv, recv_into    as of a socket; BlockingIOError until a record is complete
    send, sendmsg      return the size of a piece when all of its records are with the kernel. After
                       a BlockingIOError the next call must begin with the same bytes
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import Final, cast

TLS_FIRST_BYTE: Final = b"\x16"
"""Of a handshake; what is not TLS begins with another one on all our ports."""
_SEND_BYTES: Final = 128 * 1024
_RECEIVE_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 16 * 1024
_CONTROL_BYTES_MAX: Final = 64 * 1024
"""Of alerts and the like that a peer provokes and does not read."""
_READS_PER_STEP: Final = 8


class TlsSocket:
    """A connected socket, of a client if there is a `server_name`; owns it from now on."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None = None
    ) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing,
            server_side=server_name is None, server_hostname=server_name,
        )  # fmt: skip
        self._unsent = memoryview(b"")
        """Records that the kernel has not accepted."""
        self._in_flight = 0
        """The plain bytes of which they are."""
        self._is_done = False
        self._is_ended = False
        self.has_more = False
        """The last `recv_into` was too short for what has been received."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket; the peer is informed if that is possible at once."""
        with contextlib.suppress(OSError):
            if self._is_done and not self._unsent:
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._tls.unwrap()
                self._flush()
        self._sock.close()

    # -- handshake ---------------------------------------------------------------------------------

    @property
    def wants_write(self) -> bool:
        """A step of the handshake can be done when the socket is writable, too."""
        return bool(self._unsent)

    def shake(self) -> bool:
        """Whether the handshake is complete. Raises OSError if it failed."""
        for _ in range(_READS_PER_STEP):
            try:
                if not self._is_done:
                    self._tls.do_handshake()
                    self._is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert that says why
                raise
            try:
                self._flush()
                if self._is_done:
                    return True
                if not self._fill(_RECORD_BYTES):
                    raise ConnectionResetError("the peer closed the connection")
            except (BlockingIOError, InterruptedError):
                return False
        return False

    # -- receiving ---------------------------------------------------------------------------------

    def recv(self, size: int) -> bytes:
        """What is complete after at most `size` further encrypted bytes; empty at the end."""
        first = memoryview(bytearray(size + _RECORD_BYTES))
        data = bytes(first[: self.recv_into(first, size)])
        more = memoryview(bytearray(_RECORD_BYTES))
        while self.has_more:
            data += more[: self._decrypt(more)]
        return data

    def recv_into(self, view: memoryview, size: int = _RECEIVE_BYTES) -> int:
        """The number of bytes; 0 at the end."""
        count = self._decrypt(view)
        if not count and not self._is_ended:
            if not self._fill(size):
                return 0
            count = self._decrypt(view)
        if not count and not self._is_ended:
            raise BlockingIOError
        return count

    def _decrypt(self, view: memoryview) -> int:
        count = 0
        self.has_more = False
        while count < len(view):
            try:
                # The stubs know bytearray only, and not that a number is returned.
                target = cast("bytearray", view[count:])
                size = cast("int", self._tls.read(len(view) - count, target))
            except ssl.SSLWantReadError:
                return count
            except ssl.SSLZeroReturnError:
                size = 0
            if not size:
                self._is_ended = True
                return count
            count += size
        self.has_more = True
        return count

    def _fill(self, size: int) -> int:
        if self._outgoing.pending > _CONTROL_BYTES_MAX:
            raise ConnectionAbortedError("the peer provokes TLS messages, and reads none of them")
        return self._incoming.write(data) if (data := self._sock.recv(size)) else 0

    # -- sending -----------------------------------------------------------------------------------

    def send(self, data: bytes) -> int:
        """How many bytes were sent. Raises BlockingIOError."""
        return self.sendmsg((memoryview(data),))

    def sendmsg(self, views: Sequence[memoryview]) -> int:
        """How many bytes were sent. Raises BlockingIOError."""
        if not self._in_flight:
            self._in_flight = self._encrypt(views)
        self._flush()
        count, self._in_flight = self._in_flight, 0
        return count

    def _encrypt(self, views: Sequence[memoryview]) -> int:
        left_bytes = _SEND_BYTES
        for view in views:
            part = view[:left_bytes]
            left_bytes -= len(part)
            while part:
                part = part[self._tls.write(part) :]
        return _SEND_BYTES - left_bytes

    def _flush(self) -> None:
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._sock.send(self._unsent) :]


async def opened(
    sock: socket.socket, context: ssl.SSLContext, server_name: str, timeout_s: float
) -> TlsSocket:
    """Make the handshake of a client; closes the socket if that fails.

    Raises OSError (TimeoutError and `ssl.SSLError` included).
    """
    try:
        tls = TlsSocket(sock, context, server_name)
        async with asyncio.timeout(timeout_s):
            while not tls.shake():
                await _ready(tls)
    except TimeoutError:
        sock.close()
        raise TimeoutError(f"no TLS handshake within {timeout_s:g} s") from None
    except BaseException:
        sock.close()
        raise
    return tls


async def _ready(tls: TlsSocket) -> None:
    """Wait until the handshake can go on."""
    loop, file = asyncio.get_running_loop(), tls.fileno()
    is_ready: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not is_ready.done():
            is_ready.set_result(None)

    loop.add_reader(file, ready)
    if tls.wants_write:
        loop.add_writer(file, ready)
    try:
        await is_ready
    finally:
        loop.remove_reader(file)
        loop.remove_writer(file)
