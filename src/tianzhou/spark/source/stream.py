"""`format("rocketmq")` as a stream.

Batch 0 is empty: it resolves the starting offsets and writes the positions into the checkpoint
(reason: see `offsets.py`). Every later batch ends at the ends of the queues, or earlier by the
limits of the options and the trigger. New queues are read from their beginning; queues of an
unavailable broker are skipped until it is back.

The reader lives in one Python process of the driver while the query runs; tasks get partitions.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tianzhou.client.queues import Queue
from tianzhou.errors import TianzhouError
from tianzhou.spark import offsets
from tianzhou.spark.columns.arrow import Decoder
from tianzhou.spark.offsets import Bounds, NamedOffset, Positions, report_loss
from tianzhou.spark.options import SourceOptions
from tianzhou.spark.push_down import NO_FILTERS
from tianzhou.spark.source.batch import RangePartition, read_range
from tianzhou.spark.source.cluster_reader import ClusterReader, wanted_queues
from tianzhou.spark.worker_tuning import TaskPayload

log = logging.getLogger(__name__)

Document = dict[str, Any]
"""An offset in the form of Spark's checkpoint."""


class StreamReader(TaskPayload, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream and reads their partitions."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        """Raises ConfigError."""
        options.client_settings()
        Decoder.of(wanted, options)
        self._options = options
        self._wanted = wanted
        self._starting = offsets.starting_specs(options, NamedOffset.LATEST)
        self._reader: ClusterReader | None = None
        self._target: Positions | None = None
        """With the trigger AvailableNow: the end of the query."""
        self._last_batch_s = time.monotonic()

    # -- cluster -----------------------------------------------------------------------------------

    def _cluster(self) -> ClusterReader:
        if self._reader is None:
            self._reader = ClusterReader(self._options)
        return self._reader

    def _bounds(self, known: Positions) -> dict[Queue, Bounds]:
        """The present bounds; once positions are known, without queues of unavailable brokers."""
        reader = self._cluster()
        try:
            queues = wanted_queues(reader, self._options)
        except TianzhouError as error:
            # At the start this is a configuration error; later the cluster may come back.
            if not known or not error.retriable:
                raise
            log.warning("the stream waits: the cluster is unavailable: %s", error)
            return {}
        return reader.bounds(queues, allow_missing=bool(known))

    # -- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> Document:
        return {offsets.START: self._options.starting_offsets or NamedOffset.LATEST.value}

    def getDefaultReadLimit(self) -> ReadLimit:
        # For any limit but ReadAllAvailable `latestOffset` applies all limits of the options.
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {queue: held.high for queue, held in self._bounds({}).items()}

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        if offsets.is_start(start):
            bounds = self._bounds({})
            offsets.check_named(self._starting, bounds)
            return dict(offsets.document_of(self._pinned(bounds)))
        known = offsets.positions_of(start)
        bounds = self._within_target(self._bounds(known))
        begin = offsets.resume_positions(known, bounds)
        end = offsets.advance(known, bounds)
        if not isinstance(limit, ReadAllAvailable):
            end = self._apply_limits(known, begin, end)
        if offsets.count_between(begin, end):
            self._last_batch_s = time.monotonic()
        elif end.keys() == known.keys():
            return start
        return dict(offsets.document_of(end))

    def _pinned(self, bounds: dict[Queue, Bounds]) -> Positions:
        positions = self._cluster().resolve(self._starting, bounds)
        lost = [
            offsets.LostRange(queue, bounds[queue].high, position, offsets.NOT_YET)
            for queue, position in positions.items()
            if position > bounds[queue].high
        ]
        report_loss(lost, fail=self._options.fail_on_data_loss)
        return {queue: min(position, bounds[queue].high) for queue, position in positions.items()}

    def _within_target(self, bounds: dict[Queue, Bounds]) -> dict[Queue, Bounds]:
        """The bounds that this run may read: with AvailableNow nothing that came later."""
        if self._target is None:
            return bounds
        return {
            queue: Bounds(held.low, min(held.high, self._target[queue]))
            for queue, held in bounds.items()
            if queue in self._target
        }

    def _apply_limits(self, known: Positions, begin: Positions, end: Positions) -> Positions:
        """The end of a batch within the limits of the options."""
        options = self._options
        waiting = offsets.count_between(begin, end)
        waited_ms = round((time.monotonic() - self._last_batch_s) * 1000)
        least = None if self._target is not None else options.min_offsets_per_trigger
        if not offsets.is_batch_due(waiting, least, waited_ms, options.trigger_delay_ms):
            return known
        if options.max_bytes_per_trigger:
            firsts = {each.queue: each.first for each in offsets.ranges_between(begin, end)}
            count = options.max_bytes_per_trigger / self._cluster().average_bytes(firsts)
            end = offsets.limit_count(begin, end, max(int(count), 1))
        if options.max_offsets_per_trigger:
            end = offsets.limit_count(begin, end, options.max_offsets_per_trigger)
        return end

    # -- reading -----------------------------------------------------------------------------------

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        if offsets.is_start(start):
            return []
        known = offsets.positions_of(start)
        ranges = offsets.ranges_between(known, offsets.positions_of(end))
        if not ranges:
            return []
        bounds = self._cluster().bounds([each.queue for each in ranges], allow_missing=True)
        existing, lost = offsets.clip(ranges, bounds, known)
        report_loss(lost, fail=self._options.fail_on_data_loss)
        options = self._options
        parts = offsets.split(existing, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, self._wanted, NO_FILTERS, partition.range)

    def commit(self, end: Document) -> None:
        """Commit the group's offsets if configured; Spark calls this when the next batch begins."""
        if not self._options.commit_offsets or offsets.is_start(end):
            return
        try:
            self._cluster().commit(offsets.positions_of(end))
        except TianzhouError as error:
            # The checkpoint is authoritative; the group's offsets are for monitoring.
            log.warning("group %s: offsets not committed: %s", self._options.group, error)

    def stop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # -- serialization -----------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_reader": None}


class FailedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader with invalid options: every call raises the error.

    PySpark would hide an error raised while the reader is created: it calls `stop` on the missing
    reader and reports that failure instead.
    """

    def __init__(self, error: TianzhouError) -> None:
        self._error = error

    def _fail(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - for methods of several types
        raise self._error

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = _fail
    latestOffset = partitions = read = _fail

    def stop(self) -> None:
        """Nothing to release."""
