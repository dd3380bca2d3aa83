"""The readers without Spark: data loss, filters, limits, groups, unavailable brokers."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tianzhou.client.queues import Queue
from tianzhou.client.sync import Producer, QueueReader
from tianzhou.errors import BrokerError, ConfigError, DataLost
from tianzhou.spark import offsets
from tianzhou.spark.offline.source import StoreReader
from tianzhou.spark.offsets import Range
from tianzhou.spark.options import SourceOptions, StoreOptions, read_options
from tianzhou.spark.source.batch import BatchReader, RangePartition
from tianzhou.spark.source.commit_progress import ProgressListener
from tianzhou.spark.source.stream import StreamReader
from tianzhou.testing import Cluster

WANTED = StructType([StructField("queueOffset", LongType()), StructField("tags", StringType())])


def options(cluster: Cluster, **given: object) -> SourceOptions:
    named = {name: str(value) for name, value in given.items()}
    return read_options(SourceOptions, named | {"nameServer": cluster.namesrv_address})


def offsets_of(topic: str, **queues: int) -> dict[str, Any]:
    return {topic: {"broker-0": {name.removeprefix("q"): n for name, n in queues.items()}}}


def rows(reader: BatchReader | StreamReader, parts: Iterator[InputPartition]) -> list[int]:
    found: list[int] = []
    for part in parts:
        for batch in reader.read(part):
            found += batch.column("queueOffset").to_pylist()
    return found


@pytest.fixture(scope="module")
def mixed(cluster: Cluster, producer: Producer) -> str:
    """700 messages in one queue, every seventh with the tag rare."""
    cluster.create_topic("mixed", 1)
    for number in range(700):
        rare = number % 7 == 0
        producer.send(
            "mixed", b"x" * (number % 50 + 1), tags="rare" if rare else "often",
            properties={"n": str(number)},
        )  # fmt: skip
    return "mixed"


@pytest.mark.parametrize("given", [{"tags": "rare || none"}, {"sql": "TAGS = 'rare'"}])
def test_filters_in_the_broker_return_each_match_once(
    cluster: Cluster, mixed: str, given: dict[str, str]
) -> None:
    # Ranges and blocks end between matches, and the broker scans beyond them.
    reader = BatchReader(options(cluster, subscribe=mixed, minPartitions=3, **given), WANTED)
    parts = reader.partitions()
    assert len(parts) >= 3
    assert rows(reader, iter(parts)) == list(range(0, 700, 7))


def test_partitions_are_longer_if_fewer_messages_match(
    cluster: Cluster, mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_PARTITION_COUNT_MIN", 50)
    counts = {
        tags: len(BatchReader(options(cluster, subscribe=mixed, tags=tags), WANTED).partitions())
        for tags in ("*", "often", "rare", "none")
    }
    assert counts["*"] == 14 > counts["often"] > counts["rare"] > counts["none"] == 1


def test_an_invalid_condition_is_rejected_before_any_task(cluster: Cluster, mixed: str) -> None:
    reader = BatchReader(options(cluster, subscribe=mixed, sql="n >> 'a'"), WANTED)
    with pytest.raises(BrokerError, match="n >> 'a'"):
        reader.partitions()


def test_deleted_messages_are_data_loss_or_skipped(tmp_path: Path) -> None:
    small: dict[str, Any] = {"mappedFileSizeCommitLog": 256 * 1024, "maxMessageSize": 64 * 1024}
    bodies = random.Random(7)
    with (
        Cluster(topics={"old": 1}, folder=tmp_path, **small) as own,
        Producer("p", namesrv=own.namesrv_address) as sender,
    ):
        for _ in range(60):
            sender.send("old", bodies.randbytes(10_000))
        own.stop_broker()
        files = sorted((tmp_path / "broker-0" / "commitlog").iterdir())
        assert len(files) > 2
        files[0].unlink()
        own.start_broker()
        strict = StreamReader(options(own, subscribe="old"), WANTED)
        tolerant = StreamReader(options(own, subscribe="old", failOnDataLoss=False), WANTED)
        start, end = offsets_of("old", q0=4), offsets_of("old", q0=60)
        with pytest.raises(DataLost, match=r"old@broker-0:0: \d+ messages from 4 to before \d+"):
            strict.partitions(start, end)
        found = rows(tolerant, iter(tolerant.partitions(start, end)))
        assert found == list(range(found[0], 60))
        assert found[0] > 4
        # The same between planning and reading.
        late = RangePartition(Range(Queue("old", "broker-0", 0), 4, 60))
        with pytest.raises(DataLost, match=f"old@broker-0:0: .* to before {found[0]} have been"):
            rows(strict, iter([late]))
        assert rows(tolerant, iter([late])) == found
        # A queue that ends before the checkpoint: it was created again.
        with pytest.raises(DataLost, match="5 messages from 60 to before 65 are not there"):
            strict.partitions(offsets_of("old", q0=60), offsets_of("old", q0=65))
        for reader in (strict, tolerant):
            reader.stop()


def test_limits_apply_only_to_triggers_that_support_them(cluster: Cluster, mixed: str) -> None:
    limited = StreamReader(
        options(cluster, subscribe=mixed, maxOffsetsPerTrigger=30, minOffsetsPerTrigger=20), WANTED
    )
    limit = limited.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert limited.latestOffset(offsets_of(mixed, q0=600), limit) == offsets_of(mixed, q0=630)
    assert limited.latestOffset(offsets_of(mixed, q0=600), ReadAllAvailable()) == offsets_of(
        mixed, q0=700
    )
    # Ten are too few, and the wait has only begun; AvailableNow does not wait.
    assert limited.latestOffset(offsets_of(mixed, q0=690), limit) == offsets_of(mixed, q0=690)
    limited.prepareForTriggerAvailableNow()
    assert limited.latestOffset(offsets_of(mixed, q0=690), limit) == offsets_of(mixed, q0=700)
    limited.stop()
    by_size = StreamReader(options(cluster, subscribe=mixed, maxBytesPerTrigger="4k"), WANTED)
    end = by_size.latestOffset(offsets_of(mixed, q0=0), by_size.getDefaultReadLimit())
    assert 5 <= end[mixed]["broker-0"]["0"] <= 40
    by_size.stop()


def test_a_stream_starts_at_the_committed_offsets_and_commits_its_progress(
    cluster: Cluster, mixed: str
) -> None:
    with QueueReader("watchers", namesrv=cluster.namesrv_address) as watcher:
        (queue,) = watcher.queues(mixed)
        watcher.commit(queue, 650)
        reader = StreamReader(
            options(
                cluster, subscribe=mixed, group="watchers", startingOffsets="committed",
                commitOffsets=True,
            ),
            WANTED,
        )  # fmt: skip
        start = reader.initialOffset()
        assert reader.initialOffset() == start
        assert reader.partitions(start, offsets_of(mixed, q0=650)) == []
        assert reader.latestOffset(start, ReadAllAvailable()) == offsets_of(mixed, q0=650)
        reader.commit(start)
        reader.commit(offsets_of(mixed, q0=700))
        assert watcher.committed(queue) == 700
        reader.stop()


def test_a_batch_starts_and_ends_at_committed_offsets(cluster: Cluster, mixed: str) -> None:
    with QueueReader("batches", namesrv=cluster.namesrv_address) as watcher:
        (queue,) = watcher.queues(mixed)

        def read(**edges: str) -> list[int]:
            given = options(cluster, subscribe=mixed, group="batches", **edges).for_batch()
            reader = BatchReader(given, WANTED)
            return rows(reader, iter(reader.partitions()))

        assert read(startingOffsets="committed") == list(range(700)), "a new group has read nothing"
        watcher.commit(queue, 690)
        assert read(startingOffsets="Committed") == list(range(690, 700))
        assert read(endingOffsets="committed") == list(range(690))
        assert watcher.committed(queue) == 690, "reading is no progress of the group"


def test_only_positions_reached_by_all_sources_of_a_query_are_committed(
    cluster: Cluster, mixed: str
) -> None:
    given = {"nameServer": cluster.namesrv_address, "subscribe": mixed}
    with pytest.raises(ConfigError, match="the option group is needed"):
        ProgressListener(given)
    listener = ProgressListener(given | {"group": "listeners"})
    ends = [
        json.dumps(each)
        for each in (
            offsets_of(mixed, q0=600),
            offsets_of(mixed, q0=500),
            offsets_of("of another query", q0=3),
            {"start": "latest"},
            {"a topic of Kafka": {"0": 17}},
        )
    ]
    with QueueReader("listeners", namesrv=cluster.namesrv_address) as watcher:
        (queue,) = watcher.queues(mixed)
        listener.commit([*ends, "null", "no JSON"])
        assert watcher.committed(queue) == 500
        watcher.commit(queue, 100)
        listener.commit(ends)
        assert watcher.committed(queue) == 100, "what has not changed is not committed again"
        listener.commit(ends[:1])
        assert watcher.committed(queue) == 600


def test_queues_of_an_unavailable_broker_are_read_when_it_is_back(tmp_path: Path) -> None:
    with (
        Cluster(brokers=2, topics={"pair": 1}, folder=tmp_path) as own,
        Producer("p", namesrv=own.namesrv_address) as sender,
    ):
        for number in range(10):
            sender.send("pair", b"%d" % number)
        reader = StreamReader(
            options(own, subscribe="pair", startingOffsets="earliest", requestTimeout="2s"), WANTED
        )
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        own.stop_broker("broker-1")
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["pair"]["broker-1"] == start["pair"]["broker-1"]
        assert end["pair"]["broker-0"]["0"] > 0
        own.start_broker("broker-1")
        everything = reader.latestOffset(end, ReadAllAvailable())
        assert sum(each["0"] for each in everything["pair"].values()) == 10
        assert len(rows(reader, iter(reader.partitions(start, everything)))) == 10
        reader.stop()


@pytest.mark.parametrize(
    ("option", "offset", "error", "words"),
    [
        ("startingOffsets", {"1": 0}, ConfigError, "queue few@broker:1 is none of those"),
        ("endingOffsets", {"7": 1}, ConfigError, "queue few@broker:7 is none of those"),
        ("startingOffsets", {"0": 4}, DataLost, "are not there yet"),
    ],
)
def test_offsets_outside_of_a_stopped_store_are_rejected(
    tmp_path: Path, option: str, offset: dict[str, int], error: type[Exception], words: str
) -> None:
    with (
        Cluster(topics={"few": 1}, folder=tmp_path) as own,
        Producer("p", namesrv=own.namesrv_address) as sender,
    ):
        for _ in range(3):
            sender.send("few", b"x")
    given = {"path": str(tmp_path / "broker-0"), "subscribe": "few"}

    def partitions(**more: str) -> Sequence[InputPartition]:
        return StoreReader(read_options(StoreOptions, given | more), WANTED).partitions()

    with pytest.raises(error, match=words):
        partitions(**{option: json.dumps({"few": {"broker": offset}})})
    one = {"startingOffsets": {"0": 2}, "endingOffsets": {"0": 1}}[option]
    assert len(partitions(**{option: json.dumps({"few": {"broker": one}})})) == 1
