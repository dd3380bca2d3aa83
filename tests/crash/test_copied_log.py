"""A copy of a master's log that is interrupted at any step stays a prefix of it."""

import random
from collections.abc import Callable
from pathlib import Path

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
from tests.support.store import open_store, small_config
from tianzhou.store import copied_log

FILE_BYTES = 8192
CHANGES = ("write", "reserve", "create", "resize", "remove", "sync", "sync_directory")


class Interruption(BaseException):
    """The process ends here."""


def interrupt_at(disk: SimulatedDisk, number: int) -> None:
    """Ends the process with its change number `number` of the disk, before or after it."""
    called: Callable[[str, Path], None] = disk.called
    count = 0

    def counting(call: str, path: Path) -> None:
        nonlocal count
        if call in CHANGES:
            count += 1
            if count == number:
                raise Interruption
        called(call, path)

    disk.called = counting  # type: ignore[method-assign]  # the seam of the disk


def check(disk: SimulatedDisk, log: WrittenLog, first: int, dice: random.Random) -> None:
    """Opens the store and continues the copy to the end."""
    config = small_config(log_file_bytes=FILE_BYTES)
    store = open_store(config, disk)
    if not store.log.segments.files:
        store.begin_copy_at(first)
    assert store.first_log_offset == first
    holds(store, disk, log)
    assert derived_of(store) == derived_again(disk, config)
    copy_in_pieces(store, log, dice, log.end)
    assert store.end_log_offset == log.end
    holds(store, disk, log)
    assert derived_of(store) == derived_again(disk, config)
    store.close()


@pytest.mark.parametrize("case", some_of(range(90), 6))
@pytest.mark.parametrize("by_power_cut", [False, True])
def test_a_copy_interrupted_at_any_step_continues(
    case: int, by_power_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_log, "_STRETCH_BYTES", (1, 1000, 256 * 1024)[case % 3])
    dice = random.Random(case)
    first = (case % 2) * 7 * FILE_BYTES
    # In a power cut the bytes behind a filler may be lost, which are zeros in logs of ours.
    log = random_log(dice, FILE_BYTES, 40, first=first, with_garbage=not by_power_cut)
    disk = SimulatedDisk()
    store = open_store(small_config(log_file_bytes=FILE_BYTES), disk)
    store.begin_copy_at(first)
    copy_in_pieces(store, log, dice, first + dice.choice((0, *log.boundaries)))
    if dice.random() < 0.5:
        store.flush()
    interrupt_at(disk, dice.randint(1, 60))
    acknowledged = 0
    try:
        copy_in_pieces(store, log, dice, first + dice.choice(log.boundaries))
        store.flush()
        acknowledged = store.end_log_offset
        copy_in_pieces(store, log, dice, log.end)
    except Interruption:
        pass
    after = disk.after_power_cut(dice) if by_power_cut else disk.after_kill()
    store.abandon()
    with open_store(small_config(log_file_bytes=FILE_BYTES), after.after_kill()) as reopened:
        assert reopened.end_log_offset >= acknowledged
    check(after, log, first, dice)
