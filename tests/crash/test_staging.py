"""The staging pool: staged messages are not visible yet, committed ones survive."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gate import some_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    Ticker,
    append_batch,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
    wait_until,
)
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import ReadStatus

Place = tuple[str, int, int]


def staged_config(buffers: int = 2, log_file_bytes: int = 4096) -> StoreConfig:
    return replace(
        small_config(log_file_bytes=log_file_bytes),
        transient_store_pool_enable=True,
        transient_store_pool_size=buffers,
    )


def everything(store: MessageStore) -> dict[Place, bytes]:
    return {
        (topic, queue_id, queue_offset): body
        for topic, queue_id in queues_of(store)
        for queue_offset, (body, _) in read_queue(store, topic, queue_id).items()
    }


def test_staged_messages_are_unreadable_until_committed() -> None:
    disk = SimulatedDisk()
    with open_store(staged_config(), disk) as store:
        first = store.append(draft("t", 0, b"one", key="k"))
        assert store.read("t", 0, 0, 1).status is ReadStatus.NO_MESSAGE_IN_QUEUE
        assert (store.max_offset("t", 0), store.end_log_offset) == (0, 0)
        assert store.record_at(first.log_offset) is None
        assert store.query("t", "k", 0, 2**62, 5) == []
        store.commit()
        store.append(draft("t", 0, b"two"))
        assert everything(store) == {("t", 0, 0): b"one"}
        assert store.read("t", 0, 1, 1).status is ReadStatus.OFFSET_OVERFLOW_ONE
        assert store.end_log_offset == first.end_log_offset
        assert len(store.query("t", "k", 0, 2**62, 5)) == 1
    with open_store(staged_config(), disk) as store:
        assert store.report.clean
        assert everything(store) == {("t", 0, 0): b"one", ("t", 0, 1): b"two"}


def test_arrivals_are_notified_when_they_are_readable() -> None:
    notified: list[tuple[int, int]] = []

    def arrived(topic: str, queue_id: int, queue_offset: int, code: int, time_ms: int) -> None:
        notified.append((queue_offset, store.max_offset(topic, queue_id)))

    store = MessageStore.open(
        staged_config(), disk=SimulatedDisk(), clock=Ticker(), background=False, on_arrival=arrived
    )
    for number in range(3):
        store.append(draft("t", 0, b"%d" % number))
    assert notified == []
    store.commit()
    assert notified == [(0, 3), (1, 3), (2, 3)]
    append_batch(store, [draft("t", 0, b"x"), draft("t", 0, b"y")])
    store.close()
    assert notified[3:] == [(4, 5)]


def test_a_thread_commits(tmp_path: Path) -> None:
    config = replace(staged_config(), store_path_root_dir=tmp_path, commit_interval_commit_log=5)
    with MessageStore.open(config) as store:
        for number in range(50):
            store.append(draft("t", 0, b"%d" % number * 100))
        wait_until(lambda: store.max_offset("t", 0) == 50, lambda: store.max_offset("t", 0))


def test_sync_flush_does_not_stage() -> None:
    config = replace(staged_config(), flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert not config.is_staged
    with open_store(config, SimulatedDisk()) as store:
        store.append(draft("t", 0, b"x"))
        assert store.max_offset("t", 0) == 1


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("case", some_of(range(12), 4))
def test_crash_loses_only_unreadable_messages(case: int, power: bool, buffers: int) -> None:
    """Committed messages survive a kill, flushed ones a power cut; offsets have no gaps."""
    dice = random.Random(case)
    disk, clock, config = SimulatedDisk(), Ticker(), staged_config(buffers)
    given: dict[Place, bytes] = {}
    for life in range(4):
        store = open_store(config, disk, clock)
        stored = everything(store)
        assert stored.items() <= given.items()
        given, safe = dict(stored), dict(stored)
        for number in range(dice.randint(0, 60)):
            body = b"%d-%d " % (life, number) * dice.randint(1, 150)
            one = draft(dice.choice("ab"), dice.randrange(2), body)
            done = store.append(one)
            given[one.topic, one.queue_id, done.queue_offset] = body
            step = dice.random()
            if step < 0.1:
                store.flush()
            elif step < 0.3:
                store.commit()
            if step < (0.1 if power else 0.3):
                safe = everything(store)
                assert safe == given
        after = disk.after_power_cut(dice) if power else disk.after_kill()
        store.abandon()
        disk = after
        with open_store(config, disk.after_kill(), clock) as again:
            stored = everything(again)
            assert safe.items() <= stored.items() <= given.items()
            for topic, queue_id in queues_of(again):
                offsets = [offset for t, q, offset in stored if (t, q) == (topic, queue_id)]
                assert sorted(offsets) == list(range(len(offsets)))
