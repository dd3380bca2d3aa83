"""Listening addresses: IPv4 and IPv6 with a wildcard, otherwise only bindAddress."""
# ruff: noqa: S104 - the addresses of every interface are what is tested

import socket
from pathlib import Path

import pytest
from tests.support.brokers import LOOPBACK, running_broker, running_namesrv
from tests.support.ports import free_port

from tianzhou.cli.serve.up import Up
from tianzhou.config.settings import Given
from tianzhou.remoting.address import is_every_interface, parse_address

ANOTHER_LOOPBACK = "127.0.0.2"
"""An address of this host that a socket bound to 127.0.0.1 does not serve."""
PAGES: dict[str, object] = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=30).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["", "*", "0.0.0.0", "::", "[::]", "0:0:0:0:0:0:0:0"])
def test_wildcard_names_bind_to_every_interface(host: str) -> None:
    assert is_every_interface(host)
    assert not is_every_interface("::1")


@pytest.mark.parametrize("wildcard", ["::", "[::]", "0.0.0.0"])
async def test_a_wildcard_serves_ipv4_and_ipv6(tmp_path: Path, wildcard: str) -> None:
    async with (
        running_namesrv(tmp_path, bindAddress=wildcard) as namesrv,
        running_broker(tmp_path / "s", bindAddress=wildcard, **PAGES) as broker,
    ):
        ports = {
            "nameserver": int(namesrv.rpartition(":")[2]),
            "broker": parse_address(broker.address)[1],
            "metrics": broker.web_port,
        }
        for server, port in ports.items():
            for host in (LOOPBACK, "::1"):
                assert answers(host, port), (server, host)


async def test_pages_are_served_where_the_broker_listens_and_nowhere_else(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **PAGES) as broker:
        assert answers(LOOPBACK, broker.web_port)
        assert not answers(ANOTHER_LOOPBACK, broker.web_port)
    async with running_broker(tmp_path, **PAGES, metricsPromExporterHost="0.0.0.0") as broker:
        assert answers(ANOTHER_LOOPBACK, broker.web_port), "the key of its own counts"


async def test_the_health_page_is_served_where_the_nameserver_listens(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with running_namesrv(tmp_path, healthEnable="true", healthPort=port):
        assert answers(LOOPBACK, port)
        assert not answers(ANOTHER_LOOPBACK, port)


async def test_tianzhou_up_on_loopback_serves_its_pages_on_loopback_only(
    tmp_path: Path,
) -> None:
    port = free_port()
    pages = {**PAGES, "metricsPromExporterPort": port}
    more = [Given(key, str(value), "test") for key, value in pages.items()]
    program = Up(tmp_path, namesrv_port=0, broker_port=0, listen=LOOPBACK, more=more)
    try:
        await program.start()
        assert answers(LOOPBACK, port)
        assert not answers(ANOTHER_LOOPBACK, port)
    finally:
        await program.stop()
