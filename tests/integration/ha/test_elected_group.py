"""Automatic failover as users run it: three brokers of one name and a real etcd.

Each broker is a process with the settings of a user. SYNC_MASTER: what was answered with SEND_OK
must be at its place on every later master.
"""

import asyncio
import logging
import random
import shlex
import signal
import sys
from pathlib import Path

import pytest
from tests.support.brokers import eventually
from tests.support.elected_group import ElectedGroup, ElectedReplica, Stopwatch, elected_group
from tests.support.replicated_load import Load, Place, missing

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups
from tianzhou.client import Message, Producer
from tianzhou.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_NOTE_OLD_MASTER = "import os, sys; open(sys.argv[1], 'a').write(os.environ['TIANZHOU_OLD_MASTER'])"
SWITCHES = 5
"""More elections in ten minutes are slowed down."""


async def test_three_brokers_agree_on_a_master_and_another_one_takes_over(tmp_path: Path) -> None:
    load, fenced = Load(), tmp_path / "fenced"
    fence = shlex.join([sys.executable, "-c", _NOTE_OLD_MASTER, str(fenced)])
    async with elected_group(tmp_path, haFenceCommand=fence) as group:
        first = await group.master()
        await group.in_sync(group.replicas)
        view = await group.view()
        assert sorted(view.replicas) == [1, 2, 3]
        await load.once(first.address)
        await kill_under_load(group, first, load)
        second = await group.master(other_than=first)
        await group.accepts(second)
        assert fenced.read_text() == first.address
        assert not await missing(second.address, load)
        await group.in_sync(each for each in group.replicas if each is not first)
        # What only the killed one has is cut, and it is a slave from then on.
        await first.run()
        await group.in_sync(group.replicas)
        assert await group.registered_master() == second.address
        await group.equal_logs(second)


async def kill_under_load(
    group: ElectedGroup, master: ElectedReplica, load: Load, count: int = 300
) -> None:
    """Kill the master while messages are sent to it; returns when another one is registered."""
    async with load.running(master.address, seed=count):
        await load.reach(count)
        await master.kill()
    stopwatch = Stopwatch()
    await group.master(other_than=master)
    log.info("killed: another master is registered after %.2f s", stopwatch.seconds)


async def test_traffic_goes_on_without_etcd(tmp_path: Path) -> None:
    load = Load()
    async with elected_group(tmp_path) as group:
        master = await group.master()
        await group.in_sync(group.replicas)
        epoch = (await group.view()).state
        group.etcd.members[0].stop()
        async with load.running(master.address, seed=1):
            outage = Stopwatch()
            await eventually(lambda: outage.seconds > 5, "five seconds without etcd")
            await load.reach(100)
        assert load.codes.keys() == {ResponseCode.SUCCESS}
        group.etcd.members[0].resume()
        assert not await missing(master.address, load)
        assert (await group.view()).state == epoch, "no change while etcd was away"


async def test_a_stopped_master_hands_over(tmp_path: Path) -> None:
    load = Load()
    async with elected_group(tmp_path) as group:
        first = await group.master()
        await group.in_sync(group.replicas)
        await load.once(first.address)
        async with load.running(first.address, seed=1):
            await load.reach(100)
            stopwatch = Stopwatch()
            await first.end(signal.SIGTERM)
        second = await group.master(other_than=first)
        log.info("stopped: another master is registered after %.2f s", stopwatch.seconds)
        view = await group.view()
        assert view.state is not None
        assert view.state.history[-1].cause == "planned switch", view.state
        await group.accepts(second)  # then it shows all that it took over
        assert not await missing(second.address, load)


@pytest.mark.parametrize("fault_name", ["switch", "stop", "kill"])
async def test_a_producer_reports_no_error_when_the_master_changes(
    tmp_path: Path, fault_name: str
) -> None:
    """The client repeats what was not stored; the time-out leaves it the time."""
    async with elected_group(tmp_path) as group:
        first = await group.accepting_master()
        await group.in_sync(group.replicas)
        async with Producer("p", namesrv=group.namesrv, send_timeout_ms=60_000) as producer:
            goal = asyncio.get_running_loop().create_future()
            lanes = [asyncio.create_task(_send_until(goal, producer)) for _ in range(8)]
            await producer.send(Message("t", b"x"))
            if fault_name == "switch":
                async with Admin(group.namesrv) as admin:
                    await groups.ask(admin, first.address, "switch")
            elif fault_name == "stop":
                await first.end(signal.SIGTERM)
            else:
                await first.kill()
            await group.master(other_than=first)
            for _ in range(20):
                await producer.send(Message("t", b"x"))
            goal.set_result(None)
            counts = await asyncio.gather(*lanes)
        log.info("%s: %s sends, none failed", fault_name, counts)


async def _send_until(goal: asyncio.Future[None], producer: Producer) -> int:
    """One after the other; raises the first error."""
    count = 0
    while not goal.done():
        await producer.send(Message("t", b"x"))
        count += 1
    return count


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
async def test_nothing_acknowledged_is_lost_in_many_switches(tmp_path: Path, seed: int) -> None:
    """Masters and slaves are killed, stopped and frozen; at the end all logs are equal."""
    dice = random.Random(seed)
    load, checked = Load(), set[Place]()
    async with elected_group(tmp_path) as group:
        await load.once((await group.master()).address)
        for number in range(SWITCHES):
            await group.in_sync(group.replicas)
            master = await group.master()
            fault = dice.choice(FAULTS)
            log.info("%d: %s of %s", number, fault.__name__, master.folder.name)
            async with load.running(master.address, seed=number, persists=True):
                await load.reach(dice.randint(1, 600))
                await fault(group, master)
            master = await group.accepting_master()
            lost = await missing(master.address, load, checked)
            assert not lost, f"{number}: {len(lost)} of {len(load.acknowledged)} are missing"
            checked.update(load.acknowledged)
            await group.start()
        await group.in_sync(group.replicas)
        await group.equal_logs(await group.master())
        log.info("%d acknowledged, none lost; responses %s", len(checked), dict(load.codes))


async def kill_master(group: ElectedGroup, master: ElectedReplica) -> None:
    await master.kill()


async def stop_master(group: ElectedGroup, master: ElectedReplica) -> None:
    await master.stop()


async def kill_slave(group: ElectedGroup, master: ElectedReplica) -> None:
    slave = next(each for each in group.replicas if each is not master)
    await slave.kill()


async def kill_master_and_restart(group: ElectedGroup, master: ElectedReplica) -> None:
    """At once: it may be the master again, by another election."""
    await master.kill()
    await master.run()


async def freeze_master(group: ElectedGroup, master: ElectedReplica) -> None:
    """Until another one is the master; what was sent meanwhile is in its receive buffers."""
    master.send_signal(signal.SIGSTOP)
    await group.master(other_than=master)
    master.send_signal(signal.SIGCONT)


async def freeze_shortly(group: ElectedGroup, master: ElectedReplica) -> None:
    """For less than the lease."""
    master.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.5)
    master.send_signal(signal.SIGCONT)


async def freeze_slave(group: ElectedGroup, master: ElectedReplica) -> None:
    """For longer than the lease: the others go on, and it misses what they store."""
    slave = next(each for each in group.replicas if each is not master)
    slave.send_signal(signal.SIGSTOP)
    await group.in_sync(each for each in group.replicas if each is not slave)
    await group.accepts(master)
    await asyncio.sleep(3.5)
    slave.send_signal(signal.SIGCONT)


FAULTS = (
    kill_master, stop_master, kill_slave, kill_master_and_restart, freeze_master, freeze_shortly,
    freeze_slave,
)  # fmt: skip
