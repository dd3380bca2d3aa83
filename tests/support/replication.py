"""A master and its slave in this process, and comparisons of their logs, queues and tables."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import Peer, eventually, peer_of, running_broker, running_namesrv
from tianzhou.broker.server import Broker
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.store.message_store import MessageStore

SLAVE: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}


@dataclass(slots=True)
class Pair:
    """A master and a slave of one name, each with a peer; both can be stopped and started again."""

    folder: Path
    namesrv: str
    settings: dict[str, object]
    master: Broker
    slave: Broker
    master_stop: AsyncExitStack
    slave_stop: AsyncExitStack

    async def stop_master(self) -> None:
        await self.master_stop.aclose()

    async def stop_slave(self) -> None:
        await self.slave_stop.aclose()

    async def start_slave(self, **settings: object) -> None:
        self.slave = await self.slave_stop.enter_async_context(
            running_broker(
                self.folder / "slave",
                namesrvAddr=self.namesrv,
                **(self.settings | SLAVE | settings),
            )
        )

    async def start_master(self, **settings: object) -> None:
        self.master = await self.master_stop.enter_async_context(
            running_broker(
                self.folder / "master", namesrvAddr=self.namesrv, **(self.settings | settings)
            )
        )

    async def in_step(self) -> None:
        """Wait until the slave has the master's log."""
        await eventually(
            lambda: self.slave.store.end_log_offset == self.master.store.end_log_offset,
            "the slave at the end of the master's log",
        )


@asynccontextmanager
async def running_pair(folder: Path, **settings: object) -> AsyncGenerator[Pair]:
    """`settings` are those of both brokers; the master's role is among them."""
    async with running_namesrv(folder) as namesrv, AsyncExitStack() as stops:
        master_stop = await stops.enter_async_context(AsyncExitStack())
        slave_stop = await stops.enter_async_context(AsyncExitStack())
        master = await master_stop.enter_async_context(
            running_broker(folder / "master", namesrvAddr=namesrv, **settings)
        )
        slave = await slave_stop.enter_async_context(
            running_broker(folder / "slave", namesrvAddr=namesrv, **(settings | SLAVE))
        )
        yield Pair(folder, namesrv, settings, master, slave, master_stop, slave_stop)


@asynccontextmanager
async def peers(pair: Pair) -> AsyncGenerator[tuple[Peer, Peer]]:
    async with peer_of(pair.master.address) as master, peer_of(pair.slave.address) as slave:
        yield master, slave


async def sent_ok(peer: Peer, topic: str, body: bytes, **options: object) -> Command:
    """Send a message that must be stored and acknowledged."""
    response = await peer.send(topic, body, **options)  # type: ignore[arg-type]
    assert response.code == ResponseCode.SUCCESS, (response.code, response.remark)
    return response


def log_bytes(broker: Broker) -> bytes:
    """The log of a broker, from its first byte to its end."""
    return log_of(broker.store)


def log_of(store: MessageStore) -> bytes:
    """The log of a store, from its first byte to its end."""
    pieces, log_offset = list[bytes](), store.first_log_offset
    while log_offset < store.end_log_offset:
        piece = store.log_slice(log_offset, 1 << 20)
        assert piece is not None
        pieces.append(bytes(piece))
        log_offset += len(piece)
    return b"".join(pieces)


def queue_entries(broker: Broker) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Every entry of every queue."""
    return {
        (queue.topic, queue.queue_id): list(queue.entries(0, queue.next_offset))
        for queue in broker.store.queues.all()
        if queue.next_offset
    }
