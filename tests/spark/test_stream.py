"""`format("rocketmq")` as a stream: resolved starts, restarts, limits, new queues."""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.spark.reading import until
from tests.support.spark.streams import TOO_BUSY, Batches, run, stream
from tianzhou.client.sync import Producer, QueueReader
from tianzhou.spark import commit_progress
from tianzhou.testing import Cluster


def send(producer: Producer, topic: str, *bodies: str) -> None:
    for body in bodies:
        producer.send(topic, body.encode())


def offsets_in(checkpoint: Path, batch: int) -> dict[str, object]:
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    found: dict[str, object] = json.loads(lines[-1])
    return found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pushDown": "false"}, "option pushDown is for batches"),
        (
            {"startingOffsets": '{"refuse": {"broker-0": {"0": 0}}}'},
            "option startingOffsets: queue refuse@broker-0:0 is none of those that are read",
        ),
    ],
)
def test_options_that_a_stream_cannot_have_are_rejected(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    cluster.create_topic("refused", 1)
    query = stream(
        spark, cluster.namesrv_address, tmp_path / "checkpoint", {}, subscribe="refused", **options
    )
    with pytest.raises(StreamingQueryException, match=words) as caught:
        run(query)
    # PySpark's own error about a missing reader would hide it.
    assert "UnboundLocalError" not in str(caught.value)


def test_a_stream_adds_no_key_to_the_environment_that_all_streams_share(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Two streams that start at the same moment would corrupt the map of the whole session."""
    java = cast("Any", spark)._jsparkSession
    manager = java.sessionState().dataSourceManager()
    table: dict[str, str] = manager.lookupDataSource("rocketmq").dataSourceCls().envVars()
    before = dict(table)
    cluster.create_topic("shared", 1)
    run(stream(spark, cluster.namesrv_address, tmp_path, {}, subscribe="shared"))
    assert set(table) == set(before)
    # The values that were there before the first stream do not stay.
    assert table["SPARK_LOCAL_DIRS"]


def test_latest_is_resolved_by_an_empty_first_batch(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("pinned", 2)
    send(producer, "pinned", "before")
    into: Batches = {}
    writer = stream(spark, cluster.namesrv_address, tmp_path, into, subscribe="pinned")
    run(writer)
    assert into == {0: []}
    pinned = offsets_in(tmp_path, 0)
    # The driver crashed before batch 0 ended, and messages arrived before it was restarted.
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    send(producer, "pinned", "while it was away", "and another")
    run(writer)
    assert into == {0: [], 1: ["and another", "while it was away"]}
    assert offsets_in(tmp_path, 0) == pinned


def test_no_message_is_lost_or_repeated_with_limits_restarts_and_new_queues(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("grow-a", 1)
    first = [f"a{number:02d}" for number in range(25)]
    send(producer, "grow-a", *first)
    into: Batches = {}
    writer = stream(
        spark, cluster.namesrv_address, tmp_path, into, subscribePattern="grow-.*",
        startingOffsets="earliest", maxOffsetsPerTrigger=10,
    )  # fmt: skip
    run(writer)
    assert [len(rows) for rows in into.values()] == [0, 10, 10, 5]
    assert [*chain(*into.values())] == first
    # More queues, and a new topic.
    cluster.create_topic("grow-a", 3)
    cluster.create_topic("grow-b", 1)
    second = [f"b{number}" for number in range(6)]
    send(producer, "grow-a", *second)
    send(producer, "grow-b", "new")
    into.clear()
    run(writer)
    assert sorted(chain(*into.values())) == sorted([*second, "new"])
    into.clear()
    run(writer)
    assert into == {}


@dataclass
class Running:
    """A running query, and what it has read so far."""

    writer: "DataStreamWriter"
    into: Batches
    query: "StreamingQuery"

    def bodies(self) -> list[str]:
        return sorted(chain(*list(self.into.values())))

    def await_bodies(self, expected: Iterable[str]) -> None:
        """Wait until exactly these are read, each once."""
        wanted = sorted(expected)

        def is_so() -> bool:
            self._post_next()
            return self.bodies() == wanted

        until(is_so, lambda: f"{self.bodies()} instead of {wanted}: {self.query.lastProgress}")

    def _post_next(self) -> None:
        """Nothing may end the query but a machine that is too busy for it."""
        error = self.query.exception()
        if error is not None and TOO_BUSY not in str(error):
            raise error
        if not self.query.isActive:
            self.query = self.writer.start()


def fill_queues(cluster: Cluster, topic: str, mark: str, broker: str = "") -> list[str]:
    """Send a message to every queue of a topic, or of a broker; returns their bodies."""
    bodies: list[str] = []
    with (
        QueueReader("filling", namesrv=cluster.namesrv_address) as reader,
        Producer("filling", namesrv=cluster.namesrv_address) as sender,
    ):
        for queue in reader.queues(topic):
            if broker in ("", queue.broker_name):
                bodies.append(f"{mark} in {queue}")
                sender.send(topic, bodies[-1], queue=queue)
    return bodies


def test_a_running_query_reads_queues_topics_and_brokers_that_come_and_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    into: Batches = {}
    with Cluster(brokers=2, folder=tmp_path) as own:
        own.stop_broker("broker-1")
        own.create_topic("live-a", 1)
        sent = fill_queues(own, "live-a", "at first")
        writer = stream(
            spark, own.namesrv_address, tmp_path / "checkpoint", into, subscribePattern="live-.*",
            startingOffsets="earliest", requestTimeout="2s",
        ).trigger(processingTime="200 milliseconds")  # fmt: skip
        running = Running(writer, into, writer.start())
        try:
            running.await_bodies(sent)
            own.create_topic("live-a", 3)
            sent += fill_queues(own, "live-a", "with more queues")
            assert len(sent) == 1 + 3
            running.await_bodies(sent)
            own.create_topic("live-b", 2)
            own.create_topic("unwanted", 1)
            fill_queues(own, "unwanted", "never")
            sent += fill_queues(own, "live-b", "in a new topic")
            running.await_bodies(sent)
            own.start_broker("broker-1")
            own.create_topic("live-a", 3)
            sent += fill_queues(own, "live-a", "with a new broker")
            assert len(sent) == 1 + 3 + 2 + 6
            running.await_bodies(sent)
            own.stop_broker("broker-0")
            sent += fill_queues(own, "live-a", "while the first is away", "broker-1")
            running.await_bodies(sent)
            own.start_broker("broker-0")
            sent += fill_queues(own, "live-a", "with the first again", "broker-0")
            sent += fill_queues(own, "live-b", "with the first again")
            assert len(sent) == 1 + 3 + 2 + 6 + 3 + 3 + 2
            running.await_bodies(sent)
            running.query.processAllAvailable()
            assert running.bodies() == sorted(sent), "nothing comes twice"
        finally:
            running.query.stop()


def test_a_listener_commits_every_batch_including_the_last(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("watched", 2)
    send(producer, "watched", *(f"{number}" for number in range(30)))
    into: Batches = {}
    options = {"subscribe": "watched", "group": "watchers-of-streams"}
    writer = stream(
        spark, cluster.namesrv_address, tmp_path, into, subscribe="watched", group=options["group"],
        startingOffsets="earliest", maxOffsetsPerTrigger=20,
    ).queryName("watched")  # fmt: skip
    namesrv = cluster.namesrv_address
    listener = commit_progress(spark, options | {"nameServer": namesrv}, query="watched")
    try:
        run(writer)
        assert [len(rows) for rows in into.values()] == [0, 20, 10]
        with QueueReader(options["group"], namesrv=namesrv) as reader:
            queues = reader.queues("watched")

            def committed() -> list[int]:
                return [reader.committed(queue) or 0 for queue in queues]

            until(lambda: sum(committed()) == 30, lambda: f"committed are {committed()}")
    finally:
        spark.streams.removeListener(listener)


@pytest.mark.parametrize("fails", [True, False])
def test_messages_deleted_during_a_query_are_data_loss_or_skipped(
    spark: SparkSession, tmp_path: Path, fails: bool
) -> None:
    small: dict[str, Any] = {"mappedFileSizeCommitLog": 256 * 1024, "maxMessageSize": 64 * 1024}
    bodies = random.Random(7)
    with (
        Cluster(topics={"old": 1}, folder=tmp_path, **small) as own,
        Producer("p", namesrv=own.namesrv_address) as sender,
    ):
        for number in range(60):
            # Random characters: others would be compressed, and fit one file.
            sender.send("old", f"{number:02d}" + bodies.randbytes(10_000).decode("latin-1"))

        def retention(batch: int) -> None:
            """The oldest file is removed after the first five messages were read."""
            if batch == 1:
                own.stop_broker()
                sorted((tmp_path / "broker-0" / "commitlog").iterdir())[0].unlink()
                own.start_broker()

        into: Batches = {}
        writer = stream(
            spark, own.namesrv_address, tmp_path / "checkpoint", into, retention, subscribe="old",
            startingOffsets="earliest", maxOffsetsPerTrigger=5, failOnDataLoss=fails,
        )  # fmt: skip
        if fails:
            message = r"old@broker-0:0: \d+ messages from 5 to before \d+ have been deleted"
            with pytest.raises(StreamingQueryException, match=message):
                run(writer)
            assert [len(rows) for rows in into.values()] == [0, 5]
            return
        run(writer)
        numbers = sorted(int(row[:2]) for row in chain(*into.values()))
        assert numbers[:5] == list(range(5))
        first = numbers[5]
        assert first > 5
        assert numbers[5:] == list(range(first, 60))
