"""Peers with invalid frames, false lengths, silence or slow reads cost little, block no others."""

import asyncio
import contextlib
import random
import struct
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from tests.support.remoting import (
    LOOPS,
    RawPeer,
    echo,
    eventually,
    on_each_loop,
    only_connection,
    raw_peer,
    request,
    serving,
    until_received,
)

from tianzhou.errors import ConnectionClosed
from tianzhou.protocol.command import Command, encode
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server

ROOT = Path(__file__).resolve().parents[3]
MIB = 1024 * 1024

INVALID = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(64),
    "4 GiB": struct.pack(">I", 2**32 - 1) + bytes(100),
    "just over the limit": struct.pack(">I", 16 * MIB + 1) + bytes(100),
    "shorter than a frame can be": struct.pack(">I", 3) + bytes(3),
    "header longer than its frame": struct.pack(">II", 12, 1000) + bytes(8),
    "unknown header encoding": struct.pack(">II", 12, 9 << 24 | 8) + bytes(8),
    "header that is no JSON": struct.pack(">II", 12, 8) + b"not JSON",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", INVALID)
@on_each_loop
async def test_invalid_frames_close_their_connection_and_no_other(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (server, address):
        client = Client()
        assert (await client.request(address, request("before"))).body == b"before"
        for _ in range(3):
            async with raw_peer(address) as peer:
                await peer.send(INVALID[name])
                assert await peer.read_to_end() == b""
        assert (await client.request(address, request("after"))).body == b"after"
        assert server.counts.broken_peers == 3
        (message,) = caplog.messages  # three of one kind from one host: logged once
        assert "closed, " in message
        assert ("speaks TLS" in message) == (name == "tls")
        await client.close()
        await server.close()
        assert caplog.messages[1:] == [
            "invalid frames from 127.0.0.1: 2 more since the last such line"
        ]


@on_each_loop
async def test_requests_before_an_invalid_frame_are_answered() -> None:
    good = b"".join(encode(request(str(n), opaque=n)) for n in range(3))
    for piece in (len(good) + 8, 7):
        async with serving() as (server, address), raw_peer(address) as peer:
            connection = await only_connection(server)
            stream = good + INVALID["4 GiB"][:8]
            for start in range(0, len(stream), piece):
                await peer.send(stream[start : start + piece])
                if start + piece < len(stream):
                    await until_received(connection, start + piece)
            answers = await peer.receive(3)
            assert [answer.body for answer in answers] == [b"0", b"1", b"2"]
            assert await peer.read_to_end() == b""


@on_each_loop
async def test_random_bytes_raise_no_unexpected_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    random_bytes = random.Random(3)
    good = encode(request("body", opaque=1, ext_fields={"a": "b"}))
    async with serving() as (server, address):
        for _ in range(150):
            damaged = bytearray(good * 3)
            for _ in range(random_bytes.randint(1, 6)):
                damaged[random_bytes.randrange(len(damaged))] = random_bytes.randrange(256)
            async with raw_peer(address) as peer:
                await peer.send(bytes(damaged))
        client = Client()
        assert (await client.request(address, request("alive"))).body == b"alive"
        await client.close()
        await eventually(lambda: not server.connections, lambda: server.connections)
    assert all("closed, " in text or "invalid frames" in text for text in caplog.messages)


@on_each_loop
async def test_invalid_frames_of_a_server_fail_the_requests_of_its_client() -> None:
    async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(talk_nonsense, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = Client()
    with pytest.raises(ConnectionClosed, match="does not speak RocketMQ's protocol"):
        await client.request(f"127.0.0.1:{port}", request())
    await client.close()
    listening.close()
    await listening.wait_closed()


@on_each_loop
async def test_responses_without_a_request_are_counted_and_dropped() -> None:
    async with serving() as (server, address), raw_peer(address) as peer:
        await peer.send_commands(*(request(opaque=n, flag=1) for n in range(50)))
        await peer.send_commands(request("still here", opaque=99))
        (answer,) = await peer.receive(1)
        assert answer.body == b"still here"
        assert server.counts.late_responses == 50


# -- memory ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def echo_process(loop_name: str) -> Generator[tuple[psutil.Process, str], None, None]:
    """A server in a process of its own, and its address."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.remoting_echo", loop_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            port = int(program.stdout.readline())
            yield psutil.Process(program.pid), f"127.0.0.1:{port}"
            program.stdin.close()
            assert program.wait(10) == 0
        finally:
            program.kill()


@pytest.mark.parametrize("loop_name", LOOPS)
async def test_false_lengths_cost_no_memory(loop_name: str) -> None:
    count = 200
    with echo_process(loop_name) as (process, address):
        async with contextlib.AsyncExitStack() as stack:
            client = Client()
            stack.push_async_callback(client.close)
            await client.request(address, request("warm up"))
            rss_before = process.memory_info().rss
            for _ in range(count):
                peer = await stack.enter_async_context(raw_peer(address))
                await peer.send(struct.pack(">I", 16 * MIB) + bytes(1000))
            # Answered after the connections before it, since the server handles them in turn.
            await client.request(address, request("others are served"))
            await eventually(
                lambda: (
                    len(process.net_connections("tcp")) == count + 2
                ),  # client and listener, too
                lambda: len(process.net_connections("tcp")),
            )
            grown_bytes = process.memory_info().rss - rss_before
            assert grown_bytes < 32 * MIB, (
                f"{grown_bytes // count} bytes per connection with a false length"
            )


@on_each_loop
async def test_the_sum_of_incomplete_frames_is_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(kept_bytes=4 * MIB)
    async with serving(limits=limits) as (server, address), contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw_peer(address)) for _ in range(5)]
        promise = struct.pack(">I", 15 * MIB)
        sizes = [100_000, 400_000, 3 * MIB, 200_000, 300_000]
        for peer, size in zip(peers, sizes, strict=True):
            await peer.send(promise + bytes(size))
        kept = sum(sizes) + len(sizes) * 4
        assert kept <= limits.kept_bytes
        await eventually(
            lambda: sum(each.kept_bytes for each in server.connections) == kept,
            lambda: server.connections,
        )
        client = Client()
        body = bytes(600_000)  # above the limit, so the connection with most bytes is cut
        answer = await client.request(address, Command(code=1, body=body))
        assert answer.body == body
        assert await peers[2].read_to_end() == b""
        assert server.counts.cut_peers == 1
        assert f"{sizes[2] + 4} bytes are unread" in caplog.messages[0]
        for peer in (peers[0], peers[1], peers[3], peers[4]):
            await peer.send(bytes(10))
        await eventually(
            lambda: sum(each.kept_bytes for each in server.connections) == kept - 3 * MIB + 36,
            lambda: [each.kept_bytes for each in server.connections],
        )
        await client.close()


# -- peers that do not read ------------------------------------------------------------------------


def large_answer(_: Connection, asked: Command) -> Command:
    return Command(code=0, body=bytes(int(asked.body)))


async def _ask_without_reading(peer: RawPeer, count: int, size: int) -> None:
    await peer.send_commands(*(request(str(size), opaque=n) for n in range(count)))


@on_each_loop
async def test_a_slow_reader_uses_limited_memory_and_blocks_no_others() -> None:
    handled = 0

    def handle(connection: Connection, asked: Command) -> Command:
        nonlocal handled
        handled += connection.peer != other_local
        return large_answer(connection, asked)

    limits = Limits()
    async with serving(handle, limits=limits) as (server, address):
        client = Client()
        other_local = (await client.connect(address)).local
        async with raw_peer(address, receive_buffer_bytes=65_536) as peer:
            count, size = 1_000, 100_000  # 100 MB of answers, asked for in one breath
            await _ask_without_reading(peer, count, size)
            await eventually(lambda: len(server.connections) == 2, lambda: server.connections)
            (connection,) = (each for each in server.connections if each.peer != other_local)
            await eventually(lambda: connection.unsent_bytes > 0, lambda: connection.unsent_bytes)
            for _ in range(100):
                answer = await client.request(address, request("1000"))
                assert len(answer.body) == 1000
                assert connection.unsent_bytes <= limits.unsent_high_bytes + 2 * size
            assert 0 < handled < count
            assert 0 < connection.kept_bytes <= limits.receive_bytes
            answers = await peer.receive(count)  # it reads at last: nothing was lost
            assert [answer.opaque for answer in answers] == list(range(count))
            assert all(len(answer.body) == size for answer in answers)
        await client.close()


@on_each_loop
async def test_a_peer_that_reads_nothing_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(write_stall_ms=150)
    async with serving(large_answer, limits=limits) as (server, address):
        client = Client()
        async with raw_peer(address, receive_buffer_bytes=65_536) as peer:
            await _ask_without_reading(peer, 200, 100_000)
            await eventually(lambda: server.counts.cut_peers == 1, lambda: server.counts)
            assert (await client.request(address, request("5"))).body == bytes(5)
            assert "bytes are unsent, none was read for" in caplog.messages[0]
        await client.close()


@on_each_loop
async def test_pushes_to_a_peer_that_does_not_read_are_limited() -> None:
    limits = Limits(unsent_cut_bytes=2 * MIB)
    async with serving(limits=limits) as (server, address), raw_peer(address, 65_536):
        connection = await only_connection(server)
        most = 0
        for _ in range(200):
            connection.send(Command(code=1, body=bytes(100_000)))
            most = max(most, connection.unsent_bytes)
            await asyncio.sleep(0)
        assert connection.closed
        assert server.counts.cut_peers == 1
        assert most <= limits.unsent_cut_bytes + 200_000
        connection.send(Command(code=1))  # dropped
        with pytest.raises(ConnectionClosed, match="bytes are unsent"):
            connection.oneway(Command(code=1))


@on_each_loop
async def test_a_closed_connection_whose_peer_does_not_read_is_aborted() -> None:
    limits = Limits(goodbye_ms=100)
    async with serving(limits=limits) as (server, address), raw_peer(address, 65_536):
        connection = await only_connection(server)
        connection.send(Command(code=1, body=bytes(8 * MIB)))
        await eventually(lambda: connection.unsent_bytes > 0, lambda: connection.unsent_bytes)
        connection.close("enough")
        assert len(server.connections) == 1  # what was sent may still leave
        await eventually(lambda: not server.connections, lambda: server.connections)


# -- peers that say nothing ------------------------------------------------------------------------


@on_each_loop
async def test_silent_and_half_sent_connections_are_closed_when_idle() -> None:
    limits = Limits(idle_ms=200)
    async with serving(limits=limits) as (server, address):
        async with raw_peer(address) as silent, raw_peer(address) as half:
            await half.send(struct.pack(">I", 1000) + b"the beginning")
            assert await silent.read_to_end() == b""
            assert await half.read_to_end() == b""
        await eventually(lambda: not server.connections, lambda: server.connections)


@on_each_loop
async def test_peers_that_disconnect_at_any_point_leave_no_state() -> None:
    async def handle(_: Connection, asked: Command) -> Command:
        await asyncio.sleep(0.001)
        return Command(code=0, body=asked.body)

    stream = b"".join(encode(request("x" * 50, opaque=n)) for n in range(20))
    async with serving(handle) as (server, address):
        for cut in range(0, len(stream), 97):
            async with raw_peer(address) as peer:
                await peer.send(stream[:cut])
        await eventually(lambda: not server.connections, lambda: server.connections)


@on_each_loop
async def test_a_flood_of_connections_is_served() -> None:
    server = Server(echo)
    _, port = await server.listen("127.0.0.1", 0)
    clients = [Client(limits=Limits(connect_ms=60_000)) for _ in range(300)]
    answers = await asyncio.gather(
        *(client.request(f"127.0.0.1:{port}", request("x"), 60_000) for client in clients)
    )
    assert len(answers) == 300
    assert len(server.connections) == 300
    await asyncio.gather(*(client.close() for client in clients))
    await server.close()
