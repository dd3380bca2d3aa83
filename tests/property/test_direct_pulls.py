"""Pull responses that the fast path writes to the socket equal those of the handlers.

The runs are those of `test_fast_path.py`, with a pipe of little capacity as the socket:
responses are written whole, in part or not at all, and the transport sends the rest.
"""

import asyncio
import fcntl
import math
import os

import pytest
from tests.property import test_fast_path
from tests.property.test_fast_path import (
    LARGER,
    PEERS,
    Now,
    Side,
    Transport,
    fed_side,
    frames_of,
    prepare,
    pull_frame,
    run,
    send_frame,
)

from tianzhou.protocol import kernel
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import decode
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.write_buffer import NO_SOCKET

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

PIPE_BYTES = 4096


@pytest.fixture(autouse=True)
def _all_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a loop iteration must not depend on the speed of the machine."""
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", math.inf)


class Pipe:
    """A socket with little capacity: it accepts no more until that is read."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK)
        fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def fileno(self) -> int:
        return self._writing

    def write(self, data: bytes) -> int:
        try:
            return os.write(self._writing, data)
        except BlockingIOError:
            return 0

    def read(self) -> bytes:
        try:
            return os.read(self._reading, 2 * PIPE_BYTES)
        except BlockingIOError:
            return b""

    def __del__(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


class PipedTransport(Transport):
    """Sends to a pipe, which the fast path may also write directly."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__(peer)
        self.pipe = Pipe()
        self._unsent = b""
        self._own_bytes = 0
        self.direct_bytes = 0
        """How many bytes were written to the pipe directly."""
        self.broken = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.pipe if name == "socket" else super().get_extra_info(name, default)

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self._unsent += data
        self._send()

    def _send(self) -> None:
        sent_bytes = self.pipe.write(self._unsent)
        self._own_bytes += sent_bytes
        self._unsent = self._unsent[sent_bytes:]

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self.broken

    def drain(self) -> None:
        """The peer reads everything."""
        self._send()
        while piece := self.pipe.read():
            self.written.extend(piece)
            self.direct_bytes += len(piece) - self._own_bytes
            self._own_bytes = 0
            self._send()


class PipedSide(Side):
    """A broker whose connections are pipes."""

    def __post_init__(self) -> None:
        self.piped: list[PipedTransport] = []
        super().__post_init__()

    def another(self) -> tuple[Connection, Transport]:
        transport = PipedTransport(self.peer)
        self.piped.append(transport)
        connection = Connection(
            self._board, self._handler(), feed=self.hot.serve if self.hot is not None else None
        )
        connection.connection_made(transport)
        return connection, transport

    async def arrive(self, data: bytes, pieces: list[int]) -> None:
        await super().arrive(data, pieces)
        await asyncio.sleep(0)  # the last released responses are sent in the next iteration
        for transport in self.piped:
            transport.drain()


@pytest.mark.parametrize("seed", [40, 42, 43, 44])
def test_pull_responses_equal_those_of_the_handlers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PipedSide] = []

    class RecordingSide(PipedSide):
        def __post_init__(self) -> None:
            super().__post_init__()
            made.append(self)

    monkeypatch.setattr(test_fast_path, "Side", RecordingSide)
    pairs = LARGER | ({"flushDiskType": "SYNC_FLUSH"} if seed == 44 else {})
    run(seed, PEERS[0], pairs, pull_percent=50)
    fed, plain = ([transport.direct_bytes for transport in side.piped] for side in made)
    assert sum(fed) > 1000, "next to nothing was sent directly"
    assert sum(plain) == 0


async def piped_side(monkeypatch: pytest.MonkeyPatch) -> tuple[PipedSide, PipedTransport]:
    """A broker that has answered a pull, so it knows the connection's socket."""
    monkeypatch.setattr(test_fast_path, "Side", PipedSide)
    side = await fed_side()
    assert isinstance(side, PipedSide)
    await side.arrive(pull_frame(3, 0), [])
    (transport,) = side.piped
    transport.written.clear()
    return side, transport


def opaques(transport: PipedTransport) -> list[tuple[int, int]]:
    answers = [decode(frame) for frame in frames_of(bytes(transport.written))]
    return [(answer.opaque, answer.code) for answer in answers]


async def test_unsent_bytes_follow_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side, transport = await piped_side(monkeypatch)
    for _ in range(3):
        await side.arrive(send_frame(4, bytes(900)), [])
    transport.written.clear()
    before = transport.direct_bytes
    # The first response fills the pipe; the others wait behind its rest.
    await side.arrive(b"".join(pull_frame(number, 0) for number in range(10, 14)), [])
    assert opaques(transport) == [(number, 0) for number in range(10, 14)]
    assert 0 < transport.direct_bytes - before <= PIPE_BYTES
    side.close()


async def test_pull_responses_do_not_overtake_send_responses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side, transport = await piped_side(monkeypatch)
    stream = send_frame(5, b"x", e="1") + pull_frame(6, 0) + pull_frame(7, 0)
    await side.arrive(stream, [])
    assert opaques(transport) == [(5, 0), (6, 0), (7, 0)]
    side.close()


async def test_the_socket_of_a_broken_connection_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its descriptor may be in use for another file."""
    side, transport = await piped_side(monkeypatch)
    assert side.connection.socket == transport.pipe.fileno()
    transport.broken = True
    before = transport.direct_bytes
    assert side.connection.socket == NO_SOCKET
    await side.arrive(pull_frame(8, 0), [])
    assert transport.direct_bytes == before
    transport.broken = False
    side.connection.close("the test ends")
    assert side.connection.socket == NO_SOCKET
    side.close()


async def test_encrypted_connection_is_not_written_directly() -> None:
    side = PipedSide(True, Now(), PEERS[0], dict(LARGER))
    prepare(side)
    side.connection.secure = True
    side.connection.begin_direct()
    assert side.connection.socket == NO_SOCKET
    side.close()


async def test_pull_without_messages_is_passed_to_the_handlers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side, transport = await piped_side(monkeypatch)
    before = transport.direct_bytes
    await side.arrive(pull_frame(9, 2), [])
    await asyncio.sleep(0)
    transport.drain()
    assert opaques(transport) == [(9, ResponseCode.PULL_NOT_FOUND)]
    assert transport.direct_bytes == before
    side.close()
