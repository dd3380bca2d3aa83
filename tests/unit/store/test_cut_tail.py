"""The end of a log is saved before a resync: all of it, on the disk, or a clear refusal."""

import errno
import random

import pytest
from tests.support.copied_log import WrittenLog, random_log
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT
from tests.support.truncated_store import FILE_BYTES, config_of, store_with

from tianzhou.errors import StoreError, StoreFull
from tianzhou.store.message_store import MessageStore
from tianzhou.store.truncation import tail
from tianzhou.store.truncation.tail import save_tail


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log() -> WrittenLog:
    return random_log(random.Random(1), FILE_BYTES, 60, first=3 * FILE_BYTES)


@pytest.fixture
def store(disk: SimulatedDisk, log: WrittenLog) -> MessageStore:
    return store_with(log, disk, config_of(0))


@pytest.mark.parametrize("piece_bytes", [1000, 1 << 20])
def test_the_tail_is_saved_byte_for_byte(
    store: MessageStore, disk: SimulatedDisk, log: WrittenLog, piece_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tail, "_PIECE_BYTES", piece_bytes)
    for boundary in (0, log.boundaries[5], log.boundaries[-3]):
        at = log.first + boundary
        path = store.truncation.save_tail(at, epoch=4)
        assert path == ROOT / f"cut-tail-4-{at}"
        assert path is not None
        after = disk.after_power_cut(random.Random(2))
        assert after.file_bytes(path) == log.data[boundary:]


def test_a_tail_is_never_overwritten(store: MessageStore, log: WrittenLog) -> None:
    at = log.first + log.boundaries[5]
    paths = [store.truncation.save_tail(at, epoch=4) for _ in range(3)]
    assert [path.name for path in paths if path] == [
        f"cut-tail-4-{at}", f"cut-tail-4-{at}-1", f"cut-tail-4-{at}-2",
    ]  # fmt: skip


def test_nothing_is_saved_of_nothing(store: MessageStore, disk: SimulatedDisk) -> None:
    assert store.truncation.save_tail(store.end_log_offset, epoch=4) is None
    assert not [path for path in disk.files() if "tail" in path.name]


def test_limits(store: MessageStore, disk: SimulatedDisk, log: WrittenLog) -> None:
    size = log.end - log.first
    with pytest.raises(StoreError, match=f"has {size} bytes, {size - 1} are saved at most"):
        save_tail(store.log, disk, ROOT, log.first, epoch=1, bytes_max=size - 1)
    disk.free = size + (256 << 20) - 1
    with pytest.raises(StoreFull, match="free some space"):
        store.truncation.save_tail(log.first, epoch=1)
    disk.free += 1
    assert store.truncation.save_tail(log.first, epoch=1)


@pytest.mark.parametrize("call", ["write", "sync", "sync_directory"])
def test_a_tail_that_cannot_be_saved_leaves_no_file(
    store: MessageStore, disk: SimulatedDisk, log: WrittenLog, call: str
) -> None:
    disk.fail(call, errno.EIO)
    with pytest.raises(StoreError, match="save the end of the log"):
        store.truncation.save_tail(log.first, epoch=1)
    assert not [path for path in disk.files() if "tail" in path.name]
