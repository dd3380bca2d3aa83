"""Benchmark of Spark: rows per second offline, over sockets and into topics; CPU against Parquet.

A broker in a separate process gets messages of 1 KiB; Spark on `local[2]` reads them over sockets
and, after the broker has stopped, from its store directory. Every figure is the median of several
rounds after a discarded one; before the first, Spark reads the messages a few times to warm up the
JVM. CPU is that of the JVM and all Python workers; that of the broker has its own column. The
figures are written into docs/performance.md, with plots; `--quick` uses fewer messages and rounds
and only prints, as does `--json`, one line per figure.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from bench.spark_plots import (
    ALL,
    FILTERED,
    GROUP,
    LARGER,
    OFFLINE,
    PARQUET,
    PUSHED,
    SINK,
    SOCKETS,
    SUM,
    TO_PARQUET,
    draw,
)
from tianzhou.admin import Admin
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.spark import session

TOPIC = "bench"
QUEUES = 8
BODY = bytes(range(256)) * 4
SENT_AT_ONCE = 5_000
WARM_ROUNDS = 3
ROUNDS_S = 16.0
"""No further round of a figure starts after this."""
LOG_FILE_BYTES = 256 * 1024 * 1024
QUEUE_FILE_BYTES = 20 * 300_000
TWO = "queueId INT, queueOffset BIGINT"
NARROW = "tags STRING"
SINK_TOPIC = "bench-sink"
SINK_COUNT_MAX = 600_000
"""Every round leaves its messages on the disk."""
# RocketMQ's limits on one pull are 32 messages and 256 KiB.
LARGER_PULLS = {
    "maxTransferCountOnMessageInMemory": "2048",
    "maxTransferBytesOnMessageInMemory": "1048576",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    what: str
    rows_s: float
    cpu_us_row: float
    broker_us_row: float


def tag_of(number: int) -> str:
    return "rare" if number % 100 == 0 else f"t{number % 7}"


def fill(namesrv: str, count: int) -> None:
    """Send messages, one in a hundred with the tag rare."""
    with Producer("bench", namesrv=namesrv) as producer:
        for begin in range(0, count, SENT_AT_ONCE):
            producer.send_many(
                Message(TOPIC, BODY, tags=tag_of(n), keys=f"order-{n:08d}")
                for n in range(begin, min(begin + SENT_AT_ONCE, count))
            )


def allow_larger_pulls(namesrv: str) -> None:
    """Warm up while the broker runs: a restarted one checks old messages when it sends them."""

    async def change() -> None:
        async with Admin(namesrv) as admin:
            for at in await admin.clusters.brokers(masters=True):
                await admin.brokers.change_settings(at, LARGER_PULLS)

    asyncio.run(change())


def cpu_of(process: psutil.Process) -> float:
    """CPU of a process and of all its children, including ended ones."""
    try:
        times = process.cpu_times()
        below = sum(cpu_of(each) for each in process.children())
    except psutil.NoSuchProcess:
        return 0.0
    return below + times.user + times.system + times.children_user + times.children_system


class Bench:
    """Measures queries over the same number of rows."""

    def __init__(self, count: int, rounds: int) -> None:
        self.count = count
        self.rounds = rounds
        self.broker_pid = 0

    def cpu_s(self) -> tuple[float, float]:
        """CPU of Spark and of the broker."""
        below = {each.pid: cpu_of(each) for each in psutil.Process().children()}
        of_broker = below.pop(self.broker_pid, 0.0)
        return sum(below.values()), of_broker

    def measure(self, what: str, work: Callable[[], object]) -> Figure:
        work()
        rounds_done: list[tuple[float, float, float]] = []
        while len(rounds_done) < self.rounds and sum(each[0] for each in rounds_done) < ROUNDS_S:
            began, (spark, broker) = time.perf_counter(), self.cpu_s()
            work()
            wall, (spark_after, broker_after) = time.perf_counter() - began, self.cpu_s()
            rounds_done.append((wall, spark_after - spark, broker_after - broker))
        wall, spark, broker = (statistics.median(each) for each in zip(*rounds_done, strict=True))
        us_row = 1e6 / self.count
        return Figure(what, self.count / wall, max(spark, 0.0) * us_row, max(broker, 0.0) * us_row)


def warm_up(work: Callable[[], object]) -> None:
    """The JVM compiles new code first, so compared queries get the same number of rounds before."""
    for _ in range(WARM_ROUNDS):
        work()


def drain(frame: DataFrame) -> None:
    """Read and discard all rows and columns."""
    frame.write.format("noop").mode("overwrite").save()


def scans(bench: Bench, what: str, source: Callable[[], DataFrameReader]) -> Iterator[Figure]:
    """The measured queries, for every way of reading."""
    yield bench.measure(f"{what}: {ALL}", lambda: drain(load(source())))
    yield bench.measure(f"{what}: {SUM}", lambda: sum_two(load(source().schema(TWO))))
    yield bench.measure(f"{what}: {GROUP}", lambda: count_tags(load(source().schema(NARROW))))
    yield bench.measure(
        f"{what}: {FILTERED}",
        lambda: drain(load(source().option("pushDown", "false")).where("tags = 'rare'")),
    )
    yield bench.measure(
        f"{what}: {PUSHED}",
        lambda: drain(load(source().option("tags", "rare"))),
    )


def sum_two(frame: DataFrame) -> None:
    frame.selectExpr("sum(queueId)", "sum(queueOffset)").collect()


def count_tags(frame: DataFrame) -> None:
    frame.groupBy("tags").count().collect()


def write_topic(spark: SparkSession, namesrv: str, count: int) -> None:
    """Rows of 1 KiB with tags and keys into a topic."""
    frame = spark.range(0, count, 1, 4).selectExpr(
        f"repeat('x', {len(BODY)}) body", "concat('t', id % 7) tags", "concat('order-', id) keys"
    )
    writer = frame.write.format("rocketmq").mode("append")
    writer.option("nameServer", namesrv).option("topic", SINK_TOPIC).save()


def load(reader: DataFrameReader) -> DataFrame:
    return reader.option("subscribe", TOPIC).load()


@contextmanager
def broker(folder: Path) -> Generator[tuple[str, int]]:
    """A cluster in a separate process; yields the nameserver's address and the process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bench_spark", "--serve", str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def serve(folder: Path) -> None:
    """The broker's process: runs until its input ends."""
    from tianzhou.testing import Cluster

    shape: dict[str, Any] = {
        "mappedFileSizeCommitLog": LOG_FILE_BYTES,
        "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
        "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000,
    }
    topics = {TOPIC: QUEUES, SINK_TOPIC: QUEUES}
    with Cluster(folder=folder, topics=topics, **shape) as cluster:
        print(cluster.namesrv_address, flush=True)
        sys.stdin.read()


def figures(spark: SparkSession, folder: Path, bench: Bench) -> Iterator[Figure]:
    """All figures, one after the other."""
    with broker(folder / "read") as (namesrv, bench.broker_pid):

        def online() -> DataFrameReader:
            return spark.read.format("rocketmq").option("nameServer", namesrv)

        fill(namesrv, bench.count)
        warm_up(lambda: drain(load(online())))
        yield from scans(bench, SOCKETS, online)
        allow_larger_pulls(namesrv)
        yield from scans(bench, LARGER, online)
    root = folder / "read" / "broker-0"

    def offline() -> DataFrameReader:
        return spark.read.format("rocketmq-store").option("path", str(root))

    warm_up(lambda: drain(load(offline())))
    yield from scans(bench, OFFLINE, offline)
    parquet = str(folder / "parquet")

    def write_parquet() -> None:
        load(offline()).write.mode("overwrite").parquet(parquet)

    warm_up(write_parquet)
    yield bench.measure(f"{OFFLINE}: {TO_PARQUET}", write_parquet)
    warm_up(lambda: drain(spark.read.parquet(parquet)))
    yield bench.measure(f"{PARQUET}: {ALL}", lambda: drain(spark.read.parquet(parquet)))
    yield bench.measure(f"{PARQUET}: {SUM}", lambda: sum_two(spark.read.parquet(parquet)))
    yield bench.measure(f"{PARQUET}: {GROUP}", lambda: count_tags(spark.read.parquet(parquet)))
    copy = str(folder / "copy")
    yield bench.measure(
        f"{PARQUET}: {TO_PARQUET}",
        lambda: spark.read.parquet(parquet).write.mode("overwrite").parquet(copy),
    )
    written = Bench(min(bench.count, SINK_COUNT_MAX), bench.rounds)
    with broker(folder / "written") as (namesrv, written.broker_pid):
        yield written.measure(SINK, partial(write_topic, spark, namesrv, written.count))


# -- the page --------------------------------------------------------------------------------------


def summary(measured: list[Figure]) -> str:
    """The table of the page, and the derived lines."""
    from bench.run import table

    by_name = {figure.what: figure for figure in measured}
    rows = [
        [
            each.what,
            f"{each.rows_s:,.0f}",
            f"{each.cpu_us_row:.2f}",
            _or_nothing(each.broker_us_row),
        ]
        for each in measured
    ]
    lines = [
        f"- {query}: {ours.cpu_us_row / theirs.cpu_us_row:.1f} times the CPU of Spark reading the "
        "same rows from Parquet."
        for query in (ALL, SUM, GROUP)
        if (ours := by_name.get(f"{OFFLINE}: {query}"))
        and (theirs := by_name.get(f"{PARQUET}: {query}"))
        and theirs.cpu_us_row
    ]
    for what in (OFFLINE, SOCKETS, LARGER):
        chosen = by_name.get(f"{what}: {PUSHED}")
        plain = by_name.get(f"{what}: {FILTERED}")
        if chosen and plain:
            lines.append(
                f"- {what}: a tag that 1 % of the messages have is found "
                f"{chosen.rows_s / plain.rows_s:.1f} times as fast by the option tags."
            )
    whole = by_name.get(f"{OFFLINE}: {ALL}")
    for what in (SOCKETS, LARGER):
        through = by_name.get(f"{what}: {ALL}")
        if through and whole:
            lines.append(
                f"- {what}: all columns at {through.rows_s / whole.rows_s:.0%} of the rate offline."
            )
    listed = "\n".join(lines)
    heads = ["query", "rows/s", "us of CPU per row", "of the broker"]
    return f"{table(heads, rows)}\n\n{listed}"


def _or_nothing(us_row: float) -> str:
    return f"{us_row:.2f}" if us_row else ""


def write_page(measured: list[Figure], count: int) -> None:
    from bench.run import PLOTS, conditions, write_part

    rates = {each.what: each.rows_s for each in measured}
    cpu_us = {each.what: each.cpu_us_row for each in measured}
    shown = "\n\n".join(draw(rates, cpu_us, PLOTS))
    where = f"{conditions(quick=False)} {count:,} messages."
    write_part("spark", f"{where}\n\n{summary(measured)}\n\n{shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark over topics.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few messages, printed only")
    parser.add_argument("--json", action="store_true", help="a line per figure, printed only")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    bench = Bench(40_000 if given.quick else given.count, 1 if given.quick else given.rounds)
    measured: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=given.directory) as folder:
        spark = session("bench", master="local[2]", spark_driver_memory="2g")
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for figure in figures(spark, Path(folder), bench):
                measured.append(figure)
                if given.json:
                    print(json.dumps(asdict(figure)), flush=True)
                else:
                    print(
                        f"{figure.what:45} {figure.rows_s:12,.0f} rows/s "
                        f"{figure.cpu_us_row:8.2f} us CPU/row {figure.broker_us_row:8.2f} broker",
                        flush=True,
                    )
        finally:
            spark.stop()
    if not given.quick and not given.json:
        write_page(measured, bench.count)


if __name__ == "__main__":
    main()
