"""Accepts the connections of a server, and distinguishes TLS from plain text.

    accepted -> (above a limit: its first request is answered SYSTEM_BUSY, see `over_limit.py`)
             -> TLS off: a connection at once
             -> else unclassified until its first byte arrives:
                    0x16: handshake, then a connection
                    else: a connection (permissive) or closed (enforcing)

A peer that sends nothing costs a socket and a timer, and does not block others: when there are too
many, the oldest is closed.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine

from tianzhou.descriptors import descriptor_limit, reserved_descriptors
from tianzhou.remoting.address import format_address, host_of
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.over_limit import OverLimitConnection
from tianzhou.remoting.shared_state import SharedState
from tianzhou.remoting.sockets import set_options
from tianzhou.remoting.tls.contexts import TLS_GOODBYE_S, TlsMode

log = logging.getLogger(__name__)

_ACCEPTS_PER_ITERATION = 64
"""Further sockets are accepted after open connections are served."""
_TLS_FIRST_BYTE = b"\x16"
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 0.5
_OVER_LIMIT_SHARE = 4
"""Connections above the limit may use this fraction of the reserved descriptors: 1/4."""


class Acceptor:
    """Accepts on any number of listening sockets until it is closed."""

    def __init__(
        self,
        shared: SharedState[Connection],
        make_connection: Callable[[], Connection],
        mode: TlsMode,
        context: ssl.SSLContext | None,
    ) -> None:
        self.context = context
        """The TLS context of connections to come; may be replaced."""
        self._shared = shared
        self._make_connection = make_connection
        self._mode = mode
        self._listening: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._unclassified: dict[socket.socket, tuple[asyncio.TimerHandle, str]] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._arriving: dict[str, set[socket.socket | Connection]] = {}
        """By address: sockets without a first byte, and connections that are being opened."""
        self._over_limit: dict[socket.socket, str] = {}
        """Sockets above a limit, with the remark for their first request."""
        self._refusing: set[OverLimitConnection] = set()
        self._refusals: set[asyncio.Task[None]] = set()

    def listen(self, listening: socket.socket) -> None:
        """Accept on a listening socket, which `close` closes."""
        self._listening.append(listening)
        self._shared.loop.add_reader(listening.fileno(), self._accept, listening)

    async def close(self) -> None:
        """Stop accepting, and close sockets that are not connections yet."""
        for listening in self._listening:
            if (retry := self._retries.pop(listening, None)) is not None:
                retry.cancel()
            self._shared.loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()
        for sock in tuple(self._unclassified):
            self._forget(sock)
            self._drop(sock)
        for task in (tasks := self._opening | self._refusals):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for refusing in tuple(self._refusing):
            refusing.cut()

    # -- accepting ---------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_ITERATION):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(listening, error)
                    return
                # This peer was gone before it was accepted; there may be others.
                log.debug("accepting failed: %s", error)
                continue
            self._admit(sock, format_address(address[0], address[1]))

    def _count_of(self, host: str) -> int:
        """The number of connections of an address, including those being opened."""
        established = self._shared.connections
        arriving_count = sum(each not in established for each in self._arriving.get(host, ()))
        return self._shared.hosts[host] + arriving_count

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stop accepting until the retry: the socket stays readable, so the loop would spin."""
        self._shared.log_failure(
            "accepting failed",
            f"no more connections can be accepted: {error.strerror}; "
            f"{len(self._shared.connections)} are open, trying again every {_RETRY_S} s",
            logging.ERROR,
        )
        loop = self._shared.loop
        loop.remove_reader(listening.fileno())
        self._retries[listening] = loop.call_later(_RETRY_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        del self._retries[listening]
        self._shared.loop.add_reader(listening.fileno(), self._accept, listening)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        limits = self._shared.limits
        if not self._is_within_limits(sock, peer) and (
            len(self._over_limit) + len(self._refusing)
            > min(limits.over_limit, reserved_descriptors() // _OVER_LIMIT_SHARE)
        ):
            self._drop(sock)
            return
        try:
            sock.setblocking(False)
            set_options(sock, limits)
        except OSError as error:
            log.debug("connection %s: gone at once: %s", peer, error)
            self._drop(sock)
            return
        if self._mode is TlsMode.OFF:
            self._open(sock, peer, None)
        else:
            self._wait_for_first_byte(sock, peer)

    def _is_within_limits(self, sock: socket.socket, peer: str) -> bool:
        limits, host = self._shared.limits, host_of(peer)
        arriving_count = len(self._unclassified) + len(self._opening) - len(self._over_limit)
        count = len(self._shared.connections) + arriving_count
        # A new descriptor is always the lowest that is free.
        left = descriptor_limit() - sock.fileno() - 1
        if count >= limits.connections:
            kind, remark = "limit", f"{count} connections are open, the limit"
        elif (count := self._count_of(host)) >= limits.connections_per_address:
            kind, remark = f"limit of {host}", f"{host} has {count} connections, the limit"
        elif left < (reserved := reserved_descriptors()):
            kind = "descriptors"
            remark = f"{left} file descriptors are left, {reserved} are reserved for files"
        else:
            return True
        advice = "; raise the limit of open files (ulimit -n)" if kind == "descriptors" else ""
        self._note_refusal(kind, f"connection {peer}: refused, {remark}{advice}")
        self._over_limit[sock] = remark
        return False

    def _refuse(self, sock: socket.socket, kind: str, text: str) -> None:
        self._note_refusal(kind, text)
        self._drop(sock)

    def _note_refusal(self, kind: str, text: str) -> None:
        self._shared.counts.refused_connections += 1
        self._shared.log_failure(f"refused: {kind}", text)

    def _drop(self, sock: socket.socket) -> None:
        self._over_limit.pop(sock, None)
        sock.close()

    # -- TLS or plain text -------------------------------------------------------------------------

    def _wait_for_first_byte(self, sock: socket.socket, peer: str) -> None:
        limits = self._shared.limits
        if len(self._unclassified) >= limits.unclassified:
            self._give_up(next(iter(self._unclassified)), "too many others wait")
        loop, host = self._shared.loop, host_of(peer)
        timer = loop.call_later(
            limits.handshake_ms / 1000, self._give_up, sock, f"silent for {limits.handshake_ms} ms"
        )
        self._unclassified[sock] = (timer, host)
        if sock not in self._over_limit:
            self._arriving.setdefault(host, set()).add(sock)
        loop.add_reader(sock.fileno(), self._peek, sock, peer)

    def _give_up(self, sock: socket.socket, why: str) -> None:
        self._forget(sock)
        self._refuse(sock, "silent", f"a connection that has not sent a byte: closed, {why}")

    def _forget(self, sock: socket.socket) -> None:
        timer, host = self._unclassified.pop(sock)
        timer.cancel()
        self._arrived(host, sock)
        self._shared.loop.remove_reader(sock.fileno())

    def _peek(self, sock: socket.socket, peer: str) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.debug("connection %s: gone before its first byte: %s", peer, error)
            first = b""
        self._forget(sock)
        if not first:
            self._drop(sock)
        elif first == _TLS_FIRST_BYTE:
            self._open(sock, peer, self.context)
        elif self._mode is TlsMode.PERMISSIVE:
            self._open(sock, peer, None)
        else:
            text = f"connection {peer}: refused, it does not speak TLS, which is enforced here"
            self._refuse(sock, f"plain {host_of(peer)}", text)

    # -- opening -----------------------------------------------------------------------------------

    def _open(self, sock: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        remark = self._over_limit.pop(sock, None)
        if remark is not None:
            wait_s = self._shared.limits.over_limit_ms / 1000
            refusing = OverLimitConnection(remark, wait_s, self._refusing.discard)
            self._refusing.add(refusing)
            self._run(self._refusals, self._connect(refusing, sock, peer, context), sock)
            return
        connection, host = self._make_connection(), host_of(peer)
        self._arriving.setdefault(host, set()).add(connection)
        task = self._run(self._opening, self._connect(connection, sock, peer, context), sock)
        task.add_done_callback(lambda _: self._arrived(host, connection))

    def _run(
        self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None], sock: socket.socket
    ) -> asyncio.Task[None]:
        task = self._shared.loop.create_task(work)
        tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if task.cancelled():
                # If it was cancelled before it began, nothing else closes the socket.
                sock.close()

        task.add_done_callback(ended)
        return task

    async def _connect(
        self,
        protocol: Connection | OverLimitConnection,
        sock: socket.socket,
        peer: str,
        context: ssl.SSLContext | None,
    ) -> None:
        try:
            await self._shared.loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=context,
                ssl_handshake_timeout=self._shared.limits.handshake_ms / 1000 if context else None,
                ssl_shutdown_timeout=TLS_GOODBYE_S if context else None,
            )
        except BaseException as error:
            protocol.connection_lost(None)
            if not isinstance(error, OSError):  # ssl.SSLError is one
                raise
            what = "the TLS handshake failed" if context else "it could not be opened"
            text = f"connection {peer}: {what}: {error}"
            if isinstance(protocol, Connection):
                self._refuse(sock, f"opening {host_of(peer)}", text)
            else:  # counted as refused already
                log.debug(text)
                sock.close()

    def _arrived(self, host: str, one: socket.socket | Connection) -> None:
        rest = self._arriving.get(host, set())
        rest.discard(one)
        if not rest:
            self._arriving.pop(host, None)
