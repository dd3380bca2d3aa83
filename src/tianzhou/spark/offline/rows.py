"""Reads the rows of a partition from a store directory.

Partitions by queue: queue entries lead to records, which are read in log order. Partitions by log:
all records of a log file are scanned, and those of other queues skipped. A damaged or deleted
record is reported as lost with its queue and offset; the other records are read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tianzhou.client.queues import Queue
from tianzhou.errors import RecordError
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol.properties import java_hash
from tianzhou.protocol.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from tianzhou.spark.columns.arrow import (
    BATCH_BYTES,
    ROWS_MAX,
    Arrays,
    Decoder,
    Longs,
    decode_arrays,
)
from tianzhou.spark.columns.malformed import (
    MalformedCounter,
    intact_records,
    misplaced,
    queue_offset_at,
)
from tianzhou.spark.offline.store_files import Entries, StoreFiles, is_end, record_size
from tianzhou.spark.offsets import LostRange, Range, report_loss
from tianzhou.spark.options import StoreOptions
from tianzhou.store.commit_log import find_record
from tianzhou.store.consume_queue import BLANK_SIZE

_ENTRIES_MAX = 65_536
_POSITION_COLUMNS = ["topic", "queueId", "queueOffset", "sysFlag"]
_QUEUE_ID_AT = 12
_HASH_MIN = -(2**31)
"""A smaller tags code is not a hash but the address of a unit in the ConsumeQueueExt file."""

_RANGE_ENTRY = np.dtype([("log", "i8"), ("size", "i8"), ("range", "i8"), ("queueOffset", "i8")])
"""A queue entry, with the index of the range that it belongs to and its queue offset."""

Where = Callable[[int], str]
"""The queue and offset of a record, by its index in a group, for errors."""


# -- partitions ------------------------------------------------------------------------------------


@dataclass
class QueuesPartition(InputPartition):
    """Ranges of queues, read by one task in log order."""

    ranges: tuple[Range, ...]


@dataclass
class LogPartition(InputPartition):
    """The records of one log file that belong to ranges of the wanted queues."""

    log_offset: int
    wanted: Mapping[tuple[str, int], tuple[int, int]]
    """Queue offsets (first, stop) by topic and queue id."""
    topics: frozenset[str] = frozenset()
    """Topics whose other queues are wanted, too."""
    others: tuple[int, int] = (0, 2**63 - 1)
    """Queue offsets (first, stop) of those other queues."""
    pattern: str = ""
    """Topics that match it count as `topics`."""
    times_ms: tuple[int | None, int | None] = (None, None)
    """Store times (first, stop), None for any."""
    queue_ids: frozenset[int] | None = None
    """Ids of the other queues, None for any."""

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """The wanted offsets of a queue, None if it is not wanted."""
        found = self.wanted.get((topic, queue_id))
        if found is not None or (self.queue_ids is not None and queue_id not in self.queue_ids):
            return found
        matches = self.pattern and re.fullmatch(self.pattern, topic)
        return self.others if topic in self.topics or matches else None


# -- reading ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class RowReader:
    """Reads partitions of one directory."""

    files: StoreFiles
    decoder: Decoder
    options: StoreOptions
    malformed: MalformedCounter = field(init=False)

    def __post_init__(self) -> None:
        self.malformed = MalformedCounter(self.options.fail_on_malformed)

    def of_queues(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of ranges of queues. Raises DataLost, BodyError."""
        try:
            for some in _entry_batches(ranges):
                entries = self._log_ordered(some)
                for group in _groups(entries, self.files, with_bodies=self.decoder.checks_bodies):
                    yield from self._group(group, some)
        finally:
            self.close()

    def of_log(self, part: LogPartition) -> Iterator[pa.RecordBatch]:
        """The wanted rows of one file of the log. Raises DataLost, BodyError."""
        try:
            found = self.files.log_file(part.log_offset)
            if found is None:
                self._report_loss(f"the log file at {part.log_offset} has been deleted")
                return
            mapped, first = found
            view = memoryview(mapped)
            decoder = self.decoder.narrowed(*part.times_ms)
            at: int | None = part.log_offset - first
            while at is not None:
                for group in self.files.walk(first + at):
                    at = group[-1] + record_size(mapped, group[-1], first + group[-1])
                    yield from self._wanted(decoder, view, group, first, part)
                if is_end(mapped, at):
                    return
                self._report_loss(f"{_named(view, at, first)}: no intact record begins there")
                at = find_record(view, first, at + 1, len(view))
        finally:
            self.close()

    def close(self) -> None:
        """Log the number of malformed values, and release the files."""
        self.malformed.close()
        self.files.close()

    # -- by queue ----------------------------------------------------------------------------------

    def _log_ordered(self, ranges: Sequence[Range]) -> Entries:
        """The entries of ranges that may be of wanted messages, in log order."""
        found = np.concatenate([self._entries(each, index) for index, each in enumerate(ranges)])
        order = np.argsort(found["log"], kind="stable") if len(ranges) > 1 else slice(None)
        ordered: Entries = found[order]
        return ordered

    def _entries(self, part: Range, range_index: int) -> Entries:
        """Entries of a range that may be of wanted messages, as `_RANGE_ENTRY`."""
        found = self.files.entries(part)
        if len(found) < part.count:
            self._report_loss(
                LostRange(part.queue, part.first + len(found), part.stop, "have been deleted")
            )
        keep = found["size"] != BLANK_SIZE
        if self.decoder.only_tags is not None and part.queue.topic != SCHEDULE_TOPIC:
            keep &= may_match(found, self.decoder.only_tags)
        entries = np.empty(len(found), _RANGE_ENTRY)
        entries["log"], entries["size"], entries["range"] = found["log"], found["size"], range_index
        entries["queueOffset"] = np.arange(part.first, part.first + len(found))
        wanted: Entries = entries[keep]
        return wanted

    def _group(self, entries: Entries, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of entries in one log file."""

        def where(number: int) -> str:
            queue = ranges[int(entries["range"][number])].queue
            return f"queue {queue}, offset {entries['queueOffset'][number]}"

        log_offset = int(entries["log"][0])
        found = self.files.log_file(log_offset)
        if found is None:
            self._report_loss(
                f"{where(0)} to {where(-1)}: the log file at {log_offset} has been deleted"
            )
            return
        mapped, first = found
        starts = entries["log"] - first
        yield from self._batches(self.decoder, memoryview(mapped), starts, first, where)

    # -- by log ------------------------------------------------------------------------------------

    def _wanted(
        self, decoder: Decoder, view: memoryview, group: list[int], first: int, part: LogPartition
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows of records that begin at positions of one file."""
        starts, columns = self._columns(view, np.array(group, np.int64), first)
        rows = np.flatnonzero(_wanted_rows(part, columns))

        def where(number: int) -> str:
            topic, queue_id, at = (column[int(rows[number])].as_py() for column in columns[:3])
            return f"queue {Queue(topic, self.options.broker_name, queue_id)}, offset {at}"

        if len(rows):
            yield from self._batches(decoder, view, starts[rows], first, where)

    def _columns(self, view: memoryview, starts: Longs, first: int) -> tuple[Longs, list[pa.Array]]:
        """Queue and offset of records of one file, without damaged ones."""
        try:
            return starts, decode_arrays(view, starts, _POSITION_COLUMNS, check_crc=False)
        except RecordError:
            pass  # at least one of them
        good, wrong = intact_records(view, starts, first, check_crc=False)
        for number, why in wrong:
            self._report_loss(f"{_named(view, int(starts[number]), first)}: {why}")
        return good, decode_arrays(view, good, _POSITION_COLUMNS, check_crc=False)

    # -- both --------------------------------------------------------------------------------------

    def _batches(
        self, decoder: Decoder, view: memoryview, starts: Longs, first: int, where: Where
    ) -> Iterator[pa.RecordBatch]:
        """The rows of records; damaged and misplaced records are reported as lost."""
        try:
            arrays = decoder.arrays(view, starts)
            is_intact = _positions_match(decoder, arrays, view, starts, first)
        except RecordError:
            arrays, is_intact = {}, False
        if not is_intact:
            good, wrong = intact_records(view, starts, first, check_crc=decoder.checks_bodies)
            for number, why in wrong:
                self._report_loss(f"{where(number)}: {why}")
            arrays = decoder.arrays(view, good)
        return decoder.batches(arrays, self.options.broker_name, malformed=self.malformed)

    def _report_loss(self, lost: LostRange | str) -> None:
        report_loss([lost], fail=self.options.fail_on_data_loss)


def _named(view: memoryview, start: int, first: int) -> str:
    """Description of a damaged record, for errors."""
    at = start + _QUEUE_ID_AT
    queue_id = int.from_bytes(view[at : at + 4], "big", signed=True)
    claimed = f"queue {queue_id}, offset {queue_offset_at(view, start)}"
    return f"the record at log offset {first + start} (by its header {claimed})"


def _positions_match(
    decoder: Decoder, arrays: Arrays, view: memoryview, starts: Longs, first: int
) -> bool:
    """Whether the log offset in every record is its position."""
    if decoder.only_keys is not None:  # the arrays lack some of the records
        return not misplaced(view, starts, first).any()
    return np.array_equal(arrays["physicalOffset"].to_numpy(), starts + first)


# -- helpers ---------------------------------------------------------------------------------------


def _entry_batches(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges whose entries are loaded together; a single long range is split."""
    ranges = list(ranges)
    if len(ranges) > 1:
        yield ranges
        return
    for each in ranges:
        for first in range(each.first, each.stop, _ENTRIES_MAX):
            yield [Range(each.queue, first, min(first + _ENTRIES_MAX, each.stop))]


def may_match(
    entries: Entries, tags: frozenset[str]
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """A mask of the entries that may have one of the tags."""
    codes = entries["tags"].astype(np.int64)
    hashes = np.array(sorted(map(java_hash, tags)), np.int64)
    return np.isin(codes, hashes) | (codes < _HASH_MIN)


def _groups(entries: Entries, files: StoreFiles, *, with_bodies: bool) -> Iterator[Entries]:
    """The entries that form a batch, each within one log file."""
    numbers = (entries["log"] - files.first_log_offset) // files.log_file_bytes
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(entries)]
    for begin, end in pairwise(edges):
        at = begin
        while at < end:
            count = min(ROWS_MAX, end - at)
            if with_bodies:
                passed = np.cumsum(entries["size"][at : at + count])
                count = max(int(np.searchsorted(passed, BATCH_BYTES, "right")), 1)
            yield entries[at : at + count]
            at += count


def _wanted_rows(
    part: LogPartition, columns: list[pa.Array]
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """A mask of the visible records that belong to ranges of the wanted queues."""
    topics = columns[0].dictionary_encode()
    names: list[str] = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    queue_ids, queue_offsets, flags = (column.to_numpy() for column in columns[1:4])
    keep = np.zeros(len(codes), np.bool_)
    for code, name in enumerate(names):
        of_topic = codes == code
        for queue_id in np.unique(queue_ids[of_topic]).tolist():
            range_ = part.range_of(name, queue_id)
            if range_ is not None:
                of_queue = of_topic & (queue_ids == queue_id)
                keep |= of_queue & (queue_offsets >= range_[0]) & (queue_offsets < range_[1])
    state = flags & TRANSACTION_MASK
    keep &= (state == TRANSACTION_NONE) | (state == TRANSACTION_COMMIT)
    return keep
