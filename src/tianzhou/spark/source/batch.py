"""`format("rocketmq")` in batches: planned on the driver, read on executors.

Readers are serialized to executors, so they hold plain values and connect there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tianzhou.client.queues import Queue
from tianzhou.errors import RecordError
from tianzhou.spark import offsets, push_down
from tianzhou.spark.columns.arrow import BATCH_BYTES, Arrays, Decoder
from tianzhou.spark.columns.malformed import MalformedCounter, OffsetGaps, queue_offset_at, walk
from tianzhou.spark.offsets import (
    AtTime,
    Bounds,
    LostRange,
    NamedOffset,
    OffsetSpecs,
    Positions,
    Range,
    report_loss,
)
from tianzhou.spark.options import ReadingOptions, SourceOptions
from tianzhou.spark.push_down import NO_FILTERS, PushedFilters
from tianzhou.spark.source.cluster_reader import ClusterReader, wanted_queues
from tianzhou.spark.worker_tuning import TaskPayload, init_worker

O = TypeVar("O", bound=ReadingOptions)  # noqa: E741 - the class of options
Resolve = Callable[[OffsetSpecs, dict[Queue, Bounds]], Positions]
"""Resolves specs to positions."""


@dataclass
class RangePartition(InputPartition):
    """A range of one queue, read by one task."""

    range: Range


class PlannedReader(TaskPayload, DataSourceReader, Generic[O]):
    """Plans on the driver, reads on executors; of a cluster or a store directory."""

    def __init__(self, options: O, wanted: StructType) -> None:
        """Raises ConfigError."""
        options.check_batch()
        Decoder.of(wanted, options)
        self._options = options
        self._wanted = wanted
        self._pushed = NO_FILTERS
        self._starting = offsets.starting_specs(options, NamedOffset.EARLIEST)
        self._ending = offsets.ending_specs(options)

    def _planned(
        self, bounds: dict[Queue, Bounds], resolve: Resolve, *, is_growing: bool = False
    ) -> list[Range]:
        """The ranges to read: those of the options that can have rows that pass the filters."""
        start, end = resolve(self._starting, bounds), resolve(self._ending, bounds)
        existing, lost = offsets.clip(offsets.ranges_between(start, end), bounds, start)
        if not is_growing:
            lost += offsets.beyond_end(self._starting, bounds)
        report_loss(lost, fail=self._options.fail_on_data_loss)
        held = {each.queue: bounds[each.queue] for each in existing}

        def offsets_at(time_ms: int | None) -> Positions:
            return {} if time_ms is None else resolve(OffsetSpecs(AtTime(time_ms), {}), held)

        pushed = self._pushed
        first, stop = offsets_at(pushed.first_ms), offsets_at(pushed.stop_ms)
        ranges = [
            Range(
                each.queue,
                max(each.first, pushed.first_offset, first.get(each.queue, 0)),
                min(each.stop, pushed.stop_offset, stop.get(each.queue, each.stop)),
            )
            for each in existing
        ]
        return [each for each in ranges if each.count]


class PushesFilters(PlannedReader[O]):
    """Filter push-down; not in the base class, because Spark rejects it where that is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushed, remaining = push_down.push(filters, tags=self._options.pushes_tags)
        return remaining


class BatchReader(PlannedReader[SourceOptions]):
    """Reads topics of a cluster."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        """Raises ConfigError."""
        options.client_settings()
        super().__init__(options, wanted)

    def partitions(self) -> Sequence[InputPartition]:
        with closing(ClusterReader(self._options, tags=_broker_tags(self._pushed))) as reader:
            queues = wanted_queues(reader, self._options)
            for specs in (self._starting, self._ending):
                offsets.check_named(specs, queues)
            bounds = reader.bounds(queue for queue in queues if self._pushed.may_match(queue))
            ranges = self._planned(bounds, reader.resolve)
            share = reader.matching_share(ranges)
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        return [RangePartition(part) for part in offsets.split(ranges, least, most, share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark replaces an empty list of partitions by one None
        return read_range(self._options, self._wanted, self._pushed, partition.range)


class PushingReader(PushesFilters[SourceOptions], BatchReader):
    """Reads topics of a cluster, with filter push-down."""


def read_range(
    options: SourceOptions, wanted: StructType, pushed: PushedFilters, part: Range
) -> Iterator[pa.RecordBatch]:
    """The batches of one range. Raises DataLost, RemotingError, BrokerError, BodyError."""
    init_worker()
    decoder = Decoder.of(wanted, options, pushed)
    malformed = MalformedCounter(options.fail_on_malformed)
    gaps = OffsetGaps(part)
    is_complete = decoder.only_keys is None and decoder.only_tags is None and not options.sql

    def batches(records: bytes, delta: int) -> Iterator[pa.RecordBatch]:
        arrays = intact_arrays(decoder, records, part, delta, fail=options.fail_on_data_loss)
        if is_complete:
            gaps.note(arrays["queueOffset"].to_numpy() + delta)
        edges = {"first": part.first, "stop": part.stop, "queue_offset_delta": delta}
        return decoder.batches(arrays, part.queue.broker_name, malformed=malformed, **edges)

    with (
        closing(malformed),
        closing(gaps),
        closing(ClusterReader(options, tags=_broker_tags(pushed))) as reader,
    ):
        gathered: list[bytes] = []
        size, delta = 0, 0
        for block in reader.read(part):
            for records, block_delta in block.responses:
                if gathered and (size >= BATCH_BYTES or block_delta != delta):
                    yield from batches(b"".join(gathered), delta)
                    gathered, size = [], 0
                gathered.append(records)
                size, delta = size + len(records), block_delta
        if gathered:
            yield from batches(b"".join(gathered), delta)
        if is_complete:
            gaps.end()


def _broker_tags(pushed: PushedFilters) -> str:
    """Pushed tags as a tag expression."""
    return " || ".join(sorted(pushed.tags or ()))


def intact_arrays(
    decoder: Decoder, records: bytes, part: Range, delta: int = 0, *, fail: bool
) -> Arrays:
    """The columns of pulled records; damaged records are reported as lost. Raises DataLost."""
    try:
        return decoder.arrays(records)
    except RecordError:
        pass  # at least one record is damaged
    starts: list[int] = []
    lost: list[LostRange] = []
    following = part.first
    for start, wrong in walk(records, check_crc=decoder.checks_bodies):
        queue_offset = queue_offset_at(records, start) + delta
        if wrong is None:
            starts.append(start)
        else:
            if not part.first <= queue_offset < part.stop:
                queue_offset = following  # the offset in the record is damaged, too
            lost.append(
                LostRange(part.queue, queue_offset, queue_offset + 1, f"cannot be read: {wrong}")
            )
        following = queue_offset + 1
    report_loss(lost, fail=fail)
    return decoder.arrays(records, np.array(starts, np.int64))
