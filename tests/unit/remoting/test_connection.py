"""A connection with a recorded transport: what is read, held and written, in how many writes."""

import asyncio
import math
import struct
from collections.abc import Callable

import pytest
from tests.support.framing import split

from tianzhou.errors import RequestError
from tianzhou.protocol.command import FLAG_ONEWAY, Command, decode, encode
from tianzhou.remoting.connection import Connection, Feed, Handler, Resume
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.shared_state import SharedState


@pytest.fixture(autouse=True)
def _whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a connection enough time per loop iteration on slow machines, too."""
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", math.inf)


class RecordedTransport(asyncio.Transport):
    """Records what is written, and pauses writing on request."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.protocol = protocol
        self.writes: list[bytes] = []
        self._reading = True
        self.capacity_bytes = 10**9
        self.ended = ""

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def get_write_buffer_size(self) -> int:
        return max(len(self.written) - self.capacity_bytes, 0)

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        assert not self.ended, "written to a closed transport"
        self.writes.append(data)
        if self.get_write_buffer_size() > 0:
            self.protocol.pause_writing()

    def read_all(self) -> None:
        """The peer has read everything."""
        self.capacity_bytes = 10**9
        self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = "eof"

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def answer_at_once(_: Connection, request: Command) -> Command:
    return Command(code=0, body=request.body)


def made(
    handle: Handler = answer_at_once, limits: Limits | None = None, feed: Feed | None = None
) -> tuple[Connection, RecordedTransport, Callable[[bytes], None]]:
    """A connection, its transport, and a function that delivers bytes to it."""
    shared: SharedState[Connection] = SharedState(limits or Limits(), serves=True)
    shared.start()
    connection = Connection(shared, handle, feed=feed)
    transport = RecordedTransport(connection)
    connection.connection_made(transport)

    def arrive(data: bytes) -> None:
        while data:
            buffer = connection.get_buffer(-1)
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            connection.buffer_updated(size)
            buffer[:size] = bytes(size)  # the shared buffer is reused by other connections
            data = data[size:]

    return connection, transport, arrive


def frames(count: int, size: int = 10, first: int = 0) -> bytes:
    return b"".join(
        encode(Command(code=1, opaque=first + n, body=bytes(size))) for n in range(count)
    )


def opaques(stream: bytes) -> list[int]:
    found, rest = split(stream)
    assert rest == len(stream)
    return [decode(stream[start:stop]).opaque for start, stop in found]


async def test_responses_of_one_iteration_are_sent_in_one_write() -> None:
    connection, transport, arrive = made()
    arrive(frames(500))
    assert len(transport.writes) == 1
    assert opaques(transport.written) == list(range(500))
    connection.connection_lost(None)


async def test_pushes_of_one_iteration_are_sent_in_one_write_at_its_end() -> None:
    connection, transport, _ = made()
    for n in range(100):
        connection.send(Command(code=1, opaque=n))
    assert not transport.writes
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    assert opaques(transport.written) == list(range(100))
    connection.connection_lost(None)


async def test_large_responses_are_not_joined() -> None:
    connection, transport, arrive = made()
    arrive(frames(3, size=100_000))
    assert len(transport.writes) >= 3
    assert opaques(transport.written) == [0, 1, 2]
    connection.connection_lost(None)


async def test_responses_before_a_close_are_sent() -> None:
    def handle(connection: Connection, request: Command) -> Command:
        if request.opaque == 2:
            connection.close("that was the last one")
        return Command(code=0)

    connection, transport, arrive = made(handle)
    arrive(frames(5))
    assert opaques(transport.written) == [0, 1]
    assert transport.ended == "closed"
    assert connection.kept_bytes == 0
    arrive(frames(5))  # bytes that the transport still had
    assert opaques(transport.written) == [0, 1]
    connection.connection_lost(None)


async def test_held_frames_are_handled_in_order_when_the_gate_opens() -> None:
    connection, transport, arrive = made()
    transport.capacity_bytes = 200_000
    stream = frames(10, size=50_000)
    arrive(stream[:260_000])
    answered = len(opaques(transport.written))
    assert 3 <= answered < 10
    assert not transport.is_reading()
    assert connection.kept_bytes > 0
    arrive(stream[260_000:])  # a transport may have read ahead
    assert len(opaques(transport.written)) == answered
    transport.read_all()
    await asyncio.sleep(0)
    assert opaques(transport.written) == list(range(10))
    assert transport.is_reading()
    assert connection.kept_bytes == 0
    connection.connection_lost(None)


async def test_a_full_transport_shuts_the_gate_between_held_frames() -> None:
    connection, transport, arrive = made()
    transport.capacity_bytes = 1
    arrive(frames(100, size=2_000))
    rounds = 0
    while len(opaques(transport.written)) < 100:
        transport.capacity_bytes = len(transport.written) + 1  # room for a little more
        connection.resume_writing()
        await asyncio.sleep(0)
        rounds += 1
        assert rounds <= 100
    assert rounds > 1
    assert opaques(transport.written) == list(range(100))
    connection.connection_lost(None)


async def test_an_invalid_length_closes_the_connection_after_the_frames_before_it() -> None:
    connection, transport, arrive = made()
    arrive(frames(3) + struct.pack(">I", 2**31) + bytes(50))
    assert opaques(transport.written) == [0, 1, 2]
    assert transport.ended == "closed"
    assert "2147483648 bytes announced" in connection.reason
    connection.connection_lost(None)


async def test_on_closed_is_called_once() -> None:
    ended: list[Connection] = []
    shared: SharedState[Connection] = SharedState(Limits(), serves=True)
    shared.start()
    connection = Connection(shared, answer_at_once, on_closed=ended.append)
    connection.connection_lost(None)
    assert not ended  # it never began
    connection.connection_made(RecordedTransport(connection))
    connection.connection_lost(OSError("cable cut"))
    connection.connection_lost(None)
    assert ended == [connection]
    assert connection.reason == "lost: cable cut"
    assert not shared.connections


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
async def test_a_frame_completed_by_the_next_read_leaves_no_unread_bytes(cut: int) -> None:
    connection, transport, arrive = made()
    stream = frames(2)
    arrive(stream[:-cut])
    assert connection.kept_bytes == len(stream) // 2 - cut
    arrive(stream[-cut:] + frames(1, first=2))
    assert opaques(transport.written) == [0, 1, 2]
    assert connection.kept_bytes == 0
    connection.connection_lost(None)


# -- the feed --------------------------------------------------------------------------------------


def feed_of(taken: set[int]) -> Feed:
    """Handles the frames with some opaques, two per call at most, and echoes them."""

    def take(connection: Connection, view: memoryview, at: int) -> tuple[int, int]:
        frames_, rest = split(view[at:])
        for number, (start, stop) in enumerate(frames_):
            if number == 2:
                return at + start, -1
            if decode(view[at + start : at + stop]).opaque not in taken:
                return at + start, at + stop
            connection.send_frames(bytes(view[at + start : at + stop]))
        return at + rest, at + rest

    return take


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
async def test_feed_and_handler_get_the_frames_in_order(size: int) -> None:
    handled: list[int] = []

    def handle(_: Connection, request: Command) -> Command:
        handled.append(request.opaque)
        return Command(code=0)

    taken = {0, 1, 2, 3, 5, 8, 9}
    connection, transport, arrive = made(handle, feed=feed_of(taken))
    stream = frames(12)
    for start in range(0, len(stream), size):
        arrive(stream[start : start + size])
    assert handled == [4, 6, 7, 10, 11]
    assert opaques(transport.written) == list(range(12))
    connection.connection_lost(None)


async def test_the_handler_gets_all_frames_that_the_feed_declines() -> None:
    def take(connection: Connection, view: memoryview, at: int) -> None:
        return None

    connection, transport, arrive = made(feed=take)
    arrive(frames(5))
    assert opaques(transport.written) == list(range(5))
    connection.connection_lost(None)


def deferring_feed(deferred: list[tuple[Connection, bytes]]) -> Feed:
    """Handles every frame, and echoes them as deferred responses."""

    def send_all() -> None:
        taken, deferred[:] = list(deferred), []
        for connection, answers in taken:
            connection.send_deferred(answers)

    def take(connection: Connection, view: memoryview, at: int) -> tuple[int, int]:
        _, rest = split(view[at:])
        deferred.append((connection, bytes(view[at : at + rest])))
        connection.deferred_by = send_all
        return at + rest, at + rest

    return take


async def test_deferred_responses_are_sent_after_earlier_frames() -> None:
    deferred: list[tuple[Connection, bytes]] = []
    connection, transport, arrive = made(feed=deferring_feed(deferred))
    arrive(frames(2))
    assert len(deferred) == 1
    assert not transport.written
    connection.send_frames(frames(1, first=7))
    for each, answers in deferred:
        each.send_deferred(answers)
    assert connection.deferred_by is None
    await asyncio.sleep(0)
    assert opaques(transport.written) == [7, 0, 1]
    deferred.clear()
    arrive(frames(1, first=9))
    deferred.pop()[0].send_deferred(frames(1, first=9))
    assert opaques(transport.written) == [7, 0, 1, 9]
    connection.connection_lost(None)


@pytest.mark.parametrize("ending", ["close", "drain", "eof"])
async def test_deferred_responses_are_sent_before_a_close(ending: str) -> None:
    deferred: list[tuple[Connection, bytes]] = []
    connection, transport, arrive = made(feed=deferring_feed(deferred))
    arrive(frames(3))
    if ending == "close":
        connection.close("a test")
    elif ending == "drain":
        connection.drain()
    else:
        connection.eof_received()
    assert connection.closed
    assert opaques(transport.written) == [0, 1, 2]
    connection.connection_lost(None)


async def test_deferred_responses_of_an_aborted_connection_are_dropped() -> None:
    deferred: list[tuple[Connection, bytes]] = []
    connection, transport, arrive = made(feed=deferring_feed(deferred))
    arrive(frames(3))
    connection.abort("a test")
    deferred.pop()[0].send_deferred(frames(3))
    assert not transport.written
    connection.connection_lost(None)


async def test_held_requests_shut_the_gate_and_released_ones_open_it() -> None:
    limits = Limits(requests_in_flight_per_connection=4)

    def take(connection: Connection, view: memoryview, at: int) -> tuple[int, int]:
        stop = split(view[at:])[0][0][1]
        connection.hold(1)
        return at + stop, -1 if at + stop < len(view) else at + stop

    connection, transport, arrive = made(limits=limits, feed=take)
    arrive(frames(6))
    assert not transport.is_reading()
    connection.release(4, b"answers")
    await asyncio.sleep(0)
    assert transport.is_reading()
    assert connection.kept_bytes == 0
    connection.connection_lost(None)


# -- deferred requests -----------------------------------------------------------------------------


def deferring(deferred: list[Resume]) -> Handler:
    def handle(connection: Connection, request: Command) -> None:
        deferred.append(connection.defer(request))

    return handle


async def test_deferred_requests_are_answered_when_they_are_resumed() -> None:
    deferred: list[Resume] = []
    connection, transport, arrive = made(deferring(deferred))
    oneway = encode(Command(code=1, opaque=9, flag=FLAG_ONEWAY))
    arrive(frames(2) + oneway + frames(2, first=2))
    assert not transport.written

    def refused() -> Command:
        raise RequestError(17, "no such topic")

    async def later() -> Command:
        return Command(code=5)

    deferred[3](lambda: Command(code=3))
    deferred[0](refused)
    deferred[2](lambda: Command(code=0))
    deferred[1](later)
    deferred[4](lambda: None)
    for _ in range(3):
        await asyncio.sleep(0)
    found, _ = split(transport.written)
    answers = [decode(transport.written[start:stop]) for start, stop in found]
    assert [(answer.opaque, answer.code) for answer in answers] == [(2, 3), (0, 17), (1, 5)]
    connection.connection_lost(None)


async def test_deferred_requests_shut_the_gate_until_they_are_resumed() -> None:
    deferred: list[Resume] = []
    limits = Limits(requests_in_flight_per_connection=4)
    connection, transport, arrive = made(deferring(deferred), limits)
    arrive(frames(6))
    assert len(deferred) == 4
    assert not transport.is_reading()
    for resume in tuple(deferred):
        resume(lambda: Command(code=0))
    await asyncio.sleep(0)
    assert transport.is_reading()
    assert len(deferred) == 6
    assert opaques(transport.written) == [0, 1, 2, 3]
    connection.connection_lost(None)


async def test_deferred_work_runs_even_if_the_connection_is_lost() -> None:
    deferred: list[Resume] = []
    done: list[str] = []
    connection, transport, arrive = made(deferring(deferred))
    arrive(frames(1))
    connection.abort("a test")

    def work() -> Command:
        done.append("work")
        return Command(code=0)

    deferred[0](work)
    assert (done, transport.written) == (["work"], b"")
    connection.connection_lost(None)


async def test_a_drain_waits_for_deferred_requests() -> None:
    deferred: list[Resume] = []
    connection, transport, arrive = made(deferring(deferred))
    arrive(frames(2))
    connection.drain()
    deferred[0](lambda: Command(code=0))
    assert transport.ended == ""
    deferred[1](lambda: Command(code=0))
    assert connection.closed
    assert opaques(transport.written) == [0, 1]
    connection.connection_lost(None)


async def test_held_responses_are_sent_together() -> None:
    deferred: list[Resume] = []
    connection, transport, arrive = made(deferring(deferred))
    arrive(frames(3))
    for resume in deferred:
        connection.hold_responses()
        resume(lambda: Command(code=0))
        await asyncio.sleep(0)
    assert not transport.writes
    connection.send_held()
    assert len(transport.writes) == 1
    assert opaques(transport.written) == [0, 1, 2]
    connection.connection_lost(None)


async def test_held_responses_are_sent_with_deferred_ones() -> None:
    deferred: list[Resume] = []

    def handle(connection: Connection, request: Command) -> Command | None:
        if request.opaque:
            return Command(code=0)
        deferred.append(connection.defer(request))
        return None

    connection, transport, arrive = made(handle)
    arrive(frames(1))
    connection.hold_responses()
    deferred[0](lambda: Command(code=0))
    arrive(frames(1, first=1))
    await asyncio.sleep(0)
    assert not transport.writes, "other responses of the connection are held, too"
    connection.send_deferred(frames(1, first=2))
    assert opaques(transport.written) == [0, 1, 2]
    connection.send_held()
    assert len(transport.writes) == 1
    connection.send_deferred(frames(1, first=3))
    assert opaques(transport.written) == [0, 1, 2, 3]
    connection.connection_lost(None)
