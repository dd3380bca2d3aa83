"""Helpers of the tests of `remoting`: both event loops, a server, a client of raw bytes.

Every test that is marked `on_each_loop` also checks for leaks: no task, no socket.
"""

import asyncio
import contextlib
import functools
import inspect
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import psutil
import pytest
import uvloop

from tests.support.framing import split
from tianzhou.protocol.command import Command, HeaderEncoding, decode, encode
from tianzhou.remoting.address import format_address
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Handler, Server
from tianzhou.remoting.tls.contexts import Tls

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
ENCODINGS = list(HeaderEncoding)

PATIENCE_S = 60.0
"""Deadline of waits; reached only when a test fails."""

ECHO = 1
"""Code of a request that `echo` answers with its own fields and body."""


# -- running ---------------------------------------------------------------------------------------


def on_each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's loop and on uvloop, and check for leaks."""

    @functools.wraps(test)
    def run(loop_name: str, **fixtures: object) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(_run_clean(test(**fixtures)))

    signature = inspect.signature(test)
    loop_name = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY, annotation=str)
    parameters = [*signature.parameters.values(), loop_name]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # functions may carry one
        parameters=parameters, return_annotation=None
    )
    on_both: Callable[..., None] = pytest.mark.parametrize("loop_name", LOOPS)(run)
    return on_both


async def _run_clean(scenario: Coroutine[Any, Any, None]) -> None:
    process = psutil.Process()
    open_before = len(process.net_connections("tcp"))
    async with asyncio.timeout(60):
        await scenario
    this = asyncio.current_task()
    await eventually(
        lambda: asyncio.all_tasks() == {this}, lambda: f"tasks left: {asyncio.all_tasks()}"
    )
    await eventually(
        lambda: len(process.net_connections("tcp")) <= open_before,
        lambda: f"sockets left: {process.net_connections('tcp')}",
    )


async def eventually(condition: Callable[[], bool], seen: Callable[[], object]) -> None:
    """Wait until a condition holds; if it never does, fail with what was seen last."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while not condition():
        if loop.time() > deadline_s:
            pytest.fail(f"still not so after {PATIENCE_S} s; seen: {seen()}")
        await asyncio.sleep(0.002)


# -- servers ---------------------------------------------------------------------------------------


def echo(_: Connection, request: Command) -> Command:
    """Answer with the fields and the body of the request."""
    return Command(code=0, ext_fields=request.ext_fields, body=request.body)


@contextlib.asynccontextmanager
async def serving(
    handle: Handler = echo,
    *,
    limits: Limits | None = None,
    tls: Tls | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    drain_s: float = 1.0,
) -> AsyncGenerator[tuple[Server, str], None]:
    """A server on the given or a free port, and its address."""
    server = Server(handle, limits=limits or Limits(), tls=tls)
    try:
        yield server, format_address(*await server.listen(host, port))
    finally:
        await server.close(drain_s)


def request(text: str = "", *, code: int = ECHO, **fields: Any) -> Command:  # noqa: ANN401 - Command's
    """A request with `text` for a body."""
    return Command(code=code, body=text.encode(), **fields)


# -- a peer that does exactly what it is told ------------------------------------------------------


class RawPeer:
    """A TCP client without any protocol; it can send invalid bytes and stop reading."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send_commands(self, *commands: Command) -> None:
        await self.send(b"".join(map(encode, commands)))

    async def receive(self, count: int) -> list[Command]:
        """The next `count` frames."""
        found: list[Command] = []
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                frames, rest = split(self._unread)
                frames = frames[: count - len(found)]
                found += [decode(self._unread[start:stop]) for start, stop in frames]
                self._unread = self._unread[frames[-1][1] if frames else 0 :]
                if len(found) == count:
                    return found
                more = await loop.sock_recv(self.sock, 1 << 20)
                assert more, f"the stream ended after {len(found)} of {count} frames, {rest=}"
                self._unread += more

    async def read_to_end(self) -> bytes:
        """All bytes until the server closes; b"" also for a reset."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            try:
                while more := await loop.sock_recv(self.sock, 1 << 20):
                    self._unread += more
            except ConnectionError:
                pass
        return self._unread


@contextlib.asynccontextmanager
async def raw_peer(address: str, receive_buffer_bytes: int = 0) -> AsyncGenerator[RawPeer, None]:
    """A raw connection; with a small receive buffer writes of the server block early."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, (host.strip("[]"), int(port)))
        yield RawPeer(sock)


async def only_connection(server: Server) -> Connection:
    """The server's side of the only connection, once it is open."""
    await eventually(
        lambda: len(server.connections) == 1, lambda: f"connections: {server.connections}"
    )
    (connection,) = server.connections
    return connection


async def until_received(connection: Connection, count_bytes: int) -> None:
    """Wait until a connection has read `count_bytes`, one loop iteration at a time."""
    async with asyncio.timeout(PATIENCE_S):
        while connection.received_bytes < count_bytes:  # noqa: ASYNC110 - bytes set no event
            await asyncio.sleep(0)
