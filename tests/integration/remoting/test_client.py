"""The client over real sockets: time-outs, lost and failed connections."""

import asyncio
import socket

import pytest
from tests.support.remoting import (
    echo,
    eventually,
    on_each_loop,
    request,
    serving,
)

from tianzhou.errors import (
    AddressError,
    ConnectError,
    ConnectionClosed,
    RemoteBusy,
    RequestTimeout,
)
from tianzhou.protocol.command import Command
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server


@on_each_loop
async def test_a_late_response_is_dropped_and_counted() -> None:
    may_answer = asyncio.Event()

    async def handle(_: Connection, asked: Command) -> Command:
        if asked.body == b"slow":
            await may_answer.wait()
        return Command(code=0, body=asked.body)

    async with serving(handle) as (server, address):
        client = Client()
        await client.connect(address)
        with pytest.raises(RequestTimeout, match=f"{address} has not answered request 1 within 50"):
            await client.request(address, request("slow"), timeout_ms=50)
        may_answer.set()
        await eventually(lambda: client.counts.late_responses == 1, lambda: client.counts)
        assert (await client.request(address, request("next"))).body == b"next"
        assert server.counts.opened == 1
        await client.close()


@on_each_loop
async def test_each_request_has_its_own_time_out() -> None:
    def handle(_: Connection, __: Command) -> None:
        return None

    async with serving(handle) as (_, address):
        client = Client()
        connection = await client.connect(address)
        loop = asyncio.get_running_loop()
        started_s = loop.time()

        async def ask(timeout_ms: int) -> None:
            with pytest.raises(RequestTimeout, match=f"within {timeout_ms} ms"):
                await connection.request(request(), timeout_ms)
            assert (loop.time() - started_s) * 1000 >= timeout_ms - 1

        patient = asyncio.create_task(ask(60_000))
        await asyncio.gather(*(ask(timeout_ms) for timeout_ms in (200, 60, 120)))
        assert not patient.done()
        patient.cancel()
        await asyncio.wait([patient])
        await client.close()


@on_each_loop
async def test_a_lost_connection_fails_its_requests_and_the_next_one_dials_again() -> None:
    def handle(connection: Connection, asked: Command) -> Command | None:
        if asked.body == b"last":
            connection.close("enough")
        return Command(code=0, body=asked.body) if asked.body == b"fine" else None

    async with serving(handle) as (server, address):
        lost: list[Connection] = []
        client = Client(on_closed=lost.append)
        waiting = [asyncio.create_task(client.request(address, request())) for _ in range(10)]
        last = asyncio.create_task(client.request(address, request("last")))
        for outcome in await asyncio.gather(*waiting, last, return_exceptions=True):
            assert isinstance(outcome, ConnectionClosed)
            assert address in str(outcome)
        assert (await client.request(address, request("fine"))).body == b"fine"
        assert server.counts.opened == 2
        assert [connection.peer for connection in lost] == [address]
        await client.close()


@on_each_loop
async def test_a_client_reconnects_to_a_restarted_server() -> None:
    client = Client()
    server = Server(echo)
    _, port = await server.listen("127.0.0.1", 0)
    address = f"127.0.0.1:{port}"
    assert (await client.request(address, request("one"))).body == b"one"
    await server.close()
    with pytest.raises((ConnectError, ConnectionClosed)):
        await client.request(address, request("two"))
    with pytest.raises(ConnectError, match=f"no connection to {address}: .*refused"):
        await client.request(address, request("three"))
    again = Server(echo)
    await again.listen("127.0.0.1", port)
    assert (await client.request(address, request("four"))).body == b"four"
    await client.close()
    await again.close()


@on_each_loop
async def test_dialling_is_shared_and_within_the_time_out_of_each_request() -> None:
    # A listening socket whose queue is full: the kernel does not answer, dialling hangs.
    with socket.socket() as deaf, socket.socket() as filler, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for sock in (filler, second):
            sock.setblocking(False)
            sock.connect_ex(deaf.getsockname())
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        client = Client(limits=Limits(connect_ms=400))
        short = asyncio.create_task(client.request(address, request(), timeout_ms=100))
        patient = [asyncio.create_task(client.request(address, request())) for _ in range(3)]
        with pytest.raises(ConnectError, match="within 100 ms"):
            await short
        for outcome in await asyncio.gather(*patient, return_exceptions=True):
            assert isinstance(outcome, ConnectError)
            assert "within 400 ms" in str(outcome)
        abandoned = asyncio.create_task(client.request(address, request()))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionClosed, match="the client is closed"):
            await abandoned
        with pytest.raises(ConnectionClosed, match="the client is closed"):
            await client.request(address, request())


@on_each_loop
async def test_a_cancelled_request_is_no_longer_pending() -> None:
    def handle(_: Connection, __: Command) -> None:
        return None

    async with serving(handle) as (_, address):
        client = Client(limits=Limits(requests_pending=1))
        connection = await client.connect(address)
        asking = asyncio.create_task(connection.request(request(), 3000))
        await asyncio.sleep(0)
        with pytest.raises(RemoteBusy, match="has not answered 1 requests"):
            await connection.request(request(), 3000)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with pytest.raises(RequestTimeout):
            await connection.request(request(), 10)
        await client.close()


@on_each_loop
async def test_bad_addresses_are_errors_of_the_request() -> None:
    client = Client()
    with pytest.raises(AddressError, match="has no port"):
        await client.request("nowhere", request())
    with pytest.raises(ConnectError, match=r"no connection to host\.invalid:9876"):
        await client.oneway("host.invalid:9876", request())
    await client.close()
