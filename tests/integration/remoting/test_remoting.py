"""Server and client over real sockets: requests, responses, errors of handlers."""

import asyncio
import logging
from collections.abc import Awaitable

import pytest
from tests.support.remoting import (
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
    FieldError,
    FrameError,
    RequestError,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import FLAG_ONEWAY, Command, HeaderEncoding, encode
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
async def test_responses_may_be_out_of_order() -> None:
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
async def test_frames_split_at_every_byte_are_decoded() -> None:
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
async def test_a_frame_larger_than_the_receive_buffer_is_handled() -> None:
    async with serving() as (_, address):
        client = Client()
        body = bytes(range(256)) * 4096 * 15  # 15 MiB, under the limit of 16
        answer = await client.request(address, Command(code=ECHO, body=body), timeout_ms=60_000)
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
                raise ValueError("not sent to the peer")
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
async def test_a_oneway_request_is_handled_though_its_sender_disconnects() -> None:
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
async def test_opaque_encoding_and_flag_are_set_whatever_a_handler_returns() -> None:
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
async def test_a_handler_that_returns_none_may_send_its_response_later() -> None:
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
async def test_servers_send_requests_to_clients_on_the_same_connection() -> None:
    async def handle(connection: Connection, asked: Command) -> Command:
        response = await connection.request(request("who are you"), timeout_ms=30_000)
        return Command(code=0, body=response.body + b" asked " + asked.body)

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
async def test_exceptions_of_handlers_become_responses_and_the_connection_stays_open(
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
async def test_an_invalid_result_of_a_handler_is_an_internal_error() -> None:
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
async def test_a_request_whose_awaited_task_was_cancelled_is_answered() -> None:
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
async def test_failing_listeners_do_not_affect_connections() -> None:
    events: list[str] = []

    def opened(_: Connection) -> None:
        events.append("opened")
        raise ValueError("a bug of the listener")

    def closed(_: Connection) -> None:
        events.append("closed")
        raise ValueError("another one")

    server = Server(echo, on_opened=opened, on_closed=closed)
    host, port = await server.listen("127.0.0.1", 0)
    client = Client(on_closed=closed)
    assert (await client.request(f"{host}:{port}", request("x"))).body == b"x"
    await client.close()
    await server.close()
    assert sorted(events) == ["closed", "closed", "opened"]
