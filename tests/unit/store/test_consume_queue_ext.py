"""Units of consumequeue_ext: written, read, truncated, rebuilt, and disabled."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    ROOT,
    delete_topic,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
)

from tianzhou.protocol.properties import tags_code
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue_ext import UNIT, QueueExt, is_address
from tianzhou.store.message_store import MessageStore

TAGS = ("red", "green", "")


def ext_config(*, enabled: bool = True) -> StoreConfig:
    """Five units a file."""
    return replace(
        small_config(), enable_consume_queue_ext=enabled, mapped_file_size_consume_queue_ext=110
    )


def fill(store: MessageStore, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        store.append(draft("t", 0, b"%d" % number, tags=TAGS[number % 3]))


def check(store: MessageStore, count: int) -> None:
    (queue,) = store.queues.all()
    assert [code for _, _, code in every_entry(store)] == [
        tags_code(TAGS[n % 3]) for n in range(count)
    ]
    assert sorted(read_queue(store, "t", 0)) == list(range(count))
    wanted, at, found = tags_code("red"), 0, list[int]()
    while at < queue.next_offset:
        answer = store.read("t", 0, at, 100, accept_tags=lambda code: code == wanted)
        found += [decode_record(record).queue_offset for record in answer.records]
        at = answer.next_offset
    assert found == list(range(0, count, 3))


def every_entry(store: MessageStore) -> list[tuple[int, int, int]]:
    (queue,) = store.queues.all()
    return [entry for n in range(queue.next_offset) if (entry := queue.entry(n))]


def addresses(store: MessageStore) -> list[int]:
    (queue,) = store.queues.all()
    return [next(queue.raw_entries(n, 1))[2] for n in range(queue.next_offset)]


def unit_files(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.files() if "consumequeue_ext" in path.parts]


def test_units_have_rocketmqs_layout() -> None:
    disk = SimulatedDisk()
    ext = QueueExt(disk, ROOT, "t", 3, 110)
    unit_addresses = [ext.put(1000 + n, 5000 + n) for n in range(7)]
    assert unit_addresses[:6] == [-(2**63) + at for at in (0, 20, 40, 60, 80, 110)]
    assert all(is_address(unit_address) for unit_address in unit_addresses)
    assert not is_address(-(2**31))
    content = disk.file_bytes(ROOT / "t" / "3" / f"{0:020d}")
    assert content[:20] == UNIT.pack(20, 1000, 5000, 0)
    assert content[100:102] == b"\xff\xff"
    assert [ext.tags_code(unit_address) for unit_address in unit_addresses] == [
        1000 + n for n in range(7)
    ]
    assert ext.tags_code(unit_addresses[-1] + 20) is None


def test_entries_refer_to_units_with_tags_codes() -> None:
    disk = SimulatedDisk()
    with open_store(ext_config(), disk) as store:
        fill(store, 23)
        assert all(is_address(code) for code in addresses(store))
        check(store, 23)
    assert len(unit_files(disk)) == 5
    with open_store(ext_config(), disk) as store:
        assert store.report.notes == []
        fill(store, 4, start=23)
        check(store, 27)


@pytest.mark.parametrize("flushed", [0, 7, 20])
def test_units_are_rebuilt_with_their_queue(flushed: int) -> None:
    disk = SimulatedDisk()
    store = open_store(ext_config(), disk)
    fill(store, flushed)
    store.flush()
    fill(store, 20 - flushed, start=flushed)
    killed = disk.after_kill()
    store.abandon()
    with open_store(ext_config(), killed) as store:
        check(store, 20)
        assert len(set(addresses(store))) == 20
        fill(store, 3, start=20)
        check(store, 23)
    with MessageStore.open(ext_config(), disk=killed, background=False, rebuild=True) as store:
        check(store, 23)
        assert addresses(store)[0] == -(2**63)


def test_units_can_be_disabled_and_enabled_again() -> None:
    disk = SimulatedDisk()
    with open_store(ext_config(), disk) as store:
        fill(store, 8)
    with open_store(ext_config(enabled=False), disk) as store:
        fill(store, 8, start=8)
        check(store, 16)
        assert [is_address(code) for code in addresses(store)] == [True] * 8 + [False] * 8
    with open_store(ext_config(), disk) as store:
        fill(store, 8, start=16)
        check(store, 24)
        assert [is_address(code) for code in addresses(store)][15:17] == [False, True]


def test_an_entry_without_its_unit_matches_every_filter() -> None:
    disk = SimulatedDisk()
    with open_store(ext_config(), disk) as store:
        fill(store, 6)
    for path in unit_files(disk):
        disk.damage(path, None)
    with open_store(ext_config(), disk) as store:
        answer = store.read("t", 0, 0, 100, accept_tags=lambda code: code == 1)
        assert len(answer.records) == 6


def test_units_are_deleted_with_their_topic() -> None:
    disk = SimulatedDisk()
    with open_store(ext_config(), disk) as store:
        fill(store, 6)
        delete_topic(store, "t")
        assert unit_files(disk) == []
        assert queues_of(store) == []
