"""The progress of transactions: committed when disk and slaves have the ends."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.replicas import StandInReplicas
from tests.support.store import BORN, HERE, NOON_MS

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.transactions.halves import Halves
from tianzhou.broker.transactions.rules import GROUP, QUEUE_ID
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.names import HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.store.message_store import Draft, MessageStore


@dataclass
class Scene:
    """One half that has ended, on a SYNC_MASTER."""

    halves: Halves
    store: MessageStore
    slaves: StandInReplicas
    offsets: OffsetTable
    now_ms: list[int]

    @property
    def committed(self) -> int:
        return self.offsets.find(GROUP, HALF_TOPIC, QUEUE_ID)


@pytest.fixture
def ended_half(tmp_path: Path) -> Generator[Scene]:
    pairs = {
        "storePathRootDir": tmp_path, "brokerRole": "SYNC_MASTER", "flushIntervalCommitLog": 60_000,
        "mappedFileSizeCommitLog": 1 << 20, "diskMaxUsedSpaceRatio": 95,
        "diskSpaceCleanForciblyRatio": 99, "diskSpaceWarningLevelRatio": 100,
    }  # fmt: skip
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    settings = LiveSettings(load_broker_config(environ={}, flags=given))
    slaves, offsets, now_ms = StandInReplicas(), OffsetTable(), [NOON_MS]
    with MessageStore.open(settings.config) as store:
        durability = Durability(store, settings, slaves)
        slaves.on_advance = durability.replicas_advanced
        writer = MessageWriter(store)
        halves = Halves(
            settings, store, durability, writer, offsets, lambda: now_ms[0], lambda: now_ms[0], HERE
        )
        writer.add_redirect(halves.redirect)
        text = properties.encode({"TRAN_MSG": "true", "PGROUP": "p"})
        half = halves.find(writer.append(Draft("t", 0, b"x", text, NOON_MS, BORN, HERE)).log_offset)
        assert half is not None
        assert halves.commit(half) is not None
        halves.write_ends(force=True)
        halves.ended.advance(store.max_offset(HALF_TOPIC, QUEUE_ID))
        yield Scene(halves, store, slaves, offsets, now_ms)


def test_progress_is_committed_when_disk_and_slaves_have_it(ended_half: Scene) -> None:
    it = ended_half
    before = it.committed
    it.halves.note_progress()
    it.slaves.acknowledge(it.store.end_log_offset)
    it.halves.note_progress()
    assert it.committed == before, "not flushed"
    it.slaves.acknowledge(0)
    it.store.flush()
    it.halves.note_progress()
    assert it.committed == before, "not replicated"
    it.slaves.acknowledge(it.store.end_log_offset)
    it.halves.note_progress()
    assert it.committed == 1


@pytest.mark.parametrize("why", ["no slave in reach", "slaveTimeout is over"])
def test_progress_goes_on_without_slaves(ended_half: Scene, why: str) -> None:
    it = ended_half
    it.halves.note_progress()
    it.store.flush()
    if why == "no slave in reach":
        it.slaves.in_reach = False
    else:
        it.now_ms[0] += 3_000
    it.halves.note_progress()
    assert it.committed == 1


async def test_progress_of_a_stopping_broker_waits_for_slaves_too(ended_half: Scene) -> None:
    it = ended_half
    before = it.committed
    with pytest.raises(TimeoutError):
        await it.halves.flush_progress(0.1)
    assert it.committed == before
    it.slaves.acknowledge(it.store.end_log_offset)
    await it.halves.flush_progress(60)
    assert it.committed == 1
