"""`format("rocketmq")` as a stream.

Batch 0 is empty: it turns the start of the options into places and writes them into the checkpoint
(`offsets.py` tells why). From then on a batch ends where the queues end, or where the options and
the trigger limit it; queues that appear later are read from their beginning, and queues whose
broker is away wait for it.

The reader stays in one process of the driver while the query runs; tasks get partitions only.
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
from tianzhou.spark.offsets import Bounds, NamedOffset, Positions
from tianzhou.spark.options import SourceOptions
from tianzhou.spark.push_down import NO_FILTERS
from tianzhou.spark.python_worker import TaskPayload
from tianzhou.spark.source.batch import RangePartition, read_range
from tianzhou.spark.source.pulling import ClusterReader, report_loss, wanted_queues

log = logging.getLogger(__name__)

Document = dict[str, Any]
"""An offset as Spark keeps it."""


class StreamReader(TaskPayload, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        """Raises ConfigError."""
        options.client_settings()
        Decoder.of(wanted, options)
        self._options = options
        self._wanted = wanted
        self._assigned = (
            offsets.parse_assign(options.assign) if options.assign else frozenset[Queue]()
        )
        self._starting = offsets.starting_specs(options, NamedOffset.LATEST)
        self._reader: ClusterReader | None = None
        self._target: Positions | None = None
        """With the trigger AvailableNow: where the query ends."""
        self._last_batch_s = time.monotonic()

    # -- asking the cluster ------------------------------------------------------------------------

    def _cluster(self) -> ClusterReader:
        if self._reader is None:
            self._reader = ClusterReader(self._options).__enter__()
        return self._reader

    def _bounds(self, known: Positions) -> dict[Queue, Bounds]:
        """What there is now; queues of brokers that are away are left out."""
        reader = self._cluster()
        try:
            queues = wanted_queues(reader, self._options, self._assigned)
        except TianzhouError as error:
            # At first this is the user's to mend; later the cluster may come back.
            if not known or not error.retriable:
                raise
            log.warning("the stream waits, the cluster cannot be asked: %s", error)
            return {}
        return reader.bounds(queues, allow_missing=bool(known))

    # -- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> Document:
        return dict(offsets.start_mark(self._options.starting_offsets or NamedOffset.LATEST.value))

    def getDefaultReadLimit(self) -> ReadLimit:
        # Only the kind tells Spark's specs from ours: whatever is not ReadAllAvailable stands for
        # all limits of the options.
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
        bounds = self._reachable(self._bounds(known), known)
        begin = offsets.resume_positions(known, bounds)
        end = offsets.advance(known, bounds)
        if not isinstance(limit, ReadAllAvailable):
            end = self._admitted(known, begin, end)
        if offsets.count_between(begin, end):
            self._last_batch_s = time.monotonic()
        elif end.keys() == known.keys():
            return start
        return dict(offsets.document_of(end))

    def _pinned(self, bounds: dict[Queue, Bounds]) -> Positions:
        places = self._cluster().resolve(self._starting, bounds)
        wrong = {queue: place for queue, place in places.items() if place > bounds[queue].high}
        report_loss(
            [
                offsets.LostRange(queue, bounds[queue].high, place, "are not there yet")
                for queue, place in wrong.items()
            ],
            fail=self._options.fail_on_data_loss,
        )
        return {queue: min(place, bounds[queue].high) for queue, place in places.items()}

    def _reachable(self, bounds: dict[Queue, Bounds], known: Positions) -> dict[Queue, Bounds]:
        """What this run of the query may read: with AvailableNow nothing that came later."""
        if self._target is None:
            return bounds
        return {
            queue: Bounds(held.low, min(held.high, self._target[queue]))
            for queue, held in bounds.items()
            if queue in self._target
        }

    def _admitted(self, known: Positions, begin: Positions, end: Positions) -> Positions:
        """The end of a batch that keeps the limits of the options."""
        options = self._options
        waiting = offsets.count_between(begin, end)
        waited_ms = round((time.monotonic() - self._last_batch_s) * 1000)
        least = None if self._target is not None else options.min_offsets_per_trigger
        if not offsets.is_batch_due(waiting, least, waited_ms, options.trigger_delay_ms):
            return known
        if options.max_bytes_per_trigger:
            going = {each.queue: each.first for each in offsets.ranges_between(begin, end)}
            sizes = self._cluster().sample_bytes(going)
            average = sum(sizes.values()) / len(sizes) if sizes else 1.0
            end = offsets.limit_count(
                begin, end, max(int(options.max_bytes_per_trigger / average), 1)
            )
        if options.max_offsets_per_trigger:
            end = offsets.limit_count(begin, end, options.max_offsets_per_trigger)
        return end

    def reportLatestOffset(self) -> Document | None:
        return None

    # -- reading -----------------------------------------------------------------------------------

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        if offsets.is_start(start):
            return []
        known = offsets.positions_of(start)
        ranges = offsets.ranges_between(known, offsets.positions_of(end))
        if not ranges:
            return []
        bounds = self._cluster().bounds([each.queue for each in ranges], allow_missing=True)
        kept, lost = offsets.clip(ranges, bounds, known)
        report_loss(lost, fail=self._options.fail_on_data_loss)
        options = self._options
        parts = offsets.split(kept, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, self._wanted, NO_FILTERS, partition.range)

    def commit(self, end: Document) -> None:
        """Save the group's progress, if asked for; Spark tells of a batch when the next begins."""
        if not self._options.commit_offsets or offsets.is_start(end):
            return
        places = offsets.positions_of(end)
        try:
            self._cluster().commit(places)
        except TianzhouError as error:
            # The checkpoint is what counts; the group's offsets are for people who watch.
            log.warning("group %s: its progress was not saved: %s", self._options.group, error)

    def stop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.__exit__(None, None, None)

    # -- on the way to executors -------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_reader": None}


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In the place of a reader that there cannot be: whatever Spark asks first, it is told why.

    An error where PySpark expects the reader would be lost: PySpark stops the reader that it did
    not get, and tells of that.
    """

    def __init__(self, error: TianzhouError) -> None:
        self._error = error

    def initialOffset(self) -> Document:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        raise self._error

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error

    def stop(self) -> None:
        """Nothing was begun."""
