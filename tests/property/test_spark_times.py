"""The search for a time in the queue files of a store directory, compared with a simple model."""

import tempfile
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")


from tests.support.records import encode_record

from tianzhou.client.queues import Queue
from tianzhou.protocol.records.record import encode_blank
from tianzhou.spark.offline.store_files import StoreFiles
from tianzhou.spark.offsets import Bounds
from tianzhou.store.consume_queue import BLANK_SIZE, ENTRY

TOPIC, QUEUE_ID = "times", 0
HOST = ("127.0.0.1", 1)
LOG_FILE_BYTES = 512
ENTRIES_OF_A_FILE = 3
BEGIN_MS = 1_700_000_000_000
MESSAGE, BLANK, DELETED = "message", "blank", "deleted"
KINDS = st.sampled_from([MESSAGE, MESSAGE, BLANK, DELETED])
ENTRY_ROWS = st.lists(st.tuples(KINDS, st.integers(0, 3)), max_size=14)
"""The kind of an entry, and its time since the previous one."""


class Log:
    """The files of a log, as long as the messages need them."""

    def __init__(self) -> None:
        self.content = bytearray()

    def append(self, store_time_ms: int, queue_offset: int) -> tuple[int, int]:
        """The log offset and the size of the record."""
        record = self._record(store_time_ms, queue_offset)
        room = LOG_FILE_BYTES - len(self.content) % LOG_FILE_BYTES
        if len(record) + 8 > room:
            self.content += encode_blank(room).ljust(room, b"\0")
            record = self._record(store_time_ms, queue_offset)
        at = len(self.content)
        self.content += record
        return at, len(record)

    def _record(self, store_time_ms: int, queue_offset: int) -> bytes:
        return encode_record(
            topic=TOPIC, body=b"x" * 40, properties_text="", queue_id=QUEUE_ID,
            born_time_ms=BEGIN_MS, born_host=HOST, store_host=HOST, store_time_ms=store_time_ms,
            queue_offset=queue_offset, log_offset=len(self.content),
        )  # fmt: skip


def write(root: Path, rows: list[tuple[str, int]], first: int) -> list[int | None]:
    """A store with one queue that begins at an offset; when the message of each was stored."""
    log, times, entries = Log(), list[int | None](), b""
    log.append(BEGIN_MS - 1, 0)  # Of anybody: blanks name this place.
    moments = accumulate(after for _, after in rows)
    for queue_offset, ((kind, _), moment) in enumerate(zip(rows, moments, strict=True), first):
        time_ms = BEGIN_MS + moment
        times.append(time_ms if kind == MESSAGE else None)
        if kind == MESSAGE:
            entries += ENTRY.pack(*log.append(time_ms, queue_offset), 0)
        else:
            # A log offset behind the end of the log equals one before its beginning.
            entries += ENTRY.pack(*((0, BLANK_SIZE) if kind == BLANK else (2**40, 100)), 0)
    put(root / "commitlog", bytes(log.content), 0, LOG_FILE_BYTES)
    queue = root / "consumequeue" / TOPIC / str(QUEUE_ID)
    put(queue, entries, first * ENTRY.size, ENTRIES_OF_A_FILE * ENTRY.size)
    return times


def put(folder: Path, content: bytes, first: int, file_bytes: int) -> None:
    """Files of one size, the last one filled up with zeros."""
    folder.mkdir(parents=True)
    for at in range(0, len(content), file_bytes):
        (folder / f"{first + at:020d}").write_bytes(
            content[at : at + file_bytes].ljust(file_bytes, b"\0")
        )


def plain(times: list[int | None], held: Bounds, first: int, time_ms: int) -> int:
    """The model: the offset after the last older message of the range."""
    older = (
        place
        for place in range(held.low, held.high)
        if (stored := times[place - first]) is not None and stored < time_ms
    )
    return max(older, default=held.low - 1) + 1


@given(
    ENTRY_ROWS, st.integers(0, 2), st.integers(0, 14), st.integers(0, 14), st.integers(-1, 12)
)  # fmt: skip
def test_a_time_is_found_as_by_a_linear_search(
    rows: list[tuple[str, int]], files_before: int, skipped: int, cut: int, after_ms: int
) -> None:
    first = files_before * ENTRIES_OF_A_FILE
    low = first + min(skipped, len(rows))
    held = Bounds(low, max(low, first + len(rows) - cut))
    with tempfile.TemporaryDirectory() as folder:
        times = write(Path(folder), rows, first)
        files = StoreFiles(Path(folder))
        found = files.time_offset(Queue(TOPIC, "b", QUEUE_ID), held, BEGIN_MS + after_ms)
        files.close()
    assert found == plain(times, held, first, BEGIN_MS + after_ms)
