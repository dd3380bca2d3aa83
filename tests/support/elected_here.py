"""Brokers of one name in this process, with a real etcd: they elect their master.

    async with elected_here(tmp_path) as group:
        await group.everything_in_sync()
        ran = await group.cli.run("broker", "group", "broker-a")

Cheaper than the processes of `elected_group`; for what operators see and ask for.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import eventually, running_broker, running_namesrv
from tests.support.command_line import Cli
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.ports import free_port
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.server import Broker
from tianzhou.ha.authority.values import GroupState

NAME = "broker-a"
PATIENCE_S = 30.0


@dataclass
class ElectedHere:
    """The brokers; a stopped one is None."""

    cli: Cli
    etcd: EtcdCluster
    folder: Path
    settings: dict[str, object]
    stacks: list[AsyncExitStack]
    brokers: list[Broker | None]

    async def start(self, number: int, **settings: object) -> Broker:
        """Start the broker with this number, with the store that it had."""
        stack = AsyncExitStack()
        broker = await stack.enter_async_context(
            running_broker(
                self.folder / f"store-{number}", listenPort=free_port(1), brokerName=NAME,
                namesrvAddr=self.cli.namesrv, haEtcdEndpoints=self.etcd.endpoints,
                vipListenEnable="false", brokerRole="SYNC_MASTER", **(self.settings | settings),
            )
        )  # fmt: skip
        self.stacks[number], self.brokers[number] = stack, broker
        return broker

    async def stop(self, number: int) -> None:
        """Stop it: a master hands over first."""
        self.brokers[number] = None
        await self.stacks[number].aclose()

    # -- what is known -----------------------------------------------------------------------------

    @property
    def running(self) -> list[Broker]:
        return [each for each in self.brokers if each is not None]

    def failover(self, broker: Broker) -> Failover:
        """What decides about the role of a broker."""
        failover = broker.failover
        assert failover is not None
        return failover

    def id_of(self, broker: Broker) -> int:
        return self.failover(broker).role.id

    def number_of(self, replica_id: int) -> int:
        """Of the broker with an id."""
        for number, broker in enumerate(self.brokers):
            if broker is not None and self.id_of(broker) == replica_id:
                return number
        raise AssertionError(f"no running replica {replica_id}")

    def broker_of(self, replica_id: int) -> Broker:
        broker = self.brokers[self.number_of(replica_id)]
        assert broker is not None
        return broker

    @property
    def master(self) -> Broker | None:
        """The one that leads and accepts messages."""
        return next(
            (
                each for each in self.running
                if self.failover(each).is_master and each.serving.writes is None
            ), None,
        )  # fmt: skip

    @property
    def state(self) -> GroupState | None:
        """As the master sees it, or any."""
        chosen = self.master or self.running[0]
        return self.failover(chosen).role.state

    async def has_master(self, *, other_than: int = 0) -> Broker:
        """Wait for a master."""
        await eventually(
            lambda: self.master is not None and self.id_of(self.master) != other_than,
            "a master", PATIENCE_S,
        )  # fmt: skip
        assert self.master is not None
        return self.master

    async def in_sync(self, count: int) -> GroupState:
        """Wait until all running brokers see a master with so many in sync, itself included."""

        def is_so() -> bool:
            states = [self.failover(each).role.state for each in self.running]
            seen = {(each.epoch, each.in_sync) for each in states if each is not None}
            is_agreed = len(seen) == 1 and None not in states
            return self.master is not None and is_agreed and len(next(iter(seen))[1]) == count

        await eventually(is_so, f"{count} in sync", PATIENCE_S)
        state = self.state
        assert state is not None
        return state


@asynccontextmanager
async def elected_here(
    folder: Path, count: int = 3, **settings: object
) -> AsyncGenerator[ElectedHere]:
    """Started brokers; all are stopped at the end."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(etcd_cluster(folder / "etcd"))
        namesrv = await stack.enter_async_context(running_namesrv(folder / "namesrv"))
        group = ElectedHere(
            Cli(namesrv), etcd, folder, settings,
            [AsyncExitStack() for _ in range(count)], [None] * count,
        )  # fmt: skip

        async def stop_all() -> None:
            for each in group.stacks:
                await each.aclose()

        stack.push_async_callback(stop_all)
        for number in range(count):
            await group.start(number)
        yield group
