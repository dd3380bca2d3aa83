"""Transient errors (no descriptors, no memory): rejected, cleaned up, and retried successfully."""

import errno
from itertools import product

import pytest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import draft, open_store, queues_of, read_queue, small_config

from tianzhou.errors import StoreError
from tianzhou.store.message_store import MessageStore

PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG)
CALLS = ("open", "create", "map", "reserve", "resize", "sync_directory")


def append_all(store: MessageStore, disk: SimulatedDisk, call: str, number: int) -> dict[str, int]:
    """Messages to several queues; before each of them one call fails once."""
    stored: dict[str, int] = dict.fromkeys(("a", "b", "c"), 0)
    for count in range(60):
        topic = "abc"[count % 3]
        one = draft(topic, 0, b"%d" % count * 100, key=f"k{count}")
        disk.fail(call, number)
        try:
            store.append(one)
        except StoreError:
            disk.heal()
            store.append(one)
        disk.heal()
        assert store.refusal is None
        stored[topic] += 1
    return stored


@pytest.mark.parametrize(("call", "number"), list(product(CALLS, PASSING)))
def test_a_failed_append_leaves_nothing_behind_and_the_next_is_stored(
    call: str, number: int
) -> None:
    disk, config = SimulatedDisk(), small_config(log_file_bytes=4096)
    with open_store(config, disk) as store:
        stored = append_all(store, disk, call, number)
        index_files = len(store.index.files)
        log_files = len(store.log.segments.files)
    names = [path.parent.name for path in disk.files()]
    assert names.count("index") == index_files
    assert names.count("commitlog") == log_files
    with open_store(config, disk) as store:
        assert store.report.notes == []
        assert {topic: len(read_queue(store, topic, 0)) for topic, _ in queues_of(store)} == stored
        assert len(store.query("a", "k57", 0, 2**62, 9)) == 1


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "checkpoint"])
def test_a_flush_that_cannot_open_a_file_is_repeated(number: int, part: str) -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        done = store.append(draft("t", 0, b"1", key="k"))
        disk.fail("open", number, part)
        with pytest.raises(StoreError):
            store.flush()
        assert store.refusal is None
        store.append(draft("t", 0, b"2", key="k"))
        store.flush()
        store.flushed(done.end_log_offset).result(timeout=0)
    with open_store(small_config(), disk) as store:
        assert store.report.clean
        assert len(read_queue(store, "t", 0)) == 2


def test_a_waiter_for_the_disk_gets_the_reason_of_the_failure() -> None:
    disk = SimulatedDisk()
    with open_store(small_config(), disk) as store:
        done = store.append(draft("t", 0, b"1"))
        disk.fail("open", errno.EMFILE, "commitlog")
        with pytest.raises(StoreError, match="ulimit -n"):
            store.flushed(done.end_log_offset).result(timeout=0)
        store.flushed(done.end_log_offset).result(timeout=0)
