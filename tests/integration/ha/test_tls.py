"""TLS on the HA port of a master: slaves of both kinds, and peers that are none."""

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.support.brokers import eventually
from tests.support.ha import ScriptedSlave, hello
from tests.support.remoting import on_each_loop
from tests.support.store import draft, open_store, small_config

from tianzhou.ha.frames import HEAD, encode_opening, encode_report
from tianzhou.ha.listener import Listener, allowed_addresses
from tianzhou.ha.master_side import Rules
from tianzhou.ha.progress import Acknowledgements
from tianzhou.remoting.tls.contexts import Tls

HOST = "127.0.0.1"
FILE_BYTES = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(folder / "s.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "stranger.pem"))
    return folder


class Port:
    """The HA port of a master, and slaves of ours that connect to it."""

    def __init__(self, listener: Listener, port: int, certificates: Path) -> None:
        self.listener = listener
        self.port = port
        self._certificates = certificates

    async def copy(self, end: int, *, trusted: str = "ca.pem", is_plain: bool = False) -> bytes:
        """The log up to there, over TLS."""
        context = Tls(trusted=self._certificates / trusted).client_context()
        reader, writer = await asyncio.open_connection(
            HOST, self.port, ssl=None if is_plain else context
        )
        copied = b""
        try:
            async with asyncio.timeout(30):
                token = self.listener.issue_token(hello())
                writer.write(encode_opening(token) + encode_report(0))
                while len(copied) < end:
                    _, size, log_offset, *_ = HEAD.unpack(await reader.readexactly(HEAD.size))
                    assert log_offset == len(copied)
                    copied += await reader.readexactly(size)
                    writer.write(encode_report(len(copied)))
        finally:
            writer.close()
        return copied


@asynccontextmanager
async def port_of(
    folder: Path, certificates: Path, *, is_enforced: bool = False, rules: Rules | None = None
) -> AsyncGenerator[tuple[Port, int, bytes]]:
    """The port, and what it has to copy."""
    context = Tls(certificate=certificates / "s.pem").server_context()
    with open_store(small_config(folder, log_file_bytes=FILE_BYTES)) as store:
        for _ in range(12):
            store.append(draft("t", 0, random.Random(1).randbytes(300_000)))
        listener = Listener(
            store, Acknowledgements(2), rules=rules or Rules(), tls=lambda: context,
            is_tls_enforced=is_enforced,
            allows_default=allowed_addresses("") if is_enforced else lambda host: True,
        )  # fmt: skip
        end = store.end_log_offset
        file = store.log.segments.files[0].path
        try:
            yield (
                Port(listener, await listener.start(HOST, 0), certificates),
                end,
                file.read_bytes()[:end],
            )
        finally:
            await listener.stop()


async def sent_to(port: Port, data: bytes) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (HOST, port.port))
    await loop.sock_sendall(sock, data)
    return sock


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = Tls(verify=False).client_context().wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@on_each_loop
async def test_one_port_serves_tls_plain_text_and_default_ha(
    tmp_path: Path, certificates: Path
) -> None:
    async with port_of(tmp_path, certificates) as (port, end, whole):
        assert await port.copy(end) == whole
        assert await port.copy(end, is_plain=True) == whole
        slave = await ScriptedSlave.connect(port.port)
        await slave.report(0)
        await slave.follow(end)
        assert slave.log == whole
        slave.close()


async def test_where_tls_is_enforced_plain_text_is_refused_with_the_reason(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with port_of(tmp_path, certificates, is_enforced=True) as (port, end, whole):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await port.copy(end, is_plain=True)
        assert "useTLS=true" in warnings_in(caplog)[0]
        assert await port.copy(end) == whole


async def test_where_tls_is_enforced_default_ha_needs_a_listed_address(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with port_of(tmp_path, certificates, is_enforced=True) as (port, _, _):
        slave = await ScriptedSlave.connect(port.port)
        await slave.report(0)
        assert await slave.is_closed()
        slave.close()
    assert "haAllowedAddresses does not name this address" in warnings_in(caplog)[0]


async def test_a_slave_that_does_not_trust_the_certificate_costs_one_line(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with port_of(tmp_path, certificates) as (port, end, whole):
        for _ in range(3):
            with pytest.raises(ssl.SSLCertVerificationError):
                await port.copy(end, trusted="stranger.pem")
        await eventually(lambda: not port.listener.status(), "that they are closed")
        (warning,) = warnings_in(caplog)
        assert "the TLS handshake failed" in warning
        assert "tlsServer" in warning
        assert await port.copy(end) == whole


async def test_random_bytes_and_half_handshakes_harm_no_slave(
    tmp_path: Path, certificates: Path
) -> None:
    dice, greeting = random.Random(7), client_hello()
    rules = Rules(handshake_ms=300)
    async with port_of(tmp_path, certificates, rules=rules) as (port, end, whole):
        socks = [await sent_to(port, greeting[:split]) for split in (1, 2, 5, 6, 100)]
        socks += [await sent_to(port, b"\x16" + dice.randbytes(200)) for _ in range(40)]
        socks += [await sent_to(port, greeting + dice.randbytes(3000)) for _ in range(40)]
        socks.append(await sent_to(port, greeting))
        assert await port.copy(end) == whole
        await eventually(lambda: not port.listener.status(), "that all are closed")
        for each in socks:
            each.close()
