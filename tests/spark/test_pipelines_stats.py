"""`topic-stats` equals the counters of the brokers, for a generated day."""

import asyncio
import re
import threading
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.reading import rows, until
from tianzhou.admin import Admin
from tianzhou.client import Message
from tianzhou.client.sync import Producer, PushConsumer
from tianzhou.monitor import tables
from tianzhou.spark.pipelines import runner, topic_stats
from tianzhou.testing import Cluster

DAY_MS = 24 * 3_600_000
HOURS = (1, 7, 22)
COUNT = 120
HOUR_MS = 3_600_000
PROGRESS = re.compile(r"stage \d+: \d+ of \d+ tasks")


@pytest.fixture(scope="module")
def day_cluster() -> Generator[tuple[Cluster, str]]:
    """A cluster with messages in three hours of tomorrow, half of which a group has consumed."""
    with Cluster(brokers=2, topics={"orders": 4, "mails": 2}) as cluster:
        now_ms = cluster.clock()
        begin_ms = (now_ms // (24 * HOUR_MS) + 1) * 24 * HOUR_MS
        day = datetime.fromtimestamp(begin_ms / 1000, UTC).date().isoformat()
        with Producer("stats", namesrv=cluster.namesrv_address) as producer:
            # One message the day before, which must not count.
            producer.send("orders", b"before", keys="early")
            for hour in HOURS:
                cluster.advance(ms=begin_ms + hour * HOUR_MS - cluster.clock())
                producer.send_many(
                    Message("orders", f"{hour} {number}", keys=f"k{number % 10}")
                    for number in range(COUNT)
                )
                producer.send("mails", b"x" * hour)
        _consume(cluster, "orders", len(HOURS) * COUNT + 1)
        yield cluster, day


def _consume(cluster: Cluster, topic: str, count: int) -> None:
    seen: list[object] = []
    consumer = PushConsumer("clerks", namesrv=cluster.namesrv_address, start="first")
    consumer.subscribe(topic, handler=lambda message: seen.append(message.msg_id))
    with consumer:
        until(lambda: len(seen) >= count, lambda: f"{len(seen)} of {count} consumed")


def _broker_counts(cluster: Cluster, name: str, key: str) -> int:
    """A statistic of the last day, of all brokers."""

    async def ask() -> int:
        async with Admin(cluster.namesrv_address) as admin:
            total = 0
            for at in await admin.clusters.brokers(masters=True):
                figures = await admin.brokers.statistic(at, name, key)
                if figures is not None and figures.day is not None:
                    total += figures.day.sum
            return total

    return asyncio.run(ask())


def _stats(url: str, day: str) -> dict[tuple[str, str, int], Any]:
    found = rows(url, tables.topic_stats, day=day)
    return {(row.topic, row.consumer_group, row.hour): row for row in found}


def test_statistics_equal_the_counters_of_the_brokers(
    spark: SparkSession, day_cluster: tuple[Cluster, str], database_url: str
) -> None:
    cluster, day = day_cluster
    url = database_url
    given = {"nameServer": cluster.namesrv_address, "days": day, "database": url}
    lines: list[str] = []
    outcome = runner.run("topic-stats", given, spark=spark, on_progress=lines.append)
    found = _stats(url, day)
    assert outcome.row_count == len(found)
    # How many lines there are depends on how long Spark takes.
    assert all(PROGRESS.fullmatch(line) for line in lines), lines

    whole = found["orders", "", -1]
    assert whole.produced == _broker_counts(cluster, "TOPIC_PUT_NUMS", "orders") - 1
    assert whole.produced == COUNT * len(HOURS)
    assert whole.distinct_keys == 10
    consumed = found["orders", "clerks", -1]
    assert consumed.consumed == _broker_counts(cluster, "GROUP_GET_NUMS", "orders@clerks") - 1
    assert consumed.consumed_bytes == whole.produced_bytes
    assert consumed.produced == 0

    mails = [found["mails", "", hour].produced_bytes for hour in HOURS]
    assert sum(mails) == found["mails", "", -1].produced_bytes
    assert sum(mails) == _broker_counts(cluster, "TOPIC_PUT_SIZE", "mails")
    assert [mails[1] - mails[0], mails[2] - mails[1]] == [6, 15]

    assert {hour for topic, _, hour in found if topic == "orders"} == {-1, *HOURS}
    assert all(found["orders", "", hour].produced == COUNT for hour in HOURS)
    assert all(found["orders", "", hour].distinct_keys == 10 for hour in HOURS)

    # Again: the same rows, none twice; and the record of both runs.
    runner.run("topic-stats", given | {"keys": "false"}, spark=spark)
    again = _stats(url, day)
    assert set(again) == set(found)
    assert again["orders", "", -1].produced == whole.produced
    runs = runner.status(url)
    assert [(run.pipeline, run.state) for run in runs] == [("topic-stats", "done")] * 2


def test_progress_is_reported_while_spark_works(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks end only after the first progress line, so there must be one."""
    progress_seen = tmp_path / "progress"
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        progress_seen.touch()

    def wait(number: int) -> int:
        until(progress_seen.exists, lambda: "no progress was reported")
        return number

    watched = runner._watched  # pyright: ignore[reportPrivateUsage] - without a pipeline around it
    with watched(spark, tell, threading.Event(), cancels=True):
        assert spark.sparkContext.parallelize(range(2), 2).map(wait).collect() == [0, 1]
    assert all(PROGRESS.fullmatch(line) for line in lines), lines
    assert "0 of 2 tasks" in lines[0]
    assert len(set(lines)) == len(lines)


class StopAfterOneNight(threading.Event):
    """An event that is set by the second wait; a wait advances the clock by its time-out."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self.now_ms = now_ms

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if self.is_set():
            return True
        self.now_ms += round(timeout * 1000)
        self.set()
        return False


def test_every_day_is_counted_when_it_is_over(
    spark: SparkSession, day_cluster: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, day = day_cluster
    url = f"sqlite:///{tmp_path / 'stats.db'}"
    given = {
        "nameServer": cluster.namesrv_address, "database": url, "topics": "mails",
        "days": "2001-01-01", "midnight": "true", "keys": "false",
    }  # fmt: skip
    options = runner.check("topic-stats", given)
    assert isinstance(options, topic_stats.Options)
    noon_ms = round(datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp() * 1000)
    stop = StopAfterOneNight(noon_ms)
    topic_stats.run(spark, options, stop=stop, clock=lambda: stop.now_ms)
    assert stop.now_ms == noon_ms + DAY_MS // 2 + 60_000
    assert [row.day for row in rows(url, tables.topic_stats, hour=-1)] == [day]
