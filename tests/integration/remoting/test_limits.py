"""Limits over all connections of a server: connections per address, and bytes in flight."""

import asyncio
import socket
from collections.abc import Awaitable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.remoting.test_tls import issue
from tests.support.brokers import eventually as until
from tests.support.remoting import (
    RawPeer,
    echo,
    eventually,
    on_each_loop,
    raw_peer,
    request,
    serving,
)

from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding, encode
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server
from tianzhou.remoting.tls.contexts import TlsMode

MIB = 1024 * 1024


@contextmanager
def peer_from(host: str, address: str) -> Generator[RawPeer]:
    """A raw connection that comes from another address of this machine."""
    to_host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        sock.bind((host, 0))
        sock.connect((to_host, int(port)))
        sock.setblocking(False)
        yield RawPeer(sock)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


@on_each_loop
async def test_connections_are_limited_per_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(connections_per_address=3)
    async with serving(limits=limits) as (server, address), AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw_peer(address)) for _ in range(3)]
        for peer in peers:
            await peer.send_commands(request("mine"))
            assert [answer.body for answer in await peer.receive(1)] == [b"mine"]
        for _ in range(5):
            async with raw_peer(address) as fourth:
                await fourth.send_commands(request("one too many", opaque=77))
                (refusal,) = await fourth.receive(1)
                assert (refusal.code, refusal.opaque) == (ResponseCode.SYSTEM_BUSY, 77)
                assert refusal.remark == (
                    "system busy: 127.0.0.1 has 3 connections, the limit, try another server or "
                    "later"
                )
                assert await fourth.read_to_end() == b""
        assert server.counts.refused_connections == 5
        assert (
            sum(
                "refused, 127.0.0.1 has 3 connections, the limit" in each
                for each in caplog.messages
            )
            == 1
        )
        other = stack.enter_context(peer_from("127.0.0.2", address))
        await other.send_commands(request("other"))
        assert [answer.body for answer in await other.receive(1)] == [b"other"]
        # A closed connection no longer counts.
        peers[0].sock.close()
        await eventually(lambda: len(server.connections) == 3, lambda: server.connections)
        newcomer = await stack.enter_async_context(raw_peer(address))
        await newcomer.send_commands(request("new"))
        assert [answer.body for answer in await newcomer.receive(1)] == [b"new"]


@on_each_loop
async def test_refused_connections_get_a_busy_response_to_any_request(tmp_path: Path) -> None:
    limits, certificates = Limits(connections=1), issue(tmp_path, "127.0.0.1")
    both = replace(certificates.server, mode=TlsMode.PERMISSIVE)
    async with serving(limits=limits, tls=both) as (_, address), raw_peer(address) as one:
        await one.send_commands(request("the one"))
        await one.receive(1)
        client = Client(tls=certificates.client)
        refusal = await client.request(address, request("by TLS"))
        assert refusal.code == ResponseCode.SYSTEM_BUSY
        assert "1 connections are open, the limit" in (refusal.remark or "")
        await client.close()
        async with raw_peer(address) as other:
            # The head of a message of 10 MiB is enough, and comes in two pieces.
            frame = encode(request(code=10, encoding=HeaderEncoding.ROCKETMQ))
            head = (len(frame) - 4 + 10 * MIB).to_bytes(4, "big") + frame[4:]
            await other.send(head[:9])
            await other.send(head[9:] + bytes(64 * 1024))
            assert (await other.receive(1))[0].code == ResponseCode.SYSTEM_BUSY
        async with raw_peer(address) as invalid:
            await invalid.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await invalid.read_to_end() == b""
        await one.send_commands(request("still served"))
        assert [answer.body for answer in await one.receive(1)] == [b"still served"]


@on_each_loop
async def test_few_refused_connections_stay_open_and_only_briefly() -> None:
    limits = Limits(connections=1, over_limit=2, over_limit_ms=300)
    async with serving(limits=limits) as (server, address), AsyncExitStack() as stack:
        await stack.enter_async_context(raw_peer(address))
        await eventually(lambda: len(server.connections) == 1, lambda: server.connections)
        silent = [await stack.enter_async_context(raw_peer(address)) for _ in range(2)]
        async with raw_peer(address) as third:
            assert await third.read_to_end() == b"", "closed without a response"
        for each in silent:
            assert await each.read_to_end() == b"", "its time is up"
        async with raw_peer(address) as later:
            await later.send_commands(request("a"))
            assert (await later.receive(1))[0].code == ResponseCode.SYSTEM_BUSY


@on_each_loop
async def test_a_server_that_stops_closes_refused_connections() -> None:
    async with serving(limits=Limits(connections=1)) as (server, address):
        clients = [connect(address) for _ in range(4)]
        await eventually(lambda: server.counts.refused_connections == 3, lambda: server.counts)
    for each in clients:
        each.close()


@on_each_loop
async def test_a_burst_of_connections_gets_exactly_the_limit() -> None:
    async with serving(limits=Limits(connections_per_address=20)) as (server, address):
        clients = [connect(address) for _ in range(60)]
        try:
            await eventually(
                lambda: server.counts.refused_connections == 40,
                lambda: (server.counts, len(server.connections)),
            )
            await eventually(lambda: len(server.connections) == 20, lambda: len(server.connections))
        finally:
            for each in clients:
                each.close()
        await eventually(lambda: not server.connections, lambda: server.connections)


@on_each_loop
async def test_silent_sockets_count_before_the_tls_handshake(tmp_path: Path) -> None:
    limits, certificates = Limits(connections_per_address=4), issue(tmp_path, "127.0.0.1")
    async with serving(limits=limits, tls=certificates.server) as (server, address):
        clients = [connect(address) for _ in range(10)]
        try:
            await eventually(lambda: server.counts.refused_connections == 6, lambda: server.counts)
        finally:
            for each in clients:
                each.close()
        client = Client(tls=certificates.client)

        async def is_served() -> bool:
            try:
                return (await client.request(address, request("later"))).body == b"later"
            except RemotingError:
                return False

        await until(is_served, "those that left made room")
        await client.close()


@on_each_loop
async def test_limits_can_be_changed_at_run_time() -> None:
    async with serving() as (server, address):
        async with raw_peer(address) as first:
            await first.send_commands(request("a"))
            await first.receive(1)
            server.set_limits(Limits(connections_per_address=1))
            async with raw_peer(address) as second:
                await second.send_commands(request("b"))
                assert (await second.receive(1))[0].code == ResponseCode.SYSTEM_BUSY
            await first.send_commands(request("b"))
            assert len(await first.receive(1)) == 1
        assert server.limits.connections_per_address == 1


@on_each_loop
async def test_connections_with_most_unsent_bytes_are_cut_at_the_limit() -> None:
    # Each alone is far below what cuts a single connection.
    limits = Limits(unsent_bytes=8 * MIB, unsent_cut_bytes=64 * MIB)
    answer = b"x" * (4 * MIB)

    def handle(_: Connection, asked: Command) -> Command:
        return Command(code=0, body=answer if asked.body == b"much" else b"little")

    async with serving(handle, limits=limits) as (server, address), AsyncExitStack() as stack:
        modest = await stack.enter_async_context(raw_peer(address))
        deaf = [await stack.enter_async_context(raw_peer(address, 4096)) for _ in range(12)]
        for peer in deaf:
            await peer.send_commands(request("much"))
        await eventually(lambda: server.counts.cut_peers >= 6, lambda: server.counts)
        await eventually(
            lambda: sum(each.unsent_bytes for each in server.connections) <= limits.unsent_bytes,
            lambda: [each.unsent_bytes for each in server.connections],
        )
        assert server.counts.cut_peers < 12, "those that fit stay"
        await modest.send_commands(request("hello"))
        assert [each.body for each in await modest.receive(1)] == [b"little"]


@on_each_loop
async def test_responses_that_were_read_do_not_count_as_unsent() -> None:
    limits = Limits(unsent_bytes=2 * MIB)
    answer = b"x" * MIB

    def handle(_: Connection, __: Command) -> Command:
        return Command(code=0, body=answer)

    async with serving(handle, limits=limits) as (server, address):
        client = Client()
        for _ in range(20):
            assert len((await client.request(address, request())).body) == MIB
        await client.close()
        assert server.counts.cut_peers == 0


@on_each_loop
async def test_bodies_of_requests_in_flight_are_limited_with_a_busy_response() -> None:
    go_on = asyncio.Event()

    async def slow() -> Command:
        await go_on.wait()
        return Command(code=0, body=b"done")

    def handle(_: Connection, asked: Command) -> Command | Awaitable[Command | None]:
        return slow() if len(asked.body) > 10 else Command(code=0, body=b"at once")

    limits = Limits(handled_bytes=3 * MIB)
    async with serving(handle, limits=limits) as (server, address):
        client, body = Client(), "x" * MIB
        waiting = [
            asyncio.ensure_future(client.request(address, request(body), 20_000)) for _ in range(4)
        ]
        await eventually(lambda: len(server.connections) == 1, lambda: server.connections)
        connection = next(iter(server.connections))
        await eventually(
            lambda: connection.received_bytes > 4 * MIB, lambda: connection.received_bytes
        )
        refused = await client.request(address, request(body))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert f"{3 * MIB} are allowed" in (refused.remark or "")
        go_on.set()
        assert [(await each).body for each in waiting] == [b"done"] * 4
        # All of it is given back.
        assert (await client.request(address, request("small"))).body == b"at once"
        assert (await client.request(address, request(body))).body == b"done"
        await client.close()


@on_each_loop
async def test_many_requests_of_one_peer_do_not_block_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a share of zero, one request of a connection is handled in each loop iteration."""
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", -1.0)
    count = 500
    begun, handled = asyncio.Event(), list[bytes]()

    def handle(_: Connection, asked: Command) -> Command:
        handled.append(asked.body)
        begun.set()
        return Command(code=0, body=asked.body)

    async with (
        serving(handle) as (_, address),
        raw_peer(address) as busy_peer,
        raw_peer(address) as modest,
    ):
        bodies = [b"%d" % number for number in range(count)]
        await busy_peer.send_commands(*(request(body.decode()) for body in bodies))
        await begun.wait()
        await modest.send_commands(request("modest"))
        assert [each.body for each in await modest.receive(1)] == [b"modest"]
        # Nothing is lost and nothing changes places.
        assert [each.body for each in await busy_peer.receive(count)] == bodies
    assert handled.index(b"modest") < count, "it did not wait for all of them"
    assert [body for body in handled if body != b"modest"] == bodies


def test_limits_can_be_read_before_the_server_listens() -> None:
    assert Server(echo, limits=Limits(connections=7)).limits.connections == 7
