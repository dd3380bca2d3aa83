"""Faults of a broker group under load, on hosts of their own: nothing acknowledged is lost.

Three etcd, three brokers with one name, SYNC_MASTER, our client. Each scenario checks at its end:
every message that was answered with SEND_OK is at its place, the order of each queue is kept, queue
offsets have no gaps, a consumer got everything in order, and the replicas have equal logs, byte for
byte, and equal tables. `tests/apache/test_failover_faults.py` has stock Java clients beside ours.
"""

from pathlib import Path

import pytest

from tests.support import failover_faults as faults
from tests.support.failover_scenario import scenario

GATE, FULL = 3_000, 50_000


@pytest.mark.parametrize("goal", [GATE, pytest.param(FULL, marks=pytest.mark.full)])
async def test_the_master_is_killed(tmp_path: Path, goal: int) -> None:
    async with scenario(tmp_path, goal) as it:
        await faults.kill_the_master(it)
        await it.finish()


@pytest.mark.parametrize("goal", [GATE, pytest.param(FULL, marks=pytest.mark.full)])
async def test_the_master_is_cut_off_from_all(tmp_path: Path, goal: int) -> None:
    async with scenario(tmp_path, goal) as it:
        await faults.cut_the_master_off_from_all(it)
        await it.finish()


@pytest.mark.full
async def test_the_master_is_stopped_for_30_seconds(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.stop_the_master_for_30_seconds(it)
        await it.finish()


@pytest.mark.full
async def test_the_master_is_cut_off_from_etcd_only(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.cut_the_master_off_from_etcd(it)
        await it.finish()


@pytest.mark.full
async def test_the_master_is_cut_off_together_with_one_slave(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.cut_the_master_off_with_one_slave(it)
        await it.finish()


@pytest.mark.full
async def test_the_leader_of_etcd_is_killed_with_the_master(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.kill_the_leader_of_etcd_with_the_master(it)
        await it.finish()


@pytest.mark.full
async def test_all_etcd_is_stopped_for_60_seconds(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.stop_all_etcd_for_60_seconds(it)
        report = await it.finish()
        assert report.longest_gap_s < 3, report


@pytest.mark.full
async def test_a_wiped_replica_copies_all_and_is_in_sync_again(tmp_path: Path) -> None:
    """A slave loses its disk, then the master does."""
    async with scenario(tmp_path, FULL) as it:
        await faults.wipe_a_slave_then_the_master(it)
        await it.finish()


@pytest.mark.full
async def test_a_planned_switch(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.switch_three_times(it)
        report = await it.finish()
        assert report.longest_gap_s < 3, report


@pytest.mark.full
async def test_the_old_master_is_killed_again_and_again_while_it_truncates(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL) as it:
        await faults.kill_the_old_master_while_it_truncates(it)
        await it.finish()


@pytest.mark.full
async def test_switches_amid_delayed_timed_transactional_and_popped_messages(
    tmp_path: Path,
) -> None:
    async with scenario(tmp_path, FULL, **faults.KINDS_SETTINGS) as it:
        await faults.switch_amid_all_kinds(it)
        await it.finish()


@pytest.mark.full
async def test_the_disk_of_the_master_is_full(tmp_path: Path) -> None:
    async with scenario(tmp_path, FULL, disk_bytes=faults.DISK_BYTES) as it:
        await faults.fill_the_disk_of_the_master(it)
        await it.finish()
