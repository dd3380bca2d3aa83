"""`inSyncReplicas`, `slaveTimeout` and `haSlaveFallbehindMax` of a SYNC_MASTER with two slaves.

The three brokers are processes; a slave that is stopped by a signal is one that the network has
lost, or whose host hangs.
"""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.brokers import LOOPBACK, Peer, eventually, peer_of
from tests.support.replica_processes import Replica

from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.message_id import decode_offset_id

BEHIND_BYTES_MAX = 100_000
SETTINGS: dict[str, object] = {
    "inSyncReplicas": 3, "slaveTimeout": 500, "haSlaveFallbehindMax": BEHIND_BYTES_MAX,
}  # fmt: skip


class SecondSlave(Replica):
    def identity(self, role: str) -> dict[str, object]:
        return {"brokerId": 2}


@dataclass
class Three:
    """A master, which wants its log on both slaves."""

    master: Replica
    slaves: tuple[Replica, Replica]
    peer: Peer

    async def send(self, body: bytes = b"x") -> Command:
        return await self.peer.send("t", body, queue_count=1)

    async def ends_with(self, code: ResponseCode) -> None:
        """Wait until a send ends so."""

        async def is_equal() -> bool:
            return (await self.send()).code == code

        await eventually(is_equal, f"a send that ends with {code.name}")

    async def start_slave(self, number: int) -> None:
        await self.slaves[number].start("SLAVE", f"{LOOPBACK}:{self.master.ha_port}")

    async def end_of(self, number: int) -> int:
        return (await self.slaves[number].status()).client.max_offset


@asynccontextmanager
async def three(folder: Path) -> AsyncGenerator[Three]:
    brokers = [
        Replica(folder / "a", SETTINGS), Replica(folder / "b", {}), SecondSlave(folder / "c", {}),
    ]  # fmt: skip
    master, first, second = brokers
    try:
        await master.start("SYNC_MASTER")
        async with peer_of(master.address) as peer:
            it = Three(master, (first, second), peer)
            await it.start_slave(0)
            yield it
    finally:
        for each in brokers:
            if each.process is not None:
                await each.kill()


async def test_a_send_waits_for_as_many_copies_as_are_wanted(tmp_path: Path) -> None:
    async with three(tmp_path) as it:

        async def first_follows() -> bool:
            await it.send()
            return await it.end_of(0) == (await it.master.status()).master_max_offset > 0

        await eventually(first_follows, "the first slave at the end of the log")
        assert (await it.send()).code == ResponseCode.SLAVE_NOT_AVAILABLE
        await it.start_slave(1)
        await it.ends_with(ResponseCode.SUCCESS)
        for _ in range(20):
            sent = await it.send()
            assert sent.code == ResponseCode.SUCCESS, sent
            log_offset = decode_offset_id(sent.fields["msgId"])[1]
            assert await it.end_of(0) > log_offset
            assert await it.end_of(1) > log_offset
        await it.slaves[1].kill()
        await it.ends_with(ResponseCode.SLAVE_NOT_AVAILABLE)


async def test_a_slave_that_hangs_is_waited_for_until_it_is_too_far_behind(tmp_path: Path) -> None:
    async with three(tmp_path) as it:
        await it.start_slave(1)
        await it.ends_with(ResponseCode.SUCCESS)
        it.slaves[1].send_signal(signal.SIGSTOP)
        stopped = psutil.Process(it.slaves[1].pid)
        await eventually(lambda: stopped.status() == psutil.STATUS_STOPPED, "a stopped slave")
        assert (await it.send()).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        body = bytes(BEHIND_BYTES_MAX // 2)
        codes = [(await it.send(body)).code for _ in range(4)]
        late, not_awaited = ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE
        assert codes == [late, not_awaited, not_awaited, not_awaited]
        it.slaves[1].send_signal(signal.SIGCONT)
        await it.ends_with(ResponseCode.SUCCESS)
        assert await it.end_of(1) == (await it.master.status()).master_max_offset
