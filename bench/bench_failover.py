"""Benchmark of automatic failover: how long a switch takes, and how long clients wait.

Three brokers with one name, SYNC_MASTER, a nameserver and three etcd on this machine, one of our
producers with eight batches in flight, and a stock Java producer with some threads, which looks up
routes every two seconds. In each run one thing happens to the master: it is killed (SIGKILL),
stopped (SIGSTOP), or asked to hand over. Measured are the time until the nameserver has another
master, looked up every few ms, and for each producer the longest time between two acknowledgements.

Each round starts with a new group, as frequent elections are slowed down. `python -m
bench.bench_failover` prints the table; `--runs N` changes the number of runs.
"""

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import failover_load
from tests.support.apache.shell import Shell, java_shell
from tests.support.brokers import Peer, peer_of
from tests.support.elected_group import NAME, ElectedGroup, ElectedReplica, elected_group
from tests.support.failover_scenario import LoadProcess, start_load
from tests.support.gate import NEWEST

from bench.progress import say
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups
from tianzhou.names import MASTER_ID
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.route import ClusterInfo
from tianzhou.protocol.codes import RequestCode

HEADS = ["what happens to the master", "new master registered, s", "aim",
         "longest wait of our client, s", "aim",
         f"of stock Java {NEWEST}, s", "aim", "met"]  # fmt: skip
RUNS, QUICK_RUNS = 10, 1
_ETCD_COUNT = 3
_LOOK_S = 0.005
_LIMIT_S = 30.0
_BATCHES_AROUND = 20
"""Acknowledged before and after what happens."""
_RUN_S = 7.5
"""Expected, with the start of its group."""
_JAVA_TOPIC, _JAVA_THREADS = "JavaOrders", 4
_JAVA_POLL_MS, _JAVA_TIMEOUT_MS = 2_000, 3_000
_JAVA_AROUND = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the master."""

    title: str
    begin: Callable[[ElectedGroup, ElectedReplica], Awaitable[None]]
    end: Callable[[ElectedReplica], Awaitable[None]]
    registered_aim_s: float
    gap_aim_s: float | None
    java_gap_aim_s: float | None


@dataclass(slots=True)
class Samples:
    """Of one fault."""

    registered_s: list[float] = field(default_factory=list[float])
    gap_s: list[float] = field(default_factory=list[float])
    java_gap_s: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, slots=True)
class Loads:
    """The producers of a group."""

    ours: LoadProcess
    java: Shell

    async def java_count(self) -> int:
        """Messages that the Java producer has got SEND_OK for."""
        return int(await asyncio.to_thread(self.java.ask, "load_count"))

    async def java_longest_s(self) -> float:
        """Its longest wait since the last call."""
        return float(await asyncio.to_thread(self.java.ask, "load_longest_ms")) / 1000


async def _kill(_: ElectedGroup, master: ElectedReplica) -> None:
    await master.kill()


async def _run_again(master: ElectedReplica) -> None:
    await master.run()


async def _freeze(_: ElectedGroup, master: ElectedReplica) -> None:
    master.send_signal(signal.SIGSTOP)


async def _thaw(master: ElectedReplica) -> None:
    master.send_signal(signal.SIGCONT)


async def _switch(group: ElectedGroup, master: ElectedReplica) -> None:
    own = await group.id_of(master)
    target = next(each for each in sorted((await group.view()).replicas) if each != own)
    async with Admin(group.namesrv) as admin:
        await groups.ask(admin, master.address, "switch", replica_id=target)


async def _nothing(_: ElectedReplica) -> None:
    return


KILLED = Fault("killed (`kill -9`)", _kill, _run_again, 2.0, 3.0, 5.0)
STOPPED = Fault("stopped (SIGSTOP), as with a power cut", _freeze, _thaw, 6.0, 7.0, 9.0)
SWITCHED = Fault("planned switch", _switch, _nothing, 0.5, None, None)
ROUNDS = ((SWITCHED, KILLED), (STOPPED,))
"""The faults of one group each: not so many elections that they are slowed down."""


def expected_s(*, quick: bool) -> float:
    """The duration of all."""
    return (QUICK_RUNS if quick else RUNS) * 3 * _RUN_S


def measure(runs: int) -> dict[str, Samples]:
    """All faults, so many times."""
    results = {fault.title: Samples() for faults in ROUNDS for fault in faults}
    with java_shell(NEWEST) as java:
        for number in range(runs):
            for faults in ROUNDS:
                with tempfile.TemporaryDirectory(prefix="bench-failover-") as folder:
                    asyncio.run(_group(Path(folder), java, faults, results))
            say(f"failover: run {number + 1} of {runs}")
    return results


async def _group(
    folder: Path, java: Shell, faults: tuple[Fault, ...], results: dict[str, Samples]
) -> None:
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(elected_group(folder, etcd_count=_ETCD_COUNT))
        await group.accepting_master()
        ours = await start_load(folder, "send", group.namesrv, "bench")
        stack.push_async_callback(ours.stop)
        await stack.enter_async_context(_java_load(java, group.namesrv, folder.name))
        loads = Loads(ours, java)
        peer = await stack.enter_async_context(peer_of(group.namesrv))
        for fault in faults:
            await group.in_sync(group.replicas)
            await _more(loads)
            await _one(group, loads, peer, fault, results[fault.title])


@asynccontextmanager
async def _java_load(java: Shell, namesrv: str, name: str) -> AsyncGenerator[None]:
    """The Java producer of a group; `name` was not used before."""
    await asyncio.to_thread(
        java.ask, "start_producer", name=name, group=name, namesrv=namesrv,
        timeout_ms=_JAVA_TIMEOUT_MS, poll_ms=_JAVA_POLL_MS,
    )  # fmt: skip
    try:
        await asyncio.to_thread(
            java.ask, "start_load", name=name, topic=_JAVA_TOPIC, threads=_JAVA_THREADS
        )
        yield
        await asyncio.to_thread(java.ask, "stop_load")
    finally:
        await asyncio.to_thread(java.ask, "stop_producer", name=name)


async def _one(
    group: ElectedGroup, loads: Loads, peer: Peer, fault: Fault, samples: Samples
) -> None:
    master = await group.master()
    await loads.java_longest_s()
    began_s = time.monotonic()
    beginning = asyncio.create_task(_begin(fault, group, master))
    registered_s = await _other_registered(peer, master) - began_s
    await beginning
    await _more(loads)
    samples.registered_s.append(registered_s)
    samples.gap_s.append(loads.ours.longest_gap_s(began_s))
    samples.java_gap_s.append(await loads.java_longest_s())
    await fault.end(master)


async def _begin(fault: Fault, group: ElectedGroup, master: ElectedReplica) -> None:
    await fault.begin(group, master)


async def _other_registered(peer: Peer, master: ElectedReplica) -> float:
    """The moment at which the nameserver has another master."""
    until_s = time.monotonic() + _LIMIT_S
    while (now_s := time.monotonic()) < until_s:
        response = await peer.expect(RequestCode.GET_BROKER_CLUSTER_INFO)
        known = bodies.decode(ClusterInfo, response.body).brokers.get(NAME)
        address = (known.addresses or {}).get(MASTER_ID) if known else None
        if address not in (None, master.address):
            return now_s
        await asyncio.sleep(_LOOK_S)
    raise AssertionError(f"no other master within {_LIMIT_S} s:\n{master.log_text()[-2000:]}")


async def _more(loads: Loads) -> None:
    """Wait until each producer has got some more acknowledgements."""
    ours, wanted = loads.ours, loads.ours.count + _BATCHES_AROUND * failover_load.BATCH
    java_wanted = await loads.java_count() + _JAVA_AROUND
    until_s = time.monotonic() + _LIMIT_S
    while ours.count < wanted or await loads.java_count() < java_wanted:
        assert time.monotonic() < until_s, f"{ours.count} acknowledged, {wanted} wanted"
        await asyncio.sleep(_LOOK_S * 4)


def rows(results: dict[str, Samples]) -> list[list[str]]:
    """The table: medians, the smallest and the largest."""
    faults = {fault.title: fault for each in ROUNDS for fault in each}
    return [_row(faults[title], samples) for title, samples in results.items()]


def _row(fault: Fault, samples: Samples) -> list[str]:
    measured = (
        (samples.registered_s, fault.registered_aim_s),
        (samples.gap_s, fault.gap_aim_s),
        (samples.java_gap_s, fault.java_gap_aim_s),
    )
    is_met = all(aim_s is None or max(values) < aim_s for values, aim_s in measured)
    cells = [
        cell
        for values, aim_s in measured
        for cell in (_spread(values), f"under {aim_s:g}" if aim_s else "")
    ]
    return [fault.title, *cells, "yes" if is_met else "no"]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each (default {RUNS})")
    results = measure(parser.parse_args().runs)
    for row in [HEADS, *rows(results)]:
        print(" | ".join(row))


if __name__ == "__main__":
    main()
