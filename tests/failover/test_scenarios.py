"""Faults of a broker group under load, on hosts of their own: nothing acknowledged is lost.

Three etcd, three brokers with one name, SYNC_MASTER, our client. Each scenario checks at its end:
every message that was answered with SEND_OK is at its place, the order of each queue is kept, queue
offsets have no gaps, a consumer got everything in order, and the replicas have equal logs, byte for
byte, and equal tables.
"""

import asyncio
import logging
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.failover_kinds import Kinds
from tests.support.failover_scenario import ETCDS, scenario
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups

log = logging.getLogger(__name__)

GATE, FULL = 3_000, 50_000
DISK_BYTES = 256 << 20
CONNECTED_S = 2.0
"""A process has started and is connected."""
CUT = "the truncation of the log to"
"""In the log of a broker whose store was truncated."""


@pytest.mark.parametrize("goal", [GATE, pytest.param(FULL, marks=pytest.mark.full)])
async def test_the_master_is_killed(tmp_path: Path, goal: int) -> None:
    async with scenario(tmp_path, goal) as it:
        await it.reach(0.4)
        first = await it.group.master()
        await first.kill()
        await it.group.master(other_than=first)
        await it.reach(0.8)
        await it.finish()


@pytest.mark.parametrize("goal", [GATE, pytest.param(FULL, marks=pytest.mark.full)])
async def test_the_master_is_cut_off_from_all(tmp_path: Path, goal: int) -> None:
    async with scenario(tmp_path, goal) as it:
        first = await it.group.master()
        beside = await it.start_load("send", "beside", it.host_of(first))
        await it.more(beside, 100)
        await it.reach(0.4)
        it.cut([it.host_of(first)])
        await it.group.master(other_than=first)
        await it.reach(0.8)
        await it.finish()


@pytest.mark.full
async def test_the_master_is_stopped_for_30_seconds(tmp_path: Path) -> None:
    """SIGSTOP: when it goes on it is not the master any more, with requests in its buffers."""
    async with scenario(tmp_path, FULL) as it:
        await it.reach(0.3)
        first = await it.group.master()
        first.send_signal(signal.SIGSTOP)
        await it.group.master(other_than=first)
        await asyncio.sleep(30)
        first.send_signal(signal.SIGCONT)
        await it.reach(0.8)
        await it.finish()


@pytest.mark.full
async def test_the_master_is_cut_off_from_etcd_only(tmp_path: Path) -> None:
    """Its slaves hear it: after 10 s it is asked to hand over, and refuses nothing before."""
    async with scenario(tmp_path, FULL) as it:
        await it.reach(0.2)
        first = await it.group.master()
        it.cut([it.host_of(first)], ETCDS)
        await it.group.master(other_than=first)
        await it.reach(0.8)
        await it.finish()


@pytest.mark.full
async def test_the_master_is_cut_off_together_with_one_slave(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
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
        await it.finish()


@pytest.mark.full
async def test_the_leader_of_etcd_is_killed_with_the_master(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await it.reach(0.3)
        first = await it.group.master()
        leader = await asyncio.to_thread(it.etcd.leader)
        await first.kill()
        await asyncio.to_thread(leader.kill)
        await it.group.master(other_than=first)
        await it.reach(0.8)
        await it.finish()


@pytest.mark.full
async def test_all_etcd_is_stopped_for_60_seconds(tmp_path: Path) -> None:
    """Nothing is refused meanwhile, and the master stays."""
    async with scenario(tmp_path, FULL) as it:
        await it.reach(0.2)
        first = await it.group.master()
        for member in it.etcd.members:
            member.stop()
        before = it.count
        await asyncio.sleep(60)
        assert it.count > before
        for member in it.etcd.members:
            member.resume()
        await it.reach(0.8)
        assert await it.group.master() is first
        report = await it.finish()
        assert report.longest_gap_s < 3, report


@pytest.mark.full
async def test_a_wiped_replica_copies_all_and_is_in_sync_again(tmp_path: Path) -> None:
    """A slave loses its disk, then the master does."""
    async with scenario(tmp_path, FULL) as it:
        for share in (0.3, 0.6):
            await it.reach(share)
            master = await it.group.master()
            victim = master if share == 0.6 else it.slaves(master)[0]
            await victim.kill()
            shutil.rmtree(victim.folder / "store")
            await victim.run()
            await it.group.accepting_master()
            await it.group.in_sync(it.group.replicas)
        await it.finish()


@pytest.mark.full
async def test_a_planned_switch(tmp_path: Path) -> None:
    """Each broker hands over to the next one and is stopped, as in an upgrade."""
    async with scenario(tmp_path, FULL) as it:
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
        report = await it.finish()
        assert report.longest_gap_s < 3, report


@pytest.mark.full
async def test_the_old_master_is_killed_again_and_again_while_it_truncates(tmp_path: Path) -> None:
    """It has records that no other replica has; it is killed when their truncation has begun, and
    at random moments of its start."""
    dice = random.Random(21)
    interrupted_count = 0
    async with scenario(tmp_path, FULL) as it:
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
                await asyncio.to_thread(wait_for_file, record, dice.uniform(1, 3))
                await first.kill()
                interrupted_count += await asyncio.to_thread(record.exists)
            await first.run()
            await it.group.in_sync(it.group.replicas)
            assert CUT in first.log_text(), "the former master had nothing to cut"
        await it.finish()
    log.info("%d truncations were interrupted", interrupted_count)
    assert interrupted_count


@pytest.mark.full
async def test_switches_amid_delayed_timed_transactional_and_popped_messages(
    tmp_path: Path,
) -> None:
    """A planned switch by command, then the new master is killed; a consumer is ordered, too."""
    settings = {"transactionTimeOut": 2000, "transactionCheckInterval": 2000}
    async with (
        scenario(tmp_path, FULL, **settings) as it,
        Kinds(it.group.namesrv).running() as kinds,
    ):
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
        await it.finish()


@pytest.mark.full
async def test_the_disk_of_the_master_is_full(tmp_path: Path) -> None:
    """Another replica goes on; with space again the first one takes part again."""
    async with scenario(tmp_path, FULL, disk_bytes=DISK_BYTES) as it:
        await it.reach(0.3)
        first = await it.group.master()
        ballast = first.folder / "store" / "ballast"
        fill(ballast)
        await it.group.master(other_than=first)
        await it.reach(0.8)
        ballast.unlink()
        if first.process is not None and first.process.returncode is None:
            await first.kill()
        await first.run()
        await it.finish()


def wait_for_file(path: Path, seconds: float) -> None:
    """Or until so many seconds have passed."""
    until_s = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.0003)


def fill(path: Path) -> None:
    """A file that leaves no space on its disk."""
    piece = bytes(64 * 1024)
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(piece) == len(piece):
            pass
