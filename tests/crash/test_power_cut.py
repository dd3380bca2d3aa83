"""Sync flush and power cuts: acknowledged messages survive, whatever the disk lost."""

import random

import pytest

from tests.support.gate import some_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    Ledger,
    Ticker,
    append_batch,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
)
from tianzhou.store import queues
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

CUTS_A_CASE = 4
CASES = 75
TOPICS = ("orders", "bills")


class Writer:
    """Random operations on a store, with a record of acknowledged messages."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.ledger = Ledger()
        self.clock = Ticker()
        self.number = 0
        self.keys: dict[str, tuple[str, int, int]] = {}

    def work(self, store: MessageStore, disk: SimulatedDisk, steps: int) -> None:
        for _ in range(steps):
            disk.now_ms = self.clock.now_ms
            step = self.dice.random()
            if step < 0.7:
                self.append(store)
            elif step < 0.85:
                self.batch(store)
            elif step < 0.93:
                disk.write_back(self.dice)
            else:
                store.flush()

    def append(self, store: MessageStore) -> None:
        self.number += 1
        key = f"k{self.number}"
        body = key.encode() * self.dice.randint(1, 200)
        one = draft(self.dice.choice(TOPICS), self.dice.randrange(3), body, key=key)
        done = store.append(one)
        position = self.ledger.gave(one, done)
        if self.dice.random() < 0.6:
            store.flushed(done.end_log_offset).result(timeout=0)
            self.acknowledged(position, body, done.log_offset)
            self.keys[key] = position

    def batch(self, store: MessageStore) -> None:
        topic, queue_id = self.dice.choice(TOPICS), self.dice.randrange(3)
        bodies = [b"%d-%d" % (self.number, i) for i in range(self.dice.randint(1, 6))]
        drafts = [draft(topic, queue_id, body) for body in bodies]
        done = append_batch(store, drafts)
        positions = [self.ledger.gave(one, done, i) for i, one in enumerate(drafts)]
        store.flushed(done.end_log_offset).result(timeout=0)
        for position, body, log_offset in zip(positions, bodies, done.log_offsets, strict=True):
            self.acknowledged(position, body, log_offset)

    def acknowledged(self, position: tuple[str, int, int], body: bytes, log_offset: int) -> None:
        # A flush covers all messages before it, but only those that waited for it are guaranteed.
        self.ledger.safe[position] = (body, log_offset)

    def check(self, store: MessageStore) -> None:
        stored = {
            (topic, queue_id, queue_offset): value
            for topic, queue_id in queues_of(store)
            for queue_offset, value in read_queue(store, topic, queue_id).items()
        }
        for position, promised in self.ledger.safe.items():
            assert stored.get(position) == promised, position
        for position, (body, _) in stored.items():
            assert self.ledger.given.get(position) == body, position
        for topic, queue_id in queues_of(store):
            offsets = sorted(o for t, q, o in stored if (t, q) == (topic, queue_id))
            assert offsets == list(range(store.max_offset(topic, queue_id))), (topic, queue_id)
        for key, position in self.keys.items():
            assert len(store.query(position[0], key, 0, 2**62, 10)) == 1, key
        # A lost message is sent again under the same offset.
        self.ledger.given = {position: body for position, (body, _) in stored.items()}


@pytest.mark.parametrize("case", some_of(range(CASES), 5))
def test_acknowledged_messages_survive_power_cuts(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many queues are synced by the file system as a whole; here a few are, in every third case.
    monkeypatch.setattr(queues, "SYNC_EACH_MAX", 0 if case % 3 == 0 else 32)
    dice = random.Random(case)
    disk = SimulatedDisk()
    config = small_config(flush=FlushDiskType.SYNC_FLUSH)
    writer = Writer(dice)
    for _ in range(CUTS_A_CASE):
        store = open_store(config, disk, writer.clock)
        # Queues and index are intact up to the checkpoint, so nothing is rebuilt.
        assert not [note for note in store.report.notes if "made again" in note]
        writer.check(store)
        writer.work(store, disk, dice.randint(0, 60))
        after = disk.after_power_cut(dice)
        store.abandon()
        disk = after
    with open_store(config, disk, writer.clock) as store:
        writer.check(store)
    with open_store(config, disk, writer.clock) as store:
        assert store.report.notes == []
        writer.check(store)


@pytest.mark.parametrize("case", some_of(range(25), 5))
def test_a_power_cut_during_recovery_loses_nothing(case: int) -> None:
    """The cut comes right after recovery wrote its last file, and before anything was appended."""
    dice = random.Random(case)
    disk = SimulatedDisk()
    config = small_config(flush=FlushDiskType.SYNC_FLUSH)
    writer = Writer(dice)
    store = open_store(config, disk, writer.clock)
    writer.work(store, disk, 40)
    for _ in range(3):
        after = disk.after_power_cut(dice)
        store.abandon()
        disk = after
        store = open_store(config, disk, writer.clock)
        writer.check(store)
    store.close()


@pytest.mark.parametrize("case", some_of(range(25), 5))
def test_recovered_messages_survive_the_next_power_cut(case: int) -> None:
    """After a kill the log is whole only in memory; opening the store makes it durable."""
    dice = random.Random(case)
    disk = SimulatedDisk()
    config = small_config()
    writer = Writer(dice)
    store = open_store(config, disk, writer.clock)
    for number in range(60):  # Over several files, and not one of them flushed.
        one = draft(TOPICS[number % 2], number % 3, b"%d" % number * 200)
        writer.ledger.gave(one, store.append(one))
    killed = disk.after_kill()
    store.abandon()
    reopened = open_store(config, killed, writer.clock)
    writer.check(reopened)
    stored = {queue: read_queue(reopened, *queue) for queue in queues_of(reopened)}
    after = killed.after_power_cut(dice)
    reopened.abandon()
    with open_store(config, after, writer.clock) as last:
        assert {queue: read_queue(last, *queue) for queue in queues_of(last)} == stored


@pytest.mark.parametrize("case", some_of(range(40), 5))
def test_async_flush_loses_nothing_when_only_the_process_dies(case: int) -> None:
    dice = random.Random(case)
    disk = SimulatedDisk()
    config = small_config()
    writer = Writer(dice)
    for _ in range(3):
        store = open_store(config, disk, writer.clock)
        writer.check(store)
        writer.work(store, disk, dice.randint(0, 60))
        given = dict(writer.ledger.given)
        after = disk.after_kill()
        store.abandon()
        disk = after
        with open_store(config, disk.after_kill(), writer.clock) as reopened:
            for (topic, queue_id, queue_offset), body in given.items():
                assert read_queue(reopened, topic, queue_id)[queue_offset][0] == body
