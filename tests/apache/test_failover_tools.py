"""The controller tools of 5.5.0, pointed at brokers of ours that elect their master."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.apache.servers import Shell, apache_namesrv
from tests.support.brokers import peer_of
from tests.support.elected_here import NAME, ElectedHere, elected_here
from tests.support.gate import NEWEST
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.doctor.failover import check_namesrv
from tianzhou.protocol.codes import ResponseCode

pytestmark = pytest.mark.apache

CLUSTER = "DefaultCluster"


async def test_stock_tools_show_and_switch_an_elected_group(
    tmp_path: Path, shells: Callable[[str], Shell]
) -> None:
    async with elected_here(tmp_path) as group:
        state = await group.in_sync(3)
        to = next(each for each in state.in_sync if each != state.master)
        slave = group.broker_of(to).address
        master = (await group.has_master()).address

        shown = await mqadmin(shells, group, "getControllerMetaData", "-a", slave)
        assert f"#ControllerLeaderAddress\t{master}" in shown
        for replica in group.running:
            assert replica.address in shown

        shown = await mqadmin(shells, group, "getSyncStateSet", "-a", slave, "-b", NAME)
        assert f"#MasterAddr\t{master}" in shown
        assert "#SyncStateSetNums\t3" in shown
        assert len(re.findall(r"InSyncReplica:\t.*brokerId=\d", shown)) == 3

        shown = await mqadmin(
            shells, group, "electMaster", "-a", slave, "-b", str(to), "-bn", NAME, "-c", CLUSTER
        )
        assert f"#BrokerMasterAddr\t{slave}" in shown, shown
        assert "#MasterEpoch\t2" in shown
        assert re.search(rf"#Broker\t0\t{slave}", shown), "the members of the group"
        assert group.id_of(await group.has_master(other_than=state.master or 0)) == to
        await group.in_sync(3)
        async with peer_of(slave) as peer:
            assert (await peer.send("t", b"x")).code == ResponseCode.SUCCESS

        shown = await mqadmin(shells, group, "getBrokerEpoch", "-b", NAME)
        assert len(re.findall(r"#brokerAddr\t", shown)) == 3, shown
        assert len(re.findall(r"Epoch: EpochEntry\{epoch=2,", shown)) == 3, shown

        shown = await mqadmin(shells, group, "haStatus", "-b", slave)
        assert "#InSyncSlaveNum\t2" in shown

        refused = await mqadmin(
            shells, group, "electMaster", "-a", slave, "-b", "9", "-bn", NAME, "-c", CLUSTER
        )
        assert "replica 9 is not in sync" in refused


@pytest.mark.parametrize(("version", "count"), [("4.9.7", 1), (NEWEST, 0)])
async def test_nameservers_of_rocketmq_4_9_are_a_finding(
    apache: None, version: str, count: int
) -> None:
    with apache_namesrv(version) as namesrv:
        async with Admin(namesrv.address) as admin:
            settings = await admin.namesrv.settings(namesrv.address)
    assert len(check_namesrv(namesrv.address, settings)) == count


async def mqadmin(shells: Callable[[str], Shell], group: ElectedHere, *words: str) -> str:
    shell = await asyncio.to_thread(shells, NEWEST)
    return await asyncio.to_thread(shell.mqadmin, group.cli.namesrv, *words)
