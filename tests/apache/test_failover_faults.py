"""Faults of a broker group on hosts of their own, with stock Java clients beside ours.

The scenarios of `tests/failover/test_scenarios.py`, with three etcd: what either producer got
SEND_OK for is at its place, and both consumers, which are ordered, got it in order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import failover_faults as faults
from tests.support.apache.java_load import java_load
from tests.support.apache.shell import Shell
from tests.support.failover_scenario import Scenario, scenario
from tests.support.gate import NEWEST

pytestmark = [pytest.mark.apache, pytest.mark.full]

log = logging.getLogger(__name__)

GOAL = 50_000
Fault = Callable[[Scenario], Awaitable[None]]
SETTINGS: Mapping[Fault, Mapping[str, Any]] = {
    faults.kill_the_master: {},
    faults.stop_the_master_for_30_seconds: {},
    faults.cut_the_master_off_from_all: {},
    faults.cut_the_master_off_from_etcd: {},
    faults.cut_the_master_off_with_one_slave: {},
    faults.switch_three_times: {},
    faults.kill_the_leader_of_etcd_with_the_master: {},
    faults.stop_all_etcd_for_60_seconds: {},
    faults.wipe_a_slave_then_the_master: {},
    faults.fill_the_disk_of_the_master: {"disk_bytes": 4 * faults.DISK_BYTES},
    faults.switch_amid_all_kinds: faults.KINDS_SETTINGS,
    faults.kill_the_old_master_while_it_truncates: {},
}
"""The faults, and what their scenarios need."""


@pytest.mark.parametrize("fault", SETTINGS, ids=lambda fault: str(fault.__name__))
async def test_stock_clients_lose_nothing(
    shells: Callable[[str], Shell], tmp_path: Path, fault: Fault
) -> None:
    shell = await asyncio.to_thread(shells, NEWEST)
    async with (
        scenario(tmp_path, GOAL, **SETTINGS[fault]) as it,
        java_load(shell, it.group.namesrv, fault.__name__, GOAL, is_ordered=True) as java,
    ):
        it.others.append(java)
        await java.more(1)
        await java.longest_s()
        await fault(it)
        gap_s = await java.longest_s()
        report = await it.finish()
        master = await it.group.master()
        count = await java.finish(master.address)
    log.info("%s: Java: %d acknowledged, longest gap %.2f s", fault.__name__, count, gap_s)
    assert count >= GOAL
    assert report.acknowledged >= GOAL
