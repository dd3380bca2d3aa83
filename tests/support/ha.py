"""Helpers of the tests of replication: hellos, and slaves that do exactly what a test says."""

import asyncio
import socket
from dataclasses import dataclass

from tianzhou.ha.frames import (
    DEFAULT_HEAD,
    HEAD,
    Head,
    encode_default_report,
    encode_opening,
    encode_report,
)

PATIENCE_S = 30.0


@dataclass(frozen=True)
class GivenHello:
    """What a checked hello says."""

    broker_id: int
    end_offset: int
    is_flushed: bool
    store_id: str
    incarnation: int | None = None


def hello(
    broker_id: int = 1, end_offset: int = 2**62, *, is_flushed: bool = False, store_id: str = "1"
) -> GivenHello:
    return GivenHello(broker_id, end_offset, is_flushed, store_id)


HELLO = hello()


class ScriptedSlave:
    """A connection to an HA port that sends and receives what a test says."""

    def __init__(self, sock: socket.socket, *, is_ours: bool) -> None:
        self.sock = sock
        self.is_ours = is_ours
        self.log = bytearray()
        """The bodies that were received, and their first log offset."""
        self.start: int | None = None
        self.heartbeats: list[Head] = []
        self.bodies: list[Head] = []

    @classmethod
    async def connect(
        cls, port: int, token: bytes | None = None, receive_buffer_bytes: int = 0
    ) -> "ScriptedSlave":
        """Apache's, or with a token ours."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        slave = cls(sock, is_ours=token is not None)
        if token is not None:
            await slave.send(encode_opening(token))
        return slave

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def report(self, log_offset: int) -> None:
        await self.send(
            encode_report(log_offset) if self.is_ours else encode_default_report(log_offset)
        )

    async def exactly(self, count: int) -> bytes:
        received = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while len(received) < count:
                loop = asyncio.get_running_loop()
                more = await loop.sock_recv(self.sock, count - len(received))
                if not more:
                    raise EOFError(f"closed after {len(received)} of {count} bytes")
                received += more
        return bytes(received)

    async def frame(self) -> Head:
        """The next frame; its body is appended to `log`, which must end where it begins."""
        if self.is_ours:
            state, size, log_offset, epoch, start, confirm = HEAD.unpack(
                await self.exactly(HEAD.size)
            )
            assert state == 2
            head = Head(log_offset, size, epoch, start, confirm)
        else:
            head = Head(*DEFAULT_HEAD.unpack(await self.exactly(DEFAULT_HEAD.size)))
        if not head.body_bytes:
            self.heartbeats.append(head)
            return head
        if self.start is None:
            self.start = head.log_offset
        assert head.log_offset == self.start + len(self.log), "no gap, no repetition"
        self.log += await self.exactly(head.body_bytes)
        self.bodies.append(head)
        return head

    @property
    def end(self) -> int:
        return (self.start or 0) + len(self.log)

    async def follow(self, end: int, *, reports: bool = True) -> None:
        """Receive the log up to there; like Apache's, with a report for each body."""
        while self.end < end:
            head = await self.frame()
            if head.body_bytes and reports:
                await self.report(self.end)

    async def is_closed(self) -> bool:
        """Read until the master closes; what arrives is dropped."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await loop.sock_recv(self.sock, 1 << 16):
                    pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()
