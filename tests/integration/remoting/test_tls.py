"""TLS in all modes: plain and TLS on one port, certificates of both sides, stalled peers."""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trustme
from tests.support.remoting import (
    echo,
    eventually,
    on_each_loop,
    only_connection,
    raw_peer,
    request,
    serving,
)

from tianzhou.errors import ConfigError, ConnectError, ConnectionClosed
from tianzhou.protocol.command import Command, decode, encode
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server
from tianzhou.remoting.tls.contexts import ClientCertificates, Tls, TlsMode

TLS_MODES = [TlsMode.PERMISSIVE, TlsMode.ENFORCING]


@dataclass(frozen=True)
class Certificates:
    """Certificate files of one CA: of a server, of a client, and of the CA."""

    server: Tls
    client: Tls
    certified_client: Tls


def issue(folder: Path, *server_names: str) -> Certificates:
    """Certificates of a new CA; another call replaces them all."""
    authority = trustme.CA()
    trusted = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    names = server_names or ("localhost", "127.0.0.1", "::1")
    for who, certificate in (
        ("server", authority.issue_cert(*names)),
        ("client", authority.issue_cert("client@example.org")),
    ):
        certificate.private_key_pem.write_to_path(str(folder / f"{who}.key"))
        for number, pem in enumerate(certificate.cert_chain_pems):
            pem.write_to_path(str(folder / f"{who}.pem"), append=number > 0)
    return Certificates(
        server=Tls(certificate=folder / "server.pem", key=folder / "server.key", trusted=trusted),
        client=Tls(trusted=trusted),
        certified_client=Tls(
            trusted=trusted, certificate=folder / "client.pem", key=folder / "client.key"
        ),
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def other_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue(tmp_path_factory.mktemp("other_ca"))


async def _ask(address: str, tls: Tls | None, text: str = "x") -> Command:
    client = Client(tls=tls)
    try:
        return await client.request(address, request(text))
    finally:
        await client.close()


# -- modes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", TLS_MODES)
@on_each_loop
async def test_tls_is_served_where_it_is_on(mode: TlsMode, certificates: Certificates) -> None:
    def whether_secure(connection: Connection, _: Command) -> Command:
        return Command(code=0, body=str(connection.secure).encode())

    tls = replace(certificates.server, mode=mode)
    async with serving(whether_secure, tls=tls) as (_, address):
        assert (await _ask(address, certificates.client)).body == b"True"


@on_each_loop
async def test_one_port_serves_plain_and_tls_when_permissive(certificates: Certificates) -> None:
    tls = replace(certificates.server, mode=TlsMode.PERMISSIVE)
    async with serving(tls=tls) as (server, address):
        secure, plain = Client(tls=certificates.client), Client()
        for n in range(5):
            for client in (secure, plain):
                answer = await client.request(address, request(str(n)))
                assert answer.body == str(n).encode()
        assert sorted(connection.secure for connection in server.connections) == [False, True]
        await secure.close()
        await plain.close()


@on_each_loop
async def test_plain_peers_are_refused_when_tls_is_enforced(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tls=certificates.server) as (server, address):
        for _ in range(2):
            with pytest.raises(ConnectionClosed):
                await _ask(address, None)
        assert server.counts.refused_connections == 2
        assert len(caplog.messages) == 1
        assert "does not speak TLS, which is enforced here" in caplog.messages[0]
        assert (await _ask(address, certificates.client)).body == b"x"


@on_each_loop
async def test_tls_peers_are_refused_where_it_is_off(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (_, address):
        # In some words, even where the system has none for it.
        with pytest.raises(ConnectError, match=r"no connection to \S+: \w"):
            await _ask(address, certificates.client)
        assert "the peer speaks TLS, which this port does not" in caplog.messages[0]
        assert (await _ask(address, None)).body == b"x"


@pytest.mark.parametrize("host", ["::1", "localhost"])
@on_each_loop
async def test_tls_by_name_and_over_ipv6(host: str, certificates: Certificates) -> None:
    async with serving(tls=certificates.server, host=host) as (_, address):
        target = format_address(host, int(address.rpartition(":")[2]))
        assert (await _ask(target, certificates.client)).body == b"x"


# -- certificates ----------------------------------------------------------------------------------


@on_each_loop
async def test_a_client_trusts_only_the_authority_it_was_given(
    certificates: Certificates, other_certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tls=certificates.server) as (_, address):
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await _ask(address, other_certificates.client)
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await _ask(address, Tls())
        assert (await _ask(address, Tls(verify=False))).body == b"x"
        await eventually(lambda: bool(caplog.messages), lambda: "nothing was logged")
        assert "the TLS handshake failed" in caplog.messages[0]


@on_each_loop
async def test_a_client_checks_the_name_by_default(tmp_path: Path) -> None:
    certificates = issue(tmp_path, "broker.example.org")
    async with serving(tls=certificates.server) as (_, address):
        with pytest.raises(ConnectError, match=r"certificate is not valid for '127\.0\.0\.1'"):
            await _ask(address, certificates.client)
        assert (await _ask(address, replace(certificates.client, check_name=False))).body == b"x"
        named = replace(certificates.client, server_name="broker.example.org")
        assert (await _ask(address, named)).body == b"x"


@on_each_loop
async def test_required_client_certificates_are_required(
    certificates: Certificates, other_certificates: Certificates
) -> None:
    tls = replace(certificates.server, client_certificates=ClientCertificates.REQUIRED)
    async with serving(tls=tls) as (_, address):
        assert (await _ask(address, certificates.certified_client)).body == b"x"
        for other in (
            certificates.client,
            replace(other_certificates.certified_client, verify=False),
        ):
            # With TLS 1.3 the client learns of its refusal only after its own handshake is done.
            with pytest.raises((ConnectError, ConnectionClosed)):
                await _ask(address, other)


@on_each_loop
async def test_optional_client_certificates_may_be_missing_but_not_wrong(
    certificates: Certificates, other_certificates: Certificates
) -> None:
    tls = replace(certificates.server, client_certificates=ClientCertificates.OPTIONAL)
    async with serving(tls=tls) as (_, address):
        assert (await _ask(address, certificates.certified_client)).body == b"x"
        assert (await _ask(address, certificates.client)).body == b"x"
        with pytest.raises((ConnectError, ConnectionClosed)):
            await _ask(address, replace(other_certificates.certified_client, verify=False))


@on_each_loop
async def test_reloaded_certificates_serve_new_connections_and_leave_old_ones_alone(
    tmp_path: Path,
) -> None:
    old = issue(tmp_path)
    client = Client(tls=old.client)
    async with serving(tls=old.server) as (server, address):
        assert (await client.request(address, request("old"))).body == b"old"
        new = issue(tmp_path)  # the same files, signed by another CA
        fresh = Client(tls=new.client)
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await fresh.request(address, request())
        server.reload_tls()
        assert (await fresh.request(address, request("new"))).body == b"new"
        assert (await client.request(address, request("still"))).body == b"still"
        assert new.server.key is not None
        new.server.key.write_text("no key at all")
        with pytest.raises(ConfigError, match=r"server\.key"):
            server.reload_tls()
        assert (await _ask(address, new.client)).body == b"x"  # those of before stay in use
        await fresh.close()
        await client.close()


@on_each_loop
async def test_a_client_reloads_what_it_trusts(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = issue(tmp_path / "one"), issue(tmp_path / "two")
    client = Client(tls=one.client)
    async with serving(tls=two.server) as (_, address):
        with pytest.raises(ConnectError):
            await client.request(address, request())
        assert one.client.trusted is not None
        assert two.client.trusted is not None
        one.client.trusted.write_bytes(two.client.trusted.read_bytes())
        client.reload_tls()
        assert (await client.request(address, request("x"))).body == b"x"
        await client.close()


# -- frames over TLS -------------------------------------------------------------------------------


@on_each_loop
async def test_frames_of_all_sizes_pass_through_tls(certificates: Certificates) -> None:
    async with serving(tls=certificates.server) as (server, address):
        client = Client(tls=certificates.client)
        sizes = [0, 1, 16_383, 16_384, 16_385, 262_144, 5_000_000]
        answers = await asyncio.gather(
            *(
                client.request(address, Command(code=1, body=bytes(size)), timeout_ms=60_000)
                for size in sizes * 2
            )
        )
        assert [len(answer.body) for answer in answers] == sizes * 2
        answers = await asyncio.gather(
            *(client.request(address, request(str(n)), timeout_ms=60_000) for n in range(1_000))
        )
        assert [answer.body for answer in answers] == [str(n).encode() for n in range(1_000)]
        assert server.counts.opened == 1
        await client.close()


@on_each_loop
async def test_closing_another_connection_during_an_iteration_corrupts_no_frame(
    certificates: Certificates,
) -> None:
    # asyncio's TLS reads what has arrived when a connection is closed, while the shared receive
    # buffer still holds frames of the connection whose handler closes it. The small buffer leaves
    # much unread, so that there is something to read.
    def handle(connection: Connection, asked: Command) -> Command:
        if asked.body == b"close the others":
            for other in tuple(server.connections):
                if other is not connection:
                    other.close("in the way")
        return echo(connection, asked)

    limits = Limits(receive_bytes=2048)
    async with (
        serving(handle, tls=certificates.server, limits=limits) as (server, address),
        contextlib.AsyncExitStack() as stack,
    ):
        closer, *others = [Client(tls=certificates.client) for _ in range(4)]
        for client in (closer, *others):
            stack.push_async_callback(client.close)
            await client.connect(address)
        talk = [
            asyncio.create_task(other.request(address, request("x" * 500)))
            for _ in range(100)
            for other in others
        ]
        texts = ["close the others" if n % 10 == 5 else str(n) for n in range(100)]
        answers = await asyncio.gather(*(closer.request(address, request(text)) for text in texts))
        assert [answer.body.decode() for answer in answers] == texts
        outcomes = await asyncio.gather(*talk, return_exceptions=True)
        assert any(isinstance(outcome, ConnectionClosed) for outcome in outcomes)


@on_each_loop
async def test_a_slow_tls_reader_is_bounded_and_loses_nothing(certificates: Certificates) -> None:
    size, count = 100_000, 300

    def handle(_: Connection, __: Command) -> Command:
        return Command(code=0, body=bytes(size))

    limits = Limits()
    async with serving(handle, tls=certificates.server, limits=limits) as (server, address):
        host, _, port = address.rpartition(":")
        # A stream stops reading from its socket when its buffer is full.
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=certificates.client.client_context(), server_hostname=host
        )
        connection = await only_connection(server)
        writer.write(b"".join(encode(request(opaque=n)) for n in range(count)))
        await eventually(lambda: connection.unsent_bytes > 0, lambda: connection.unsent_bytes)
        for _ in range(50):
            await asyncio.sleep(0.001)
            assert connection.unsent_bytes <= limits.unsent_high_bytes + 2 * size
        for n in range(count):
            length = await reader.readexactly(4)
            frame = length + await reader.readexactly(int.from_bytes(length, "big"))
            answer = decode(frame)
            assert (answer.opaque, len(answer.body)) == (n, size)
        writer.close()
        await writer.wait_closed()


@on_each_loop
async def test_a_tls_server_stops_without_losing_responses(certificates: Certificates) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: Connection, __: Command) -> Command:
        started.set()
        await may_end.wait()
        return Command(code=0, body=bytes(1_000_000))

    async with serving(handle, tls=certificates.server) as (server, address):
        client = Client(tls=certificates.client)
        asking = asyncio.create_task(client.request(address, request()))
        await started.wait()
        closing = asyncio.create_task(server.close(drain_s=20))
        await asyncio.sleep(0)
        may_end.set()
        assert len((await asking).body) == 1_000_000
        await closing
        await client.close()


# -- peers that stall ------------------------------------------------------------------------------


@on_each_loop
async def test_silent_peers_are_closed_and_block_no_others(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = replace(certificates.server, mode=TlsMode.PERMISSIVE)
    limits = Limits(unclassified=5, handshake_ms=1_000)
    async with serving(tls=tls, limits=limits) as (server, address):
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(raw_peer(address)) for _ in range(8)]
            assert (await _ask(address, certificates.client)).body == b"x"
            assert (await _ask(address, None)).body == b"x"
            # The longest waiting made room for those who came later ...
            for peer in silent[:3]:
                assert await peer.read_to_end() == b""
            # ... and the rest runs out of time.
            for peer in silent[3:]:
                assert await peer.read_to_end() == b""
        assert server.counts.refused_connections == 8
        assert caplog.messages == [
            "a connection that has not sent a byte: closed, too many others wait"
        ]


@on_each_loop
async def test_a_stalled_handshake_is_cut(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(handshake_ms=100)
    async with serving(tls=certificates.server, limits=limits) as (server, address):
        async with raw_peer(address) as peer:
            await peer.send(b"\x16")
            assert await peer.read_to_end() == b""
        assert server.counts.refused_connections == 1
        assert "the TLS handshake failed" in caplog.messages[0]
        assert not server.connections


@on_each_loop
async def test_garbage_after_the_first_byte_of_tls_is_refused(certificates: Certificates) -> None:
    async with serving(tls=certificates.server) as (server, address):
        async with raw_peer(address) as peer:
            await peer.send(b"\x16" + b"nonsense" * 10)
            await peer.read_to_end()
        await eventually(lambda: server.counts.refused_connections == 1, lambda: server.counts)
        assert (await _ask(address, certificates.client)).body == b"x"


@on_each_loop
async def test_a_client_times_out_if_the_server_does_not_complete_the_handshake(
    certificates: Certificates,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = Client(tls=certificates.client, limits=Limits(connect_ms=100))
        with pytest.raises(ConnectError, match="within 100 ms"):
            await client.request(format_address(*listening.getsockname()), request())
        await client.close()


@on_each_loop
async def test_a_server_may_stop_during_silence_and_handshakes(certificates: Certificates) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = Server(echo, tls=certificates.server)
        address = format_address(*await server.listen("127.0.0.1", 0))
        silent = await stack.enter_async_context(raw_peer(address))
        halfway = await stack.enter_async_context(raw_peer(address))
        await halfway.send(b"\x16\x03\x01")
        assert (await _ask(address, certificates.client)).body == b"x"
        await server.close()
        assert await silent.read_to_end() == b""
        assert await halfway.read_to_end() == b""


def test_the_protocol_is_tls_1_2_or_newer(certificates: Certificates) -> None:
    for context in (certificates.server.server_context(), certificates.client.client_context()):
        assert context is not None
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
