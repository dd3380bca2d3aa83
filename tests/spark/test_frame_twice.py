"""A data frame that is used more than once gives each use its own rows.

Spark 4.2 and 4.3 keep a pushed filter on an object that all scans of a frame share. By default
nothing is pushed there, so every use is right; with push-down forced on the same uses show whether
the installed Spark still does that, and `push_down.is_safe_in` must detect the same. What is
selected by options belongs to the frame, and every use of it sees exactly that.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark.reading import stored
from tests.support.spark.streams import run
from tianzhou.client.sync import Producer, QueueReader
from tianzhou.message import StoredMessage
from tianzhou.spark import push_down
from tianzhou.testing import Cluster

TOPIC = "twice"
COUNT = 36
COLUMNS = "queueId INT, queueOffset BIGINT, tags STRING, keys ARRAY<STRING>"
SOURCES = ("rocketmq", "rocketmq-store")

Row = tuple[int, int, str]
"""Queue, offset, tag."""


@dataclass(frozen=True)
class Dataset:
    """The messages in cluster and store directory, and their rows by plain Python."""

    cluster: Cluster
    store: Path
    messages: list[StoredMessage]

    @property
    def rows(self) -> list[Row]:
        return [(each.queue_id, each.queue_offset, each.tags or "") for each in self.messages]

    def load(self, spark: SparkSession, source: str, **options: object) -> DataFrame:
        where = (
            {"nameServer": self.cluster.namesrv_address}
            if source == "rocketmq"
            else {"path": str(self.store), "brokerName": "broker-0"}
        )
        named = {name: str(value) for name, value in options.items()}
        if not {"assign", "subscribePattern"} & options.keys():
            named["subscribe"] = TOPIC
        return spark.read.format(source).options(**where, **named).schema(COLUMNS).load()


@pytest.fixture(scope="module")
def dataset(cluster: Cluster, producer: Producer, store_folder: Path) -> Dataset:
    cluster.create_topic(TOPIC, 3)
    with QueueReader("twice", namesrv=cluster.namesrv_address) as reader:
        queues = sorted(reader.queues(TOPIC), key=lambda queue: queue.queue_id)
    for number in range(COUNT):
        tag = "ab"[number % 5 == 0]
        producer.send(
            TOPIC, b"%d" % number, tags=tag, keys=[f"k{number % 6}", "all"],
            queue=queues[number % 7 % 3],
        )  # fmt: skip
    return Dataset(cluster, store_folder / "broker-0", stored(cluster, TOPIC))


# -- uses: what Spark gives, and what plain Python over the same rows does -------------------------


def as_row(row: Any) -> Row:  # noqa: ANN401 - a row of Spark
    return row.queueId, row.queueOffset, row.tags


Use = Callable[[SparkSession, DataFrame, list[Row], Path], tuple[object, object]]


def counts(_: SparkSession, frame: DataFrame, rows: list[Row], __: Path) -> tuple[object, object]:
    conditions = ["queueId = 2", "true", "tags = 'b'", "queueOffset < 2", "true", "queueId = 1"]
    return [frame.where(each).count() for each in conditions], [
        sum(row[0] == 2 for row in rows), len(rows), sum(row[2] == "b" for row in rows),
        sum(row[1] < 2 for row in rows), len(rows), sum(row[0] == 1 for row in rows),
    ]  # fmt: skip


def unions(_: SparkSession, frame: DataFrame, rows: list[Row], __: Path) -> tuple[object, object]:
    made = frame.where("queueId = 2").unionAll(frame).unionAll(frame.where("tags = 'b'"))
    found = Counter(map(as_row, made.collect()))
    one = [row for row in rows if row[0] == 2]
    return found, Counter(one + rows + [row for row in rows if row[2] == "b"])


def joins(_: SparkSession, frame: DataFrame, rows: list[Row], __: Path) -> tuple[object, object]:
    left, right = frame.where("queueId = 2").alias("l"), frame.where("tags = 'b'").alias("r")
    pairs = left.join(right, "queueOffset").select("queueOffset", "r.queueId").collect()
    whole = left.join(frame.alias("w"), "queueOffset").count()
    expected = [
        (one[1], other[0])
        for one in rows if one[0] == 2
        for other in rows if other[2] == "b" and one[1] == other[1]
    ]  # fmt: skip
    everything = sum(one[0] == 2 and one[1] == other[1] for one in rows for other in rows)
    found = Counter((pair[0], pair[1]) for pair in pairs)
    return (found, whole), (Counter(expected), everything)


def views(spark: SparkSession, frame: DataFrame, rows: list[Row], _: Path) -> tuple[object, object]:
    frame.createOrReplaceTempView("twice")
    found = [
        spark.sql("SELECT count(*) FROM twice WHERE queueId = 2").collect()[0][0],
        spark.sql("SELECT count(*) FROM twice").collect()[0][0],
        spark.sql(
            "WITH b AS (SELECT * FROM twice WHERE tags = 'b') "
            "SELECT (SELECT count(*) FROM b) * 1000 + count(*) FROM twice"
        ).collect()[0][0],
    ]
    with_b = sum(row[2] == "b" for row in rows)
    return found, [sum(row[0] == 2 for row in rows), len(rows), with_b * 1000 + len(rows)]


def subqueries(
    spark: SparkSession, frame: DataFrame, rows: list[Row], _: Path
) -> tuple[object, object]:
    frame.createOrReplaceTempView("twice")
    found = [
        spark.sql(text).collect()[0][0]
        for text in (
            "SELECT count(*) FROM twice WHERE queueOffset IN "
            "(SELECT queueOffset FROM twice WHERE tags = 'b' AND queueId = 0)",
            "SELECT count(*) FROM twice WHERE queueId = 1 AND queueOffset < "
            "(SELECT max(queueOffset) FROM twice WHERE queueId = 0)",
        )
    ]
    offsets = {row[1] for row in rows if row[2] == "b" and row[0] == 0}
    most = max(row[1] for row in rows if row[0] == 0)
    return found, [
        sum(row[1] in offsets for row in rows),
        sum(row[0] == 1 and row[1] < most for row in rows),
    ]


def caches(_: SparkSession, frame: DataFrame, rows: list[Row], __: Path) -> tuple[object, object]:
    some = frame.where("queueId = 2").cache()
    found = [some.count(), frame.count(), some.count()]
    some.unpersist()
    frame.cache()
    found += [frame.where("queueId = 2").count(), frame.count()]
    frame.unpersist()
    found += [frame.where("tags = 'b'").count(), frame.count()]
    one, whole = sum(row[0] == 2 for row in rows), len(rows)
    return found, [one, whole, one, one, whole, sum(row[2] == "b" for row in rows), whole]


def threads(_: SparkSession, frame: DataFrame, rows: list[Row], __: Path) -> tuple[object, object]:
    together = threading.Barrier(2)

    def count(condition: str) -> list[int]:
        together.wait(60)
        return [frame.where(condition).count() for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(count, ["queueId = 2", "tags = 'b'"]))
    found.append([frame.count()])
    return found, [
        [sum(row[0] == 2 for row in rows)] * 3, [sum(row[2] == "b" for row in rows)] * 3,
        [len(rows)],
    ]  # fmt: skip


def batches(
    spark: SparkSession, frame: DataFrame, rows: list[Row], folder: Path
) -> tuple[object, object]:
    """`foreachBatch` with the frame beside a small stream, whose batch is used twice as well."""
    folder.mkdir()
    (folder / "in.csv").write_text("0\n2\n")
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(
            (
                frame.where("queueId = 2").count(), frame.count(),
                batch.where("q = 2").join(frame, batch["q"] == frame["queueId"]).count(),
                batch.join(frame, batch["q"] == frame["queueId"]).count(), batch.count(),
            )
        )  # fmt: skip

    lines = spark.readStream.schema("q INT").csv(str(folder))
    run(lines.writeStream.foreachBatch(take).trigger(availableNow=True))
    by_queue = Counter(row[0] for row in rows)
    return found, [by_queue[2], len(rows), by_queue[2], by_queue[0] + by_queue[2], 2]


USES: dict[str, Use] = {
    each.__name__: each
    for each in (counts, unions, joins, views, subqueries, caches, threads, batches)
}


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_frame_sees_its_own_rows(
    spark: SparkSession, dataset: Dataset, tmp_path: Path, source: str, use: str
) -> None:
    frame = dataset.load(spark, source)
    found, expected = USES[use](spark, frame, dataset.rows, tmp_path / "in")
    assert found == expected


def chosen(dataset: Dataset) -> list[tuple[dict[str, object], list[Row]]]:
    """Options that select rows, and these rows by plain Python."""
    early = sorted(each.store_time_ms for each in dataset.messages)[COUNT // 2]
    with_key = [each for each in dataset.messages if {"k1", "k4"} & set(each.keys)]
    return [
        ({"tags": "b"}, [row for row in dataset.rows if row[2] == "b"]),
        (
            {"keys": "k1 || k4"},
            [(each.queue_id, each.queue_offset, each.tags or "") for each in with_key],
        ),
        (
            {"assign": f'{{"{TOPIC}": {{"broker-0": [0, 2]}}}}'},
            [row for row in dataset.rows if row[0] in (0, 2)],
        ),
        ({"subscribePattern": "tw.c."}, dataset.rows),
        (
            {"startingTimestamp": early},
            [
                (each.queue_id, each.queue_offset, each.tags or "")
                for each in dataset.messages
                if each.store_time_ms >= early
            ],
        ),
    ]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "number", range(5), ids=["tags", "keys", "assign", "subscribePattern", "startingTimestamp"]
)
def test_options_select_rows_of_their_own_frame_only(
    spark: SparkSession, dataset: Dataset, source: str, number: int
) -> None:
    options, rows = chosen(dataset)[number]
    some, whole = dataset.load(spark, source, **options), dataset.load(spark, source)
    one = sum(row[0] == 2 for row in rows)
    assert some.where("queueId = 2").count() == one
    assert Counter(map(as_row, some.collect())) == Counter(rows)
    assert whole.unionAll(some).count() == len(rows) + COUNT
    assert some.where("queueId = 2").unionAll(whole).unionAll(some).count() == (
        one + COUNT + len(rows)
    )


def test_keys_and_tags_select_together_and_an_unknown_key_selects_nothing(
    spark: SparkSession, dataset: Dataset
) -> None:
    for source in SOURCES:
        both = dataset.load(spark, source, keys="k0", tags="b")
        wanted = [each for each in dataset.messages if "k0" in each.keys and each.tags == "b"]
        assert both.count() == len(wanted) > 0
        assert dataset.load(spark, source, keys="k").count() == 0
        assert dataset.load(spark, source, keys="k5 all").count() == COUNT


@pytest.mark.parametrize("source", SOURCES)
def test_detection_of_safe_push_down_agrees_with_the_behaviour_of_the_installed_spark(
    spark: SparkSession, dataset: Dataset, tmp_path: Path, source: str
) -> None:
    wrong: list[str] = []
    for name, use in USES.items():
        frame = dataset.load(spark, source, pushDown=True)
        found, expected = use(spark, frame, dataset.rows, tmp_path / "in")
        if found != expected:
            wrong.append(f"{name}: {found} instead of {expected}")
    version = pyspark.__version__
    if push_down.is_safe_in(spark):
        assert not wrong, (
            f"Spark {version} keeps pushed filters in a frame, but push_down.is_safe_in does not "
            f"detect that: {wrong}"
        )
    else:
        assert wrong, (
            f"Spark {version} keeps pushed filters with their scan, but push_down.is_safe_in does "
            "not detect that"
        )
