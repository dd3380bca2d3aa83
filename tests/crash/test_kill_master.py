"""`kill -9` of a master under load: what its slave has when it becomes the master.

Both are processes as users start them. After each kill the slave is the next master, by a promotion
or by a restart with the role in its configuration, and the former master the next slave, with an
empty store: so each round tests catching up, too.
"""

import logging
import random
import signal
from pathlib import Path

import pytest

from tests.support.brokers import Peer, eventually, peer_of
from tests.support.replica_processes import Replica, ReplicaPair, replica_pair
from tests.support.replicated_load import TOPICS, Load, Place, missing
from tianzhou.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

KILLS = [pytest.param(3, id="3 kills"), pytest.param(50, id="50 kills", marks=pytest.mark.full)]
SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}


async def replicates(master: Replica) -> None:
    """Wait until a SYNC_MASTER acknowledges, so that its slave follows."""
    async with peer_of(master.address) as peer:

        async def is_acknowledged() -> bool:
            return await code_of_probe(peer) == ResponseCode.SUCCESS

        await eventually(is_acknowledged, "SEND_OK")


async def code_of_probe(peer: Peer) -> int:
    return (await peer.send("probes", b"probe", queue_count=1)).code


async def next_master(pair: ReplicaPair, number: int) -> None:
    """The slave becomes the master in one of three ways."""
    if number % 3 == 0:
        await pair.promote()
    else:
        await pair.restart_as_master(signal.SIGTERM if number % 3 == 1 else signal.SIGKILL)


@pytest.mark.parametrize("kills", KILLS)
async def test_a_synchronous_pair_loses_nothing_acknowledged(tmp_path: Path, kills: int) -> None:
    """SYNC_MASTER and SYNC_FLUSH; every message is at the queue offset that was acknowledged."""
    dice = random.Random(kills)
    load, checked = Load(), set[Place]()
    async with replica_pair(tmp_path, "SYNC_MASTER", **SYNC_FLUSH) as pair:
        await load.once(pair.master.address)
        for number in range(kills):
            await replicates(pair.master)
            await pair.knows_topics(TOPICS)
            async with load.running(pair.master.address, seed=number):
                await load.reach(dice.randint(1, 600))
                await pair.master.kill()
            await next_master(pair, number)
            lost = await missing(pair.master.address, load, checked)
            assert not lost, f"kill {number}: {len(lost)} of {len(load.acknowledged)} are missing"
            checked.update(load.acknowledged)
            await pair.start_fresh_slave()
        await pair.in_step()
        assert not await missing(pair.master.address, load)
    log.info(
        "%d kills: %d acknowledged messages, %d commits, 0 missing; responses %s", kills,
        len(load.acknowledged), len(load.committed), dict(load.codes),
    )  # fmt: skip


@pytest.mark.parametrize("kills", KILLS)
async def test_an_asynchronous_pair_loses_only_what_the_slave_had_not_reported(
    tmp_path: Path, kills: int
) -> None:
    """The loss is logged (--log-cli-level=info). The slave's log is the beginning of the other.

    Before every second kill the slave is stopped for some milliseconds, as by a slow network.
    """
    dice = random.Random(kills)
    losses: list[list[int]] = [[], []]
    sent_count = 0
    async with replica_pair(tmp_path, "ASYNC_MASTER") as pair:
        for number in range(kills):
            load, reported, is_slow = Load(), 0, number % 2 == 1
            await load.once(pair.master.address)
            await pair.knows_topics(TOPICS)
            await pair.in_step()
            async with load.running(pair.master.address, seed=number):
                await load.reach(dice.randint(1, 600))
                for slave in (await pair.master.status()).connections:
                    reported = slave.slave_ack_offset
                if is_slow:
                    pair.slave.send_signal(signal.SIGSTOP)
                    await load.reach(dice.randint(1, 50))
                await pair.master.kill()
                pair.slave.send_signal(signal.SIGCONT)
            await next_master(pair, number)
            end = pair.master.epoch_start
            assert end >= reported > 0
            assert pair.master.log_bytes(end) == pair.slave.log_bytes(end)
            losses[is_slow].append(len(await missing(pair.master.address, load)))
            sent_count += len(load.acknowledged)
            await pair.start_fresh_slave()
    log.info(
        "%d kills: %d acknowledged messages; lost at each kill: %s, with a slow slave %s", kills,
        sent_count, *losses,
    )  # fmt: skip
