"""Scenarios of failover on hosts of their own: three etcd, three brokers, clients on any host.

    async with scenario(tmp_path, goal=3_000) as it:
        await it.reach(0.3)                 # of the goal, acknowledged
        master = await it.group.master()
        await master.kill()
        report = await it.finish()          # everything runs again, and all is compared

Hosts: e1, e2, e3 for etcd; a, b, c for the brokers; the test itself with the nameserver.
"""

import asyncio
import itertools
import logging
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support import failover_load
from tests.support.brokers import eventually, peer_of, running_namesrv
from tests.support.elected_group import ElectedGroup, ElectedReplica
from tests.support.etcd import Etcd, EtcdCluster, etcd_cluster
from tests.support.namespaces import OUTSIDE, Network, network
from tests.support.replicated_load import messages_of
from tianzhou.protocol import fastjson
from tianzhou.protocol.codes import RequestCode

log = logging.getLogger(__name__)

TOPIC = "orders"
PATIENCE_S = 180.0
BROKERS = ("a", "b", "c")
ETCDS = ("e1", "e2", "e3")
TABLES_S = 40.0
"""Slaves ask for tables every 10 s, if nothing has changed."""
Table = dict[str, Any]
_END_S = 20.0
_TABLES = (
    (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable"),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
    (RequestCode.GET_ALL_DELAY_OFFSET, "offsetTable"),
)
_PAGE = {
    "topicSeq": "0", "maxTopicNum": "10000", "groupSeq": "0", "maxGroupNum": "10000",
    "dataVersion": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A batch that was answered with SEND_OK."""

    lane: int
    sequence: int
    count: int
    queue_id: int
    queue_offset: int
    at_s: float


class LoadProcess:
    """A program of `failover_load` that runs."""

    def __init__(
        self, kind: str, name: str, path: Path, process: asyncio.subprocess.Process
    ) -> None:
        self.kind = kind
        self.name = name
        self.path = path
        self.process = process

    def lines(self) -> list[str]:
        """The complete ones."""
        text = self.path.read_text() if self.path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def acknowledged(self) -> list[Acknowledged]:
        """By a producer, in order of time."""
        return [
            Acknowledged(int(a), int(b), int(c), int(d), int(e), float(f))
            for a, b, c, d, e, f in (line.split() for line in self.lines())
        ]

    def received(self) -> list[tuple[int, int]]:
        """By a consumer: queues and offsets."""
        return [(int(each[0]), int(each[1])) for each in (line.split() for line in self.lines())]

    @property
    def count(self) -> int:
        """Acknowledged, or received."""
        return len(self.lines()) * (failover_load.BATCH if self.kind == "send" else 1)

    def longest_gap_s(self, since_s: float = 0.0) -> float:
        """Between two acknowledgements, of which the later one is after a moment."""
        times = [each.at_s for each in self.acknowledged()]
        times = times[max(bisect_left(times, since_s) - 1, 0) :]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)

    async def stop(self) -> None:
        """Let it end."""
        if self.process.returncode is not None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _END_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def start_load(
    folder: Path, kind: str, namesrv: str, name: str, prefix: Sequence[str] = ()
) -> LoadProcess:
    """Start a producer ("send") or a consumer ("receive"); its files are in the folder."""
    path = folder / f"{kind}-{name}.txt"
    with (folder / f"{kind}-{name}.log").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *prefix, sys.executable, "-m", "tests.support.failover_load",
            kind, namesrv, TOPIC, name, str(path),
            stdin=asyncio.subprocess.PIPE, stdout=errors, stderr=errors,
        )  # fmt: skip
    return LoadProcess(kind, name, path, process)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a scenario."""

    acknowledged: int
    repeated: int
    """Stored again because the first answer was lost."""
    longest_gap_s: float
    log_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, 0 lost, {self.repeated} repeated, longest gap "
            f"{self.longest_gap_s:.2f} s, {self.log_bytes} equal bytes of log"
        )


class ScenarioGroup(ElectedGroup):
    """Each broker on a host of its own."""

    def __init__(
        self, folder: Path, namesrv: str, etcd: EtcdCluster, settings: dict[str, object],
        net: Network,
    ) -> None:  # fmt: skip
        super().__init__(folder, namesrv, etcd, settings, len(BROKERS))
        for each in self.replicas:
            host = net[each.folder.name]
            each.host, each.prefix = host.address, host.prefix


class OtherLoad(Protocol):
    """A load of other clients, which a scenario waits for and ends with its own."""

    async def reach_share(self, share: float) -> None:
        """Wait until so much of its goal is acknowledged."""
        ...

    async def stop_sending(self) -> None: ...


class Scenario:
    """The group, the network and the loads."""

    def __init__(self, folder: Path, net: Network, group: ScenarioGroup, goal: int) -> None:
        self.folder = folder
        self.net = net
        self.group = group
        self.goal = goal
        self.loads: list[LoadProcess] = []
        self.others: list[OtherLoad] = []

    @property
    def etcd(self) -> EtcdCluster:
        return self.group.etcd

    # -- load --------------------------------------------------------------------------------------

    async def start_load(self, kind: str, name: str, host: str = OUTSIDE) -> LoadProcess:
        """A producer ("send") or a consumer ("receive") on a host."""
        load = await start_load(self.folder, kind, self.group.namesrv, name, self.net[host].prefix)
        self.loads.append(load)
        return load

    async def ready_burst(self, replica: ElectedReplica, name: str) -> LoadProcess:
        """Messages for a broker from its own host, sent when the burst is stopped."""
        folder, host = self.folder, self.net[self.host_of(replica)]
        return await start_load(folder, "burst", replica.address, name, host.prefix)

    @property
    def producers(self) -> list[LoadProcess]:
        return [each for each in self.loads if each.kind == "send"]

    @property
    def count(self) -> int:
        """Messages acknowledged up to now."""
        return sum(each.count for each in self.producers)

    async def reach(self, share: float) -> None:
        """Wait until so much of the goal is acknowledged, also by other loads."""
        await self._wait(lambda: self.count >= share * self.goal, f"{share} of {self.goal}")
        for other in self.others:
            await other.reach_share(share)

    async def more(self, load: LoadProcess, count: int) -> None:
        """Wait until so many more messages of one load are acknowledged."""
        wanted = load.count + count
        await self._wait(lambda: load.count >= wanted, f"{count} more of {load.name}")

    async def _wait(self, probe: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not probe():
            ended = [each.name for each in self.loads if each.process.returncode is not None]
            assert not ended, f"ended by itself: {ended}"
            assert time.monotonic() < until_s, (
                f"{what}: not within {PATIENCE_S} s; {self.count} acknowledged"
            )
            await asyncio.sleep(0.02)

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, hosts: Iterable[str], others: Iterable[str] | None = None) -> None:
        """From all others, if none are named."""
        hosts = list(hosts)
        self.net.cut(hosts, self.net.others(*hosts) if others is None else others)

    def host_of(self, replica: ElectedReplica) -> str:
        """Its name in the network."""
        return replica.folder.name

    def slaves(self, master: ElectedReplica) -> list[ElectedReplica]:
        """All but the master."""
        return [each for each in self.group.replicas if each is not master]

    def etcd_leader(self) -> Etcd:
        """The member that leads."""
        return self.etcd.leader()

    # -- the end -----------------------------------------------------------------------------------

    async def finish(self) -> Report:
        """End the faults and the load, wait until all are equal, and check everything."""
        self.net.heal()
        await asyncio.to_thread(self.etcd.start)
        await self.group.start()
        await self.reach(1)
        await self.group.in_sync(self.group.replicas)
        for load in self.producers:
            await load.stop()
        for other in self.others:
            await other.stop_sending()
        master = await self.group.master()
        end = await self.group.equal_logs(master)
        stored = await self.stored(master)
        for load in self.producers:
            assert_nothing_lost(load, stored)
            assert_in_order(load, stored)
        acknowledged = {
            (each.queue_id, each.queue_offset + number)
            for load in self.producers
            for each in load.acknowledged()
            for number in range(each.count)
        }
        for load in self.loads:
            if load.kind == "receive":
                await self._received(load, acknowledged)
                await load.stop()
        await self.tables_equal()
        bodies = [body for queue in stored.values() for body in queue.values()]
        gap_s = max(load.longest_gap_s() for load in self.producers if load.name == "outside")
        report = Report(self.count, len(bodies) - len(set(bodies)), gap_s, end)
        log.info("%s", report)
        return report

    async def stored(self, replica: ElectedReplica) -> dict[int, dict[int, bytes]]:
        """All messages by queue and offset; there must be no gap."""
        found: dict[int, dict[int, bytes]] = {}
        async with peer_of(replica.address) as peer:
            for queue_id in range(failover_load.QUEUES):
                fields = {"topic": TOPIC, "queueId": str(queue_id)}
                answer = await peer.expect(RequestCode.GET_MAX_OFFSET, fields)
                queue = await messages_of(peer, TOPIC, queue_id)
                missing = set(range(int(answer.fields["offset"]))) ^ queue.keys()
                assert not missing, f"queue {queue_id} lacks {sorted(missing)[:5]} ... of {answer}"
                found[queue_id] = queue
        return found

    async def _received(self, load: LoadProcess, acknowledged: set[tuple[int, int]]) -> None:
        """Wait until a consumer has all, and check that it got each queue in order."""

        def is_complete() -> bool:
            return acknowledged <= set(load.received())

        await eventually(is_complete, f"{load.name} has all messages", PATIENCE_S)
        seen: dict[int, list[int]] = defaultdict(list)
        for queue_id, queue_offset in dict.fromkeys(load.received()):
            seen[queue_id].append(queue_offset)
        for queue_id, offsets in seen.items():
            assert offsets == sorted(offsets), f"queue {queue_id} was received out of order"

    async def tables_equal(self) -> None:
        """Wait until all brokers have the same tables."""
        for code, key in _TABLES:
            await self._table_equal(code, key)

    async def _table_equal(self, code: int, key: str) -> None:
        tables = list[Table]()

        async def are_equal() -> bool:
            tables[:] = [await _table(each, code, key) for each in self.group.replicas]
            return all(each == tables[0] for each in tables)

        try:
            await eventually(are_equal, f"equal {RequestCode(code).name}", TABLES_S)
        except AssertionError as e:
            names = sorted({name for table in tables for name in table})
            different = {
                name: [table.get(name) for table in tables]
                for name in names
                if any(table.get(name) != tables[0].get(name) for table in tables)
            }
            addresses = [each.address for each in self.group.replicas]
            raise AssertionError(f"{e}: {addresses}: {different}") from e


async def _table(replica: ElectedReplica, code: int, key: str) -> Table:
    async with peer_of(replica.address) as peer:
        answer = await peer.expect(code, _PAGE)
    document = fastjson.loads(answer.body)
    table = {str(name): value for name, value in document[key].items()}
    if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
        # Without an entry consumption begins at 0, too: a master notes this for its transactions.
        return {name: offsets for name, offsets in table.items() if any(offsets.values())}
    return table


def assert_nothing_lost(load: LoadProcess, stored: dict[int, dict[int, bytes]]) -> None:
    """Each acknowledged message is at its place."""
    lost = [
        (each, number)
        for each in load.acknowledged()
        for number in range(each.count)
        if stored[each.queue_id].get(each.queue_offset + number)
        != failover_load.body_of(load.name, each.lane, each.sequence + number)
    ]
    assert not lost, f"{load.name}: {len(lost)} of {load.count} lost, the first: {lost[0]}"


def assert_in_order(load: LoadProcess, stored: dict[int, dict[int, bytes]]) -> None:
    """The messages of each lane are in order, but for repetitions."""
    highest: dict[tuple[int, int], int] = {}
    for queue_id, queue in stored.items():
        for queue_offset in sorted(queue):
            name, lane, sequence, _ = queue[queue_offset].decode().split(" ", 3)
            if name != load.name:
                continue
            lane_key = (queue_id, int(lane))
            before = highest.get(lane_key, -1)
            assert int(sequence) <= before + 1, (
                f"{name}: lane {lane} has {sequence} after {before} in queue {queue_id}"
            )
            highest[lane_key] = max(before, int(sequence))


@asynccontextmanager
async def scenario(
    folder: Path, goal: int, *, disk_bytes: int = 0, **settings: object
) -> AsyncGenerator[Scenario]:
    """A started group under load: a producer and a consumer on the host of the test.

    With `disk_bytes` the store of each broker is on a disk of its own, in memory.
    """
    async with AsyncExitStack() as stack:
        if disk_bytes:
            for name in BROKERS:
                stack.enter_context(_disk(folder / name / "store", disk_bytes))
        net = stack.enter_context(network((*ETCDS, *BROKERS)))
        hosts = [net[name] for name in ETCDS]
        etcd = stack.enter_context(etcd_cluster(
            folder / "etcd", len(ETCDS), hosts=[each.address for each in hosts],
            prefixes=[each.prefix for each in hosts],
        ))  # fmt: skip
        namesrv = await stack.enter_async_context(
            running_namesrv(folder / "namesrv", bindAddress=net[OUTSIDE].address)
        )
        group = ScenarioGroup(folder, namesrv, etcd, settings, net)
        stack.push_async_callback(group.close)
        await group.start()
        it = Scenario(folder, net, group, goal)
        stack.push_async_callback(_stop, it)
        await group.accepting_master()
        await group.in_sync(group.replicas)
        await it.start_load("send", "outside")
        await it.more(it.loads[0], failover_load.BATCH)
        await it.start_load("receive", "readers")
        yield it


@contextmanager
def _disk(path: Path, size: int) -> Generator[None]:
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tianzhou-test", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


async def _stop(it: Scenario) -> None:
    await asyncio.gather(*(each.stop() for each in it.loads))
