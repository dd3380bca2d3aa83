"""Rows of a store directory: what a task reads of the log for its partition.

By the queues, entries lead to records, which are read in the order of the log; by the log, all its
records are looked at, and those of other queues passed over. A record that is damaged, or not there
any more, is a loss, named by its queue and offset; the others of its group are read all the same.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tianzhou.client.queues import Queue
from tianzhou.errors import DataLost, RecordError
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
from tianzhou.spark.offsets import LostRange, Range
from tianzhou.spark.options import StoreOptions
from tianzhou.spark.source.pulling import report_loss
from tianzhou.store.commit_log import find_record
from tianzhou.store.consume_queue import BLANK_SIZE

log = logging.getLogger(__name__)

_ENTRIES_MAX = 65_536
_POSITION_COLUMNS = ["topic", "queueId", "queueOffset", "sysFlag"]
_QUEUE_ID_AT = 12
_HASH_MIN = -(2**31)
"""Below, an entry's tags code is no hash but the address of a unit beside the queue."""

Where = Callable[[int], str]
"""Names a record, by its number in a group, for people."""


# -- partitions ------------------------------------------------------------------------------------


@dataclass
class QueuesPartition(InputPartition):
    """Ranges of queues, read by one task in the order of the log."""

    ranges: tuple[Range, ...]


@dataclass
class LogPartition(InputPartition):
    """Records of one log file, those of the wanted queues that lie in their range."""

    log_offset: int
    wanted: Mapping[tuple[str, int], tuple[int, int]]
    """Queue offsets from and before, by topic and queue."""
    topics: frozenset[str] = frozenset()
    """Topics whose other queues are wanted, too."""
    others: tuple[int, int] = (0, 2**63 - 1)
    """Queue offsets of those."""
    pattern: str = ""
    """Topics that match it are among `topics`."""
    times_ms: tuple[int | None, int | None] = (None, None)
    """Store times from and before, None for any."""
    queue_ids: frozenset[int] | None = None
    """Of the other queues only those of these numbers, None for any."""

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """The wanted queue offsets of a queue, None if it is not wanted."""
        found = self.wanted.get((topic, queue_id))
        if found is not None or (self.queue_ids is not None and queue_id not in self.queue_ids):
            return found
        matches = self.pattern and re.fullmatch(self.pattern, topic)
        return self.others if topic in self.topics or matches else None


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogOrderedEntries:
    """Entries of queues in the order of the log; all arrays have one value for each."""

    places: Longs
    sizes: Longs
    owners: Longs
    """Which of the ranges an entry is of."""
    offsets: Longs
    """Its queue offset."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads partitions of one directory."""

    files: StoreFiles
    decoder: Decoder
    options: StoreOptions
    malformed: MalformedCounter = field(default_factory=MalformedCounter)

    def of_queues(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of ranges of queues. Raises DataLost, BodyError."""
        try:
            for some in _entry_batches(ranges):
                entries_by_log = self._log_ordered(some)
                groups = _groups(
                    entries_by_log.places,
                    entries_by_log.sizes,
                    self.files,
                    with_bodies=self.decoder.checks_bodies,
                )
                for begin, end in groups:
                    yield from self._group(entries_by_log, begin, end, some)
        finally:
            self.close()

    def of_log(self, part: LogPartition) -> Iterator[pa.RecordBatch]:
        """The wanted rows of one file of the log. Raises DataLost, BodyError."""
        try:
            found = self.files.log_file(part.log_offset)
            if found is None:
                self._report_loss(f"log file of {part.log_offset} has been deleted")
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
                self._report_loss(f"{_named(view, at, first)}: no sound record begins there")
                at = find_record(view, first, at + 1, len(view))
        finally:
            self.close()

    def close(self) -> None:
        """Say what was malformed, and let go of the files."""
        self.malformed.close()
        self.files.close()

    # -- by the queues -----------------------------------------------------------------------------

    def _log_ordered(self, ranges: Sequence[Range]) -> LogOrderedEntries:
        """The entries of ranges that may lead to wanted messages."""
        found = [self._entries(each) for each in ranges]
        places = np.concatenate([entries["log"].astype(np.int64) for entries, _ in found])
        sizes = np.concatenate([entries["size"].astype(np.int64) for entries, _ in found])
        counts = [len(entries) for entries, _ in found]
        owners = np.repeat(np.arange(len(found)), counts)
        offsets = np.concatenate([places for _, places in found])
        if len(ranges) > 1:
            order = np.argsort(places, kind="stable")
            places, sizes = places[order], sizes[order]
            owners, offsets = owners[order], offsets[order]
        return LogOrderedEntries(places, sizes, owners, offsets)

    def _entries(self, part: Range) -> tuple[Entries, Longs]:
        """Entries of a range, and their queue offsets."""
        topic, queue_id = part.queue.topic, part.queue.queue_id
        found = self.files.entries(topic, queue_id, part.first, part.stop)
        if len(found) < part.count:
            self._report_loss(
                LostRange(part.queue, part.first + len(found), part.stop, "have been deleted")
            )
        keep = found["size"] != BLANK_SIZE
        if self.decoder.only_tags is not None and topic != SCHEDULE_TOPIC:
            keep &= may_match(found, self.decoder.only_tags)
        offsets = np.arange(part.first, part.first + len(found), dtype=np.int64)
        return found[keep], offsets[keep]

    def _group(
        self, entries_by_log: LogOrderedEntries, begin: int, end: int, ranges: Sequence[Range]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of entries that lead to one file of the log."""

        def where(number: int) -> str:
            queue = ranges[int(entries_by_log.owners[begin + number])].queue
            return f"queue {queue}, offset {entries_by_log.offsets[begin + number]}"

        place = int(entries_by_log.places[begin])
        found = self.files.log_file(place)
        if found is None:
            count = end - begin
            self._report_loss(
                f"{where(0)} to {where(count - 1)}: log file of {place} has been deleted"
            )
            return
        mapped, first = found
        starts = entries_by_log.places[begin:end] - first
        yield from self._batches(self.decoder, memoryview(mapped), starts, first, where)

    # -- by the log --------------------------------------------------------------------------------

    def _wanted(
        self, decoder: Decoder, view: memoryview, group: list[int], first: int, part: LogPartition
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows of records that begin at places of one file."""
        starts, columns = self._columns(view, np.array(group, np.int64), first)
        rows = np.flatnonzero(_wanted_rows(part, columns))

        def where(number: int) -> str:
            topic, queue_id, place = (column[int(rows[number])].as_py() for column in columns[:3])
            return f"queue {Queue(topic, self.options.broker_name, queue_id)}, offset {place}"

        if len(rows):
            yield from self._batches(decoder, view, starts[rows], first, where)

    def _columns(self, view: memoryview, starts: Longs, first: int) -> tuple[Longs, list[pa.Array]]:
        """Whose records begin at places of one file, without those that cannot be read."""
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
        arrays = self._sound(decoder, view, starts, first, where)
        return decoder.batches(arrays, self.options.broker_name, malformed=self.malformed)

    def _sound(
        self, decoder: Decoder, view: memoryview, starts: Longs, first: int, where: Where
    ) -> Arrays:
        """Columns of records; what is damaged, or of another place, is lost."""
        try:
            whole = decoder.arrays(view, starts)
            if _positions_match(decoder, whole, view, starts, first):
                return whole
        except RecordError:
            pass  # at least one of them
        good, wrong = intact_records(view, starts, first, check_crc=decoder.checks_bodies)
        for number, why in wrong:
            self._report_loss(f"{where(number)}: {why}")
        return decoder.arrays(view, good)

    def _report_loss(self, lost: LostRange | str) -> None:
        if isinstance(lost, LostRange):
            report_loss([lost], fail=self.options.fail_on_data_loss)
        elif self.options.fail_on_data_loss:
            raise DataLost(f"{lost}. The option failOnDataLoss=false goes on without it")
        else:
            log.warning("lost: %s", lost)


def _named(view: memoryview, start: int, first: int) -> str:
    """What is known of a message whose record cannot be read, for people."""
    at = start + _QUEUE_ID_AT
    queue_id = int.from_bytes(view[at : at + 4], "big", signed=True)
    told = f"it names queue {queue_id} and offset {queue_offset_at(view, start)}"
    return f"a message of the log at {first + start}, {told}"


def _positions_match(
    decoder: Decoder, arrays: Arrays, view: memoryview, starts: Longs, first: int
) -> bool:
    """Whether all records name the place of the log where they are found."""
    if decoder.only_keys is not None:  # some of the records are left out of the arrays
        return not misplaced(view, starts, first).any()
    return np.array_equal(arrays["physicalOffset"].to_numpy(), starts + first)


# -- inside ----------------------------------------------------------------------------------------


def _entry_batches(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges that are looked at together; one alone may be so long that it is cut."""
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
    """Which entries may be of messages with one of the tags."""
    codes = entries["tags"].astype(np.int64)
    hashes = np.array(sorted(map(java_hash, tags)), np.int64)
    return np.isin(codes, hashes) | (codes < _HASH_MIN)


def _groups(
    places: Longs, sizes: Longs, files: StoreFiles, *, with_bodies: bool
) -> Iterator[tuple[int, int]]:
    """From where to where messages make good batches, each of one log file."""
    numbers = (places - files.first_log_offset) // files.log_file_bytes
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(places)]
    for begin, end in pairwise(edges):
        at = begin
        while at < end:
            count = min(ROWS_MAX, end - at)
            if with_bodies:
                passed = np.cumsum(sizes[at : at + count])
                count = max(int(np.searchsorted(passed, BATCH_BYTES, "right")), 1)
            yield at, at + count
            at += count


def _wanted_rows(
    part: LogPartition, columns: list[pa.Array]
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which records are of the wanted queues, have a queue entry and lie in the range."""
    topics = columns[0].dictionary_encode()
    names: list[str] = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    queue_ids, places, flags = (column.to_numpy() for column in columns[1:4])
    keep = np.zeros(len(codes), np.bool_)
    for code, name in enumerate(names):
        of_topic = codes == code
        for queue_id in np.unique(queue_ids[of_topic]).tolist():
            range_ = part.range_of(name, queue_id)
            if range_ is not None:
                of_queue = of_topic & (queue_ids == queue_id)
                keep |= of_queue & (places >= range_[0]) & (places < range_[1])
    state = flags & TRANSACTION_MASK
    keep &= (state == TRANSACTION_NONE) | (state == TRANSACTION_COMMIT)
    return keep
