"""Foreign connections to all HA ports of a group while its master is killed and comes back.

They neither delay the election beyond its limits nor count as replicas: nothing acknowledged is
lost, and the members are the same at the end.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.brokers import LOOPBACK, eventually
from tests.support.elected_group import ElectedGroup, ElectedReplica, elected_group
from tests.support.replicated_load import Load, missing

from tianzhou.ha.frames import OPENING, TOKEN_BYTES

PEERS = 12
"""At each port, one connection after the other."""
OPEN_S_MAX = 0.3


class Foreign:
    """Connections that are no slaves: noise, lies, false tokens, parts of frames, and silence."""

    def __init__(self) -> None:
        self.opened = dict[int, int]()
        """Connections by HA port."""
        self._dice = random.Random(21)

    def _bytes(self) -> bytes:
        dice = self._dice
        false_token = OPENING + dice.randbytes(TOKEN_BYTES)
        lie = struct.pack(">q", dice.choice((-1, 0, 1, 2**62, -(2**63))))
        reports = lie + struct.pack(">iq", 2, 2**62)
        return dice.choice((
            b"", dice.randbytes(dice.randrange(1, 3000)), lie, lie * 200, false_token + reports,
            OPENING, false_token[: dice.randrange(1, len(false_token))], b"GET / HTTP/1.1\r\n\r\n",
        ))  # fmt: skip

    async def _go_on(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.01)
            with socket.socket() as sock, suppress(OSError):
                sock.setblocking(False)
                await loop.sock_connect(sock, (LOOPBACK, port))
                self.opened[port] = self.opened.get(port, 0) + 1
                await loop.sock_sendall(sock, self._bytes())
                await asyncio.sleep(self._dice.uniform(0, OPEN_S_MAX))

    @asynccontextmanager
    async def at(self, replicas: list[ElectedReplica]) -> AsyncGenerator[None]:
        """Connect to all of them until the end of the block."""
        tasks = [
            asyncio.create_task(self._go_on(each.ha_port))
            for each in replicas
            for _ in range(PEERS)
        ]
        try:
            yield
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_foreign_connections_do_not_disturb_an_election(tmp_path: Path) -> None:
    load, foreign = Load(), Foreign()
    async with elected_group(tmp_path) as group, foreign.at(group.replicas):
        first = await group.accepting_master()
        await group.in_sync(group.replicas)
        async with load.running(first.address, seed=1):
            await load.reach(200)
            await first.kill()
        second = await group.master(other_than=first)
        await group.accepts(second)
        before = foreign.opened.get(second.ha_port, 0)
        await eventually(
            lambda: foreign.opened.get(second.ha_port, 0) > before + PEERS,
            "connections to the port of the new master",
        )
        assert not await missing(second.address, load)
        await _is_whole_again(group, first, second)


async def _is_whole_again(
    group: ElectedGroup, first: ElectedReplica, second: ElectedReplica
) -> None:
    await first.run()
    await group.in_sync(group.replicas)
    assert sorted((await group.view()).replicas) == [1, 2, 3]
    assert await group.registered_master() == second.address, "no further election"
