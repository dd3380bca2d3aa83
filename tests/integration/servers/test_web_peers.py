"""HTTP peers that are slow, idle or many: they are limited, and /health still responds."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.brokers import LOOPBACK, eventually, running_broker

from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.limits import WEB_CONNECTIONS_MAX
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.remoting.http import Page, WebServer

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def slow_peers(port: int, count: int, sent: bytes) -> AsyncGenerator[list[Peer]]:
    """Connections that have sent this text and then neither send nor read."""
    peers: list[Peer] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=1024)
            peers.append((reader, writer))
            if sent:
                writer.write(sent)
        yield peers
    finally:
        for _, writer in peers:
            writer.transport.abort()


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def is_disconnected(peer: Peer) -> bool:
    reader, _ = peer
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


async def test_a_broker_answers_health_while_slow_peers_hold_connections(tmp_path: Path) -> None:
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    settings |= {"metricsPromExporterHost": LOOPBACK}
    async with running_broker(tmp_path, **settings) as broker:
        port = broker.web_port
        count = WEB_CONNECTIONS_MAX // 2
        async with (
            slow_peers(port, count, b""),
            slow_peers(port, count, b"GET /health HTTP/1.1\r\nX-Slow: "),
            slow_peers(port, count, b"GET /metrics HTTP/1.1\r\n\r\n"),
        ):
            for _ in range(3):
                assert (await ask(port, "/health")).endswith(b"ok\n")


async def test_a_nameserver_answers_health_while_slow_peers_hold_connections(
    tmp_path: Path,
) -> None:
    pairs: dict[str, object] = {
        "listenPort": 0, "bindAddress": LOOPBACK, "kvConfigPath": tmp_path / "kv.json",
        "healthEnable": "true", "healthHost": LOOPBACK, "healthPort": 0,
    }  # fmt: skip
    given = [Given(key, str(value), "test") for key, value in pairs.items()]
    server = NameServer(LiveSettings(load(NamesrvConfig, given)))
    await server.start()
    try:
        async with slow_peers(server.web_port, WEB_CONNECTIONS_MAX + 10, b"GET /hea"):
            for _ in range(3):
                assert (await ask(server.web_port, "/health")).endswith(b"ok\n")
    finally:
        await server.stop()


async def test_oldest_peer_without_a_request_is_closed_for_a_new_one() -> None:
    server = WebServer({"/p": lambda: Page(b"page")}, timeout_ms=600_000)
    port = await server.listen(LOOPBACK, 0)
    try:
        async with slow_peers(port, WEB_CONNECTIONS_MAX + 5, b"GET") as peers:
            for peer in peers[:5]:
                assert await is_disconnected(peer)
            assert (await ask(port, "/p")).endswith(b"page")
            assert not any(reader.at_eof() for reader, _ in peers[10:])
    finally:
        await server.close()


async def test_peer_that_does_not_read_its_page_is_disconnected() -> None:
    asked: list[None] = []

    def large() -> Page:
        asked.append(None)
        return Page(bytes(64 * 1024 * 1024))

    server = WebServer({"/large": large}, timeout_ms=200)
    port = await server.listen(LOOPBACK, 0)
    try:
        async with slow_peers(port, 2, b"GET /large HTTP/1.1\r\n\r\n"):
            await eventually(lambda: len(asked) == 2, "requests")
            await eventually(lambda: not server._responding, "the end of both")  # pyright: ignore[reportPrivateUsage]
    finally:
        await server.close()


async def test_peer_that_sends_nothing_is_disconnected() -> None:
    server = WebServer({"/p": lambda: Page(b"page")}, timeout_ms=100)
    port = await server.listen(LOOPBACK, 0)
    try:
        async with slow_peers(port, 1, b"GET /p HT") as (peer,):
            assert await is_disconnected(peer)
    finally:
        await server.close()


async def test_rendering_time_does_not_count_for_the_timeout_and_two_peers_share_a_page() -> None:
    calls: list[None] = []
    ready = asyncio.Event()

    async def slow() -> Page:
        calls.append(None)
        await ready.wait()
        return Page(b"page")

    server = WebServer({"/slow": slow}, timeout_ms=100)
    port = await server.listen(LOOPBACK, 0)
    try:
        asking = [asyncio.create_task(ask(port, "/slow")) for _ in range(2)]
        await eventually(lambda: len(server._responding) == 2, "both requests")  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0.3)
        ready.set()
        assert [(await each).endswith(b"page") for each in asking] == [True, True]
        assert len(calls) == 1
        assert (await ask(port, "/slow")).endswith(b"page")
        assert len(calls) == 2
    finally:
        await server.close()
