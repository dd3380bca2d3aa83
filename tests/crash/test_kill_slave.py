"""A slave that is killed or cut off under load: its log stays the beginning of its master's."""

import asyncio
import random
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import LOOPBACK, eventually
from tests.support.copied_log import derived_of
from tests.support.cutting_proxy import Odds, trouble
from tests.support.gate import gated
from tests.support.replica_processes import ReplicaPair, replica_pair
from tests.support.replicated_load import TOPICS, Load, missing
from tianzhou.store.message_store import MessageStore

KILLS = [pytest.param(4, id="4 kills"), pytest.param(40, id="40 kills", marks=pytest.mark.full)]
FLUSHES = gated(("ASYNC_FLUSH", "SYNC_FLUSH"), {"SYNC_FLUSH"})
ELSEWHERE = "127.0.0.2"
"""Where proxies of the master listen."""


def is_a_copy(pair: ReplicaPair, folder: Path) -> int:
    """Asserts that the stopped slave has what its log says, and the log the beginning of the
    master's; returns its end."""
    opened, rebuilt = folder / "opened", folder / "rebuilt"
    for copy in (opened, rebuilt):
        shutil.copytree(pair.slave.folder / "store", copy)
    with MessageStore.open(pair.slave.config(opened), background=False) as store:
        end, derived = store.end_log_offset, derived_of(store)
    with MessageStore.open(pair.slave.config(rebuilt), background=False, rebuild=True) as store:
        assert store.end_log_offset == end
        assert derived_of(store) == derived
    shutil.rmtree(opened)
    shutil.rmtree(rebuilt)
    assert pair.slave.log_bytes(end) == pair.master.log_bytes(end)
    return end


async def is_whole(pair: ReplicaPair, load: Load, folder: Path) -> None:
    """Asserts that the slave catches up, and has everything when it becomes the master."""
    end = await pair.in_step()
    await pair.knows_topics(TOPICS)
    await pair.master.kill()
    await pair.slave.kill()
    assert is_a_copy(pair, folder) == end
    await pair.slave.start(pair.role)
    pair.swap()
    assert not await missing(pair.master.address, load)


async def with_topics(pair: ReplicaPair, load: Load) -> None:
    await load.once(pair.master.address)
    await pair.knows_topics(TOPICS)


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("kills", KILLS)
async def test_a_killed_slave_has_the_beginning_of_the_log_and_catches_up(
    tmp_path: Path, kills: int, flush: str
) -> None:
    """It is killed at any moment: while it starts, catches up, or follows."""
    dice, load, ends = random.Random(kills), Load(), [0]
    async with replica_pair(tmp_path, "SYNC_MASTER", flushDiskType=flush) as pair:
        await with_topics(pair, load)
        async with load.running(pair.master.address, seed=kills):
            for number in range(kills):
                if number:
                    await pair.slave.begin("SLAVE", pair.followed_address)
                # From the start of the interpreter to some time after the first message.
                await asyncio.sleep(dice.uniform(0, 2))
                await pair.slave.kill()
                ends.append(await asyncio.to_thread(is_a_copy, pair, tmp_path))
                if number % 8 == 7:
                    shutil.rmtree(pair.slave.folder)
                    ends.append(0)
            await pair.start_slave()
            await load.reach(100)
        await is_whole(pair, load, tmp_path)
    assert max(ends) > 0


@pytest.mark.parametrize("kills", KILLS)
async def test_master_and_slave_are_killed_in_turns(tmp_path: Path, kills: int) -> None:
    """The master comes back as the master, and begins an epoch."""
    dice, load = random.Random(kills), Load()
    async with replica_pair(tmp_path, "SYNC_MASTER", flushDiskType="SYNC_FLUSH") as pair:
        await with_topics(pair, load)
        async with load.running(pair.master.address, seed=kills, persists=True):
            for number in range(kills):
                await load.reach(dice.randint(1, 200))
                if number % 2:
                    await pair.master.kill()
                    await pair.master.start(pair.role)
                else:
                    await pair.slave.kill()
                    await pair.start_slave()
            await load.reach(100)
        await is_whole(pair, load, tmp_path)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3))])
async def test_a_slave_that_is_cut_off_loses_nothing_acknowledged(
    tmp_path: Path, seed: int
) -> None:
    """Its connections to the master are delayed, stalled beyond their silence, and cut."""
    odds = Odds(cut=0.01, stall=0.005, delay=0.1, garble=0, stall_s=1.5, delay_s=0.03)
    load = Load()
    times: dict[str, Any] = {"haHousekeepingInterval": 1000, "haSendHeartbeatInterval": 200}
    async with (
        AsyncExitStack() as stack,
        replica_pair(tmp_path, flushDiskType="SYNC_FLUSH", **times) as pair,
    ):
        master = pair.master
        requests, copies = [
            await stack.enter_async_context(
                trouble((ELSEWHERE, port), (LOOPBACK, port), seed=seed, odds=odds)
            )
            for port in (master.port, master.ha_port)
        ]
        pair.master_address = f"{ELSEWHERE}:{master.ha_port}"
        await pair.start("SYNC_MASTER")
        await with_topics(pair, load)
        async with load.running(master.address, seed=seed):
            await eventually(
                lambda: min(copies.fates[fate] for fate in ("cut", "stall", "delay")) > 1,
                "a cut, a stall and a delay",
            )
            await load.reach(500)
        for proxy in (requests, copies):
            proxy.calm()
        await is_whole(pair, load, tmp_path)
        assert pair.slave is master
