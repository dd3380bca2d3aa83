"""Masters and slaves of ours and of Apache's: equal logs and tables, and clients that go on."""

import asyncio
import random
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache.backends import OURS
from tests.support.apache.jars import VERSIONS
from tests.support.apache.mixed_load import MixedLoad
from tests.support.apache.replicas import (
    Replica,
    assert_equal_logs,
    assert_equal_queues,
    assert_equal_tables,
    in_step,
)
from tests.support.apache.servers import Server, Shell, tianzhou_namesrv
from tests.support.brokers import Peer, eventually, peer_of
from tests.support.gate import NEWEST
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.records.message_id import decode_offset_id

pytestmark = pytest.mark.apache

FILE_BYTES, LONG_FILE_BYTES = 256 * 1024, 8 * 1024 * 1024
COMMON: dict[str, Any] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "maxMessageSize": 64 * 1024,
    "slaveReadEnable": "true",
    # Open transactions stay as they are, so that the logs end.
    "transactionCheckInterval": 600_000,
}
SLAVE: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1}
MASTER: dict[str, Any] = {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
GATE_COUNT, LONG_COUNT = 3_000, 100_000
KILLS_OF_EACH, DOWN_S_MAX = 2, 3.0
SEED = 20
OLDER = VERSIONS[0]
SYNC_COUNT = 50


@pytest.fixture(scope="module")
def namesrv(apache: None) -> Iterator[Server]:
    with tianzhou_namesrv() as server:
        yield server


@dataclass
class Pair:
    """A master, and a slave that is not started yet."""

    master: Replica
    slave: Replica
    load: MixedLoad

    async def start_slave(self) -> None:
        """Start it, and wait until it follows: Apache's waits for five seconds."""
        await asyncio.to_thread(self.slave.life.start)
        await asyncio.to_thread(in_step, self.master, self.slave)


@asynccontextmanager
async def pair_of(
    namesrv: Server,
    folder: Path,
    master: str,
    slave: str,
    **settings: object,
) -> AsyncGenerator[Pair]:
    """Both have the settings; `master` and `slave` are `OURS` or a version of Apache's."""
    common = COMMON | settings
    one = Replica(master, namesrv, folder / "master", COMMON | MASTER | settings)
    other = Replica(slave, namesrv, folder / "slave", common | SLAVE)
    with ExitStack() as stack:
        for each in (one, other):
            stack.callback(each.remove)
            stack.callback(each.life.stop)
        await asyncio.to_thread(one.life.start)
        async with peer_of(one.address) as peer:
            yield Pair(one, other, MixedLoad(peer, SEED, master != "4.9.7"))


async def assert_equal(
    pair: Pair, *, with_tables: bool = True, alone: ResponseCode = ResponseCode.SUCCESS
) -> int:
    """Compare everything, stop both and look into what they leave; returns the equal bytes.

    `alone` is how sends end when the slave has stopped.
    """
    master, slave = pair.master, pair.slave
    if with_tables:
        await asyncio.to_thread(assert_equal_tables, master, slave)
    end = await asyncio.to_thread(in_step, master, slave)
    await asyncio.to_thread(assert_equal_queues, master, slave)
    await asyncio.to_thread(slave.life.stop)
    await ends_with(pair.load.peer, alone)
    await asyncio.to_thread(master.life.stop)
    count = assert_equal_logs(master, slave, end)
    for each in (master, slave):
        assert not each.errors(), "\n".join(each.errors())
        if each.is_ours:
            each.verify()
    return count


async def ends_with(peer: Peer, code: ResponseCode) -> None:
    """Wait until a send ends so."""

    async def is_equal() -> bool:
        return (await peer.send("orders", b"probe")).code == code

    await eventually(is_equal, f"a send that ends with {code.name}")


async def assert_acknowledged_by_slave(pair: Pair) -> None:
    """A synchronous master responds with SEND_OK when the slave has the message."""
    await ends_with(pair.load.peer, ResponseCode.SUCCESS)
    for number in range(SYNC_COUNT):
        sent = await pair.load.peer.send("orders", b"%d" % number)
        assert sent.code == ResponseCode.SUCCESS, sent
        log_offset = decode_offset_id(sent.fields["msgId"])[1]
        assert await asyncio.to_thread(pair.slave.end) > log_offset


@pytest.mark.parametrize(
    ("master", "slave"),
    [(OURS, NEWEST), pytest.param(OURS, OLDER, marks=pytest.mark.full)],
)
async def test_apaches_slave_copies_our_synchronous_master(
    namesrv: Server, tmp_path: Path, master: str, slave: str
) -> None:
    alone = ResponseCode.SLAVE_NOT_AVAILABLE
    async with pair_of(namesrv, tmp_path, master, slave, brokerRole="SYNC_MASTER") as pair:
        await ends_with(pair.load.peer, alone)
        await pair.load.send(GATE_COUNT // 4)
        await pair.start_slave()
        await assert_acknowledged_by_slave(pair)
        await pair.load.send(GATE_COUNT)
        # That of 5.x waits for a minute before it copies tables.
        count = await assert_equal(pair, with_tables=slave == OLDER, alone=alone)
        assert count > 3 * FILE_BYTES, pair.load


async def test_our_slave_copies_apaches_master(namesrv: Server, tmp_path: Path) -> None:
    async with pair_of(namesrv, tmp_path, NEWEST, OURS) as pair:
        await pair.load.send(GATE_COUNT // 4)
        await pair.start_slave()
        await pair.load.send(GATE_COUNT)
        count = await assert_equal(pair)
        assert count > 3 * FILE_BYTES, pair.load


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
async def test_apaches_synchronous_master_waits_for_our_slave(
    namesrv: Server, tmp_path: Path, version: str
) -> None:
    # RocketMQ 5.x waits only if it is told that there must be two copies, and it does not notice
    # that there is no slave.
    is_new = version == NEWEST
    alone = ResponseCode.FLUSH_SLAVE_TIMEOUT if is_new else ResponseCode.SLAVE_NOT_AVAILABLE
    settings: dict[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    async with pair_of(namesrv, tmp_path, version, OURS, **settings) as pair:
        await ends_with(pair.load.peer, alone)
        await pair.start_slave()
        await assert_acknowledged_by_slave(pair)
        await asyncio.to_thread(pair.slave.life.kill)
        await ends_with(pair.load.peer, alone)
        await pair.start_slave()
        await assert_acknowledged_by_slave(pair)
        await assert_equal(pair, alone=alone)


def reached(task: asyncio.Task[None], load: MixedLoad, count: int) -> bool:
    return task.done() or load.count >= count


@pytest.mark.full
@pytest.mark.parametrize("ours", ["master", "slave"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_logs_and_tables_are_equal_after_kills(
    namesrv: Server, tmp_path: Path, version: str, ours: str
) -> None:
    kinds = (OURS, version) if ours == "master" else (version, OURS)
    rng = random.Random(f"{SEED} {kinds}")
    size: dict[str, Any] = {"mappedFileSizeCommitLog": LONG_FILE_BYTES}
    async with pair_of(namesrv, tmp_path, *kinds, **size) as pair:
        await pair.load.send(LONG_COUNT // 20)
        await pair.start_slave()
        victims = [pair.master, pair.slave] * KILLS_OF_EACH
        rng.shuffle(victims)
        counts = sorted(rng.sample(range(LONG_COUNT // 20, LONG_COUNT), len(victims)))
        load = asyncio.create_task(pair.load.send(LONG_COUNT))
        for count, victim in zip(counts, victims, strict=True):
            await eventually(partial(reached, load, pair.load, count), "load", 600)
            await asyncio.to_thread(victim.life.kill)
            await asyncio.sleep(rng.random() * DOWN_S_MAX)
            await asyncio.to_thread(victim.life.start)
        await load
        count = await assert_equal(pair)
        sys.stdout.write(f"{kinds}: {count} equal bytes, kills at {counts}, {pair.load.kinds}\n")
        assert count > 3 * LONG_FILE_BYTES, pair.load


# -- what operators see ----------------------------------------------------------------------------


async def test_stock_tools_show_a_pair(
    namesrv: Server, tmp_path: Path, shells: Callable[[str], Shell]
) -> None:
    shell = shells(NEWEST)
    async with pair_of(namesrv, tmp_path, OURS, OURS) as pair:
        await pair.load.send(GATE_COUNT // 10)
        await pair.start_slave()
        master, slave = pair.master, pair.slave

        async def shown(command: str, broker: Replica) -> str:
            return await asyncio.to_thread(
                shell.mqadmin, namesrv.address, command, "-b", broker.address
            )

        async def in_step_in(command: str, broker: Replica, patterns: list[str]) -> None:
            async def matches() -> bool:
                output = await shown(command, broker)
                return all(re.search(each, output) for each in patterns)

            await eventually(matches, f"{patterns} in {await shown(command, broker)}")

        ha = re.escape(f"127.0.0.1:{master.port + 1}")
        await in_step_in("haStatus", master, [
            rf"#MasterAddr\t{re.escape(master.address)}\n", r"#MasterCommitLogMaxOffset\t(\d+)\n",
            r"#SlaveNum\t1\n", r"#InSyncSlaveNum\t1\n",
            r"\n127.0.0.1:\d+ +(\d+) +0 +[\d.]+ +OK +\1",
        ])  # fmt: skip
        await in_step_in("haStatus", slave, [
            rf"#MasterAddr\t{ha}\n", r"#CommitLogMaxOffset\t[1-9]\d*\n", r"#LastReadTime\t20\d\d-",
        ])  # fmt: skip
        await in_step_in("brokerStatus", master, [
            r"haRole +: ASYNC_MASTER", r"haSlaveNums +: 1", r"haInSyncSlaveNums +: 1",
            r"haSlaveBehindBytes_id:1 +: 0", r"haSlaveMaxBehindBytes +: 0",
            r"brokerActive +: true",
        ])  # fmt: skip
        await in_step_in("brokerStatus", slave, [
            r"haRole +: SLAVE", r"haState +: following", r"haBehindMasterBytes +: 0",
            rf"haMaster +: {ha}", r"brokerActive +: false",
        ])  # fmt: skip
