"""Accepts sockets of a server, distinguishes TLS from plain text, and makes connections of them.

    accepted -> (too many: its first request is answered SYSTEM_BUSY, see `turnaway`)
             -> TLS off: a connection at once
             -> else unclassified until the first byte can be peeked at:
                    0x16: handshake, then a connection
                    else: a connection (permissive) or closed (enforcing)

A peer that says nothing costs a socket and a timer, and keeps nobody else out: when too many of
them wait, the one that has waited longest is closed.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from tianzhou.descriptors import descriptor_limit, reserved_descriptors
from tianzhou.remoting.address import format_address
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.over_limit import OverLimitConnection
from tianzhou.remoting.shared_state import SharedState
from tianzhou.remoting.sockets import set_options
from tianzhou.remoting.tls.contexts import TLS_GOODBYE_S, TlsMode

log = logging.getLogger(__name__)

# Sockets accepted in one loop iteration; more have to wait for those already connected.
_ACCEPTS_PER_TURN = 64
_TLS_FIRST_BYTE = b"\x16"
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 0.5
_TOLD_SHARE = 4
"""So large a part of the reserve of descriptors may be held by those that are turned away."""

_T = TypeVar("_T")


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
        # By address: sockets that have not said a byte yet, and connections being made.
        self._silent: dict[str, set[socket.socket]] = {}
        self._coming: dict[str, set[Connection]] = {}
        # Refused sockets, with the reason until it is sent.
        self._turned: dict[socket.socket, str] = {}
        self._telling: set[OverLimitConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listening: socket.socket) -> None:
        """Begin to accept on a socket, which is the acceptor's from now on."""
        self._listening.append(listening)
        self._shared.loop.add_reader(listening.fileno(), self._accept, listening)

    async def close(self) -> None:
        """Accept no more and close sockets that are no connections yet."""
        for listening in self._listening:
            if (retry := self._retries.pop(listening, None)) is not None:
                retry.cancel()
            self._shared.loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()
        for sock in tuple(self._unclassified):
            self._forget(sock)
            self._drop(sock)
        for task in (tasks := self._opening | self._tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for telling in tuple(self._telling):
            telling.cut()

    # -- accepting ---------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(listening, error)
                    return
                # The peer was gone before it was accepted; the next one may be there.
                log.debug("accepting failed: %s", error)
                continue
            self._admit(sock, format_address(address[0], address[1]))

    def _count_of(self, host: str) -> int:
        """How many connections an address has, those on their way included."""
        established = self._shared.connections
        coming = sum(each not in established for each in self._coming.get(host, ()))
        return self._shared.hosts[host] + len(self._silent.get(host, ())) + coming

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment: the loop would spin, as the socket stays readable."""
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
        if not self._may_stay(sock, peer) and (
            len(self._turned) + len(self._telling)
            > min(limits.over_limit, reserved_descriptors() // _TOLD_SHARE)
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

    def _may_stay(self, sock: socket.socket, peer: str) -> bool:
        """Whether there is room for a connection; if not, it is noted to be turned away."""
        limits, host = self._shared.limits, peer.rpartition(":")[0]
        on_the_way = len(self._unclassified) + len(self._opening) - len(self._turned)
        count = len(self._shared.connections) + on_the_way
        if count >= limits.connections:
            kind, told = "limit", f"{count} connections are open, the limit"
            text = f"connection {peer}: refused, {count} are open, the limit"
        elif (count := self._count_of(host)) >= limits.connections_per_address:
            kind, told = f"limit of {host}", f"{host} has {count} connections, the limit"
            text = f"connection {peer}: refused, its address has {count}, the limit"
        elif (left := self._descriptors_left(sock)) < (kept := reserved_descriptors()):
            kind = "descriptors"
            told = f"{left} file descriptors are left, {kept} are kept for files"
            text = f"connection {peer}: refused, {told}; raise the limit of open files (ulimit -n)"
        else:
            return True
        self._note_refusal(kind, text)
        self._turned[sock] = told
        return False

    def _descriptors_left(self, sock: socket.socket) -> int:
        """How many descriptors are free at most: a new one is always the lowest that is."""
        return descriptor_limit() - sock.fileno() - 1

    def _refuse(self, sock: socket.socket, kind: str, text: str) -> None:
        self._note_refusal(kind, text)
        self._drop(sock)

    def _note_refusal(self, kind: str, text: str) -> None:
        self._shared.counts.refused_connections += 1
        self._shared.log_failure(f"refused: {kind}", text)

    def _drop(self, sock: socket.socket) -> None:
        self._turned.pop(sock, None)
        sock.close()

    # -- telling TLS from plain --------------------------------------------------------------------

    def _wait_for_first_byte(self, sock: socket.socket, peer: str) -> None:
        limits = self._shared.limits
        if len(self._unclassified) >= limits.unclassified:
            self._give_up(next(iter(self._unclassified)), "too many others wait")
        loop = self._shared.loop
        host = peer.rpartition(":")[0]
        timer = loop.call_later(
            limits.handshake_ms / 1000, self._give_up, sock, f"silent for {limits.handshake_ms} ms"
        )
        self._unclassified[sock] = (timer, host)
        if sock not in self._turned:
            self._silent.setdefault(host, set()).add(sock)
        loop.add_reader(sock.fileno(), self._peek, sock, peer)

    def _give_up(self, sock: socket.socket, why: str) -> None:
        self._forget(sock)
        self._refuse(sock, "silent", f"a connection that has not sent a byte: closed, {why}")

    def _forget(self, sock: socket.socket) -> None:
        timer, host = self._unclassified.pop(sock)
        timer.cancel()
        _take_out(self._silent, host, sock)
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
            host = peer.rpartition(":")[0]
            text = f"connection {peer}: refused, it does not speak TLS, which is enforced here"
            self._refuse(sock, f"plain {host}", text)

    # -- opening -----------------------------------------------------------------------------------

    def _open(self, sock: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        if sock in self._turned:
            self._turn_away(sock, peer, context)
            return
        connection, host = self._make_connection(), peer.rpartition(":")[0]
        self._coming.setdefault(host, set()).add(connection)
        task = self._shared.loop.create_task(self._connect(connection, sock, peer, context))
        self._opening.add(task)

        def opened(ended: asyncio.Task[None]) -> None:
            _take_out(self._coming, host, connection)
            self._opened(ended, sock)

        task.add_done_callback(opened)

    def _opened(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._opening.discard(task)
        if task.cancelled():
            # Perhaps before it began, and then nothing else closes the socket.
            sock.close()

    def _turn_away(self, sock: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        wait_s = self._shared.limits.over_limit_ms / 1000
        telling = OverLimitConnection(self._turned.pop(sock), wait_s, self._telling.discard)
        self._telling.add(telling)
        task = self._shared.loop.create_task(self._notify(telling, sock, peer, context))
        self._tasks.add(task)

        def told(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if ended.cancelled():
                sock.close()

        task.add_done_callback(told)

    async def _notify(
        self,
        telling: OverLimitConnection,
        sock: socket.socket,
        peer: str,
        context: ssl.SSLContext | None,
    ) -> None:
        try:
            await self._make_transport(telling, sock, context)
        except OSError as error:  # ssl.SSLError is one
            log.debug("connection %s: SYSTEM_BUSY could not be sent: %s", peer, error)
            self._telling.discard(telling)
            sock.close()
        except BaseException:
            self._telling.discard(telling)
            raise

    async def _make_transport(
        self, protocol: asyncio.BaseProtocol, sock: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        handshake_s = self._shared.limits.handshake_ms / 1000 if context else None
        await self._shared.loop.connect_accepted_socket(
            lambda: protocol,
            sock,
            ssl=context,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=TLS_GOODBYE_S if context else None,
        )

    async def _connect(
        self,
        connection: Connection,
        sock: socket.socket,
        peer: str,
        context: ssl.SSLContext | None,
    ) -> None:
        try:
            await self._make_transport(connection, sock, context)
        except OSError as error:  # ssl.SSLError is one
            host = peer.rpartition(":")[0]
            what = "the TLS handshake failed" if context else "it could not be opened"
            self._refuse(sock, f"opening {host}", f"connection {peer}: {what}: {error}")
        except BaseException:
            connection.connection_lost(None)
            raise


def _take_out(by_host: dict[str, set[_T]], host: str, one: _T) -> None:
    rest = by_host.get(host)
    if rest is not None:
        rest.discard(one)
        if not rest:
            del by_host[host]
