"""Server and client over real sockets: requests, answers, errors, back pressure, stopping."""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable

import pytest
from tests.integration.remoting_kit import (
    ECHO,
    ENCODINGS,
    echo,
    eventually,
    on_each_loop,
    only_connection,
    raw_peer,
    request,
    serving,
    until_received,
)

from tianzhou.errors import (
    AddressError,
    ConnectError,
    ConnectionClosed,
    FieldError,
    FrameError,
    RemoteBusy,
    RemotingError,
    RequestError,
    RequestTimeout,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import FLAG_ONEWAY, Command, HeaderEncoding, decode, encode
from tianzhou.protocol.framing import split
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server

# -- requests and answers --------------------------------------------------------------------------


@on_each_loop
async def test_a_request_is_answered_in_its_own_encoding() -> None:
    async with serving() as (_, address):
        client = Client()
        for encoding in ENCODINGS:
            answer = await client.request(address, request("hello", encoding=encoding))
            assert (answer.code, answer.body, answer.encoding) == (0, b"hello", encoding)
        await client.close()


@on_each_loop
async def test_thousands_of_pipelined_requests_are_answered_each_with_its_own_opaque() -> None:
    async with serving() as (_, address), raw_peer(address) as peer:
        count = 5_000
        sending = asyncio.create_task(
            peer.send_commands(
                *(request(str(n), opaque=n, encoding=ENCODINGS[n % 2]) for n in range(count))
            )
        )
        answers = await peer.receive(count)
        await sending
        assert [answer.opaque for answer in answers] == list(range(count))
        assert all(answer.body == str(answer.opaque).encode() for answer in answers)
        assert all(answer.encoding == ENCODINGS[answer.opaque % 2] for answer in answers)
        assert all(answer.is_response for answer in answers)


@on_each_loop
async def test_many_requests_of_one_client_share_a_connection() -> None:
    async with serving() as (server, address):
        client = Client()
        answers = await asyncio.gather(
            *(client.request(address, request(str(n)), 30_000) for n in range(2_000))
        )
        assert [answer.body for answer in answers] == [str(n).encode() for n in range(2_000)]
        assert server.counts.opened == 1
        await client.close()


@on_each_loop
async def test_answers_may_overtake_each_other() -> None:
    first_may_end = asyncio.Event()

    async def handle(_: Connection, asked: Command) -> Command:
        if asked.body == b"first":
            await first_may_end.wait()
        return Command(code=0, body=asked.body)

    async with serving(handle) as (_, address):
        client = Client()
        first = asyncio.create_task(client.request(address, request("first")))
        second = await client.request(address, request("second"))
        assert second.body == b"second"
        assert not first.done()
        first_may_end.set()
        assert (await first).body == b"first"
        await client.close()


@on_each_loop
async def test_frames_cut_at_every_byte_come_out_whole() -> None:
    stream = b"".join(
        encode(request(text, opaque=n, encoding=ENCODINGS[n % 2]))
        for n, text in enumerate(("one", "", "three" * 3))
    )
    async with serving() as (server, address), raw_peer(address) as peer:
        connection = await only_connection(server)
        for cut in range(1, len(stream)):
            before = connection.received_bytes
            await peer.send(stream[:cut])
            await until_received(connection, before + cut)
            await peer.send(stream[cut:])
            answers = await peer.receive(3)
            assert [answer.body for answer in answers] == [b"one", b"", b"three" * 3]
        assert connection.kept_bytes == 0


@on_each_loop
async def test_a_frame_larger_than_the_receive_buffer_comes_through() -> None:
    async with serving() as (_, address):
        client = Client()
        body = bytes(range(256)) * 4096 * 15  # 15 MiB, under the limit of 16
        answer = await client.request(address, Command(code=ECHO, body=body), timeout_ms=20_000)
        assert answer.body == body
        with pytest.raises(FrameError, match="over 16777216"):
            await client.request(address, Command(code=ECHO, body=bytes(16 * 1024 * 1024)))
        await client.close()


@on_each_loop
async def test_a_oneway_request_is_never_answered() -> None:
    seen: list[bytes] = []

    def handle(_: Connection, asked: Command) -> Command | Awaitable[Command | None] | None:
        seen.append(asked.body)
        match asked.body:
            case b"raise":
                raise ValueError("nobody hears this")
            case b"later":
                return answer_later()
            case _:
                return Command(code=0, body=b"an answer to " + asked.body)

    async def answer_later() -> Command:
        return Command(code=0, body=b"a late answer")

    async with serving(handle) as (_, address):
        async with raw_peer(address) as peer:
            for text in ("raise", "later", "plain"):
                await peer.send_commands(request(text, flag=FLAG_ONEWAY))
            await peer.send_commands(request("normal", opaque=77))
            (only,) = await peer.receive(1)
            assert (only.opaque, only.body) == (77, b"an answer to normal")
        client = Client()
        await client.oneway(address, request("by client"))
        await eventually(lambda: b"by client" in seen, lambda: seen)
        await client.close()


@on_each_loop
async def test_a_oneway_request_is_handled_though_its_sender_leaves() -> None:
    started, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Connection, __: Command) -> None:
        started.set()
        await may_end.wait()
        ended.set()

    async with serving(handle) as (server, address):
        async with raw_peer(address) as peer:
            await peer.send_commands(request(flag=FLAG_ONEWAY))
            await started.wait()
        await eventually(lambda: not server.connections, lambda: server.connections)
        may_end.set()
        async with asyncio.timeout(5):
            await ended.wait()


@on_each_loop
async def test_a_handler_cannot_get_the_envelope_wrong() -> None:
    def handle(_: Connection, asked: Command) -> Command:
        # Passes the very request on, as someone would who forwards it, and returns it, changed.
        asked.opaque, asked.encoding = 4711, HeaderEncoding.JSON
        asked.flag |= FLAG_ONEWAY
        return asked

    async with serving(handle) as (_, address), raw_peer(address) as peer:
        await peer.send_commands(request("x", opaque=5, encoding=HeaderEncoding.ROCKETMQ))
        (answer,) = await peer.receive(1)
        assert (answer.opaque, answer.encoding) == (5, HeaderEncoding.ROCKETMQ)
        assert answer.is_response
        assert not answer.is_oneway


@on_each_loop
async def test_a_handler_that_returns_nothing_answers_by_itself() -> None:
    parked: list[tuple[Connection, Command]] = []

    def handle(connection: Connection, asked: Command) -> None:
        parked.append((connection, asked))

    async with serving(handle) as (_, address):
        client = Client()
        asking = asyncio.create_task(client.request(address, request()))
        await eventually(lambda: bool(parked), lambda: parked)
        connection, asked = parked[0]
        connection.send(Command(code=0, opaque=asked.opaque, flag=1, body=b"at last"))
        assert (await asking).body == b"at last"
        await client.close()


@on_each_loop
async def test_servers_ask_clients_on_the_same_connection() -> None:
    async def handle(connection: Connection, asked: Command) -> Command:
        told = await connection.request(request("who are you"), timeout_ms=3000)
        return Command(code=0, body=told.body + b" asked " + asked.body)

    def introduce(_: Connection, asked: Command) -> Command:
        assert asked.body == b"who are you"
        return Command(code=0, body=b"I")

    async with serving(handle) as (_, address):
        client = Client(handle=introduce)
        assert (await client.request(address, request("why"))).body == b"I asked why"
        await client.close()

        mute = Client()
        answer = await mute.request(address, request("why"))
        assert answer.body == b" asked why"  # the client's refusal has no body
        await mute.close()


# -- errors of handlers ----------------------------------------------------------------------------


def _fail(asked: Command) -> Command:
    match asked.body:
        case b"request":
            raise RequestError(17, "topic[x] not exist")
        case b"field":
            raise FieldError("queueId is missing")
        case b"bug":
            raise ZeroDivisionError("boom")
        case b"surrogate":
            raise RequestError(1, "bad \udcff text")
        case b"unreadable":
            return Command(code=2**40)
        case b"huge":
            return Command(code=0, body=bytes(16 * 1024 * 1024))
        case _:
            return Command(code=0)


def fail_at_once(_: Connection, asked: Command) -> Command:
    return _fail(asked)


async def fail_later(_: Connection, asked: Command) -> Command:
    await asyncio.sleep(0)
    return _fail(asked)


@pytest.mark.parametrize("handle", [fail_at_once, fail_later])
@on_each_loop
async def test_what_a_handler_raises_is_answered_and_the_connection_lives_on(
    handle: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(handle) as (server, address):  # type: ignore[arg-type]  # parametrised
        client = Client()

        async def ask(text: str) -> tuple[int, str | None]:
            answer = await client.request(address, request(text))
            return answer.code, answer.remark

        assert await ask("request") == (17, "topic[x] not exist")
        assert await ask("field") == (ResponseCode.SYSTEM_ERROR, "queueId is missing")
        assert await ask("surrogate") == (ResponseCode.SYSTEM_ERROR, "bad ? text")
        assert not caplog.records
        assert await ask("bug") == (1, "internal error: ZeroDivisionError: boom")
        assert await ask("bug") == (1, "internal error: ZeroDivisionError: boom")
        (record,) = caplog.records  # the second one is only counted
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None
        assert await ask("unreadable") == (1, "header number 1099511627776 does not fit 32 bits")
        code, remark = await ask("huge")
        assert code == ResponseCode.SYSTEM_ERROR
        assert remark is not None
        assert remark.endswith("bytes, over 16777216")
        assert await ask("fine") == (0, None)
        assert server.counts.opened == 1
        await client.close()


@on_each_loop
async def test_nonsense_from_a_handler_is_an_internal_error() -> None:
    def handle(_: Connection, __: Command) -> Command:
        return "not a command"  # type: ignore[return-value]  # the bug under test

    async with serving(handle) as (_, address):
        client = Client()
        answer = await client.request(address, request())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("internal error: TypeError")
        await client.close()


@on_each_loop
async def test_a_handler_whose_work_was_cancelled_elsewhere_is_answered() -> None:
    async def handle(_: Connection, __: Command) -> Command:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    async with serving(handle, limits=Limits(requests_in_flight_per_connection=1)) as (_, address):
        client = Client()
        for _ in range(3):
            answer = await client.request(address, request())
            assert answer.remark == "internal error: RuntimeError: the work was cancelled"
        await client.close()


@on_each_loop
async def test_failing_listeners_of_connections_do_not_disturb() -> None:
    told: list[str] = []

    def opened(_: Connection) -> None:
        told.append("opened")
        raise ValueError("a bug of the listener")

    def closed(_: Connection) -> None:
        told.append("closed")
        raise ValueError("another one")

    server = Server(echo, on_opened=opened, on_closed=closed)
    host, port = await server.listen("127.0.0.1", 0)
    client = Client(on_closed=closed)
    assert (await client.request(f"{host}:{port}", request("x"))).body == b"x"
    await client.close()
    await server.close()
    assert sorted(told) == ["closed", "closed", "opened"]


# -- time-outs and lost connections ----------------------------------------------------------------


@on_each_loop
async def test_a_late_answer_is_dropped_and_counted() -> None:
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
async def test_a_client_comes_back_when_its_server_does() -> None:
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
async def test_a_cancelled_request_is_forgotten() -> None:
    def handle(_: Connection, __: Command) -> None:
        return None

    async with serving(handle) as (_, address):
        client = Client(limits=Limits(requests_pending=1))
        connection = await client.connect(address)
        asking = asyncio.create_task(connection.request(request(), 3000))
        await asyncio.sleep(0)
        with pytest.raises(RemoteBusy, match="owes 1 answers"):
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
async def test_a_name_is_listened_on_with_all_its_addresses_on_one_port() -> None:
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
async def test_only_so_many_requests_of_a_connection_run_at_once() -> None:
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
async def test_handlers_that_ask_their_own_peer_do_not_wait_for_themselves() -> None:
    async def handle(connection: Connection, asked: Command) -> Command:
        return await connection.request(request(asked.body.decode()), timeout_ms=8000)

    limits = Limits(requests_in_flight_per_connection=1)
    async with serving(handle, limits=limits) as (_, address):
        client = Client(handle=echo)
        answers = await asyncio.gather(
            *(client.request(address, request(str(n)), timeout_ms=8000) for n in range(100))
        )
        assert [answer.body for answer in answers] == [str(n).encode() for n in range(100)]
        await client.close()


@on_each_loop
async def test_a_server_with_all_hands_full_says_so() -> None:
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
        waiting = asyncio.create_task(client.request(address, request(), timeout_ms=5000))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionClosed):
            await waiting


@on_each_loop
async def test_a_client_goes_on_when_the_peer_reads_again() -> None:
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
async def test_connections_above_the_limit_are_closed_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(limits=Limits(connections=2)) as (server, address):
        clients = [Client() for _ in range(2)]
        for client in clients:
            assert (await client.request(address, request("x"))).body == b"x"
        for _ in range(3):
            async with raw_peer(address) as peer:
                assert await peer.read_to_end() == b""
        assert server.counts.refused_connections == 3
        (record,) = caplog.records
        assert "refused, 2 are open, the limit" in record.getMessage()
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


# -- stopping --------------------------------------------------------------------------------------


@on_each_loop
async def test_stopping_lets_running_requests_end_and_takes_no_new_ones() -> None:
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
async def test_stopping_cuts_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
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
async def test_stopping_survives_a_handler_that_ignores_it(
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
        assert "the server stops: 1 handlers do not end, though cancelled" in caplog.messages
    may_end.set()


@on_each_loop
async def test_stopping_delivers_what_a_slow_reader_has_not_read_yet() -> None:
    body = bytes(1024 * 1024)

    def handle(_: Connection, __: Command) -> Command:
        return Command(code=0, body=body)

    limits = Limits(unsent_high_bytes=16 * 1024 * 1024)
    async with serving(handle, limits=limits) as (server, address):
        async with raw_peer(address, receive_buffer_bytes=65_536) as peer:
            await peer.send_commands(*(request(opaque=n) for n in range(8)))
            connection = await only_connection(server)
            await eventually(lambda: connection.unsent_bytes > 2_000_000, lambda: connection)
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
async def test_stopping_drops_what_waits_behind_the_gate_and_no_answer_that_was_given(
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
async def test_stopping_at_any_moment_of_a_connections_opening_cuts_nothing(
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
async def test_a_client_may_close_at_any_moment_of_dialling(
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
