"""/health and /metrics of a nameserver."""

import asyncio
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.support.brokers import LOOPBACK, peer_of

from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.errors import RemotingError
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.protocol.codes import RequestCode, ResponseCode


def make_server(folder: Path, now_ms: list[int], **settings: object) -> NameServer:
    pairs: dict[str, object] = {
        "listenPort": 0, "bindAddress": LOOPBACK, "kvConfigPath": folder / "kv.json",
        "healthEnable": "true", "healthHost": LOOPBACK, "healthPort": 0,
    } | settings  # fmt: skip
    given = [Given(key, str(value), "test") for key, value in pairs.items()]
    return NameServer(LiveSettings(load(NamesrvConfig, given)), clock=lambda: now_ms[0])


async def health(server: NameServer, page: str = "/health") -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = HTTPConnection(LOOPBACK, server.web_port, timeout=60)
        try:
            connection.request("GET", page)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def test_health_is_503_while_brokers_register(tmp_path: Path) -> None:
    now_ms = [1000]
    server = make_server(tmp_path, now_ms, needWaitForService="true", waitSecondsForService=45)
    await server.start()
    try:
        status, text = await health(server)
        assert (status, "needWaitForService" in text) == (503, True)
        now_ms[0] += 45_000
        assert await health(server) == (200, "ok\n")
    finally:
        await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await health(server)


async def test_a_health_port_in_use_fails_the_start_and_is_named(tmp_path: Path) -> None:
    first = make_server(tmp_path, [0])
    await first.start()
    second = make_server(tmp_path, [0], healthPort=first.web_port)
    try:
        with pytest.raises(RemotingError, match="healthPort"):
            await second.start()
    finally:
        await second.stop()
        await first.stop()


async def test_metrics_have_table_sizes_and_refusals(tmp_path: Path) -> None:
    server = make_server(tmp_path, [0], maxKVBytes=100)
    host, port = await server.start()
    try:
        async with peer_of(f"{host}:{port}") as peer:
            pair = {"namespace": "n", "key": "k", "value": "v" * 200}
            refused = await peer.ask(RequestCode.PUT_KV_CONFIG, pair)
            assert refused.code == ResponseCode.SYSTEM_ERROR
        status, text = await health(server, "/metrics")
        assert status == 200
        counted = 'tianzhou_table_refusals_total{limit="maxKVBytes",node_type="nameserver"} 1.0'
        assert counted in text
        assert 'tianzhou_namesrv_brokers{node_type="nameserver"} 0.0' in text
    finally:
        await server.stop()
