"""Commits a group's offsets when each batch of a stream is done.

Spark notifies a source of a finished batch only when the next one begins, so the option
`commitOffsets` is always one batch behind. A query listener is notified at the end of every batch,
including the last one:

    options = {"nameServer": "127.0.0.1:9876", "subscribe": "orders", "group": "reports"}
    commit_progress(spark, options)
    spark.readStream.format("rocketmq").options(**options).load().writeStream...

The checkpoint remains authoritative; the group's offsets serve monitoring, alarms, and readers that
start from them.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import closing

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tianzhou.errors import ConfigError, TianzhouError
from tianzhou.spark import offsets
from tianzhou.spark.offsets import Positions
from tianzhou.spark.options import SourceOptions, option_text, read_options
from tianzhou.spark.source.cluster_reader import ClusterReader

log = logging.getLogger(__name__)


def commit_progress(
    spark: SparkSession, options: Mapping[str, object], *, query: str = ""
) -> "ProgressListener":
    """Commit the progress of a session's streams to a group. Raises ConfigError.

    `options` are those of the source: cluster, topics and `group`. With `query`, only the query of
    that name counts. `spark.streams.removeListener` removes the returned listener.
    """
    listener = ProgressListener(options, query)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Commits the end of each finished batch."""

    def __init__(self, options: Mapping[str, object], query: str = "") -> None:
        """Raises ConfigError."""
        self._options = read_options(
            SourceOptions, {name: option_text(value) for name, value in options.items()}
        )
        self._options.client_settings()
        if not self._options.group:
            raise ConfigError("the option group is needed: the group to commit offsets for")
        self._query = query
        self._committed: Positions = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """No batch is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query in ("", progress.name):
            self.commit(source.endOffset for source in progress.sources)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """All finished batches have been reported."""

    def commit(self, ends: Iterable[str]) -> None:
        """Commit the changed positions of this listener's queues in the end offsets of a query.

        A failure is logged, not raised: the next batch retries.
        """
        positions = {
            queue: position
            for queue, position in lowest(ends).items()
            if self._options.selects(queue) and self._committed.get(queue) != position
        }
        if not positions:
            return
        try:
            with closing(ClusterReader(self._options)) as reader:
                reader.commit(positions)
        except TianzhouError as error:
            log.warning("group %s: offsets not committed: %s", self._options.group, error)
        else:
            self._committed |= positions


def lowest(ends: Iterable[str]) -> Positions:
    """The positions that all sources have reached; offsets of other formats are ignored."""
    positions: Positions = {}
    for end in ends:
        try:
            document = json.loads(end)
            reached = {} if offsets.is_start(document) else offsets.positions_of(document)
        except (ValueError, AttributeError, ConfigError):
            continue  # of another kind of source, or not available yet
        for queue, position in reached.items():
            positions[queue] = min(position, positions.get(queue, position))
    return positions
