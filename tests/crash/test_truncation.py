"""A truncation that is interrupted at any step is completed by the next start (R9, R0)."""

import random

import pytest

from tests.support.copied_log import WrittenLog, random_log
from tests.support.gate import some_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, open_store
from tests.support.truncated_store import (
    EPOCHS,
    FILE_BYTES,
    Interruption,
    check_truncated,
    config_of,
    interrupt_at,
    store_with,
    truncation_to,
)
from tianzhou.store import queues
from tianzhou.store.message_store import MessageStore

CASES = 30


def a_log(case: int, dice: random.Random) -> WrittenLog:
    first = (case % 2) * 7 * FILE_BYTES
    return random_log(dice, FILE_BYTES, 40, first=first, with_garbage=False, deletes=False)


def interrupted(
    case: int, dice: random.Random, *, by_power_cut: bool, at: int, is_flushed: bool
) -> tuple[SimulatedDisk, WrittenLog, int, bool]:
    """The disk after a truncation ended at a change, the log, the cut, and whether it was done."""
    log = a_log(case, dice)
    disk = SimulatedDisk()
    store = store_with(log, disk, config_of(case))
    to = log.first + dice.choice((0, *log.boundaries))
    if is_flushed:
        store.flush()
    changes = interrupt_at(disk, at)
    try:
        store.truncation.run(truncation_to(to), confirm=0)
        store.truncation.finish()
    except Interruption:
        pass
    after = disk.after_power_cut(dice) if by_power_cut else disk.after_kill()
    store.abandon()
    return after, log, to, changes() < at


def check(disk: SimulatedDisk, log: WrittenLog, to: int, case: int, dice: random.Random) -> None:
    """Completes what had begun; a truncation that had not begun has changed nothing."""
    config = config_of(case)
    store = open_store(config, disk)
    has_epochs = disk.exists(ROOT / "epochFileCheckpoint")
    if store.truncation.pending is not None:
        assert store.truncation.pending.to == to
        assert disk.file_bytes(ROOT / "epochFileCheckpoint") == EPOCHS.encode()
        store.truncation.finish()
        assert not disk.exists(ROOT / "truncation")
    elif not has_epochs:
        # Bytes that were not flushed may be lost.
        assert store.end_log_offset - log.first in log.boundaries
        to = store.end_log_offset
    check_truncated(store, disk, log, to, dice)
    store.close()


@pytest.mark.parametrize("case", some_of(range(CASES), 7))
@pytest.mark.parametrize("by_power_cut", [False, True])
def test_a_truncation_interrupted_at_every_step_is_completed(
    case: int, by_power_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "SYNC_EACH_MAX", 0 if case % 2 else 32)
    at, is_done = 0, False
    while not is_done:
        at += 1
        dice = random.Random(case)
        disk, log, to, is_done = interrupted(
            case, dice, by_power_cut=by_power_cut, at=at, is_flushed=True
        )
        check(disk, log, to, case, dice)
    assert at > 10


@pytest.mark.parametrize("case", some_of(range(100), 12))
@pytest.mark.parametrize("by_power_cut", [False, True])
def test_repeated_interruptions_do_no_harm(case: int, by_power_cut: bool) -> None:
    """Each start that completes the truncation is interrupted, too."""
    dice = random.Random(case)
    at, is_flushed = dice.randint(1, 60), dice.random() < 0.7
    disk, log, to, _ = interrupted(
        case, dice, by_power_cut=by_power_cut, at=at, is_flushed=is_flushed
    )
    config = config_of(case)
    for _ in range(6):
        interrupt_at(disk, dice.randint(1, 60))
        store: MessageStore | None = None
        try:
            store = open_store(config, disk)
            store.truncation.finish()
        except Interruption:
            pass
        after = disk.after_power_cut(dice) if by_power_cut else disk.after_kill()
        if store is not None:
            store.abandon()
        disk = after
    check(disk, log, to, case, dice)


def test_a_record_that_is_not_whole_is_ignored() -> None:
    dice = random.Random(1)
    log = a_log(0, dice)
    disk = SimulatedDisk()
    config = config_of(0)
    store_with(log, disk, config).close()
    for content in (b"", b"123", b'2774410034\n{"to":0}\n', bytes(40)):
        disk.damage(ROOT / "truncation", None) if disk.exists(ROOT / "truncation") else None
        disk.open(ROOT / "truncation", create=True).write(0, content)
        with open_store(config, disk) as store:
            assert store.truncation.pending is None
            assert store.end_log_offset == log.end
        assert not disk.exists(ROOT / "truncation")
