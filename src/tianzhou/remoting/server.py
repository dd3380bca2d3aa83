"""A server: listens, passes requests to its handler, and stops without losing responses.

The handler is called once per request, in the order of the frames of each connection. A response
that it returns is sent in the same loop iteration, without a task; an awaitable is awaited by a
task, which sends its result. A response always has the opaque and the encoding of its request; a
oneway request never gets one. `error_responses.py` maps exceptions of handlers to responses.

    async def handle(connection: Connection, request: Command) -> Command: ...

    server = Server(handle)
    host, port = await server.listen("", 9876)
    ...
    await server.close()
"""

import asyncio
import logging
import ssl
from collections.abc import Set as AbstractSet

from tianzhou.errors import ConnectionClosed
from tianzhou.remoting import sockets
from tianzhou.remoting.acceptor import Acceptor
from tianzhou.remoting.address import format_address
from tianzhou.remoting.connection import Connection, Feed, Handler, Listener
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.shared_state import Counts, SharedState
from tianzhou.remoting.tls.contexts import Tls, TlsMode

__all__ = ["Handler", "Server"]

log = logging.getLogger(__name__)


class Server:
    """One handler on any number of ports, on one event loop."""

    def __init__(
        self,
        handle: Handler,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen, so one for all is as good as one each
        tls: Tls | None = None,
        on_opened: Listener | None = None,
        on_closed: Listener | None = None,
        feed: Feed | None = None,
    ) -> None:
        """Raises ConfigError if the certificates cannot be loaded."""
        self._tls = tls or Tls(mode=TlsMode.OFF)
        self._closed = False
        self._shared: SharedState[Connection] = SharedState(limits, serves=True)
        self._acceptor = Acceptor(
            self._shared,
            lambda: Connection(self._shared, handle, on_opened, on_closed, feed),
            self._tls.mode,
            self._tls.server_context(),
        )

    @property
    def connections(self) -> AbstractSet[Connection]:
        """The current connections, including closing ones."""
        return self._shared.connections

    @property
    def counts(self) -> Counts:
        """Events since the start, for statistics."""
        return self._shared.counts

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on all addresses of a host, too; returns the first address that was bound.

        "", "*", 0.0.0.0 and :: are all interfaces, IPv4 and IPv6. With port 0 the system chooses
        one. Raises RemotingError if the address cannot be bound.
        """
        if self._closed:
            raise ConnectionClosed("the server is closed")
        self._shared.start()
        bound = await sockets.listening(host, port, self._shared.limits.backlog)
        for sock in bound:
            self._acceptor.listen(sock)
        address: tuple[str, int] = bound[0].getsockname()[:2]
        log.info("listening on %s, TLS %s", format_address(*address), self._tls.mode)
        return address

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """That of connections to come; None without TLS."""
        return self._acceptor.context

    def reload_tls(self) -> None:
        """Load the certificates again, for new connections.

        Raises ConfigError if they cannot be loaded; then the old ones stay in use.
        """
        self._acceptor.context = self._tls.server_context()

    def set_limits(self, limits: Limits) -> None:
        """Change the limits; open connections stay open.

        The frame length and the receive buffer do not change.
        """
        self._shared.limits = limits

    @property
    def limits(self) -> Limits:
        """The current limits."""
        return self._shared.limits

    async def close(self, drain_s: float = 5.0) -> None:
        """Stop accepting, wait for running requests and unsent responses, then cut the rest.

        Requests that arrive meanwhile are not handled. Parked requests should be answered before.
        """
        self._closed = True
        if not hasattr(self._shared, "loop"):
            return  # it never listened
        try:
            await self._acceptor.close()
            for connection in tuple(self._shared.connections):
                connection.drain()
            async with asyncio.timeout(drain_s):
                await self._shared.emptied()
        except TimeoutError:
            log.warning(
                "stopping: %d requests and %d connections are cut after %s s",
                len(self._shared.tasks), len(self._shared.connections), drain_s,
            )  # fmt: skip
        finally:
            await self._shared.cut_rest("the server stops")
