"""The server over real sockets: addresses, limits, back pressure, idle connections."""

import asyncio
import errno
import socket
from collections.abc import Awaitable

import pytest
from tests.support.remoting import (
    echo,
    eventually,
    on_each_loop,
    only_connection,
    raw_peer,
    request,
    serving,
)

from tianzhou.errors import (
    ConnectionClosed,
    RemoteBusy,
    RemotingError,
)
from tianzhou.protocol.command import Command
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server

# -- addresses -------------------------------------------------------------------------------------


@on_each_loop
async def test_all_interfaces_means_both_address_families() -> None:
    server = Server(echo)
    for everywhere in ("", "*"):
        _, port = await server.listen(everywhere, 0)
        client = Client()
        for address in (f"127.0.0.1:{port}", f"[::1]:{port}", f"::1:{port}", f"localhost:{port}"):
            assert (await client.request(address, request(address))).body == address.encode()
        peers = {connection.peer.rpartition(":")[0] for connection in server.connections}
        assert peers == {"127.0.0.1", "[::1]"}
        local = {connection.local for connection in server.connections}
        assert local <= {f"127.0.0.1:{port}", f"[::1]:{port}"}
        await client.close()
        await eventually(lambda: not server.connections, lambda: server.connections)
    await server.close()


@on_each_loop
async def test_ipv6_alone() -> None:
    async with serving(host="::1") as (_, address):
        assert address.startswith("[::1]:")
        client = Client()
        assert (await client.request(address, request("six"))).body == b"six"
        await client.close()


@on_each_loop
async def test_all_addresses_of_a_name_listen_on_one_port() -> None:
    async with serving(host="localhost") as (_, address):
        port = address.rpartition(":")[2]
        client = Client()
        for _, _, _, _, place in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            target = format_address(str(place[0]), int(place[1]))
            assert (await client.request(target, request("x"))).body == b"x"
        await client.close()


@on_each_loop
async def test_a_port_in_use_is_a_clear_error() -> None:
    async with serving() as (_, address):
        other = Server(echo)
        with pytest.raises(RemotingError, match=f"cannot listen on {address}: .*in use"):
            await other.listen("127.0.0.1", int(address.rpartition(":")[2]))
        await other.close()


# -- limits and back pressure ----------------------------------------------------------------------


@on_each_loop
async def test_running_requests_of_a_connection_are_limited() -> None:
    running, most, may_end = 0, 0, asyncio.Event()

    async def handle(_: Connection, asked: Command) -> Command:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await may_end.wait()
        running -= 1
        return Command(code=0, body=asked.body)

    limits = Limits(requests_in_flight_per_connection=8)
    async with serving(handle, limits=limits) as (server, address), raw_peer(address) as peer:
        count = 1_000
        await peer.send_commands(*(request(str(n), opaque=n) for n in range(count)))
        connection = await only_connection(server)
        await eventually(lambda: running == 8, lambda: running)
        await eventually(lambda: connection.kept_bytes > 0, lambda: connection.kept_bytes)
        assert connection.kept_bytes <= limits.receive_bytes
        may_end.set()
        answers = await peer.receive(count)
        assert sorted(answer.opaque for answer in answers) == list(range(count))
        assert most == 8
        assert connection.kept_bytes == 0


@on_each_loop
async def test_handlers_that_send_requests_to_their_own_peer_do_not_deadlock() -> None:
    async def handle(connection: Connection, asked: Command) -> Command:
        return await connection.request(request(asked.body.decode()), timeout_ms=30_000)

    limits = Limits(requests_in_flight_per_connection=1)
    async with serving(handle, limits=limits) as (_, address):
        client = Client(handle=echo)
        answers = await asyncio.gather(
            *(client.request(address, request(str(n)), timeout_ms=30_000) for n in range(100))
        )
        assert [answer.body for answer in answers] == [str(n).encode() for n in range(100)]
        await client.close()


@on_each_loop
async def test_a_server_at_its_limit_of_requests_responds_busy() -> None:
    may_end = asyncio.Event()

    def handle(_: Connection, asked: Command) -> Command | Awaitable[Command]:
        return Command(code=0, body=b"quick") if asked.body == b"quick" else slowly()

    async def slowly() -> Command:
        await may_end.wait()
        return Command(code=0)

    async with serving(handle, limits=Limits(requests_in_flight=2)) as (_, address):
        client = Client()
        slow = [asyncio.create_task(client.request(address, request())) for _ in range(2)]
        await asyncio.sleep(0)
        busy = await client.request(address, request())
        assert (busy.code, busy.remark) == (2, "system busy: 2 requests are being handled")
        assert (await client.request(address, request("quick"))).body == b"quick"
        may_end.set()
        assert [answer.code for answer in await asyncio.gather(*slow)] == [0, 0]
        await client.close()


@on_each_loop
async def test_a_client_waits_for_a_peer_that_does_not_read() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        client = Client()
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        connection = await client.connect(address)
        big = Command(code=1, body=bytes(8 * 1024 * 1024))
        await client.oneway(address, big)  # fills the buffers of both kernels and ours
        assert connection.unsent_bytes > 0
        with pytest.raises(RemoteBusy, match="reads too slowly"):
            connection.oneway(request())
        with pytest.raises(RemoteBusy, match="reads too slowly"):
            await client.oneway(address, request(), timeout_ms=50)
        with pytest.raises(RemoteBusy, match="reads too slowly"):
            await client.request(address, request(), timeout_ms=50)
        waiting = asyncio.create_task(client.request(address, request(), timeout_ms=60_000))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionClosed):
            await waiting


@on_each_loop
async def test_a_client_continues_when_the_peer_reads_again() -> None:
    async with serving() as (server, address):
        client = Client(limits=Limits(unsent_high_bytes=1024, unsent_low_bytes=512))
        answers = await asyncio.gather(
            *(
                client.request(address, Command(code=1, body=bytes(50_000)), 30_000)
                for _ in range(200)
            )
        )
        assert all(len(answer.body) == 50_000 for answer in answers)
        assert server.counts.opened == 1
        await client.close()


@on_each_loop
async def test_connections_above_the_limit_are_closed_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(limits=Limits(connections=2)) as (server, address):
        clients = [Client() for _ in range(2)]
        for client in clients:
            assert (await client.request(address, request("x"))).body == b"x"

        async def refused() -> bytes:
            async with raw_peer(address) as peer:
                return await peer.read_to_end()

        # Each is kept for a while, in case it asks something.
        assert await asyncio.gather(*(refused() for _ in range(3))) == [b""] * 3
        assert server.counts.refused_connections == 3
        (record,) = caplog.records
        assert "refused, 2 connections are open, the limit" in record.getMessage()
        await clients[0].close()
        await eventually(lambda: len(server.connections) == 1, lambda: server.connections)
        third = Client()
        assert (await third.request(address, request("x"))).body == b"x"
        await third.close()
        await clients[1].close()


@on_each_loop
async def test_a_server_without_file_descriptors_recovers(caplog: pytest.LogCaptureFixture) -> None:
    resource = pytest.importorskip("resource")
    async with serving() as (_, address):
        client = Client()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as probe:
            lowest_free = probe.fileno() + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
            try:
                probe.setblocking(False)
                assert probe.connect_ex(_place(address)) in (0, errno.EINPROGRESS)
                await eventually(lambda: bool(caplog.records), lambda: "nothing was logged")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert "no more connections can be accepted: Too many open" in caplog.messages[0]
            assert (await client.request(address, request("x"))).body == b"x"
            assert len(caplog.records) == 1
        await client.close()


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


# -- idle connections ------------------------------------------------------------------------------


@on_each_loop
async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async with serving(limits=Limits(idle_ms=800)) as (server, address):
        busy, idle = Client(), Client()
        assert (await idle.request(address, request("x"))).body == b"x"
        idle_connection = await idle.connect(address)
        busy_connection = await busy.connect(address)
        while not idle_connection.closed:
            assert (await busy.request(address, request("y"))).body == b"y"
            await asyncio.sleep(0.02)
        assert not busy_connection.closed
        assert len(server.connections) == 1
        await busy.close()
        await idle.close()


@on_each_loop
async def test_a_client_closes_its_idle_connections_and_dials_again() -> None:
    async with serving() as (server, address):
        client = Client(limits=Limits(idle_ms=100))
        connection = await client.connect(address)
        await eventually(lambda: connection.closed, lambda: connection)
        assert connection.reason == "idle"
        assert (await client.request(address, request("x"))).body == b"x"
        assert server.counts.opened == 2
        await client.close()
