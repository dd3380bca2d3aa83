"""Pipelines over several days of messages give the same results as plain Python.

The pipelines select days by options of the source; messages before and after a day, and those of
the other topic, must neither be missing nor be counted twice.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.reading import rows, stored
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.message import StoredMessage
from tianzhou.monitor import tables
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.spark.pipelines import dlq_alarm, runner
from tianzhou.spark.pipelines.common import messages
from tianzhou.testing import Cluster

DAY_MS = 24 * 3_600_000
HOUR_MS = 3_600_000
TOPICS = ("plain-a", "plain-b")
DEAD = f"{DLQ_TOPIC_PREFIX}clerks"


@pytest.fixture(scope="module")
def days() -> Generator[tuple[Cluster, int]]:
    """Messages in hours of three days, and the beginning of the middle one."""
    with Cluster(topics={TOPICS[0]: 3, TOPICS[1]: 2, DEAD: 1}) as cluster:
        begin_ms = (cluster.clock() // DAY_MS + 2) * DAY_MS
        with Producer("plain", namesrv=cluster.namesrv_address) as producer:
            for hour in (-3, 0, 5, 23, 24, 30):
                cluster.advance(ms=begin_ms + hour * HOUR_MS + 1 - cluster.clock())
                for number in range(13 + hour % 4):
                    topic = TOPICS[number % 3 == 0]
                    keys = [f"k{number % 5}", f"h{hour}"]
                    producer.send(topic, b"x" * (number + 1), keys=keys, tags="t")
                producer.send_many(Message(DEAD, f"{hour} {n}") for n in range(hour % 5 + 1))
        yield cluster, begin_ms


def of_day(cluster: Cluster, topic: str, begin_ms: int) -> list[StoredMessage]:
    found = stored(cluster, topic)
    return [each for each in found if begin_ms <= each.store_time_ms < begin_ms + DAY_MS]


def test_statistics_and_duplicates_of_a_day(
    spark: SparkSession, days: tuple[Cluster, int], tmp_path: Path
) -> None:
    cluster, begin_ms = days
    url = f"sqlite:///{tmp_path / 'results.db'}"
    day = datetime.fromtimestamp(begin_ms / 1000, UTC).date().isoformat()
    given = {
        "nameServer": cluster.namesrv_address, "database": url, "days": day,
        "topics": ",".join(TOPICS),
    }  # fmt: skip
    runner.run("topic-stats", given, spark=spark)
    runner.run("duplicates", given, spark=spark)
    produced: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    keys: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    positions: defaultdict[tuple[str, str], list[list[object]]] = defaultdict(list)
    for topic in TOPICS:
        for each in of_day(cluster, topic, begin_ms):
            for hour in (-1, (each.store_time_ms - begin_ms) // HOUR_MS):
                produced[topic, hour] += 1
                sizes[topic, hour] += each.size_bytes
                keys[topic, hour].update(each.keys)
            for key in each.keys:
                positions[topic, key].append(["broker-0", each.queue_id, each.queue_offset])
    stats = {(row.topic, row.hour): row for row in rows(url, tables.topic_stats, day=day)}
    assert {at: row.produced for at, row in stats.items()} == produced
    assert {at: row.produced_bytes for at, row in stats.items()} == sizes
    assert {at: row.distinct_keys for at, row in stats.items()} == {
        at: len(found) for at, found in keys.items()
    }
    found = {(row.topic, row.token): row for row in rows(url, tables.duplicates, day=day)}
    assert {at: json.loads(row.copies) for at, row in found.items()} == {
        at: sorted(each) for at, each in positions.items() if len(each) > 1
    }


def test_dead_letters_of_each_window(spark: SparkSession, days: tuple[Cluster, int]) -> None:
    cluster, begin_ms = days
    options = dlq_alarm.Options(name_server=cluster.namesrv_address)
    now_ms = begin_ms + 29 * HOUR_MS
    windows_s = [6 * 3600, 24 * 3600 + 5 * 3600]
    columns = "topic, storeTimestamp, msgId, keys, body, reconsumeTimes, dlqOriginTopic, retryTopic"
    since_ms = now_ms - max(windows_s) * 1000
    letters = messages(spark, options, [DEAD], columns, since_ms=since_ms)
    (row,) = dlq_alarm.counts(letters, windows_s, now_ms, 2).collect()
    times = [each.store_time_ms for each in stored(cluster, DEAD)]
    for window in windows_s:
        begin = now_ms - window * 1000
        assert row[f"w{window}"] == sum(begin <= each <= now_ms for each in times), window
    assert letters.count() == sum(each >= since_ms for each in times)
    assert all(each.storeTimestamp.timestamp() * 1000 <= now_ms for each in row.samples)
