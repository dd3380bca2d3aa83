"""An etcd that was restored from a backup elects nobody, and disturbs no traffic (R14).

A backup has an earlier state of the group: an earlier epoch with another master, or the present
epoch with a member that has left the in-sync set since. Its revisions come up a second time.
"""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support.brokers import eventually
from tests.support.command_line import Cli
from tests.support.elected_group import (
    NAME,
    PATIENCE_S,
    ElectedGroup,
    ElectedReplica,
    Stopwatch,
    elected_group,
)
from tests.support.replicated_load import Load, missing

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.replication import groups
from tianzhou.errors import TianzhouError
from tianzhou.protocol.codes import ResponseCode

ELECTION_S = 8.0
"""Longer than a lease and all waits of an election."""
RESTORED = "restored from a backup"


class Backup:
    """A copy of the data of etcd, made while it is stopped."""

    def __init__(self, group: ElectedGroup, folder: Path) -> None:
        (self._member,) = group.etcd.members
        self._etcd = group.etcd
        self._data = folder / "etcd" / f"{self._member.name}.data"
        self._copy = folder / "backup"

    async def make(self) -> None:
        await asyncio.to_thread(self._exchange, self._data, self._copy)

    async def restore(self) -> None:
        await asyncio.to_thread(self._exchange, self._copy, self._data)

    def _exchange(self, source: Path, target: Path) -> None:
        self._member.kill()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        self._member.start()
        self._etcd.wait_healthy()


async def all_distrust(group: ElectedGroup, replicas: Iterable[ElectedReplica]) -> None:
    """Wait until each of these says that etcd was restored."""
    async with Admin(group.namesrv) as admin:
        for replica in replicas:

            async def says_so(replica: ElectedReplica = replica) -> bool:
                try:
                    info = await admin.brokers.group(BrokerRef(NAME, 0, replica.address, ""))
                except TianzhouError:  # it changes its role, or leaves the routes
                    return False
                return any(RESTORED in alarm.text for alarm in info.alarms)

            await eventually(says_so, f"{replica.address} says that etcd was restored", PATIENCE_S)


async def both_know(group: ElectedGroup, replicas: tuple[ElectedReplica, ElectedReplica]) -> None:
    """Wait until these two have seen that they are the in-sync set."""
    async with Admin(group.namesrv) as admin:

        async def is_known() -> bool:
            refs = [BrokerRef(NAME, 0, each.address, "") for each in replicas]
            return all([len((await admin.brokers.group(ref)).in_sync) == 2 for ref in refs])

        await eventually(is_known, "two in sync", PATIENCE_S)


async def wait_for_an_election() -> None:
    """So long as none would take."""
    stopwatch = Stopwatch()
    await eventually(lambda: stopwatch.seconds > ELECTION_S, "time for an election", PATIENCE_S)


async def nobody_accepts(group: ElectedGroup, replicas: Iterable[ElectedReplica]) -> None:
    for replica in replicas:
        assert await group.send(replica) != ResponseCode.SUCCESS


async def force_an_election(group: ElectedGroup, at: ElectedReplica) -> None:
    """What docs/failover.md says: stop all, start them, elect the replica with the longest log."""
    for replica in group.replicas:
        if replica.process is not None:
            await replica.stop()
    await group.start()
    await all_distrust(group, group.replicas)
    ran = await Cli(group.namesrv).run(
        "broker", "elect", NAME, "--force", "--accept-loss", "--yes", "--broker", at.address
    )
    assert "is the master of epoch" in ran.out


async def test_a_backup_with_an_earlier_epoch(tmp_path: Path) -> None:
    load = Load()
    async with elected_group(tmp_path) as group:
        first = await group.accepting_master()
        await group.in_sync(group.replicas)
        backup = Backup(group, tmp_path)
        await backup.make()
        async with Admin(group.namesrv) as admin:
            await groups.ask(admin, first.address, "switch")
        second = await group.master(other_than=first)
        await group.in_sync(group.replicas)
        await load.once(second.address)

        # The master goes on, with all replicas.
        async with load.running(second.address, seed=1):
            await backup.restore()
            await all_distrust(group, group.replicas)
            await wait_for_an_election()
            await load.reach(100)
        assert await group.registered_master() == second.address
        # When it is lost, it is not replaced.
        await second.kill()
        await wait_for_an_election()
        await nobody_accepts(group, (each for each in group.replicas if each is not second))
        state = (await group.view()).state
        assert state is not None
        assert state.epoch == 1

        await force_an_election(group, first)
        third = await group.accepting_master()
        await group.in_sync(group.replicas)
        assert not await missing(third.address, load)
        await group.equal_logs(third)


async def test_a_backup_with_a_member_that_has_left_since(tmp_path: Path) -> None:
    """It was down, and finds itself in sync, without the messages that were acknowledged since."""
    load = Load()
    async with elected_group(tmp_path) as group:
        master = await group.accepting_master()
        await group.in_sync(group.replicas)
        backup = Backup(group, tmp_path)
        await backup.make()
        left, other = (each for each in group.replicas if each is not master)
        await left.kill()
        await both_know(group, (master, other))
        async with load.running(master.address, seed=1):
            await load.reach(200)

        for replica in (other, master):
            await replica.stop()
        await backup.restore()
        for replica in (master, other, left):
            await replica.run()
            await all_distrust(group, (replica,))
        await master.kill()
        await wait_for_an_election()
        await nobody_accepts(group, (left, other))
        state = (await group.view()).state
        assert state is not None
        assert state.epoch == 1

        await force_an_election(group, other)
        chosen = await group.accepting_master()
        assert chosen is not left
        await group.in_sync(group.replicas)
        assert not await missing(chosen.address, load)
        await group.equal_logs(chosen)
