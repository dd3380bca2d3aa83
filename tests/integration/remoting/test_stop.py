"""Stopping over real sockets: running requests finish, and only stalled ones are cut."""

import asyncio
import logging

import pytest
from tests.support.framing import split
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
    ConnectError,
    ConnectionClosed,
)
from tianzhou.protocol.command import Command, decode
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server


@on_each_loop
async def test_stopping_waits_for_running_requests_and_handles_no_new_ones() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    async def handle(_: Connection, asked: Command) -> Command:
        seen.append(asked.body)
        started.set()
        await may_end.wait()
        return Command(code=0, body=asked.body)

    async with serving(handle) as (server, address):
        client, idle = Client(), Client()
        idle_connection = await idle.connect(address)
        running = asyncio.create_task(client.request(address, request("running")))
        await started.wait()
        closing = asyncio.create_task(server.close(drain_s=20))
        await eventually(lambda: idle_connection.closed, lambda: idle_connection)
        with pytest.raises(ConnectError):
            await idle.request(address, request("refused"))
        too_late = asyncio.create_task(client.request(address, request("too late")))
        await asyncio.sleep(0)
        may_end.set()
        assert (await running).body == b"running"
        with pytest.raises(ConnectionClosed):
            await too_late
        await closing
        assert seen == [b"running"]
        assert not server.connections
        with pytest.raises(ConnectionClosed, match="the server is closed"):
            await server.listen("127.0.0.1", 0)
        await client.close()
        await idle.close()


@on_each_loop
async def test_stopping_cuts_requests_after_the_drain_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def handle(_: Connection, __: Command) -> Command:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("the event is never set")

    async with serving(handle) as (server, address):
        client = Client()
        asking = asyncio.create_task(client.request(address, request()))
        await started.wait()
        await server.close(drain_s=0.05)
        assert cancelled.is_set()
        assert caplog.messages == ["stopping: 1 requests and 1 connections are cut after 0.05 s"]
        with pytest.raises(ConnectionClosed):
            await asking
        await client.close()


@on_each_loop
async def test_stopping_ends_though_a_handler_ignores_its_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_end = asyncio.Event()
    started = asyncio.Event()

    async def handle(_: Connection, __: Command) -> None:
        started.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    server = Server(handle)
    host, port = await server.listen("127.0.0.1", 0)
    async with raw_peer(f"{host}:{port}") as peer:
        await peer.send_commands(request())
        await started.wait()
        await server.close(drain_s=0)
        assert "the server stops: 1 handlers did not end after being cancelled" in caplog.messages
    may_end.set()


@on_each_loop
async def test_stopping_sends_unsent_responses_to_a_slow_reader() -> None:
    body = bytes(1024 * 1024)
    handled: list[int] = []

    def handle(_: Connection, asked: Command) -> Command:
        handled.append(asked.opaque)
        return Command(code=0, body=body)

    limits = Limits(unsent_high_bytes=16 * 1024 * 1024)
    async with serving(handle, limits=limits) as (server, address):
        async with raw_peer(address, receive_buffer_bytes=65_536) as peer:
            await peer.send_commands(*(request(opaque=n) for n in range(8)))
            connection = await only_connection(server)
            await eventually(lambda: len(handled) == 8, lambda: handled)
            assert connection.unsent_bytes > 2_000_000
            # More requests lie unread in the server's socket: they must not turn the end into a
            # reset.
            closing = asyncio.create_task(server.close(drain_s=20))
            await asyncio.sleep(0)
            await peer.send_commands(*(request(opaque=n) for n in range(100, 200)))
            answers = await peer.receive(8)
            assert [answer.opaque for answer in answers] == list(range(8))
            assert await peer.read_to_end() == b""
        await closing


@on_each_loop
async def test_stopping_drops_held_requests_but_no_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled = 0

    def handle(_: Connection, __: Command) -> Command:
        nonlocal handled
        handled += 1
        return Command(code=0, body=bytes(100_000))

    async with serving(handle) as (server, address):
        async with raw_peer(address, receive_buffer_bytes=65_536) as peer:
            await peer.send_commands(*(request(opaque=n) for n in range(500)))
            connection = await only_connection(server)
            await eventually(lambda: connection.kept_bytes > 0, lambda: connection.unsent_bytes)
            closing = asyncio.create_task(server.close(drain_s=30))
            await asyncio.sleep(0)
            stream = await peer.read_to_end()
        await closing
    frames, rest = split(stream)
    assert rest == len(stream)
    assert [decode(stream[start:stop]).opaque for start, stop in frames] == list(range(handled))
    assert 0 < handled < 500
    assert not caplog.messages


@on_each_loop
async def test_stopping_while_connections_are_being_opened_cuts_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for turns in range(12):
        server = Server(echo)
        address = format_address(*await server.listen("127.0.0.1", 0))
        async with raw_peer(address) as peer:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close(drain_s=5)
            assert await peer.read_to_end() == b""
    assert not [text for text in caplog.messages if "cut" in text or "do not end" in text]


@on_each_loop
async def test_a_client_may_close_while_dialling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as (_, address):
        for turns in range(12):
            client = Client()
            asking = asyncio.create_task(client.request(address, request("x")))
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.close()
            (outcome,) = await asyncio.gather(asking, return_exceptions=True)
            assert isinstance(outcome, Command | ConnectionClosed)
    assert not [text for text in caplog.messages if "cut" in text or "do not end" in text]


@on_each_loop
async def test_closing_twice_and_without_having_started_is_fine() -> None:
    server = Server(echo)
    await server.close()
    client = Client()
    await client.close()
    await client.close()
    async with serving() as (served, _):
        await served.close()
