"""Power cuts of a slave with SYNC_FLUSH: what it reported is in its log, which is its master's.

The slave is real but for its disk, which loses what was not synced. Its flushes take as long as the
case says, so that much of the log is received and not reported at the cut.
"""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.copied_log import (
    BLANK_BYTES,
    WrittenLog,
    derived_again,
    derived_of,
    random_log,
)
from tests.support.gate import some_of
from tests.support.memory_log import MemoryLog
from tests.support.scripted_master import ScriptedMaster, scripted_master
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import open_store, small_config
from tianzhou.ha.epochs import EpochFile
from tianzhou.ha.follower import Follower
from tianzhou.ha.hello import Broker
from tianzhou.ha.master_connection import Times
from tianzhou.protocol.pure.record import MAGIC_BLANK, SIZE_AND_MAGIC
from tianzhou.remoting.client import Client
from tianzhou.store.config import FlushDiskType
from tianzhou.store.flush import FlushCallback
from tianzhou.store.message_store import MessageStore

FILE_BYTES = 8192
CUTS = 3
STEPS_MAX = 60
SLAVE = Broker(cluster="c", name="broker-a", id=1, store_id="1" * 32)
TIMES = Times(retry_s=0.02, lasting_retry_s=0.05, silence_s=5, report_s=0.1, request_s=5)


class GrowingLog(MemoryLog):
    """The log of the master, of which the slave sees more and more."""

    def __init__(self, written: WrittenLog) -> None:
        super().__init__(FILE_BYTES)
        self._written = written

    def grow(self, dice: random.Random) -> None:
        at = self._written.boundaries.index(len(self.content))
        ends = self._written.boundaries[at : at + 12]
        self.content += self._written.data[len(self.content) : dice.choice(ends)]

    @property
    def is_whole(self) -> bool:
        return len(self.content) == len(self._written.data)


class SlowFlushes(MessageStore):
    """The store of the slave; `end_flushes` does what the flush thread does."""

    waiting: list[tuple[int, FlushCallback]]

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None:
        self.waiting.append((log_offset, callback))

    def end_flushes(self) -> None:
        waiting, self.waiting = self.waiting, []
        for log_offset, callback in waiting:
            super().when_flushed(log_offset, callback)


def opened(disk: SimulatedDisk) -> SlowFlushes:
    config = small_config(log_file_bytes=FILE_BYTES, flush=FlushDiskType.SYNC_FLUSH)
    store = SlowFlushes.open(config, disk=disk, background=False)
    store.waiting = []
    return store


async def copy_for_a_while(
    master: ScriptedMaster, log: GrowingLog, store: SlowFlushes, disk: SimulatedDisk,
    root: Path, dice: random.Random,
) -> int:  # fmt: skip
    """Returns what the slave has reported."""
    client, before = Client(), len(master.reports)
    follower = Follower(store, EpochFile(root), SLAVE, client, master.addresses, times=TIMES)
    await follower.start()
    for _ in range(dice.randrange(STEPS_MAX)):
        step = dice.random()
        if step < 0.5:
            log.grow(dice)
        elif step < 0.7:
            disk.write_back(dice)
        elif step < 0.85:
            store.end_flushes()
        await asyncio.sleep(dice.choice((0, 0.002, 0.01)))
    await follower.stop()
    await client.close()
    return max((report for each in master.reports[before:] for report in each), default=0)


def is_prefix(store: MessageStore, log: GrowingLog, written: WrittenLog) -> None:
    """Of a filler only the first bytes need survive."""
    end = store.end_log_offset
    assert end in written.boundaries
    start = 0
    for stop in written.boundaries[1:]:
        if stop > end:
            return
        part = store.log_slice(start, stop - start)
        assert part is not None
        _, magic = SIZE_AND_MAGIC.unpack_from(part)
        compared = BLANK_BYTES if magic == MAGIC_BLANK else stop - start
        assert part[:compared] == log.content[start : start + compared], start
        start = stop


@pytest.mark.parametrize("case", some_of(range(40), 8))
async def test_what_a_slave_reported_survives_power_cuts(case: int, tmp_path: Path) -> None:
    dice, disk = random.Random(case), SimulatedDisk()
    written = random_log(dice, FILE_BYTES, 200)
    log = GrowingLog(written)
    async with scripted_master(log, is_ours=True) as master:
        master.epochs = ()
        for _ in range(CUTS):
            store = opened(disk)
            reported = await copy_for_a_while(master, log, store, disk, tmp_path, dice)
            assert reported <= store.end_log_offset
            after = disk.after_power_cut(dice)
            store.abandon()
            disk = after
            config = small_config(log_file_bytes=FILE_BYTES)
            with open_store(config, disk) as recovered:
                assert recovered.end_log_offset >= reported
                is_prefix(recovered, log, written)
                assert derived_of(recovered) == derived_again(disk, config)
