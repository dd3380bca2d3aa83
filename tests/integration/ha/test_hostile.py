"""Peers of the HA port of a broker process that are no slaves, or bad ones, in both protocols.

Meanwhile a producer sends: every send is answered as before, none is acknowledged, and the broker
needs no more memory and descriptors than a few connections cost.
"""

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from tests.support.brokers import LOOPBACK, SMALL, Peer, eventually, peer_of
from tests.support.replica_processes import LOG_FILE_BYTES, Replica

from tianzhou.ha.frames import OPENING, TOKEN_BYTES, encode_opening
from tianzhou.ha.hello import Broker, LogState, make_request, read_response
from tianzhou.limits import HA_CONNECTIONS_MAX
from tianzhou.protocol.codes import ResponseCode

CONNECTIONS = 1000
EACH = 100
"""Connections of the other attacks."""
GROWN_BYTES_MAX = 48 * 1024 * 1024
OF_STORE_MAX = 16
"""Descriptors of files that the store opens meanwhile."""
DESCRIPTORS_MAX = HA_CONNECTIONS_MAX + OF_STORE_MAX
SENDS = 100
PROTOCOLS = pytest.mark.parametrize("is_ours", [False, True], ids=["default", "ours"])
SLAVE = Broker(cluster="DefaultCluster", name=str(SMALL["brokerName"]), id=1, store_id="1" * 32)
EMPTY = LogState(first_offset=0, end_offset=0, file_bytes=LOG_FILE_BYTES)


class Usage(NamedTuple):
    rss_bytes: int
    descriptors: int


def usage_of(broker: Replica) -> Usage:
    process = psutil.Process(broker.pid)
    return Usage(process.memory_info().rss, process.num_fds())


class Attack:
    """Connections to the HA port of a broker."""

    def __init__(self, broker: Replica, peer: Peer, *, is_ours: bool) -> None:
        self.broker = broker
        self.is_ours = is_ours
        self.dice = random.Random(int(is_ours))
        self._peer = peer
        self._sockets: list[socket.socket] = []

    async def connect(self, data: bytes = b"") -> socket.socket:
        """A connection that begins with these bytes, and never reads."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sockets.append(sock)
        await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, self.broker.ha_port))
        await self.send(sock, data)
        return sock

    async def send(self, sock: socket.socket, data: bytes) -> None:
        with suppress(OSError):  # the broker may have closed it
            await asyncio.get_running_loop().sock_sendall(sock, data)

    async def opening(self) -> bytes:
        """What a slave begins with: nothing, or in our protocol a valid token."""
        if not self.is_ours:
            return b""
        request = make_request(SLAVE, EMPTY, "")
        response = await self._peer.expect(request.code, dict(request.fields))
        return encode_opening(read_response(response).token or b"")

    def report(self, log_offset: int) -> bytes:
        if self.is_ours:
            return struct.pack(">iq", 2, log_offset)
        return struct.pack(">q", log_offset)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


# -- attacks ---------------------------------------------------------------------------------------


async def random_bytes(attack: Attack) -> None:
    for number in range(EACH):
        opening = await attack.opening() if number % 2 else b""
        await attack.connect(opening + attack.dice.randbytes(attack.dice.randrange(1, 5000)))


async def lying_positions(attack: Attack) -> None:
    end = (await attack.broker.status()).master_max_offset
    for number in range(EACH):
        lie = attack.dice.choice((-1, -(2**63), 2**63 - 1, end + 10**9))
        first = b"" if number % 2 else attack.report(attack.dice.randrange(end))
        await attack.connect(await attack.opening() + first + attack.report(lie))


async def lying_tokens(attack: Attack) -> None:
    for _ in range(EACH):
        token = attack.dice.randbytes(TOKEN_BYTES)
        await attack.connect(OPENING + token + attack.report(0))


async def half_frames(attack: Attack) -> None:
    for _ in range(EACH):
        whole = await attack.opening() + attack.report(0)
        await attack.connect(whole[: attack.dice.randrange(len(whole))])


async def a_thousand_connections(attack: Attack) -> None:
    for _ in range(CONNECTIONS):
        await attack.connect()


ATTACKS = [random_bytes, lying_positions, lying_tokens, half_frames, a_thousand_connections]


# -- the broker meanwhile --------------------------------------------------------------------------


@asynccontextmanager
async def attacked(
    folder: Path, role: str, *, is_ours: bool, **settings: object
) -> AsyncGenerator[tuple[Attack, Peer]]:
    broker = Replica(folder / "broker", settings)
    await broker.start(role)
    try:
        async with peer_of(broker.address) as peer, peer_of(broker.address) as sender:
            attack = Attack(broker, peer, is_ours=is_ours)
            for _ in range(20):
                await sender.send("t", bytes(1000), queue_count=1)
            try:
                yield attack, sender
            finally:
                attack.close()
    finally:
        await broker.kill()


async def codes_meanwhile(sender: Peer, attacking: Awaitable[None]) -> Counter[int]:
    """The responses to sends during an attack, and for some time after it."""
    codes = Counter[int]()
    task = asyncio.ensure_future(attacking)
    while not task.done() or codes.total() < SENDS:
        codes[(await sender.send("t", bytes(1000), queue_count=1)).code] += 1
    await task
    return codes


async def is_bounded(attack: Attack, before: Usage) -> None:
    """Asserts the limits, and that everything is released when the peers are gone."""
    now = usage_of(attack.broker)
    assert now.rss_bytes - before.rss_bytes < GROWN_BYTES_MAX
    assert now.descriptors - before.descriptors <= DESCRIPTORS_MAX
    attack.close()

    def released() -> bool:
        return usage_of(attack.broker).descriptors - before.descriptors <= OF_STORE_MAX

    await eventually(released, "closed connections")


@PROTOCOLS
@pytest.mark.parametrize("attack_by", ATTACKS)
async def test_foreign_peers_change_nothing(
    tmp_path: Path, is_ours: bool, attack_by: Callable[[Attack], Awaitable[None]]
) -> None:
    async with attacked(tmp_path, "SYNC_MASTER", is_ours=is_ours) as (attack, sender):
        before = usage_of(attack.broker)
        codes = await codes_meanwhile(sender, attack_by(attack))
        assert set(codes) == {ResponseCode.SLAVE_NOT_AVAILABLE}, codes
        await is_bounded(attack, before)


@PROTOCOLS
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_slaves_that_never_read_acknowledge_nothing(
    tmp_path: Path, is_ours: bool, role: str
) -> None:
    """By all that can be seen they are slaves, so a SYNC_MASTER waits until its time-out."""
    settings = {"slaveTimeout": 20, "haAllowedAddresses": LOOPBACK}
    async with attacked(tmp_path, role, is_ours=is_ours, **settings) as (attack, sender):
        for _ in range(300):
            await sender.send("t", bytes(60_000), queue_count=1)
        before = usage_of(attack.broker)

        async def slow_readers() -> None:
            for _ in range(EACH):
                await attack.connect(await attack.opening() + attack.report(0))

        codes = await codes_meanwhile(sender, slow_readers())
        expected = (
            {ResponseCode.SUCCESS}
            if role == "ASYNC_MASTER"
            else {ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
        )
        assert set(codes) <= expected, codes
        await is_bounded(attack, before)
