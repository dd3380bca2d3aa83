"""A group's offsets kept up with a stream, as soon as each of its batches is done.

Spark tells a source that a batch is done only when the next one begins, so the option
`commitOffsets` is always one batch behind. A listener of queries hears of every batch when it has
ended, of the last one too:

    options = {"nameServer": "127.0.0.1:9876", "subscribe": "orders", "group": "reports"}
    commit_progress(spark, options)
    spark.readStream.format("rocketmq").options(**options).load().writeStream...

The checkpoint stays what counts; the group's offsets are for people and alarms that watch a group,
and for whoever starts from them.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError, TianzhouError
from tianzhou.spark import offsets
from tianzhou.spark.offsets import Positions
from tianzhou.spark.options import SourceOptions, read_options
from tianzhou.spark.source.pulling import ClusterReader

log = logging.getLogger(__name__)


def commit_progress(
    spark: SparkSession, options: Mapping[str, object], *, query: str = ""
) -> "ProgressListener":
    """Commit to a group what streams of a session have done. Raises ConfigError.

    `options` are those of the source: where the cluster is, which topics, whose `group`. With
    `query` only the query of that name counts. `spark.streams.removeListener` ends it.
    """
    listener = ProgressListener(options, query)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Hears of batches that are done, and commits where they ended."""

    def __init__(self, options: Mapping[str, object], query: str = "") -> None:
        """Raises ConfigError."""
        self._options = read_options(
            SourceOptions, {name: _text(value) for name, value in options.items()}
        )
        self._options.client_settings()
        if not self._options.group:
            raise ConfigError("the option group is needed: whose progress is to be saved")
        self._query = query
        self._assigned = (
            offsets.parse_assign(self._options.assign) if self._options.assign else None
        )
        self._committed: Positions = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query in ("", progress.name):
            self.commit(source.endOffset for source in progress.sources)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """What was done has been heard of."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What was done has been heard of."""

    def commit(self, ends: Iterable[str]) -> None:
        """Commit the places in the ends of a query's sources; others' and unchanged are left out.

        A failure is logged, not raised: the next batch tries again.
        """
        places = {
            queue: place
            for queue, place in lowest(ends).items()
            if self._is_wanted(queue) and self._committed.get(queue) != place
        }
        if not places:
            return
        try:
            with ClusterReader(self._options) as reader:
                reader.commit(places)
        except TianzhouError as error:
            log.warning("group %s: its progress was not saved: %s", self._options.group, error)
        else:
            self._committed |= places

    def _is_wanted(self, queue: Queue) -> bool:
        options = self._options
        if self._assigned is not None:
            return queue in self._assigned
        if options.subscribe_pattern:
            return re.fullmatch(options.subscribe_pattern, queue.topic) is not None
        return queue.topic in options.subscribe


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def lowest(ends: Iterable[str]) -> Positions:
    """The places that several sources have all reached; the ends of other kinds are left out."""
    places: Positions = {}
    for end in ends:
        for queue, place in _positions(end).items():
            places[queue] = min(place, places.get(queue, place))
    return places


def _positions(end: str) -> Positions:
    try:
        document = json.loads(end)
        return {} if offsets.is_start(document) else offsets.positions_of(document)
    except (ValueError, AttributeError, ConfigError):
        return {}  # of another source than ours, or there is none yet
