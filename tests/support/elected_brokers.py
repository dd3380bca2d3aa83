"""Brokers in this process whose roles are decided by election, with a real etcd.

async with group_of(tmp_path, etcd, 3) as group:
    master = await group.master()
    await group.in_sync(master, 3)
    await failover(master).ask(Switch(), "a test")
"""

import itertools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.brokers import Peer, eventually, running_broker, running_namesrv
from tests.support.etcd import EtcdCluster
from tests.support.ports import free_port
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.server import Broker

_names = (f"broker-{number}" for number in itertools.count())


class Group:
    """Brokers of one name; `start` adds one, or starts one again in its store."""

    def __init__(
        self, folder: Path, namesrv: str, etcd: EtcdCluster, settings: dict[str, object]
    ) -> None:
        self.folder = folder
        self.name = next(_names)
        self.settings: dict[str, object] = {
            "namesrvAddr": namesrv, "haEtcdEndpoints": etcd.endpoints, "brokerName": self.name,
            "brokerRole": "SYNC_MASTER", "vipListenEnable": "false",
        } | settings  # fmt: skip
        self.stack = AsyncExitStack()
        self.brokers: list[Broker] = []
        self._numbers = itertools.count()

    async def start(self, folder: str = "", **settings: object) -> Broker:
        """In a folder, or in a new one."""
        folder = folder or f"store-{next(self._numbers)}"
        pairs = self.settings | {"listenPort": free_port(1)} | settings
        broker = await self.stack.enter_async_context(running_broker(self.folder / folder, **pairs))
        self.brokers.append(broker)
        return broker

    async def master(self, *, other_than: Broker | None = None) -> Broker:
        """Wait for a registered master."""

        def found() -> Broker | None:
            return next(
                (
                    each
                    for each in self.brokers
                    if failover(each).is_master and each is not other_than and each.registered_with
                ),
                None,
            )

        await eventually(found, "a master")
        master = found()
        assert master is not None
        return master

    async def in_sync(self, master: Broker, count: int) -> None:
        def members() -> int:
            session = failover(master).role.session
            return len(session.counted.in_force) if session else 0

        await eventually(lambda: members() == count, f"{count} in sync")


def failover(broker: Broker) -> Failover:
    """The driver of a broker."""
    assert broker.failover is not None
    return broker.failover


@asynccontextmanager
async def group_of(
    folder: Path,
    etcd: EtcdCluster,
    count: int = 2,
    commands: dict[str, object] | None = None,
    namesrv_settings: dict[str, object] | None = None,
    **settings: object,
) -> AsyncGenerator[Group]:
    async with running_namesrv(folder / "namesrv", **(namesrv_settings or {})) as namesrv:
        group = Group(folder, namesrv, etcd, settings | (commands or {}))
        async with group.stack:
            for _ in range(count):
                await group.start()
            yield group


async def send_until(peer: Peer, code: int) -> str:
    """Send until the response has this code; returns its remark."""
    remark = ""

    async def is_so() -> bool:
        nonlocal remark
        response = await peer.send("t", b"body")
        remark = response.remark or ""
        return response.code == code

    await eventually(is_so, f"a response with code {code}")
    return remark
