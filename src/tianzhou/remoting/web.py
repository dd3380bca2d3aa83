"""A few pages over HTTP, for monitors: GET and HEAD, one answer, the connection closed.

Made for being asked every few seconds by Prometheus or a load balancer, beside the real work of the
loop. It takes no bodies, keeps nothing open and answers no one who is slow.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from tianzhou.remoting import sockets

log = logging.getLogger(__name__)

_HEAD_MAX_BYTES = 8192
_TIMEOUT_S = 5.0
_CONNECTIONS_MAX = 64


class Page(NamedTuple):
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Page | Awaitable[Page]]]
"""By path. One that takes its time is awaited, so that it need not hold up the loop."""


class WebServer:
    """Serves pages until it is closed."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen as a server of frames does; returns the port, which the system chooses for 0.

        Raises RemotingError.
        """
        bound = await sockets.listening(host, port, _CONNECTIONS_MAX)
        for sock in bound:
            self._servers.append(
                await asyncio.start_server(self._serve, sock=sock, limit=_HEAD_MAX_BYTES)
            )
        chosen: int = bound[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for writer in tuple(self._open):
            writer.close()
        for server in servers:
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _CONNECTIONS_MAX:
            writer.close()
            return
        self._open.add(writer)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._answer(reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever is slow or gone gets no answer
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            page, method = _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), "GET"
        else:
            page, method = await self._page(head)
        writer.write(_encode(page, with_body=method != "HEAD"))
        await writer.drain()

    async def _page(self, head: bytes) -> tuple[Page, str]:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _error(HTTPStatus.BAD_REQUEST), "GET"
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED), method
        make = self._pages.get(target.partition("?")[0])
        if make is None:
            known = " ".join(self._pages)
            return Page(
                f"no such page, there are {known}\n".encode(), status=HTTPStatus.NOT_FOUND
            ), method
        try:
            page = make()
            return page if isinstance(page, Page) else await page, method
        except Exception:  # a bug in a page must not end the server
            log.exception("page %s failed", target)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR), method


def _error(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n".encode(), status=status)


def _encode(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")
