"""Power cuts of pop consumption: log, offsets and index are restored from different times.

The log is on the simulated disk, which loses what was not synced. The offsets are those that were
saved last. The index may be as old as any of its commits since the start, for those are not synced.
In every combination no unacknowledged message of the log may be lost.
"""

import asyncio
import contextlib
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.gate import some_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import BORN, HERE, NOON_MS, small_config
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.pop.inflight import Change, InFlight, Key
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import Draft, MessageStore

KEY = Key("g", "t", 0)
RETRY = "%RETRY%g_t"
ACTIONS = 40
INVISIBLE_MS = 1000


@dataclass
class Life:
    """Pop consumption from a start to a power cut."""

    folder: Path
    """The path of the index."""
    disk: SimulatedDisk
    saved: dict[str, object]
    """The offsets as they were saved last."""
    now_ms: int
    acked: set[bytes] = field(default_factory=set[bytes])
    snapshots: list[bytes] = field(default_factory=list[bytes])
    sent_count: int = 0

    def __post_init__(self) -> None:
        self.disk.now_ms = self.now_ms
        self.store = MessageStore.open(
            small_config(), disk=self.disk, clock=lambda: self.now_ms, background=False
        )
        self.offsets = OffsetTable()
        self.offsets.load(self.saved)
        given = [Given("storePathRootDir", str(self.folder), "test", deliberate=True)]
        settings = LiveSettings(load_broker_config(environ={}, flags=given))
        self.pops = Pops(
            settings, self.store, Durability(self.store, settings),
            TopicTable((), lambda: self.now_ms), GroupTable(lambda: self.now_ms), self.offsets,
            Stats(started_ms=0), lambda: self.now_ms, lambda: self.now_ms, HERE,
            self.topics_saved, lambda _: None,
        )  # fmt: skip
        self.take_snapshot()

    async def topics_saved(self) -> bool:
        return True

    def take_snapshot(self) -> None:
        """Copy the index, for a later power cut."""
        path = self.folder / "pop" / "inflight.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as own:
            self.snapshots.append(own.serialize())

    # -- what happens ------------------------------------------------------------------------------

    def send(self) -> None:
        self.sent_count += 1
        body = f"{self.folder.name}-{self.sent_count}".encode()
        self.store.append(Draft("t", 0, body, "", self.now_ms, BORN, HERE))

    def pop(self, count: int) -> None:
        start = self.pops.next_offset(KEY) or 0
        stop = min(start + count, self.store.max_offset("t", 0))
        rows = tuple(InFlight(at, self.now_ms, INVISIBLE_MS) for at in range(start, stop))
        if rows:
            self.pops.apply([Change(KEY, stop, put=rows)])

    def ack(self, dice: random.Random) -> None:
        rows = list(self.pops.table.in_flight(KEY))
        if rows:
            row = dice.choice(rows)
            change = self.pops.table.acked(KEY, *row)
            assert change is not None
            self.pops.apply([change])
            self.acked.add(self.bodies("t", row.queue_offset, 1)[0])

    async def advance(self, *, flushed: bool) -> None:
        """Advance the clock: due messages are stored again, and dropped if the log is flushed."""
        self.now_ms += INVISIBLE_MS
        self.disk.now_ms = self.now_ms
        running = asyncio.create_task(self.pops.run())
        for _ in range(6):
            await asyncio.sleep(0)
            if flushed:
                self.store.flush()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def save(self) -> None:
        self.saved = self.offsets.as_file()

    def bodies(self, topic: str, start: int = 0, count: int = 10_000) -> list[bytes]:
        bodies_read: list[bytes] = []
        at = max(start, self.store.min_offset(topic, 0))
        while at < self.store.max_offset(topic, 0) and len(bodies_read) < count:
            read = self.store.read(topic, 0, at, count - len(bodies_read))
            bodies_read += [decode_record(record).body for record in read.records]
            at = max(read.next_offset, at + 1)
        return bodies_read

    # -- the end -----------------------------------------------------------------------------------

    def cut(self, dice: random.Random, folder: Path) -> "Life":
        """The state after a power cut."""
        (folder / "pop").mkdir(parents=True)
        (folder / "pop" / "inflight.sqlite").write_bytes(dice.choice(self.snapshots))
        disk = self.disk.after_power_cut(dice)
        return Life(folder, disk, self.saved, self.now_ms, acked=set(self.acked))

    async def close(self) -> None:
        self.store.flush()
        await self.pops.stop()
        self.store.close()

    def lost(self) -> list[bytes]:
        """Unacknowledged messages of the log that would never be delivered again."""
        next_offset = self.pops.next_offset(KEY) or 0
        flying = {row.queue_offset for row in self.pops.table.in_flight(KEY)}
        waiting = self.acked.union(self.bodies(RETRY))
        passed = self.bodies("t", 0, next_offset) if next_offset else []
        return [
            body
            for queue_offset, body in enumerate(passed)
            if queue_offset not in flying and body not in waiting
        ]


async def live(life: Life, dice: random.Random) -> None:
    for _ in range(ACTIONS):
        match dice.choice(["send", "send", "pop", "ack", "time", "time", "save", "flush", "write"]):
            case "send":
                life.send()
            case "pop":
                life.pop(dice.randint(1, 4))
            case "ack":
                life.ack(dice)
            case "time":
                await life.advance(flushed=dice.random() < 0.7)
            case "save":
                life.save()
            case "flush":
                life.store.flush()
            case _:
                life.disk.write_back(dice)
        life.take_snapshot()
        assert life.lost() == []


@pytest.mark.parametrize("seed", some_of(range(12), 4))
async def test_no_message_is_lost(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    folder = tmp_path / "0"
    folder.mkdir()
    life = Life(folder, SimulatedDisk(), {}, NOON_MS)
    for number in range(1, 4):
        await live(life, dice)
        following = life.cut(dice, tmp_path / str(number))
        await life.close()
        assert following.lost() == [], f"seed {seed}, life {number}"
        life = following
    await life.close()


async def test_check_detects_a_loss(tmp_path: Path) -> None:
    """What is committed beyond a message in flight is lost with the index."""
    life = Life(tmp_path, SimulatedDisk(), {}, NOON_MS)
    life.send()
    life.store.flush()
    life.pop(1)
    life.offsets.commit(*KEY, 1)
    life.save()
    life.snapshots[:] = life.snapshots[:1]
    following = life.cut(random.Random(0), tmp_path / "next")
    await life.close()
    assert following.lost() == [b"%s-1" % tmp_path.name.encode()]
    await following.close()
