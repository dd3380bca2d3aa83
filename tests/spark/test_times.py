"""The store time: filters and options by time read few messages and select what Spark would.

The clock of the broker is put forward by an hour after every few messages, so that it is certain
which hour each of them belongs to.
"""

import json
import random
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.types import LongType, StructField, StructType

from tianzhou.client.sync import Producer, QueueReader
from tianzhou.spark.offline import source
from tianzhou.spark.offline.source import LogPartition, QueuesPartition
from tianzhou.spark.offsets import Range
from tianzhou.spark.options import SourceOptions, StoreOptions, read_options
from tianzhou.spark.source import batch
from tianzhou.spark.source.batch import RangePartition
from tianzhou.testing import Cluster

QUEUES = 2
HOURS = 6
HALF_AN_HOUR_MS = 1_800_000
AN_HOUR = 20
"""Messages stored in each hour."""
PER_QUEUE = AN_HOUR // QUEUES
BROKER = "broker-0"
COLUMNS = "queueId INT, queueOffset BIGINT, storeTimestamp TIMESTAMP"
WANTED = StructType([StructField("queueOffset", LongType())])
LOG_FILE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Hours:
    """A topic whose messages were stored in several hours."""

    cluster: Cluster
    store: Path
    edges_ms: tuple[int, ...]
    """Half an hour before the messages of each hour, and after the last."""

    def condition(self, first: int, stop: int) -> str:
        """The hours from one to before another, as a filter of a query."""
        return (
            f"storeTimestamp >= timestamp_millis({self.edges_ms[first]}) "
            f"AND storeTimestamp < timestamp_millis({self.edges_ms[stop]})"
        )

    def filters(self, first: int, stop: int) -> list[Filter]:
        """The same as Spark passes it to a source."""
        moments = [datetime.fromtimestamp(ms / 1000, UTC) for ms in self.edges_ms]
        at = ("storeTimestamp",)
        return [GreaterThanOrEqual(at, moments[first]), LessThan(at, moments[stop])]

    def by_queue(self, hours: dict[int, int]) -> str:
        """The beginnings of hours, for the options that name a time for each queue."""
        times = {str(queue_id): self.edges_ms[hour] for queue_id, hour in hours.items()}
        return json.dumps({"hours": {BROKER: times}})

    def online(self, spark: SparkSession, **options: object) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", self.cluster.namesrv_address)
        named = {name: str(value) for name, value in options.items()}
        return reader.options(subscribe="hours", **named).schema(COLUMNS).load()

    def offline(self, spark: SparkSession, **options: object) -> DataFrame:
        named = {"brokerName": BROKER} | {name: str(value) for name, value in options.items()}
        reader = spark.read.format("rocketmq-store").options(subscribe="hours", **named)
        return reader.schema(COLUMNS).load(str(self.store))


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hours]:
    folder = tmp_path_factory.mktemp("hours")
    # Small files and incompressible bodies: each hour is in few files of the log.
    small = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "maxMessageSize": 64 * 1024}
    bodies = random.Random(3)
    with (
        Cluster(topics={"hours": QUEUES}, folder=folder, **small) as cluster,
        Producer("p", namesrv=cluster.namesrv_address) as producer,
    ):
        with QueueReader("hours", namesrv=cluster.namesrv_address) as reader:
            queues = reader.queues("hours")
        edges_ms: list[int] = []
        for _ in range(HOURS):
            edges_ms.append(cluster.clock() - HALF_AN_HOUR_MS)
            for number in range(AN_HOUR):
                producer.send("hours", bodies.randbytes(10_000), queue=queues[number % QUEUES])
            cluster.advance(ms=2 * HALF_AN_HOUR_MS)
        edges_ms.append(cluster.clock() - HALF_AN_HOUR_MS)
        yield Hours(cluster, folder / BROKER, tuple(edges_ms))


@contextmanager
def stopped(cluster: Cluster) -> Generator[None]:
    """The directory has all messages while the broker is stopped."""
    cluster.stop_broker()
    try:
        yield
    finally:
        cluster.start_broker()


def positions_of(frame: DataFrame) -> dict[int, list[int]]:
    """The queue offsets of each queue."""
    found: dict[int, list[int]] = {}
    for row in sorted(frame.select("queueId", "queueOffset").collect()):
        found.setdefault(row.queueId, []).append(row.queueOffset)
    return found


def expected(**hours_of: tuple[int, int]) -> dict[int, list[int]]:
    """The queue offsets of the hours from one to before another."""
    return {
        int(name.removeprefix("q")): list(range(first * PER_QUEUE, stop * PER_QUEUE))
        for name, (first, stop) in hours_of.items()
    }


# -- filters ---------------------------------------------------------------------------------------


def test_a_filter_by_time_is_evaluated_by_the_source_and_reads_few_messages(
    spark: SparkSession, hours: Hours, capsys: pytest.CaptureFixture[str]
) -> None:
    condition = hours.condition(2, 3)
    pushed = hours.online(spark, maxRecordsPerPartition=5, pushDown=True).where(condition)
    plain = hours.online(spark, maxRecordsPerPartition=5).where(condition)
    assert positions_of(pushed) == positions_of(plain) == expected(q0=(2, 3), q1=(2, 3))
    assert plain.rdd.getNumPartitions() == HOURS * AN_HOUR // 5
    assert pushed.rdd.getNumPartitions() == AN_HOUR // 5
    pushed.explain("formatted")
    plan = capsys.readouterr().out
    (line,) = re.findall(r"PushedFilters: \[.*", plan)
    assert "GreaterThanOrEqual(storeTimestamp," in line, plan
    assert "LessThan(storeTimestamp," in line, plan
    assert not re.search(r"^\(\d+\) Filter", plan, re.MULTILINE), plan


def test_a_filter_by_time_plans_only_the_messages_of_that_time(hours: Hours) -> None:
    given = {"subscribe": "hours", "nameServer": hours.cluster.namesrv_address}
    reader = batch.PushingReader(read_options(SourceOptions, given), WANTED)
    assert list(reader.pushFilters(hours.filters(4, 6))) == []
    parts = [part for part in reader.partitions() if isinstance(part, RangePartition)]
    assert planned(part.range for part in parts) == {0: (40, 60), 1: (40, 60)}


@pytest.mark.parametrize("split_by", ["queue", "log"])
@pytest.mark.parametrize("runs", [True, False], ids=["running", "stopped"])
def test_a_filter_by_time_selects_the_same_rows_of_a_directory(
    spark: SparkSession, hours: Hours, split_by: str, runs: bool
) -> None:
    condition = hours.condition(1, 3)
    with nullcontext() if runs else stopped(hours.cluster):
        pushed = hours.offline(spark, splitBy=split_by, pushDown=True).where(condition)
        plain = hours.offline(spark, splitBy=split_by).where(condition)
        assert positions_of(pushed) == positions_of(plain) == expected(q0=(1, 3), q1=(1, 3))
        pushed = hours.offline(spark, splitBy=split_by, pushDown=True)
        pushed = pushed.where(hours.condition(5, 5))
        assert positions_of(pushed) == {}


def test_a_filter_by_time_plans_few_messages_and_few_files_of_a_directory(hours: Hours) -> None:
    def plan(**options: str) -> Sequence[InputPartition]:
        given = {"subscribe": "hours", "path": str(hours.store), "brokerName": BROKER} | options
        reader = source.PushingReader(read_options(StoreOptions, given), WANTED)
        assert list(reader.pushFilters(hours.filters(2, 3))) == []
        return reader.partitions()

    with stopped(hours.cluster):
        (queues,) = plan()
        assert isinstance(queues, QueuesPartition)
        assert planned(queues.ranges) == {0: (20, 30), 1: (20, 30)}
        log_files = sorted(int(file.name) for file in (hours.store / "commitlog").iterdir())
        parts = [part for part in plan(splitBy="log") if isinstance(part, LogPartition)]
        # An hour of messages does not fill a file, so it lies in two at most.
        assert AN_HOUR * 10_000 < LOG_FILE_BYTES
        assert 1 <= len(parts) <= 2 < len(log_files)
        assert {part.log_offset for part in parts} <= set(log_files)


def planned(ranges: Iterable[Range]) -> dict[int, tuple[int, int]]:
    """The queue offsets of each queue from and before."""
    return {each.queue.queue_id: (each.first, each.stop) for each in ranges}


# -- options ---------------------------------------------------------------------------------------


def cases(hours: Hours) -> list[tuple[dict[str, object], dict[int, list[int]]]]:
    """Every option by time, and the rows that it should select."""
    edges_ms = hours.edges_ms
    iso = datetime.fromtimestamp(edges_ms[4] / 1000, UTC).isoformat()
    return [
        ({"startingTimestamp": iso}, expected(q0=(4, 6), q1=(4, 6))),
        ({"endingTimestamp": edges_ms[2]}, expected(q0=(0, 2), q1=(0, 2))),
        (
            {"startingTimestamp": edges_ms[1], "endingTimestamp": edges_ms[3]},
            expected(q0=(1, 3), q1=(1, 3)),
        ),
        # Queues that are not named start at earliest and end at latest.
        ({"startingOffsetsByTimestamp": hours.by_queue({1: 5})}, expected(q0=(0, 6), q1=(5, 6))),
        ({"endingOffsetsByTimestamp": hours.by_queue({0: 1})}, expected(q0=(0, 1), q1=(0, 6))),
        (
            {
                "startingOffsetsByTimestamp": hours.by_queue({0: 2, 1: 6}),
                "endingOffsetsByTimestamp": hours.by_queue({0: 3}),
            },
            expected(q0=(2, 3)),
        ),
    ]


def test_options_by_time_set_the_start_and_end_of_a_batch(
    spark: SparkSession, hours: Hours
) -> None:
    for options, wanted in cases(hours):
        assert positions_of(hours.online(spark, **options)) == wanted, options


def test_options_by_time_select_the_same_rows_of_a_directory(
    spark: SparkSession, hours: Hours
) -> None:
    with stopped(hours.cluster):
        for options, wanted in cases(hours):
            assert positions_of(hours.offline(spark, **options)) == wanted, options


def test_starting_timestamp_applies_to_messages_that_only_the_log_has(
    spark: SparkSession, hours: Hours
) -> None:
    starts = [
        {"startingOffsetsByTimestamp": hours.by_queue({0: 6, 1: 6})},
        {"startingOffsets": json.dumps({"hours": {BROKER: {"0": -1, "1": -1}}})},
    ]
    for options in starts:
        assert positions_of(hours.offline(spark, **options)) == {}, options
