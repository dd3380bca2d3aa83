"""A copied log equals the master's, and its queues and index equal those of a recovery."""

import errno
import random
from dataclasses import replace

import pytest
from tests.support.copied_log import (
    WrittenLog,
    copy_in_pieces,
    derived_again,
    derived_of,
    holds,
    random_log,
)
from tests.support.gate import some_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import append_batch, delete_topic, draft, open_store, small_config

from tianzhou.store import copied_log
from tianzhou.store.message_store import MessageStore

FILE_BYTES = 8192
FAILURES = (
    ("reserve", "commitlog"),
    ("write", "commitlog"),
    ("create", "commitlog"),
    ("reserve", "consumequeue"),
    ("create", "consumequeue"),
    ("write", "consumequeue"),
    ("reserve", "index"),
    ("create", "index"),
)
"""Calls of the disk that fail in between, for lack of space."""


@pytest.fixture(params=[64, 2000, 256 * 1024])
def _stretch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied_log, "_STRETCH_BYTES", request.param)


def check(store: MessageStore, disk: SimulatedDisk, log: WrittenLog) -> None:
    holds(store, disk, log)
    found, expected = derived_of(store), derived_again(disk, store.config)
    assert found[0] == expected[0]
    assert found[1] == expected[1]


@pytest.mark.usefixtures("_stretch_bytes")
@pytest.mark.parametrize("case", some_of(range(40), 8))
@pytest.mark.parametrize("with_units", [False, True])
def test_a_copy_equals_what_recovery_derives_from_it(case: int, with_units: bool) -> None:
    dice = random.Random(case)
    first = dice.choice((0, 5 * FILE_BYTES))
    damaged_percent = dice.choice((0, 0, 10))
    log = random_log(dice, FILE_BYTES, 150, first=first, damaged_percent=damaged_percent)
    config = replace(
        small_config(log_file_bytes=FILE_BYTES),
        enable_consume_queue_ext=with_units,
        mapped_file_size_consume_queue_ext=20 * 9 + 4,
    )
    disk = SimulatedDisk()
    store = open_store(config, disk)
    store.begin_copy_at(first)
    ends = sorted(dice.sample(log.boundaries, 5))
    for end in (*ends, log.end - first):
        for _ in range(dice.choice((0, 0, 3))):
            call, path = dice.choice(FAILURES)
            disk.fail(call, errno.ENOSPC, path)
        copy_in_pieces(store, log, dice, first + end)
        disk.heal()
        if damaged_percent:
            # Only the whole log decides on records that need confirmation.
            continue
        check(store, disk, log)
        if dice.random() < 0.3:
            store.close()
            store = open_store(config, disk)
            assert store.report.notes == []
    assert store.end_log_offset == log.end
    check(store, disk, log)
    store.close()
    with open_store(config, disk) as reopened:
        assert reopened.report.notes == []
        check(reopened, disk, log)


@pytest.mark.parametrize("case", some_of(range(20), 4))
def test_a_master_is_copied_while_it_writes(case: int) -> None:
    """Its log is read as a connection does it: up to the end of a file, of the log or a size."""
    dice = random.Random(case)
    config = small_config(log_file_bytes=4096)
    master, disk = open_store(config, SimulatedDisk()), SimulatedDisk()
    slave = open_store(config, disk)
    received = b""
    for _ in range(30):
        for _ in range(dice.randrange(12)):
            topic, queue_id = dice.choice(("a", "b")), dice.randrange(2)
            body = dice.randbytes(dice.choice((1, 100, 1500)))
            one = draft(topic, queue_id, body, key=dice.choice(("", "k")))
            if dice.random() < 0.2:
                append_batch(master, [one, one])
            else:
                master.append(one)
        if dice.random() < 0.1:
            delete_topic(master, dice.choice(("a", "b")))
        while True:
            at = slave.end_log_offset + len(received)
            piece = master.log_slice(at, dice.choice((1, 500, 10_000)))
            if not piece:
                break
            received += piece
            received = received[slave.append_copied(memoryview(received)) :]
        assert received == b""
        assert slave.end_log_offset == master.end_log_offset
        assert derived_of(slave) == derived_again(disk, config)
    for file in master.log.segments.files:
        copied = slave.log.segments.find(file.first)
        # A file that the slave has no record of does not exist there yet.
        assert bytes(file.view()) == (bytes(copied.view()) if copied else bytes(4096))
    master.close()
    slave.close()
