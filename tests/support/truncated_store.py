"""Stores to truncate: what they hold must be what a store with only the first bytes holds."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from tests.support.copied_log import (
    BLANK_BYTES,
    TOPICS,
    Derived,
    WrittenLog,
    copy_in_pieces,
    derived_again,
    derived_of,
    holds,
    random_text,
    record,
)
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import open_store, small_config
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import BLANK_SIZE, Entry
from tianzhou.store.message_store import MessageStore
from tianzhou.store.truncation.record import Truncation

FILE_BYTES = 8192
EPOCHS = "1\n0\n1-0\n"
CHANGES = ("write", "reserve", "create", "resize", "remove", "zero", "sync", "sync_directory")


class Interruption(BaseException):
    """The process ends here."""


def interrupt_at(disk: SimulatedDisk, number: int) -> Callable[[], int]:
    """Ends the process with its change number `number` of the disk; 0: never.

    Returns a function that says how many changes there were.
    """
    called: Callable[[str, Path], None] = type(disk).called.__get__(disk)
    count = 0

    def counting(call: str, path: Path) -> None:
        nonlocal count
        if call in CHANGES:
            count += 1
            if count == number:
                raise Interruption
        called(call, path)

    disk.called = counting  # type: ignore[method-assign]  # the seam of the disk
    return lambda: count


def config_of(case: int) -> StoreConfig:
    """Settings that differ by case: units of queues, no index, a staging pool."""
    config = small_config(log_file_bytes=FILE_BYTES, index=case % 5 != 4)
    return replace(
        config,
        enable_consume_queue_ext=case % 3 == 1,
        mapped_file_size_consume_queue_ext=128,
        transient_store_pool_enable=case % 4 == 3,
        transient_store_pool_size=2,
    )


def truncation_to(to: int | None) -> Truncation:
    return Truncation(to=to, files={"epochFileCheckpoint": EPOCHS, "epochFileCheckpoint.bak": None})


def store_with(log: WrittenLog, disk: SimulatedDisk, config: StoreConfig) -> MessageStore:
    """A slave that has a whole log."""
    store = open_store(config, disk)
    store.begin_copy_at(log.first)
    copy_in_pieces(store, log, random.Random(1), log.end)
    return store


def prefix_of(log: WrittenLog, to: int) -> WrittenLog:
    size = to - log.first
    return WrittenLog(
        log.file_bytes, log.first, log.data[:size], [at for at in log.boundaries if at <= size]
    )


def expected_of(log: WrittenLog, to: int, config: StoreConfig) -> Derived:
    """What a store derives that never had more than the first bytes of a log."""
    store = store_with(prefix_of(log, to), SimulatedDisk(), config)
    derived = derived_of(store)
    store.abandon()
    return _with_messages(derived)


def _with_messages(derived: Derived) -> Derived:
    """Without queues of blanks only: their next queue offset stays known after a truncation."""
    queues, items = derived
    return (
        {name: found for name, found in queues.items() if any(map(_is_message, found[1][1:]))},
        items,
    )


def _is_message(entry: object) -> bool:
    return isinstance(entry, tuple) and cast("Entry", entry)[1] != BLANK_SIZE


def check_truncated(
    store: MessageStore, disk: SimulatedDisk, log: WrittenLog, to: int, dice: random.Random
) -> None:
    """Compares a truncated store, then lets it grow in another way than before."""
    assert (store.first_log_offset, store.end_log_offset) == (log.first, to)
    assert store.flushed_log_offset == to
    kept = prefix_of(log, to)
    holds(store, disk, kept)
    expected = expected_of(log, to, store.config)
    assert _with_messages(derived_of(store)) == expected
    assert _with_messages(derived_again(disk, store.config)) == expected
    grow(store, kept, dice)
    copy_in_pieces(store, kept, dice, kept.end)
    holds(store, disk, kept)
    expected = expected_of(kept, kept.end, store.config)
    assert _with_messages(derived_of(store)) == expected
    assert _with_messages(derived_again(disk, store.config)) == expected


def grow(store: MessageStore, log: WrittenLog, dice: random.Random) -> None:
    """Adds other records than there were, with the queue offsets that a new master gives them."""
    nexts: dict[tuple[str, int], int] = {}
    for number in range(12):
        topic, queue_id = dice.choice(TOPICS), dice.randrange(3)
        offset = nexts.setdefault((topic, queue_id), store.max_offset(topic, queue_id))
        body, text = b"other %d" % number * dice.choice((1, 90)), random_text(dice)
        while True:
            encoded = record(log.end, topic, offset, body, text, queue_id=queue_id)
            before = log.end
            log.begin_file(len(encoded))
            if log.end == before:
                break
        assert log.end % log.file_bytes + len(encoded) + BLANK_BYTES <= log.file_bytes
        log.add(encoded)
        nexts[topic, queue_id] += 1
