"""A master and its slave as processes, started with a configuration file, killed at any moment.

    pair = ReplicaPair(tmp_path, flushDiskType="SYNC_FLUSH")
    await pair.start("SYNC_MASTER")
    pair.master.kill()
    await pair.promote()          # the slave is the master now, and its former master is gone
    await pair.start_fresh_slave()

There is no nameserver: the slave has `haMasterAddress`.
"""

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.brokers import DEADLINE_S, LOOPBACK, SMALL, eventually, peer_of
from tests.support.ports import free_port
from tianzhou.ha.epochs import EpochFile
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.store.config import StoreConfig

LOG_FILE_BYTES = 1024 * 1024
TINY: dict[str, object] = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "maxMessageSize": 64 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 500,
}
"""Files that roll often, and are quickly made and copied."""


@dataclass
class Replica:
    """One broker: its folder, its ports, and its process while it runs."""

    folder: Path
    settings: dict[str, object]
    port: int = field(default_factory=lambda: free_port(1))
    process: asyncio.subprocess.Process | None = None
    host: str = LOOPBACK
    prefix: tuple[str, ...] = ()
    """Before the command: `ip netns exec NAME`, for example."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def ha_port(self) -> int:
        return self.port + 1

    async def start(self, role: str, master: str | None = None) -> None:
        """`master` is the HA address of the master of a slave."""
        output = await self.begin(role, master)
        async with asyncio.timeout(DEADLINE_S):
            while b"boot success" not in (line := await output.readline()):
                assert line, self.log_text()[-2000:]

    def identity(self, role: str) -> dict[str, object]:
        """Settings that say which of the brokers of its name this one is."""
        return {"brokerId": 1 if role == "SLAVE" else 0}

    async def begin(self, role: str, master: str | None = None) -> asyncio.StreamReader:
        """Start without waiting; returns its output."""
        store = self.folder / "store"
        store.mkdir(parents=True, exist_ok=True)
        pairs = SMALL | TINY | self.settings | {
            "listenPort": self.port, "storePathRootDir": store, "vipListenEnable": "false",
            "bindAddress": self.host, "brokerIP1": self.host,
            "brokerRole": role, **self.identity(role),
        }  # fmt: skip
        if master is not None:
            pairs["haMasterAddress"] = master
        path = self.folder / "broker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in pairs.items()))
        with (self.folder / "broker.log").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.prefix, sys.executable, "-m", "tianzhou.cli.serve.broker", "-c", str(path),
                stdout=asyncio.subprocess.PIPE, stderr=output,
            )  # fmt: skip
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send_signal(self, sign: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(sign)

    async def end(self, sign: signal.Signals) -> None:
        """Send a signal, and wait until the process has ended."""
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(sign)
        await asyncio.wait_for(process.wait(), DEADLINE_S)

    async def kill(self) -> None:
        await self.end(signal.SIGKILL)

    async def stop(self) -> None:
        await self.end(signal.SIGTERM)

    def log_text(self) -> str:
        return (self.folder / "broker.log").read_text()

    # -- requests ----------------------------------------------------------------------------------

    async def status(self) -> HARuntimeInfo:
        async with peer_of(self.address) as peer:
            response = await peer.expect(RequestCode.GET_BROKER_HA_STATUS)
            return bodies.decode(HARuntimeInfo, response.body)

    async def promote(self, role: str, *, force: bool = False) -> Command:
        async with peer_of(self.address) as peer:
            fields = {"role": role, "force": str(force).lower()}
            return await peer.ask(RequestCode.CHANGE_BROKER_ROLE, fields)

    # -- files -------------------------------------------------------------------------------------

    def config(self, root: Path | None = None) -> StoreConfig:
        """Settings with which a test opens its store, or a copy of it."""
        pairs = SMALL | TINY
        return StoreConfig(
            store_path_root_dir=root or self.folder / "store",
            mapped_file_size_commit_log=LOG_FILE_BYTES,
            mapped_file_size_consume_queue=int(str(pairs["mappedFileSizeConsumeQueue"])),
            max_hash_slot_num=int(str(pairs["maxHashSlotNum"])),
            max_index_num=int(str(pairs["maxIndexNum"])),
            delete_when="25",
        )

    def log_bytes(self, stop: int, start: int = 0) -> bytes:
        """A part of its log, as it is in its files."""
        folder, pieces = self.config().log_directory, list[bytes]()
        while start < stop:
            first = start - start % LOG_FILE_BYTES
            with (folder / f"{first:020}").open("rb") as file:
                file.seek(start - first)
                pieces.append(file.read(min(stop, first + LOG_FILE_BYTES) - start))
            start = first + LOG_FILE_BYTES
        return b"".join(pieces)

    def saved_topics(self) -> set[str]:
        """The topics in its file."""
        path = self.folder / "store" / "config" / "topics.json"
        if not path.exists():
            return set()
        return set(bodies.decode(TopicConfigTable, path.read_bytes()).topics)

    @property
    def epoch_start(self) -> int:
        """Where its newest epoch begins: the end of its log when it became the master."""
        return EpochFile(self.folder / "store").epochs[-1].start


class ReplicaPair:
    """Two brokers of one name."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.master = Replica(folder / "a", settings)
        self.slave = Replica(folder / "b", settings)
        self.role = "SYNC_MASTER"
        self.master_address: str | None = None
        """The HA address that the slave is told; that of the master by default."""

    async def start(self, role: str) -> None:
        self.role = role
        await self.master.start(role)
        await self.start_slave()

    @property
    def followed_address(self) -> str:
        return self.master_address or f"{LOOPBACK}:{self.master.ha_port}"

    async def start_slave(self) -> None:
        await self.slave.start("SLAVE", self.followed_address)

    async def start_fresh_slave(self) -> None:
        """The slave starts with an empty store."""
        shutil.rmtree(self.slave.folder)
        await self.start_slave()

    def swap(self) -> None:
        """The slave has become the master."""
        self.master, self.slave = self.slave, self.master

    async def promote(self) -> None:
        """Promote the slave by request, as soon as it has noticed that its master is gone."""

        async def is_promoted() -> bool:
            response = await self.slave.promote(self.role)
            if response.code != ResponseCode.SUCCESS:
                assert "living master" in (response.remark or ""), response.remark
            return response.code == ResponseCode.SUCCESS

        await eventually(is_promoted, "a promotion")
        self.swap()

    async def restart_as_master(self, sign: signal.Signals) -> None:
        """Stop the slave, and start it with the master's role in its configuration."""
        await self.slave.end(sign)
        await self.slave.start(self.role)
        self.swap()

    async def in_step(self) -> int:
        """Wait until the slave has reported the end of the master's log; returns the end."""
        status = HARuntimeInfo()

        async def are_equal() -> bool:
            nonlocal status
            status = await self.master.status()
            return [each.slave_ack_offset for each in status.connections] == [
                status.master_max_offset
            ]

        await eventually(are_equal, "the slave at the end of the master's log")
        return status.master_max_offset

    async def knows_topics(self, topics: Iterable[str]) -> None:
        """Wait until the slave has saved these topics, which it copies every second.

        A slave that is killed between the copy and the save does not have them when it starts.
        """
        wanted = set(topics)
        await eventually(lambda: wanted <= self.slave.saved_topics(), f"saved topics {wanted}")

    async def kill_all(self) -> None:
        for each in (self.master, self.slave):
            if each.process is not None:
                await each.kill()


@asynccontextmanager
async def replica_pair(
    folder: Path, role: str = "", **settings: object
) -> AsyncGenerator[ReplicaPair]:
    """A pair, started if there is a role; killed at the end."""
    pair = ReplicaPair(folder, **settings)
    try:
        if role:
            await pair.start(role)
        yield pair
    finally:
        await pair.kill_all()
