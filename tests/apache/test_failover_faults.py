"""Faults of a broker group on hosts of their own, with stock Java clients beside ours.

The scenarios of `tests/failover/test_scenarios.py`, with three etcd: what either producer got
SEND_OK for is at its place, and both consumers got it.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.apache.java_load import java_load
from tests.support.apache.shell import Shell
from tests.support.failover_scenario import ETCDS, Scenario, scenario
from tests.support.gate import NEWEST

pytestmark = [pytest.mark.apache, pytest.mark.full]

log = logging.getLogger(__name__)

GOAL = 50_000


async def killed_with_the_leader_of_etcd(it: Scenario) -> None:
    first = await it.group.master()
    leader = await asyncio.to_thread(it.etcd.leader)
    await first.kill()
    await asyncio.to_thread(leader.kill)
    await it.group.master(other_than=first)


async def stopped_for_30_seconds(it: Scenario) -> None:
    first = await it.group.master()
    first.send_signal(signal.SIGSTOP)
    await it.group.master(other_than=first)
    await asyncio.sleep(30)
    first.send_signal(signal.SIGCONT)


async def cut_off_from_all(it: Scenario) -> None:
    first = await it.group.master()
    it.cut([it.host_of(first)])
    await it.group.master(other_than=first)


async def cut_off_from_etcd(it: Scenario) -> None:
    first = await it.group.master()
    it.cut([it.host_of(first)], ETCDS)
    await it.group.master(other_than=first)


async def cut_off_with_one_slave(it: Scenario) -> None:
    first = await it.group.master()
    pair = [it.host_of(first), it.host_of(it.slaves(first)[0])]
    it.cut(pair, it.net.others(*pair))
    await it.group.master(other_than=first)
    await asyncio.sleep(5)
    it.net.heal()


FAULTS = (
    killed_with_the_leader_of_etcd,
    stopped_for_30_seconds,
    cut_off_from_all,
    cut_off_from_etcd,
    cut_off_with_one_slave,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
async def test_stock_clients_lose_nothing(
    shells: Callable[[str], Shell], tmp_path: Path, fault: Callable[[Scenario], Awaitable[None]]
) -> None:
    shell = await asyncio.to_thread(shells, NEWEST)
    async with (
        scenario(tmp_path, GOAL) as it,
        java_load(shell, it.group.namesrv, fault.__name__) as java,
    ):
        await java.reach(GOAL // 3)
        await java.longest_s()
        await fault(it)
        await java.more(GOAL // 10)
        gap_s = await java.longest_s()
        await java.reach(GOAL)
        await it.finish()
        master = await it.group.master()
        count = await java.finish(master.address)
        log.info("%s: Java: %d acknowledged, longest gap %.2f s", fault.__name__, count, gap_s)
