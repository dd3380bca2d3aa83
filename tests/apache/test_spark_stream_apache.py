"""Streams from and to Apache RocketMQ 5.x: killed drivers, killed brokers, growth, retention."""

import random
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from tests.support.apache.requests import create_topic
from tests.support.apache.servers import (
    Restartable,
    apache_broker,
    free_port,
    tianzhou_namesrv,
    wait_until,
)
from tianzhou.client import Message
from tianzhou.client.sync import Producer

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.spark.reading import stored_at
from tests.support.spark.sink_runs import SOURCE, TOPIC, SinkRun
from tests.support.spark.streams import Batches, run, stream

pytestmark = [pytest.mark.full, pytest.mark.apache, pytest.mark.usefixtures("apache")]

VERSION = "5.5.0"
WAIT_S = 120
BEFORE, ALL = 600, 900
ROWS = 150


def test_exactly_once_with_a_failing_task_a_killed_broker_a_killed_driver_and_more_queues(
    tmp_path: Path,
) -> None:
    """A topic streams into another one and into a table: nothing is lost or duplicated.

    The broker gets SIGKILL while a task sends, and again while a batch is committed; the driver
    survives that. Then the driver gets SIGKILL, and the topic more queues and more messages
    before it starts again.
    """
    with tianzhou_namesrv() as namesrv:
        address = namesrv.address
        begin = partial(
            apache_broker, VERSION, address, store_dir=tmp_path / "store", port=free_port(-2, 1)
        )
        with Restartable(begin) as broker:
            create_topic(broker.server.address, SOURCE, 2)
            create_topic(broker.server.address, TOPIC, 4)
            send_numbers(address, range(BEFORE))
            sink = SinkRun(address, tmp_path, ALL, ROWS)
            sink.hold(1)
            with sink:
                sink.await_held(1, broker.server.address)
                broker.kill()
                sink.release(1)
                broker.start()
                sink.await_undone(1)
                broker.kill()
                broker.start()
                sink.await_batch(3)
                sink.kill()
                create_topic(broker.server.address, SOURCE, 4)
                send_numbers(address, range(BEFORE, ALL), queue_ids=(2, 3))
                sink.start()
                sink.finish()
            wait_until(
                lambda: len(stored_at(address, TOPIC)) >= ALL, f"{ALL} messages", timeout_s=WAIT_S,
                seen=lambda: len(stored_at(address, TOPIC)),
            )  # fmt: skip
            sink.check(stored_at(address, TOPIC))


def send_numbers(namesrv: str, numbers: range, queue_ids: tuple[int, ...] = ()) -> None:
    """Send what the driver reads; only to the named queues, if any."""
    with Producer("numbers", namesrv=namesrv) as sender:
        chosen = [each for each in sender.queues(SOURCE) if each.queue_id in queue_ids]
        assert len(chosen) == len(queue_ids)
        for number in numbers:
            queue = chosen[number % len(chosen)] if chosen else None
            sender.send(Message(SOURCE, f"{number}"), queue=queue)


def test_messages_deleted_by_retention_are_data_loss_or_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The broker's oldest file is removed while it is down, as retention would do.

    Retention itself takes too long: Apache's broker first checks its files a minute after its
    start, whatever its settings.
    """
    store, bodies = tmp_path / "store", random.Random(7)
    with tianzhou_namesrv() as namesrv:
        begin = partial(
            apache_broker, VERSION, namesrv.address, store_dir=store, port=free_port(-2, 1),
            mappedFileSizeCommitLog=256 * 1024, maxMessageSize=64 * 1024,
        )  # fmt: skip
        with Restartable(begin) as broker:
            create_topic(broker.server.address, "old", 1)
            with Producer("p", namesrv=namesrv.address) as sender:
                for number in range(60):
                    # Random characters: others would be compressed, and fit one file.
                    sender.send("old", f"{number:02d}" + bodies.randbytes(10_000).decode("latin-1"))

            def retention(batch: int) -> None:
                """The oldest file is removed after the first five messages were read."""
                if batch == 1:
                    broker.stop()
                    min((store / "commitlog").iterdir()).unlink()
                    broker.start()

            into: Batches = {}
            query = partial(
                stream, spark, namesrv.address, tmp_path / "checkpoint", into, subscribe="old",
                startingOffsets="earliest", maxOffsetsPerTrigger=5,
            )  # fmt: skip
            message = r"old@broker-a:0: \d+ messages from 5 to before \d+ have been deleted"
            with pytest.raises(StreamingQueryException, match=message):
                run(query(meanwhile=retention))
            assert [len(rows) for rows in into.values()] == [0, 5]
            run(query(failOnDataLoss=False))
            numbers = sorted(int(row[:2]) for row in chain(*into.values()))
            assert numbers[:5] == list(range(5))
            first = numbers[5]
            assert first > 5
            assert numbers[5:] == list(range(first, 60))
