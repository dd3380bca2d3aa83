"""`format("rocketmq-store")`: reads messages from a store directory, without a broker.

    spark.read.format("rocketmq-store").option("subscribe", "orders").load("/var/rocketmq/store")

A partition is a section of the log with the queue ranges inside it (`splitBy=queue`; with limits of
partitions, a range of one queue), or a log file (`splitBy=log`). Queue entries lead directly to the
wanted messages. A running Tianzhou broker keeps the newest queue entries in memory for up to a
minute; messages without entries are read from the tail of the log.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError
from tianzhou.spark import offsets, push_down, schema
from tianzhou.spark.columns.arrow import Decoder
from tianzhou.spark.offline.rows import LogPartition, QueuesPartition, RowReader, may_match
from tianzhou.spark.offline.spans import spans
from tianzhou.spark.offline.store_files import StoreFiles
from tianzhou.spark.offsets import (
    AtTime,
    Bounds,
    NamedOffset,
    OffsetSpec,
    OffsetSpecs,
    Positions,
    Range,
)
from tianzhou.spark.options import SplitBy, StoreOptions, read_options
from tianzhou.spark.source.batch import PlannedReader, PushesFilters
from tianzhou.spark.worker_tuning import init_worker
from tianzhou.store.files.checkpoint import read_checkpoint
from tianzhou.store.files.real_disk import RealDisk

__all__ = ["LogPartition", "PushingReader", "QueuesPartition", "StoreReader", "StoreSource"]

_SAMPLES, _SAMPLE_COUNT = 8, 512
_SHARE_WITHOUT_BODY = 0.25
"""Cost of a message without its body, relative to one with it."""
_PAST_ANY_OFFSET = 2**63 - 1


class StoreSource(DataSource):
    """The data source; its options are `StoreOptions`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> str:
        return schema.full_schema(read_options(StoreOptions, self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        init_worker()
        options = read_options(StoreOptions, self.options)
        if not options.pushes_down:
            return StoreReader(options, schema)
        push_down.warn_if_unsafe()
        return PushingReader(options, schema)


class StoreReader(PlannedReader[StoreOptions]):
    """Reads a store directory; executors must have access to the same files."""

    def _files(self) -> StoreFiles:
        assert self._options.path is not None  # the options require it
        return StoreFiles(self._options.path)

    # -- planning ----------------------------------------------------------------------------------

    def partitions(self) -> Sequence[InputPartition]:
        files = self._files()
        queues = self._queues(files)
        if not files.is_open:
            # While a broker writes, the log may contain queues without queue files.
            for specs in (self._starting, self._ending):
                offsets.check_named(specs, queues)
        queues = [queue for queue in queues if self._pushed.may_match(queue)]
        bounds = {queue: files.bounds(queue) for queue in queues}
        ranges = self._planned(bounds, partial(resolve, files), is_growing=files.is_open)
        parts: list[InputPartition]
        if self._options.split_by is SplitBy.LOG:
            wanted = {
                (each.queue.topic, each.queue.queue_id): (each.first, each.stop) for each in ranges
            }
            parts = [LogPartition(first, wanted) for first in _log_files(files, ranges)]
        else:
            parts = [QueuesPartition(span) for span in self._spans(files, ranges)]
        parts += self._tail(files, bounds)
        files.close()
        return parts

    def _spans(self, files: StoreFiles, ranges: list[Range]) -> list[tuple[Range, ...]]:
        """The ranges of each partition."""
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        if least or most:
            return [(each,) for each in offsets.split(ranges, least, most)]
        return spans(files, ranges, self._read_share(files, ranges))

    def _read_share(self, files: StoreFiles, ranges: list[Range]) -> float:
        """The estimated share of messages that will be read, by samples of each range."""
        decoder = self._decoder()
        share = 1.0 if decoder.checks_bodies else _SHARE_WITHOUT_BODY
        if decoder.only_tags is None:
            return share
        wanted = total = 0.0
        for each in ranges:
            for first in range(each.first, each.stop, -(-each.count // _SAMPLES)):
                sample = Range(each.queue, first, min(first + _SAMPLE_COUNT, each.stop))
                found = files.entries(sample)
                total += len(found)
                wanted += int(np.count_nonzero(may_match(found, decoder.only_tags)))
        return share * wanted / max(total, 1.0)

    def _queues(self, files: StoreFiles) -> list[Queue]:
        options = self._options
        existing = files.topics()
        if options.subscribe_pattern:
            pattern = re.compile(options.subscribe_pattern)
            topics = [topic for topic in existing if pattern.fullmatch(topic)]
        else:
            topics = list(options.subscribe) or sorted({queue.topic for queue in options.assign})
            missing = [topic for topic in topics if topic not in existing]
            if missing and not files.is_open:
                raise ConfigError(f"topic {missing[0]}: no queues in {options.path}")
        queues = [
            Queue(topic, options.broker_name, queue_id)
            for topic in topics
            for queue_id in files.queue_ids(topic)
        ]
        return [queue for queue in queues if options.selects(queue)]

    def _tail(self, files: StoreFiles, bounds: dict[Queue, Bounds]) -> list[LogPartition]:
        """Partitions of the messages that the log has and the queue files do not have yet."""
        times_ms = _tail_times_ms(self._starting, self._ending)
        if times_ms is None or not files.is_open or not files.log_firsts:
            return []
        derived = read_checkpoint(RealDisk(), files.root / "checkpoint").derived
        if derived is None:
            return []
        pushed = self._pushed
        known = dict.fromkeys([*self._starting.named, *self._options.assign], 0) | {
            queue: held.high for queue, held in bounds.items()
        }
        wanted = {
            (queue.topic, queue.queue_id): (
                max(high, pushed.first_offset, _tail_first(self._starting.of(queue))),
                pushed.stop_offset,
            )
            for queue, high in known.items()
            if pushed.may_match(queue) and (queue in bounds or self._chooses(queue))
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
        """Whether the options select a queue that has no files yet."""
        return queue.broker_name == self._options.broker_name and self._options.selects(queue)

    def _tail_topics(self) -> tuple[frozenset[str], str]:
        """The topics, or a pattern of topics, that may have queues without queue files.

        The ids of such queues are unknown before the log is read.
        """
        options, pushed = self._options, replace(self._pushed, queue_ids=None)
        if options.subscribe_pattern and pushed.topics is None:
            anything = pushed.may_match(Queue("", options.broker_name, 0))
            return frozenset(), options.subscribe_pattern if anything else ""
        named = (
            Queue(topic, options.broker_name, 0) for topic in pushed.topics or options.subscribe
        )
        wanted = (queue for queue in named if not options.assign and self._chooses(queue))
        return frozenset(queue.topic for queue in wanted if pushed.may_match(queue)), ""

    # -- reading -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        init_worker()
        rows = RowReader(self._files(), self._decoder(), self._options)
        if isinstance(partition, QueuesPartition):
            return rows.of_queues(partition.ranges)
        if isinstance(partition, LogPartition):
            return rows.of_log(partition)
        return iter(())  # Spark replaces an empty list of partitions by one None

    def _decoder(self) -> Decoder:
        return replace(Decoder.of(self._wanted, self._options, self._pushed), with_log_offsets=True)


class PushingReader(PushesFilters[StoreOptions], StoreReader):
    """Reads a store directory, with filter push-down."""


# -- helpers ---------------------------------------------------------------------------------------


def resolve(files: StoreFiles, specs: OffsetSpecs, bounds: dict[Queue, Bounds]) -> Positions:
    """The positions that specs mean."""
    positions: Positions = {}
    for queue, held in bounds.items():
        spec = specs.of(queue)
        if isinstance(spec, AtTime):
            positions[queue] = files.time_offset(queue, held, spec.time_ms)
        elif isinstance(spec, int):
            positions[queue] = spec
        else:
            positions[queue] = held.low if spec is NamedOffset.EARLIEST else held.high
    return positions


def _tail_times_ms(
    starting: OffsetSpecs, ending: OffsetSpecs
) -> tuple[int | None, int | None] | None:
    """The bounds of the store time for the tail of the log; None if the tail is not wanted.

    Times of single queues are resolved in the files of these queues only.
    """
    if ending.named or any(isinstance(spec, AtTime) for spec in starting.named.values()):
        return None
    first, stop = starting.default, ending.default
    if stop is not NamedOffset.LATEST and not isinstance(stop, AtTime):
        return None
    return (
        first.time_ms if isinstance(first, AtTime) else None,
        stop.time_ms if isinstance(stop, AtTime) else None,
    )


def _tail_first(spec: OffsetSpec) -> int:
    """The first wanted offset of a queue in the tail of the log."""
    if spec is NamedOffset.LATEST:
        return _PAST_ANY_OFFSET
    return spec if isinstance(spec, int) else 0


def _log_files(files: StoreFiles, ranges: list[Range]) -> list[int]:
    """The log files, by their first offset, from the first to the last message of ranges."""
    edges = [edge for each in ranges for edge in files.log_edges(each)]
    if not edges:
        return []
    low, high = min(edges) - files.log_file_bytes, max(edges)
    return [first for first in files.log_firsts if low < first <= high]
