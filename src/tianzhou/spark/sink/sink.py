"""The sink of `format("rocketmq")`: writes data frames and streams to topics.

    frame.select("topic", "body").write.format("rocketmq").mode("append") \
        .option("nameServer", "127.0.0.1:9876").save()

By default every row is written at least once: Spark repeats a failed task from its beginning. With
`exactlyOnce` a batch becomes visible completely and once, or not at all (`exactly_once.py`).
"""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pyarrow import RecordBatch
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tianzhou.spark.sink import tasks
from tianzhou.spark.sink.options import SinkOptions
from tianzhou.spark.sink.tasks import Written
from tianzhou.spark.worker_tuning import TaskPayload, init_worker

log = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
"""The local property with the id of the query that a task belongs to."""


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    query: str
    written: Written


class BatchWriter(TaskPayload, DataSourceArrowWriter):
    """Writes a data frame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._write_id = options.transaction_id or str(uuid.uuid4())

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as in PySpark
        """On an executor: send the rows of a partition."""
        return _write(iterator, self._options, self._write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: all tasks have succeeded."""
        _end(messages, self._write_id, 0, self._options, commit=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: a task has failed finally, or the commit has failed."""
        _end(messages, self._write_id, 0, self._options, commit=False)


class StreamWriter(TaskPayload, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as in PySpark
        """On an executor: send the rows of a partition."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if self._options.exactly_once and not query:
            raise RuntimeError(f"nothing written: Spark did not set the property {_QUERY_ID}")
        return _write(iterator, self._options, query or "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: all tasks of a micro-batch have succeeded."""
        for query in _queries(messages):
            _end(messages, query, batchId, self._options, commit=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: a task of a micro-batch has failed finally, or the commit has failed."""
        for query in _queries(messages):
            _end(messages, query, batchId, self._options, commit=False)


def _write(iterator: Iterator[RecordBatch], options: SinkOptions, query: str) -> TaskResult:
    init_worker()
    return TaskResult(query, tasks.write(iterator, options))


def _done(messages: list[WriterCommitMessage | None]) -> list[TaskResult]:
    return [each for each in messages if isinstance(each, TaskResult)]


def _queries(messages: list[WriterCommitMessage | None]) -> set[str]:
    """The query of all tasks; empty if no task has ended."""
    queries = {each.query for each in _done(messages)}
    if len(queries) > 1:
        raise RuntimeError(f"tasks of one batch belong to several queries: {queries}")
    return queries


def _end(
    messages: list[WriterCommitMessage | None],
    query: str,
    batch: int,
    options: SinkOptions,
    *,
    commit: bool,
) -> None:
    done = _done(messages)
    degraded = sum(each.written.degraded_count for each in done)
    if commit and degraded:
        log.warning(
            "%d messages are stored with weaker durability than configured: a flush or a copy to "
            "a replica timed out",
            degraded,
        )
    if options.exactly_once:
        from tianzhou.spark.sink import exactly_once  # only exactlyOnce needs a database

        halves = [half for each in done for half in each.written.halves]
        end = exactly_once.commit if commit else exactly_once.abort
        end(exactly_once.Batch(query, batch), halves, options)
