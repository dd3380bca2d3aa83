"""Partitions of a store directory: spans of the log, each message in exactly one of them."""

import random
from itertools import chain, pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from tianzhou.spark.offline import spans
from tianzhou.spark.offline.source import QueuesPartition, StoreReader
from tianzhou.spark.options import StoreOptions, read_options
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
WANTED = StructType(
    [
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("physicalOffset", LongType()),
    ]
)
COUNT = 900


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four queues: two get messages all the time, one only at first, one only at last."""
    root = tmp_path_factory.mktemp("store")
    config = StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        max_message_size=4096,
    )
    numbers = random.Random(3)
    with MessageStore.open(config) as opened:
        for number in range(COUNT):
            queue_id = numbers.choice((0, 1, 2 if number < COUNT // 2 else 3))
            body = numbers.randbytes(numbers.randrange(1, 800))
            tags = "TAGS\x01rare\x02" if number % 10 == 0 else ""
            opened.append(Draft("mixed", queue_id, body, tags, 0, HOST, HOST))
    return root


def parts_of(store: Path, **options: str) -> list[list[tuple[int, int, int]]]:
    """The messages of each partition."""
    given = read_options(StoreOptions, {"path": str(store), "subscribe": "mixed"} | options)
    reader = StoreReader(given, WANTED)
    found: list[list[tuple[int, int, int]]] = []
    for part in reader.partitions():
        assert isinstance(part, QueuesPartition)
        columns = [batch.to_pydict() for batch in reader.read(part)]
        found.append(
            [
                row
                for each in columns
                for row in zip(
                    each["queueId"], each["queueOffset"], each["physicalOffset"], strict=True
                )
            ]
        )
    return found


def test_spans_follow_each_other_in_the_log_and_cover_each_message_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = parts_of(store)
    assert len(whole) == len({row[:2] for row in whole}) == COUNT
    assert [row[2] for row in whole] == sorted(row[2] for row in whole)
    monkeypatch.setattr(spans, "_SPAN_BYTES_MIN", 5 * 1024)
    parts = parts_of(store)
    assert len(parts) > 10
    assert [*chain(*parts)] == whole
    for before, after in pairwise(parts):
        assert before[-1][2] < after[0][2]
    assert max(map(len, parts)) < 3 * COUNT / len(parts)


def test_there_are_fewer_spans_if_less_is_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "_SPAN_BYTES_MIN", 40 * 1024)
    monkeypatch.setattr(spans, "_SPANS_AIM", 1000)
    given = {"path": str(store), "subscribe": "mixed"}
    with_bodies = StructType([*WANTED.fields, StructField("body", BinaryType())])

    def part_count(wanted: StructType, **more: str) -> int:
        options = read_options(StoreOptions, given | more)
        return len(StoreReader(options, wanted).partitions())

    everything = part_count(with_bodies)
    assert everything > part_count(WANTED) > 1
    # One message in ten has the tag, which gives fewer partitions; no message gives one partition.
    assert everything > part_count(with_bodies, tags="rare") > 1
    assert part_count(with_bodies, tags="never") == 1
    rare = parts_of(store, tags="rare")
    assert len([*chain(*rare)]) == COUNT // 10


def test_limits_of_partitions_give_ranges_of_single_queues(store: Path) -> None:
    parts = parts_of(store, maxrecordsperpartition="50")
    assert all(len({row[0] for row in part}) == 1 for part in parts)
    assert max(map(len, parts)) <= 50
    rows = {row[:2] for part in parts for row in part}
    assert len(rows) == sum(map(len, parts)) == COUNT
