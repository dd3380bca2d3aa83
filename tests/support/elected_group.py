"""Three brokers of one name as processes, a nameserver, and etcd: they elect their master.

    async with elected_group(tmp_path) as group:
        master = await group.master()          # registered, with everything in sync
        await master.kill()
        other = await group.master(other_than=master)

Only settings of users: no broker has an id or a role of a slave.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.brokers import eventually, peer_of, running_namesrv
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.ports import free_port
from tests.support.replica_processes import Replica
from tianzhou.errors import AuthorityError, RemotingError
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.etcd_client import EtcdClient
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess, parse_endpoints
from tianzhou.ha.authority.etcd_keys import group_keys
from tianzhou.ha.authority.values import View
from tianzhou.names import MASTER_ID
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.bodies.route import ClusterInfo
from tianzhou.protocol.codes import RequestCode, ResponseCode

NAME = "broker-a"
CLUSTER = "DefaultCluster"
PATIENCE_S = 30.0


class ElectedReplica(Replica):
    """A process whose role is decided by election."""

    def identity(self, role: str) -> dict[str, object]:
        """See `Replica`."""
        return {}

    async def run(self) -> None:
        """Start; returns when it accepts connections."""
        await super().start("SYNC_MASTER")


class ElectedGroup:
    """The brokers, and what they are seen to agree on."""

    def __init__(
        self, folder: Path, namesrv: str, etcd: EtcdCluster, settings: dict[str, object], count: int
    ) -> None:
        self.namesrv = namesrv
        self.etcd = etcd
        pairs: dict[str, object] = {
            "haEtcdEndpoints": etcd.endpoints, "namesrvAddr": namesrv, "brokerName": NAME
        } | settings  # fmt: skip
        self.replicas = [
            ElectedReplica(folder / name, pairs, port=free_port(1)) for name in "abc"[:count]
        ]
        access = EtcdAccess(endpoints=parse_endpoints(etcd.endpoints))
        self._authority = EtcdAuthority(EtcdClient(access), group_keys(CLUSTER, NAME))

    async def start(self) -> None:
        """Start all that do not run."""
        await asyncio.gather(*(each.run() for each in self.replicas if each.process is None))

    async def close(self) -> None:
        for each in self.replicas:
            if each.process is not None and each.process.returncode is None:
                await each.kill()
        await self._authority.close()

    # -- what is known -----------------------------------------------------------------------------

    async def view(self) -> View:
        """All keys of the group in etcd."""
        return await self._authority.read()

    def of(self, view: View, replica_id: int | None) -> ElectedReplica | None:
        """The broker with an id."""
        known = view.replicas.get(replica_id) if replica_id else None
        return next((each for each in self.replicas if known and each.address == known.value.addr),
                    None)  # fmt: skip

    async def id_of(self, replica: ElectedReplica) -> int:
        """The id of a broker in the group."""
        view = await self.view()
        return next(
            id for id, known in view.replicas.items() if known.value.addr == replica.address
        )

    async def in_sync(self, replicas: Iterable[ElectedReplica]) -> None:
        """Wait until these, and no others, are in sync."""
        wanted = {each.address for each in replicas}

        async def is_so() -> bool:
            try:
                view = await self.view()
            except AuthorityError:
                return False
            members = view.state.in_sync if view.state else ()
            return {view.replicas[each].value.addr for each in members} == wanted

        await eventually(is_so, f"{wanted} in sync", PATIENCE_S)

    async def registered_master(self) -> str | None:
        """The address of the master in routes."""
        async with peer_of(self.namesrv) as peer:
            response = await peer.expect(RequestCode.GET_BROKER_CLUSTER_INFO)
        known = bodies.decode(ClusterInfo, response.body).brokers.get(NAME)
        return (known.addresses or {}).get(MASTER_ID) if known else None

    async def master(self, *, other_than: ElectedReplica | None = None) -> ElectedReplica:
        """Wait for a registered master that has said so in etcd."""
        found: ElectedReplica | None = None

        async def is_there() -> bool:
            nonlocal found
            address = await self.registered_master()
            found = next((each for each in self.replicas if each.address == address), None)
            return found is not None and found is not other_than

        await eventually(is_there, "a registered master", PATIENCE_S)
        assert found is not None
        return found

    async def accepting_master(self) -> ElectedReplica:
        """Wait until a registered master answers a send with SEND_OK."""
        found: ElectedReplica | None = None

        async def is_there() -> bool:
            nonlocal found
            address = await self.registered_master()
            found = next((each for each in self.replicas if each.address == address), None)
            return found is not None and await self.send(found) == ResponseCode.SUCCESS

        await eventually(is_there, "a master that accepts messages", PATIENCE_S)
        assert found is not None
        return found

    async def send(self, replica: ElectedReplica, body: bytes = b"x") -> int:
        """The response code of a send; -1 if there is no answer."""
        try:
            async with peer_of(replica.address) as peer:
                return (await peer.send("probes", body, queue_count=1)).code
        except RemotingError:
            return -1

    async def accepts(self, replica: ElectedReplica, code: int = 0) -> None:
        """Wait until a send ends with this code."""

        async def is_so() -> bool:
            return await self.send(replica) == code

        await eventually(is_so, f"a send with code {code}", PATIENCE_S)

    async def equal_logs(self, master: ElectedReplica) -> int:
        """Wait until all have the same log, and compare it byte for byte; returns its end."""
        status = HARuntimeInfo()

        async def are_in_step() -> bool:
            nonlocal status
            status = await master.status()
            ends = [each.slave_ack_offset for each in status.connections]
            return ends == [status.master_max_offset] * (len(self.replicas) - 1)

        await eventually(are_in_step, "all at the end of the master's log", PATIENCE_S)
        logs = [each.log_bytes(status.master_max_offset) for each in self.replicas]
        assert all(each == logs[0] for each in logs), "the logs differ"
        return status.master_max_offset


class Stopwatch:
    """How long something took, in seconds."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s


@asynccontextmanager
async def elected_group(
    folder: Path, count: int = 3, etcd_count: int = 1, **settings: object
) -> AsyncGenerator[ElectedGroup]:
    """A started group; its processes are killed at the end."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(etcd_cluster(folder / "etcd", etcd_count))
        namesrv = await stack.enter_async_context(running_namesrv(folder / "namesrv"))
        group = ElectedGroup(folder, namesrv, etcd, settings, count)
        stack.push_async_callback(group.close)
        await group.start()
        yield group
