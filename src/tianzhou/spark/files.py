"""`format("rocketmq-store")`: the same columns from a store directory, without a broker.

    spark.read.format("rocketmq-store").option("subscribe", "orders").load("/var/rocketmq/store")

A partition is what the queues have of a stretch of the log (`splitBy=queue`; a range of one queue,
if it is said how many there shall be), or a file of the log (`splitBy=log`). Queues lead straight
to the wanted messages. Our own running broker keeps the newest entries of its queues
in memory for up to a minute; what only the log has of the wanted queues is read from there.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError, DataLost, RecordError
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol.properties import java_hash
from tianzhou.protocol.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from tianzhou.spark import offsets, pushdown, schema
from tianzhou.spark.batch import narrowed
from tianzhou.spark.decode import (
    BATCH_BYTES,
    ROWS_MAX,
    Arrays,
    Decoder,
    Longs,
    decode_arrays,
    wanted_tags,
)
from tianzhou.spark.offsets import AtTime, Bounds, Edge, Lost, Places, Range, Wish, Wishes
from tianzhou.spark.options import SplitBy, StoreOptions, read_options
from tianzhou.spark.pulling import report_loss
from tianzhou.spark.pushdown import NOTHING_PUSHED
from tianzhou.spark.spans import spans
from tianzhou.spark.store_files import Entries, StoreFiles, is_end
from tianzhou.spark.worker import Travelling, settle_in
from tianzhou.store.checkpoint import read_checkpoint
from tianzhou.store.commitlog import find_record
from tianzhou.store.consumequeue import BLANK_SIZE
from tianzhou.store.disk import RealDisk

log = logging.getLogger(__name__)

_ENTRIES_AT_ONCE = 65_536
_LOOKS, _LOOK_COUNT = 8, 512
_SHARE_WITHOUT_BODY = 0.25
"""Of the time that a message takes, when nobody wants its body."""
_PLACE_NAMES = ["topic", "queueId", "queueOffset", "sysFlag", "storeSize"]
_NOTHING_OF_IT = 2**63 - 1
_HASH_MIN = -(2**31)
"""Below, an entry's tags code is no hash but the address of a unit beside the queue."""


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


class StoreSource(DataSource):
    """The data source; see the module. Options are those of `StoreOptions`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> str:
        return schema.full_schema(read_options(StoreOptions, self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        settle_in()
        options = read_options(StoreOptions, self.options)
        if not options.pushes_down:
            return StoreReader(options, schema)
        pushdown.warn_if_wrong()
        return PushingReader(options, schema)


class StoreReader(Travelling, DataSourceReader):
    """Plans on the driver, reads where the executors see the same files."""

    def __init__(self, options: StoreOptions, wanted: StructType) -> None:
        """Raises ConfigError."""
        options.check_batch()
        self._options = options
        self._wanted = wanted
        self._pushed = NOTHING_PUSHED
        Decoder.of(wanted, options)
        self._assigned = offsets.assigned(options.assign) if options.assign else frozenset[Queue]()
        self._starting = offsets.starting(options, Edge.EARLIEST)
        self._ending = offsets.ending(options)

    def _files(self) -> StoreFiles:
        assert self._options.path is not None  # the options insist on it
        return StoreFiles(self._options.path)

    # -- planning ----------------------------------------------------------------------------------

    def partitions(self) -> Sequence[InputPartition]:
        files = self._files()
        queues = self._queues(files)
        if not files.is_open:
            # Where a broker still writes, the log may have queues that have no files yet.
            for wishes in (self._starting, self._ending):
                offsets.check_named(wishes, queues)
        queues = [queue for queue in queues if self._pushed.wants(queue)]
        bounds = {queue: files.bounds(queue.topic, queue.queue_id) for queue in queues}
        start = resolve(files, self._starting, bounds)
        end = resolve(files, self._ending, bounds)
        ranges = self._planned(files, bounds, start, end)
        parts: list[InputPartition]
        if self._options.split_by is SplitBy.LOG:
            wanted = _by_queue(ranges)
            parts = [LogPartition(first, wanted) for first in _log_files(files, ranges)]
        else:
            parts = [QueuesPartition(span) for span in self._spans(files, ranges)]
        parts += self._tail(files, bounds)
        files.close()
        return parts

    def _spans(self, files: StoreFiles, ranges: list[Range]) -> list[tuple[Range, ...]]:
        """What is read together."""
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        if least or most:
            return [(each,) for each in offsets.split(ranges, least, most)]
        return spans(files, ranges, self._read_share(files, ranges))

    def _read_share(self, files: StoreFiles, ranges: list[Range]) -> float:
        """How much of the messages will be read, about, by a few entries of each range."""
        share = 1.0 if "body" in self._decoder().sources else _SHARE_WITHOUT_BODY
        if self._only_tags is None:
            return share
        wanted = total = 0.0
        for each in ranges:
            for first in range(each.first, each.stop, -(-each.count // _LOOKS)):
                stop = min(first + _LOOK_COUNT, each.stop)
                found = files.entries(each.queue.topic, each.queue.queue_id, first, stop)
                total += len(found)
                wanted += int(np.count_nonzero(may_match(found, self._only_tags)))
        return share * wanted / max(total, 1.0)

    def _queues(self, files: StoreFiles) -> list[Queue]:
        options = self._options
        there = files.topics()
        if options.subscribe_pattern:
            pattern = re.compile(options.subscribe_pattern)
            topics = [topic for topic in there if pattern.fullmatch(topic)]
        else:
            topics = list(options.subscribe) or sorted({queue.topic for queue in self._assigned})
            missing = [topic for topic in topics if topic not in there]
            if missing and not files.is_open:
                raise ConfigError(f"topic {missing[0]}: {options.path} has no queue of it")
        queues = [
            Queue(topic, options.broker_name, queue_id)
            for topic in topics
            for queue_id in files.queue_ids(topic)
        ]
        return [queue for queue in queues if not self._assigned or queue in self._assigned]

    def _planned(
        self, files: StoreFiles, bounds: dict[Queue, Bounds], start: Places, end: Places
    ) -> list[Range]:
        kept, lost = offsets.clip(offsets.ranges_between(start, end), bounds, start)
        if not files.is_open:
            lost += offsets.beyond(self._starting, bounds)
        report_loss(lost, fail=self._options.fail_on_data_loss)

        def by_time(held: dict[Queue, Bounds], time_ms: int) -> Places:
            return resolve(files, Wishes(AtTime(time_ms), {}), held)

        return narrowed(kept, self._pushed, by_time, bounds)

    def _tail(self, files: StoreFiles, bounds: dict[Queue, Bounds]) -> list[LogPartition]:
        """What the log has and the queues do not have yet, where the end is open."""
        times_ms = _tail_times_ms(self._starting, self._ending)
        if times_ms is None or not files.is_open or not files.log_firsts:
            return []
        derived = read_checkpoint(RealDisk(), files.root / "checkpoint").derived
        if derived is None:
            return []
        pushed = self._pushed
        known = dict.fromkeys([*self._starting.named, *self._assigned], 0) | {
            queue: held.high for queue, held in bounds.items()
        }
        wanted = {
            (queue.topic, queue.queue_id): (
                max(high, pushed.first_offset, _tail_first(self._starting.of(queue))),
                pushed.stop_offset,
            )
            for queue, high in known.items()
            if pushed.wants(queue) and (queue in bounds or self._chooses(queue))
        }
        topics, pattern = self._tail_topics()
        others, ids = (pushed.first_offset, pushed.stop_offset), pushed.queue_ids
        return [
            LogPartition(
                max(first, derived.log_offset), wanted, topics, others, pattern, times_ms, ids
            )
            for first in files.log_firsts
            if first + files.log_file_bytes > derived.log_offset and (wanted or topics or pattern)
        ]  # fmt: skip

    def _chooses(self, queue: Queue) -> bool:
        """Whether the options choose a queue that has no files yet."""
        options = self._options
        if queue.broker_name != options.broker_name:
            return False
        if options.subscribe_pattern:
            return re.fullmatch(options.subscribe_pattern, queue.topic) is not None
        return queue in self._assigned or queue.topic in options.subscribe

    def _tail_topics(self) -> tuple[frozenset[str], str]:
        """The topics, or a pattern for them, whose queues may be known to the log only.

        Of which numbers such queues are cannot be told before the log is read.
        """
        options, pushed = self._options, replace(self._pushed, queue_ids=None)
        if options.subscribe_pattern and pushed.topics is None:
            anything = pushed.wants(Queue("", options.broker_name, 0))
            return frozenset(), options.subscribe_pattern if anything else ""
        named = (
            Queue(topic, options.broker_name, 0) for topic in pushed.topics or options.subscribe
        )
        wanted = (queue for queue in named if not self._assigned and self._chooses(queue))
        return frozenset(queue.topic for queue in wanted if pushed.wants(queue)), ""

    # -- reading -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle_in()
        if isinstance(partition, QueuesPartition):
            return self._read_queues(partition.ranges)
        if isinstance(partition, LogPartition):
            return self._read_log(partition)
        return iter(())  # what Spark makes of no partitions at all

    @property
    def _only_tags(self) -> frozenset[str] | None:
        return wanted_tags(self._options, self._pushed)

    def _decoder(self) -> Decoder:
        return Decoder.of(self._wanted, self._options, self._pushed)

    def _read_queues(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        files, decoder = self._files(), self._decoder()
        for some in _at_once(ranges):
            entries = [self._entries(files, each) for each in some]
            places = np.concatenate([each["log"].astype(np.int64) for each in entries])
            sizes = np.concatenate([each["size"].astype(np.int64) for each in entries])
            if len(some) > 1:
                order = np.argsort(places, kind="stable")
                places, sizes = places[order], sizes[order]
            for begin, end in _groups(places, sizes, files, with_bodies="body" in decoder.sources):
                for arrays in self._arrays(files, decoder, places[begin:end], some):
                    yield from decoder.batches(arrays, self._options.broker_name)
        files.close()

    def _entries(self, files: StoreFiles, part: Range) -> Entries:
        """The entries of a range that may lead to wanted messages."""
        topic, queue_id = part.queue.topic, part.queue.queue_id
        found = files.entries(topic, queue_id, part.first, part.stop)
        if len(found) < part.count:
            self._lose(Lost(part.queue, part.first + len(found), part.stop, "have been deleted"))
        entries: Entries = found[found["size"] != BLANK_SIZE]
        if self._only_tags is not None and topic != SCHEDULE_TOPIC:
            entries = entries[may_match(entries, self._only_tags)]
        return entries

    def _arrays(
        self, files: StoreFiles, decoder: Decoder, places: Longs, ranges: Sequence[Range]
    ) -> Iterator[Arrays]:
        """Columns of the records at places of one log file; what is damaged is lost."""
        queues = ", ".join(str(each.queue) for each in ranges[:8])
        found = files.log_file(int(places[0]))
        if found is None:
            self._lose(f"queue {queues}: log file of {places[0]} has been deleted")
            return
        mapped, first = found
        where = f"queue {queues}, log file {first}"
        yield from self._sound(decoder, memoryview(mapped), places - first, where)

    def _read_log(self, part: LogPartition) -> Iterator[pa.RecordBatch]:
        files, decoder = self._files(), self._decoder().narrowed(*part.times_ms)
        found = files.log_file(part.log_offset)
        if found is None:
            self._lose(f"log file of {part.log_offset} has been deleted")
            return
        mapped, first = found
        view = memoryview(mapped)
        at = part.log_offset - first
        while True:
            for group in files.walk(first + at):
                starts = np.array(group, np.int64)
                columns = decode_arrays(view, starts, _PLACE_NAMES, check_crc=False)
                at = group[-1] + columns[-1][len(group) - 1].as_py()
                keep = _wanted_rows(part, columns)
                if keep.any():
                    yield from self._log_batches(decoder, view, starts[keep], first)
            if is_end(mapped, at):
                break
            self._lose(f"log file {first}: at {at} there is no record")
            following = find_record(view, first, at + 1, len(view))
            if following is None:
                break
            at = following
        files.close()

    def _log_batches(
        self, decoder: Decoder, view: memoryview, starts: Longs, first: int
    ) -> Iterator[pa.RecordBatch]:
        for arrays in self._sound(decoder, view, starts, f"log file {first}"):
            yield from decoder.batches(arrays, self._options.broker_name)

    def _sound(
        self, decoder: Decoder, view: memoryview, starts: Longs, where: str
    ) -> Iterator[Arrays]:
        """Columns of records; what is damaged is lost."""
        try:
            whole = decoder.arrays(view, starts)
        except RecordError as e:
            self._lose(f"{where}: {e}")
        else:
            yield whole
            return
        for start in starts:
            try:
                yield decoder.arrays(view, np.array([start]))
            except RecordError as e:
                self._lose(f"{where}: {e}")

    def _lose(self, lost: Lost | str) -> None:
        if isinstance(lost, Lost):
            report_loss([lost], fail=self._options.fail_on_data_loss)
        elif self._options.fail_on_data_loss:
            raise DataLost(f"{lost}. The option failOnDataLoss=false goes on without it")
        else:
            log.warning("lost: %s", lost)


class PushingReader(StoreReader):
    """The same with filters; a class of its own because Spark refuses it where they are off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushed, remaining = pushdown.push(filters, tags=not self._options.tags)
        return remaining


# -- inside ----------------------------------------------------------------------------------------


def resolve(files: StoreFiles, wishes: Wishes, bounds: dict[Queue, Bounds]) -> Places:
    """The places that are wished for in queues."""
    places: Places = {}
    for queue, held in bounds.items():
        wish = wishes.of(queue)
        if isinstance(wish, AtTime):
            places[queue] = files.time_offset(queue.topic, queue.queue_id, held, wish.time_ms)
        elif isinstance(wish, int):
            places[queue] = wish
        else:
            places[queue] = held.low if wish is Edge.EARLIEST else held.high
    return places


def _at_once(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges that are looked at together; one alone may be so long that it is cut."""
    ranges = list(ranges)
    if len(ranges) > 1:
        yield ranges
        return
    for each in ranges:
        for first in range(each.first, each.stop, _ENTRIES_AT_ONCE):
            yield [Range(each.queue, first, min(first + _ENTRIES_AT_ONCE, each.stop))]


def _tail_times_ms(starting: Wishes, ending: Wishes) -> tuple[int | None, int | None] | None:
    """The store times that the tail of the log is to have; None if the tail is not wanted.

    Places that are named for single queues are looked up in the files of these queues only.
    """
    if ending.named or any(isinstance(wish, AtTime) for wish in starting.named.values()):
        return None
    first, stop = starting.others, ending.others
    if stop is not Edge.LATEST and not isinstance(stop, AtTime):
        return None
    return (
        first.time_ms if isinstance(first, AtTime) else None,
        stop.time_ms if isinstance(stop, AtTime) else None,
    )


def _tail_first(wish: Wish) -> int:
    """Where the wanted part begins of what only the log has of a queue."""
    if wish is Edge.LATEST:
        return _NOTHING_OF_IT
    return wish if isinstance(wish, int) else 0


def _by_queue(ranges: list[Range]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(each.queue.topic, each.queue.queue_id): (each.first, each.stop) for each in ranges}


def _log_files(files: StoreFiles, ranges: list[Range]) -> list[int]:
    """The log files, by where they begin, between the first and the last message of ranges."""
    edges = [
        edge
        for each in ranges
        for edge in files.log_edges(each.queue.topic, each.queue.queue_id, each.first, each.stop)
    ]
    if not edges:
        return []
    low, high = min(edges) - files.log_file_bytes, max(edges)
    return [first for first in files.log_firsts if low < first <= high]


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
