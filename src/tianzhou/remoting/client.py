"""A client: one pooled connection per address, dialled at the first request and after a loss.

Any number of requests share a connection. The time-out of a request includes dialling. A lost
connection fails its requests with ConnectionClosed; nothing is sent twice, retries are up to the
caller. Requests of the peer are passed to `handle`.
"""

import asyncio
import logging
import socket

from tianzhou.errors import ConnectError, ConnectionClosed
from tianzhou.protocol.acl import Credentials, sign
from tianzhou.protocol.command import Command
from tianzhou.remoting import error_responses, sockets
from tianzhou.remoting.address import parse_address
from tianzhou.remoting.connection import Connection, Handler, Listener
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.shared_state import Counts, SharedState
from tianzhou.remoting.tls import tls_socket
from tianzhou.remoting.tls.contexts import TLS_GOODBYE_S, Tls

log = logging.getLogger(__name__)

_GOODBYE_S = 1.0


class Client:
    """Connections to any number of servers, on one event loop."""

    def __init__(
        self,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen, so one for all is as good as one each
        tls: Tls | None = None,
        handle: Handler | None = None,
        on_closed: Listener | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """With credentials every request is signed. Raises ConfigError for wrong certificates."""
        self._tls = tls
        self._credentials = credentials
        self._context = tls.client_context() if tls else None
        self._handle = handle or _refuse
        self._on_closed = on_closed
        self._shared: SharedState[Connection] = SharedState(limits, serves=False)
        self._connections: dict[str, Connection] = {}
        self._dials: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    @property
    def counts(self) -> Counts:
        """Events since the start, for statistics."""
        return self._shared.counts

    @property
    def speaks_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self._tls is not None

    async def secured(
        self, sock: socket.socket, host: str, timeout_s: float
    ) -> tls_socket.TlsSocket:
        """TLS, as on its own connections, over a connected socket, which is closed on errors.

        Raises OSError.
        """
        assert self._tls is not None
        assert self._context is not None
        return await tls_socket.opened(
            sock, self._context, self._tls.server_name or host, timeout_s
        )

    def reload_tls(self) -> None:
        """Load the certificates again, for new connections. Raises ConfigError."""
        self._context = self._tls.client_context() if self._tls else None

    async def request(self, address: str, command: Command, timeout_ms: int = 3000) -> Command:
        """Send a request and wait for the response, whatever its code.

        Raises ConnectError (AddressError included), and what `Connection.request` raises.
        """
        if self._credentials is not None:
            sign(command, self._credentials)
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
            connection = await self.connect(address, timeout_ms)
            return await connection.request(command, timeout_ms, deadline_s)
        return await connection.request(command, timeout_ms)

    async def oneway(self, address: str, command: Command, timeout_ms: int = 3000) -> None:
        """Send a request without a response; returns when it is handed to the transport.

        Raises ConnectError, ConnectionClosed, and RemoteBusy if the peer does not read in time.
        """
        if self._credentials is not None:
            sign(command, self._credentials)
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        connection = await self.connect(address, timeout_ms)
        await connection.writable(deadline_s)
        connection.oneway(command)

    def opened(self, address: str) -> Connection | None:
        """The connection to an address if it is open now."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str, timeout_ms: int = 3000) -> Connection:
        """The connection to an address; concurrent callers share one attempt to connect.

        Raises ConnectError, and ConnectionClosed if the client is closed.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ConnectionClosed("the client is closed")
        dial = self._dials.get(address) or self._start_dial(address)
        await asyncio.wait((dial,), timeout=timeout_ms / 1000)
        if not dial.done():
            raise ConnectError(f"no connection to {address} within {timeout_ms} ms")
        if dial.cancelled():
            raise ConnectionClosed("the client is closed")
        if (error := dial.exception()) is not None:
            if not isinstance(error, ConnectError):
                raise error
            # Each caller gets its own exception: a shared one would collect their tracebacks.
            raise type(error)(*error.args) from error.__cause__
        return dial.result()

    async def close(self) -> None:
        """Close all connections; pending requests fail with ConnectionClosed."""
        self._closed = True
        for dial in tuple(self._dials.values()):
            dial.cancel()
        if self._dials:
            await asyncio.wait(tuple(self._dials.values()))
        for connection in tuple(self._shared.connections):
            connection.close("the client is closed")
        for task in tuple(self._shared.tasks):
            task.cancel()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._shared.emptied()
        except TimeoutError:
            log.info("stopping: %d connections are cut", len(self._shared.connections))
        finally:
            await self._shared.cut_rest("the client is closed")

    # -- dialling ----------------------------------------------------------------------------------

    def _start_dial(self, address: str) -> asyncio.Task[Connection]:
        self._shared.start()
        dial = self._shared.loop.create_task(self._dial(address))
        self._dials[address] = dial
        dial.add_done_callback(lambda done: self._dialled(address, done))
        return dial

    def _dialled(self, address: str, dial: asyncio.Task[Connection]) -> None:
        del self._dials[address]
        if not dial.cancelled():
            dial.exception()  # retrieved, so asyncio does not report it if all callers are gone

    async def _dial(self, address: str) -> Connection:
        connect_ms = self._shared.limits.connect_ms
        host, port = parse_address(address)
        try:
            async with asyncio.timeout(connect_ms / 1000):
                sock = await sockets.connected(host, port, connect_ms / 1000, self._shared.limits)
                connection = await self._open(address, host, sock)
        except TimeoutError as error:
            raise ConnectError(f"no connection to {address} within {connect_ms} ms") from error
        except OSError as error:  # ssl.SSLError is one
            raise ConnectError(f"no connection to {address}: {sockets.cause_of(error)}") from error
        if not connection.closed:
            self._connections[address] = connection
        return connection

    async def _open(self, address: str, host: str, sock: socket.socket) -> Connection:
        """Make a connection of a connected socket; the loop closes the socket on errors."""
        shared, tls = self._shared, self._tls
        connection = Connection(
            shared, self._handle, on_closed=lambda lost: self._lost(address, lost)
        )
        try:
            await shared.loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._context,
                server_hostname=(tls.server_name or host) if tls else None,
                ssl_handshake_timeout=shared.limits.connect_ms / 1000 if tls else None,
                ssl_shutdown_timeout=TLS_GOODBYE_S if tls else None,
            )
        except BaseException:
            connection.connection_lost(None)
            raise
        return connection

    def _lost(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
        if self._on_closed is not None:
            self._on_closed(connection)


def _refuse(_: Connection, request: Command) -> Command:
    return error_responses.not_supported(request)
