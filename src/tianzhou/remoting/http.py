"""An HTTP server for monitoring: GET and HEAD, one response, then the connection is closed.

For Prometheus and load balancers, which send a request every few seconds. Requests have no body. A
peer has `WEB_TIMEOUT_MS` to send its request, and as much to read the response; the time to render
the page does not count. Concurrent requests for a page share one rendering. Above the limit of
connections the oldest without a request is closed, so slow and idle peers cannot block monitoring.
"""

import asyncio
import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from tianzhou.limits import WEB_CONNECTIONS_MAX, WEB_TIMEOUT_MS
from tianzhou.remoting import sockets

log = logging.getLogger(__name__)

_HEAD_MAX_BYTES = 8192
_PIECE_BYTES = 256 * 1024
_BACKLOG = WEB_CONNECTIONS_MAX // 4
"""Connections accepted per loop iteration; a request is read and answered within four."""


class Page(NamedTuple):
    """A response."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Page | Awaitable[Page]]]
"""By path. A slow page is awaitable, so that it does not block the loop."""
QueryPages = Mapping[str, Callable[[str], Page]]
"""By path, with the query of the URL, which is what follows "?"."""


class WebServer:
    """Serves pages until it is closed."""

    def __init__(
        self,
        pages: Pages,
        timeout_ms: int = WEB_TIMEOUT_MS,
        *,
        query_pages: QueryPages | None = None,
    ) -> None:
        """`pages` ignore the query of the URL."""
        self._pages = pages
        self._query_pages = query_pages or {}
        self._timeout_s = timeout_ms / 1000
        self._servers: list[asyncio.Server] = []
        self._silent: dict[StreamWriter, None] = {}
        """Connections without a complete request, oldest first."""
        self._responding: dict[StreamWriter, None] = {}
        """Connections whose request is being answered, oldest first."""
        self._making: dict[str, asyncio.Future[Page]] = {}
        """Pages that are being awaited, by path."""

    async def listen(self, host: str, port: int) -> int:
        """Listen as a server of frames does; returns the port, which the system chooses for 0.

        Raises RemotingError.
        """
        bound = await sockets.listening(host, port, _BACKLOG)
        for sock in bound:
            self._servers.append(
                await asyncio.start_server(
                    self._serve, sock=sock, limit=_HEAD_MAX_BYTES, backlog=_BACKLOG
                )
            )
        chosen: int = bound[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Stop listening, and abort open connections."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for writer in (*self._silent, *self._responding):
            writer.transport.abort()
        for making in self._making.values():
            making.cancel()
        for server in servers:
            await server.wait_closed()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._evict_oldest_if_full()
        self._silent[writer] = None
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await self._answer(reader, writer, limit)
                writer.close()
                # Within the time-out, as a peer that does not read would block this for ever.
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # a peer that is slow or gone gets no response
        finally:
            self._silent.pop(writer, None)
            self._responding.pop(writer, None)
            writer.transport.abort()

    def _evict_oldest_if_full(self) -> None:
        if len(self._silent) + len(self._responding) >= WEB_CONNECTIONS_MAX:
            table = self._silent or self._responding
            oldest = next(iter(table))
            del table[oldest]
            oldest.transport.abort()

    async def _answer(
        self, reader: StreamReader, writer: StreamWriter, limit: asyncio.Timeout
    ) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            page, method = _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), "GET"
        else:
            if writer in self._silent:
                del self._silent[writer]
                self._responding[writer] = None
            limit.reschedule(None)
            page, method = await self._page(head)
            limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
        writer.write(_head(page))
        if method != "HEAD":
            # In pieces: a transport moves all unsent bytes each time the socket accepts some.
            for start in range(0, len(page.body), _PIECE_BYTES):
                writer.write(page.body[start : start + _PIECE_BYTES])
                await writer.drain()
        await writer.drain()

    async def _page(self, head: bytes) -> tuple[Page, str]:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _error(HTTPStatus.BAD_REQUEST), "GET"
        method, (path, _, query) = parts[0], parts[1].partition("?")
        if method not in ("GET", "HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED), method
        if path not in self._pages and path not in self._query_pages:
            known = " ".join((*self._pages, *self._query_pages))
            return Page(
                f"no such page, there are {known}\n".encode(), status=HTTPStatus.NOT_FOUND
            ), method
        try:
            if path in self._query_pages:
                return self._query_pages[path](query), method
            return await self._made(path), method
        except Exception:  # a bug in a page must not end the server
            log.exception("page %s failed", path)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR), method

    async def _made(self, path: str) -> Page:
        making = self._making.get(path)
        if making is None:
            page = self._pages[path]()
            if isinstance(page, Page):
                return page
            making = self._making[path] = asyncio.ensure_future(page)
            making.add_done_callback(partial(self._on_made, path))
        # A peer that disconnects must not cancel the page for the others.
        return await asyncio.shield(making)

    def _on_made(self, path: str, making: asyncio.Future[Page]) -> None:
        del self._making[path]
        if not making.cancelled():
            making.exception()  # retrieved, so asyncio does not report it if all peers are gone


def _error(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n".encode(), status=status)


def _head(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode()
