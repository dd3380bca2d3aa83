"""Faults of a broker group under load: each returns when it is over and another master serves.

    async with scenario(tmp_path, goal) as it:
        await faults.kill_the_master(it)
        await it.finish()

The tests of our client (`tests/failover`) and of stock Java clients (`tests/apache`) share them.
`it.reach` waits for every load of the scenario.
"""

import asyncio
import logging
import random
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.failover_kinds import Kinds
from tests.support.failover_scenario import ETCDS, Scenario
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups

log = logging.getLogger(__name__)

OUTAGE_S = 60
FREEZE_S = 30
KINDS_SETTINGS: Mapping[str, Any] = {"transactionTimeOut": 2000, "transactionCheckInterval": 2000}
"""For `switch_amid_all_kinds`."""
DISK_BYTES = 256 << 20
"""For `fill_the_disk_of_the_master`."""
CONNECTED_S = 2.0
"""A process has started and is connected."""
CUT = "the truncation of the log to"
"""In the log of a broker whose store was truncated."""


async def kill_the_master(it: Scenario) -> None:
    await it.reach(0.4)
    first = await it.group.master()
    await first.kill()
    await it.group.master(other_than=first)
    await it.reach(0.8)


async def cut_the_master_off_from_all(it: Scenario) -> None:
    """A client on its host sends on, which it must not confirm."""
    first = await it.group.master()
    beside = await it.start_load("send", "beside", it.host_of(first))
    await it.more(beside, 100)
    await it.reach(0.4)
    it.cut([it.host_of(first)])
    await it.group.master(other_than=first)
    await it.reach(0.8)


async def stop_the_master_for_30_seconds(it: Scenario) -> None:
    """SIGSTOP: when it goes on it is not the master any more, with requests in its buffers."""
    await it.reach(0.3)
    first = await it.group.master()
    first.send_signal(signal.SIGSTOP)
    await it.group.master(other_than=first)
    await asyncio.sleep(FREEZE_S)
    first.send_signal(signal.SIGCONT)
    await it.reach(0.8)


async def cut_the_master_off_from_etcd(it: Scenario) -> None:
    """Its slaves hear it: after 10 s it is asked to hand over, and refuses nothing before. It does
    not learn of the new master, which goes on without it after two seconds.
    """
    await it.reach(0.2)
    first = await it.group.master()
    it.cut([it.host_of(first)], ETCDS)
    await it.group.master(other_than=first)
    await it.more(it.loads[0], 2_000)
    await it.reach(0.8)


async def cut_the_master_off_with_one_slave(it: Scenario) -> None:
    first = await it.group.master()
    beside = await it.start_load("send", "beside", it.host_of(first))
    await it.more(beside, 100)
    await it.reach(0.3)
    pair = [it.host_of(first), it.host_of(it.slaves(first)[0])]
    it.cut(pair, it.net.others(*pair))
    second = await it.group.master(other_than=first)
    assert it.host_of(second) not in pair
    # Alone, it stores nothing until another replica is in sync again.
    await asyncio.sleep(5)
    it.net.heal()
    await it.reach(0.8)


async def kill_the_leader_of_etcd_with_the_master(it: Scenario) -> None:
    await it.reach(0.3)
    first = await it.group.master()
    leader = await asyncio.to_thread(it.etcd.leader)
    await first.kill()
    await asyncio.to_thread(leader.kill)
    await it.group.master(other_than=first)
    await it.reach(0.8)


async def stop_all_etcd_for_60_seconds(it: Scenario) -> None:
    """Messages are acknowledged meanwhile, and the master stays."""
    await it.reach(0.2)
    first = await it.group.master()
    for member in it.etcd.members:
        member.stop()
    before = it.count
    await asyncio.sleep(OUTAGE_S)
    assert it.count > before
    for member in it.etcd.members:
        member.resume()
    await it.reach(0.8)
    assert await it.group.master() is first


async def wipe_a_slave_then_the_master(it: Scenario) -> None:
    for share in (0.3, 0.6):
        await it.reach(share)
        master = await it.group.master()
        victim = master if share == 0.6 else it.slaves(master)[0]
        await victim.kill()
        shutil.rmtree(victim.folder / "store")
        await victim.run()
        await it.group.accepting_master()
        await it.group.in_sync(it.group.replicas)


async def switch_three_times(it: Scenario) -> None:
    """Each master hands over and is stopped, as in an upgrade."""
    for share in (0.2, 0.4, 0.6):
        await it.reach(share)
        master = await it.group.master()
        await master.stop()
        await it.group.master(other_than=master)
        state = (await it.group.view()).state
        assert state is not None
        assert state.history[-1].cause == "planned switch", state
        await master.run()
        await it.group.in_sync(it.group.replicas)


async def kill_the_old_master_while_it_truncates(it: Scenario) -> None:
    """It has records that no other replica has; it is killed when their truncation has begun, and
    at random moments of its start."""
    dice = random.Random(21)
    interrupted_count = 0
    for number, share in enumerate((0.2, 0.5)):
        await it.reach(share)
        first = await it.group.master()
        burst = await it.ready_burst(first, f"burst{number}")
        await asyncio.sleep(CONNECTED_S)
        it.cut([it.host_of(first)])
        await burst.stop()
        await it.group.master(other_than=first)
        await first.kill()
        it.net.heal()
        for _ in range(8):
            await first.begin("SYNC_MASTER")
            record = first.folder / "store" / "truncation"
            await asyncio.to_thread(_wait_for_file, record, dice.uniform(1, 3))
            await first.kill()
            interrupted_count += await asyncio.to_thread(record.exists)
        await first.run()
        await it.group.in_sync(it.group.replicas)
        assert CUT in first.log_text(), "the former master had nothing to cut"
    log.info("%d truncations were interrupted", interrupted_count)
    assert interrupted_count


async def switch_amid_all_kinds(it: Scenario) -> None:
    """A planned switch by command, then the new master is killed, amid delayed, timed,
    transactional and popped messages; a consumer of the scenario is ordered."""
    async with Kinds(it.group.namesrv).running() as kinds:
        await kinds.reach(300)
        first = await it.group.master()
        target = await it.group.id_of(it.slaves(first)[0])
        async with Admin(it.group.namesrv) as admin:
            await groups.ask(admin, first.address, "switch", replica_id=target)
        second = await it.group.master(other_than=first)
        await kinds.reach(600)
        await it.group.in_sync(it.group.replicas)
        await second.kill()
        await it.group.master(other_than=second)
        await kinds.reach(900)
        await second.run()
        await it.reach(0.9)
        await kinds.complete()


async def fill_the_disk_of_the_master(it: Scenario) -> None:
    """Another replica goes on; with space again the first one takes part again."""
    await it.reach(0.3)
    first = await it.group.master()
    ballast = first.folder / "store" / "ballast"
    _fill(ballast)
    await it.group.master(other_than=first)
    await it.reach(0.8)
    ballast.unlink()
    if first.process is not None and first.process.returncode is None:
        await first.kill()
    await first.run()


def _wait_for_file(path: Path, seconds: float) -> None:
    """Or until so many seconds have passed."""
    until_s = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.0003)


def _fill(path: Path) -> None:
    """A file that leaves no space on its disk."""
    piece = bytes(64 * 1024)
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(piece) == len(piece):
            pass
