"""Preallocated log files: a file in use is never treated as a spare one."""

import threading
from pathlib import Path

from tests.support.simulated_disk import SimulatedDisk, SimulatedFile

from tianzhou.store.files.segments import Segments
from tianzhou.store.preallocation import Preallocator

DIRECTORY = Path("/store/commitlog")
FILE_BYTES = 4096
DEADLINE_S = 60
QUIET_S = 0.3
"""How long to wait for a wrong action that must not happen."""


class SlowDisk(SimulatedDisk):
    """Blocks page warming until the writer creates a file, and delays that for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.warming, self.may_go_on, self.made_twice = (threading.Event() for _ in range(3))
        self.made: list[Path] = []

    def prefault(self, view: memoryview, start: int, stop: int) -> None:
        self.warming.set()
        assert self.may_go_on.wait(DEADLINE_S)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        if create:
            if path in self.made:
                self.made_twice.set()
            self.made.append(path)
            if self.warming.is_set():
                self.may_go_on.set()
                self.made_twice.wait(QUIET_S)
        return super().open(path, create=create, writable=writable)


def test_a_file_created_by_the_writer_is_not_preallocated_too() -> None:
    disk = SlowDisk()
    disk.make_directory(DIRECTORY)
    segments = Segments(disk, DIRECTORY, FILE_BYTES)
    ahead = Preallocator(disk, segments, window_bytes=1024)
    first = ahead.next_file(0)
    segments.add(first)
    ahead.start()
    try:
        # The thread warms pages, so it does not create the next file.
        ahead.wrote(first, 0)
        assert disk.warming.wait(DEADLINE_S)
        second = ahead.next_file(FILE_BYTES)
        segments.add(second)
    finally:
        disk.may_go_on.set()
        ahead.stop()
    assert disk.exists(second.path), "the file in use was removed as a spare one"
    assert disk.made == [first.path, second.path]


def test_a_spare_file_is_removed_when_the_store_stops() -> None:
    disk = SlowDisk()
    disk.may_go_on.set()
    disk.make_directory(DIRECTORY)
    segments = Segments(disk, DIRECTORY, FILE_BYTES)
    ahead = Preallocator(disk, segments, window_bytes=1024)
    first = ahead.next_file(0)
    segments.add(first)
    ahead.start()
    ahead.wrote(first, 0)
    spare, pause = segments.file_at(FILE_BYTES), threading.Event()
    for _ in range(1000):
        if disk.exists(spare.path):
            break
        pause.wait(DEADLINE_S / 1000)
    assert disk.exists(spare.path), "no file was made ahead"
    ahead.stop()
    assert not disk.exists(spare.path)
    assert disk.exists(first.path)
