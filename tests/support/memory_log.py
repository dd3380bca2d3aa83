"""A log in memory with the interface that replication needs of a store, and logs to send to it.

Records are shorter than RocketMQ's, and as much of one is checked as decides where the next begins:

    0   4   size of the record
    4   4   magic number of a record or of a filler, as in RocketMQ
    8   8   log offset
    16      anything
"""

import random
import struct
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from tianzhou.errors import StoreCorrupt, StoreError
from tianzhou.protocol.pure.record import MAGIC_BLANK, MAGIC_V1
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.flush import FlushCallback

HEAD = struct.Struct(">IIq")
SIZE_AND_MAGIC = struct.Struct(">II")
BLANK_BYTES = 8
FILE_BYTES = 4096


def config_of(file_bytes: int = FILE_BYTES, *, sync_flush: bool = False) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=Path("unused"),
        mapped_file_size_commit_log=file_bytes,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if sync_flush else FlushDiskType.ASYNC_FLUSH,
    )


class MemoryLog:
    """The double of a store. `content` is the log from `first_log_offset` on."""

    def __init__(self, file_bytes: int = FILE_BYTES, *, sync_flush: bool = False) -> None:
        self.config = config_of(file_bytes, sync_flush=sync_flush)
        self.file_bytes = file_bytes
        self.content: bytearray = bytearray()
        self.first_log_offset = 0
        self.flushed_log_offset = 0
        self.refusal: StoreError | None = None
        self.append_count = 0
        self.hold_flushes = False
        self.flush_failure: StoreError | None = None
        self.flush_requests: list[tuple[int, FlushCallback]] = []

    @property
    def end_log_offset(self) -> int:
        return self.first_log_offset + len(self.content)

    # -- a copy ----------------------------------------------------------------------------------

    def begin_copy_at(self, log_offset: int) -> None:
        if self.content or log_offset % self.file_bytes:
            raise StoreError(f"the log cannot begin at {log_offset}")
        self.first_log_offset = self.flushed_log_offset = log_offset

    def append_copied(self, data: memoryview) -> int:
        self.append_count += 1
        if self.refusal is not None:
            raise self.refusal
        position = 0
        while size_bytes := self._size_at(data, position):
            self.content += data[position : position + size_bytes]
            position += size_bytes
        return position

    def _size_at(self, data: memoryview, position: int) -> int:
        size_bytes: int
        """The size of the complete record there; 0 if there is none."""
        left = len(data) - position
        if left < BLANK_BYTES:
            return 0
        size_bytes, magic = SIZE_AND_MAGIC.unpack_from(data, position)
        to_file_end = self.file_bytes - self.end_log_offset % self.file_bytes
        if magic == MAGIC_BLANK and size_bytes == to_file_end:
            return size_bytes if left >= size_bytes else 0
        if magic != MAGIC_V1 or not HEAD.size <= size_bytes <= to_file_end - BLANK_BYTES:
            raise StoreCorrupt(f"no record at {self.end_log_offset}")
        if left < size_bytes:
            return 0
        if HEAD.unpack_from(data, position)[2] != self.end_log_offset:
            raise StoreCorrupt(f"the record at {self.end_log_offset} has another log offset")
        return size_bytes

    def log_slice(self, log_offset: int, max_bytes: int) -> memoryview | None:
        return memoryview(self.body(log_offset, max_bytes))

    # -- flushing --------------------------------------------------------------------------------

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None:
        self.flush_requests.append((log_offset, callback))
        if not self.hold_flushes:
            self.flush()

    def flushed(self, log_offset: int) -> Future[None]:
        future: Future[None] = Future()
        self.when_flushed(log_offset, lambda _: future.set_result(None))
        return future

    def flush(self) -> None:
        """What the flush thread does."""
        if self.flush_failure is None:
            self.flushed_log_offset = self.end_log_offset
        waiting, self.flush_requests = self.flush_requests, []
        for _, callback in waiting:
            callback(self.flush_failure)

    # -- a master --------------------------------------------------------------------------------

    def append(self, payload: bytes) -> None:
        """Add a record, after a filler if the file is too full."""
        size_bytes = HEAD.size + len(payload)
        to_file_end = self.file_bytes - self.end_log_offset % self.file_bytes
        if size_bytes + BLANK_BYTES > to_file_end:
            self.content += SIZE_AND_MAGIC.pack(to_file_end, MAGIC_BLANK)
            # Arbitrary bytes follow, which are copied as well.
            self.content += b"\xa5" * (to_file_end - BLANK_BYTES)
        self.content += HEAD.pack(size_bytes, MAGIC_V1, self.end_log_offset) + payload

    def fill(self, byte_count: int, dice: random.Random) -> None:
        """Add records until the log is that long."""
        while len(self.content) < byte_count:
            self.append(dice.randbytes(dice.randrange(self.file_bytes // 5)))

    def expire_files(self, count: int = 1) -> None:
        """Delete the oldest files."""
        del self.content[: count * self.file_bytes]
        self.first_log_offset += count * self.file_bytes

    def body(self, log_offset: int, bytes_max: int) -> bytes:
        """A body of a frame: within one file, cut anywhere."""
        to_file_end = self.file_bytes - log_offset % self.file_bytes
        start = log_offset - self.first_log_offset
        return bytes(self.content[start : start + min(bytes_max, to_file_end)])


def frames_of(log: MemoryLog, encode_head: Callable[[int, int], bytes], sizes: list[int]) -> bytes:
    """A log as frames, whose bodies have these sizes at most, repeated."""
    assert max(sizes) > 0
    sent, log_offset, number = bytearray(), log.first_log_offset, 0
    while log_offset < log.end_log_offset:
        body = log.body(log_offset, sizes[number % len(sizes)])
        sent += encode_head(log_offset, len(body)) + body
        log_offset, number = log_offset + len(body), number + 1
    return bytes(sent)
