"""Spark over topics: rows a second offline and through sockets, and CPU beside Parquet.

A store of 1 KiB messages in eight queues is made in a temporary directory; Spark runs on `local[2]`
in this process's JVM, the broker in a process of its own. Every figure is the median of some
rounds after one that is thrown away. CPU is that of the JVM and all Python workers. `--json` prints
one line per figure; `--quick` takes fewer messages and rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from tianzhou.spark import session
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

TOPIC = "bench"
QUEUES = 8
BODY = bytes(range(256)) * 4
HOST = ("127.0.0.1", 10911)
PROPERTIES = "TAGS\x01{1}\x02KEYS\x01order-{0:08d}\x02UNIQ_KEY\x017F0000010A1B18B4AAC2{0:012X}\x02"
LOG_FILE_BYTES = 256 * 1024 * 1024
QUEUE_FILE_BYTES = 20 * 300_000
TWO = "queueId INT, queueOffset BIGINT"
NARROW = "tags STRING"
# The same broker with RocketMQ's limits on one pull, and with larger ones.
PULLS: tuple[tuple[str, dict[str, object]], ...] = (
    ("sockets", {}),
    (
        "sockets, larger pulls",
        {
            "maxTransferCountOnMessageInMemory": 2048,
            "maxTransferBytesOnMessageInMemory": 1024 * 1024,
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    what: str
    rows_s: float
    cpu_us_row: float


def tag_of(number: int) -> str:
    return "rare" if number % 100 == 0 else f"t{number % 7}"


def make_store(root: Path, count: int) -> None:
    """So many messages, one in a hundred with the tag rare."""
    config = StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
    )
    with MessageStore.open(config) as store:
        for begin in range(0, count, 1000):
            drafts = [
                Draft(
                    TOPIC, n % QUEUES, BODY,
                    PROPERTIES.format(n, tag_of(n // QUEUES)),
                    0, HOST, HOST,
                )
                for n in range(begin, min(begin + 1000, count))
            ]  # fmt: skip
            for draft in drafts:
                store.append(draft)


def cpu_s() -> float:
    """CPU of everything that this process started, those that ended included."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Bench:
    """Measures queries over the same number of rows."""

    def __init__(self, count: int, rounds: int) -> None:
        self.count = count
        self.rounds = rounds

    def measure(self, what: str, work: Callable[[], object]) -> Figure:
        work()
        walls, cpus = list[float](), list[float]()
        for _ in range(self.rounds):
            wall, cpu = time.perf_counter(), cpu_s()
            work()
            walls.append(time.perf_counter() - wall)
            cpus.append(cpu_s() - cpu)
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        return Figure(what, self.count / wall, max(cpu, 0.0) / self.count * 1e6)


def drain(frame: DataFrame) -> None:
    """Read all rows and columns into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def scans(bench: Bench, what: str, source: Callable[[], DataFrameReader]) -> Iterator[Figure]:
    """The queries that every way of reading is measured by."""
    yield bench.measure(f"{what}: all columns", lambda: drain(load(source())))
    yield bench.measure(
        f"{what}: sum of two columns",
        lambda: load(source().schema(TWO)).selectExpr("sum(queueId)", "sum(queueOffset)").collect(),
    )
    yield bench.measure(
        f"{what}: group by tag",
        lambda: load(source().schema(NARROW)).groupBy("tags").count().collect(),
    )
    yield bench.measure(
        f"{what}: 1 % by tag, filtered by Spark",
        lambda: drain(load(source().option("pushDown", "false")).where("tags = 'rare'")),
    )
    yield bench.measure(
        f"{what}: 1 % by tag, pushed down",
        lambda: drain(load(source()).where("tags = 'rare'")),
    )


def load(reader: DataFrameReader) -> DataFrame:
    return reader.option("subscribe", TOPIC).load()


@contextmanager
def broker(folder: Path, settings: dict[str, object]) -> Generator[str]:
    """A cluster over the store in a process of its own; gives the nameserver's address."""
    command = [sys.executable, "-m", "bench.bench_spark", "--serve", str(folder)]
    process = subprocess.Popen(
        [*command, json.dumps(settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def serve(folder: Path, settings: dict[str, Any]) -> None:
    """The broker's process: until its input ends."""
    from tianzhou.testing import Cluster

    shape: dict[str, Any] = {
        "mappedFileSizeCommitLog": LOG_FILE_BYTES,
        "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
        "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000,
    }
    with Cluster(folder=folder, topics={TOPIC: QUEUES}, **shape | settings) as cluster:
        print(cluster.namesrv_address, flush=True)
        sys.stdin.read()


def figures(spark: SparkSession, folder: Path, bench: Bench) -> Iterator[Figure]:
    """All figures, one after the other."""
    root = folder / "broker-0"
    make_store(root, bench.count)

    def offline() -> DataFrameReader:
        return spark.read.format("rocketmq-store").option("path", str(root))

    yield from scans(bench, "offline", offline)
    parquet = str(folder / "parquet")
    yield bench.measure(
        "offline: write to Parquet",
        lambda: load(offline()).write.mode("overwrite").parquet(parquet),
    )
    yield bench.measure("Parquet itself: all columns", lambda: drain(spark.read.parquet(parquet)))
    for what, settings in PULLS:
        with broker(folder, settings) as namesrv:

            def online(namesrv: str = namesrv) -> DataFrameReader:
                return spark.read.format("rocketmq").option("nameServer", namesrv)

            yield from scans(bench, what, online)


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark over topics.")
    parser.add_argument("--count", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), json.loads(given.serve[1]))
        return
    bench = Bench(40_000 if given.quick else given.count, 1 if given.quick else given.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=given.directory) as folder:
        spark = session("bench", master="local[2]", spark_driver_memory="2g")
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for figure in figures(spark, Path(folder), bench):
                if given.json:
                    print(json.dumps(asdict(figure)), flush=True)
                else:
                    print(
                        f"{figure.what:45} {figure.rows_s:12,.0f} rows/s "
                        f"{figure.cpu_us_row:8.2f} us CPU/row",
                        flush=True,
                    )
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
