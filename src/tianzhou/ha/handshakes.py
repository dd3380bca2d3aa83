"""The first bytes on an HA port with TLS: 0x16 begins a handshake, everything else is plain text.

A connection is `on_ready` when it is known to be plain, or when its handshake is done. How long
that may take is a rule of `MasterSide`, like all times of a connection.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from tianzhou.clock import Clock
from tianzhou.ha.log_sender import SlaveConnection
from tianzhou.remoting.tls.tls_socket import TLS_FIRST_BYTE, TlsSocket

_REMEDY = (
    "the certificates of this broker (tlsServer...) and those of the slave (tlsClient...) must "
    "suit each other and be valid today"
)


class Handshakes:
    """Those of one port; used on one event loop."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext | None],
        clock: Clock,
        on_ready: Callable[[SlaveConnection], None],
        on_failed: Callable[[SlaveConnection, str], None],
    ) -> None:
        """`context` is that of connections to come; None: the port has no TLS."""
        self._context = context
        self._clock = clock
        self._on_ready = on_ready
        self._on_failed = on_failed

    def begin(self, connection: SlaveConnection) -> None:
        """A connection was accepted; its socket is watched from now on."""
        if (context := self._context()) is None:
            self._on_ready(connection)
            return
        self._watch(connection, lambda it: self._distinguish(it, context))

    def _watch(
        self, connection: SlaveConnection, on_readable: Callable[[SlaveConnection], None]
    ) -> None:
        connection.on_readable = on_readable
        asyncio.get_running_loop().add_reader(connection.sock.fileno(), on_readable, connection)

    def _distinguish(self, connection: SlaveConnection, context: ssl.SSLContext) -> None:
        sock = connection.sock
        assert isinstance(sock, socket.socket)
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""  # the next read gets the error
        if first != TLS_FIRST_BYTE:
            self._on_ready(connection)
            return
        connection.sock = TlsSocket(sock, context)
        connection.side.begin_handshake(self._clock())
        self._watch(connection, self._shake)
        self._shake(connection)

    def _shake(self, connection: SlaveConnection) -> None:
        tls, loop = connection.sock, asyncio.get_running_loop()
        assert isinstance(tls, TlsSocket)
        try:
            is_done = tls.shake()
        except OSError as error:
            loop.remove_writer(tls.fileno())
            why = error.strerror or error
            self._on_failed(connection, f"the TLS handshake failed: {why}: {_REMEDY}")
            return
        if not is_done:
            if tls.wants_write:
                loop.add_writer(tls.fileno(), self._shake, connection)
            return
        loop.remove_writer(tls.fileno())
        connection.side.end_handshake(self._clock())
        self._on_ready(connection)
