"""A collector in a process of its own that does rounds without a pause, a minute each by its clock.

python -m tests.support.collector_memory NAMESRV DATABASE ROUNDS EVERY

It prints its resident memory in KiB after every EVERY rounds.
"""

import asyncio
import gc
import sys

import psutil

from tianzhou.admin.admin_client import Admin
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.console.collect import tables
from tianzhou.console.collect.asking import TIMEOUT_MS
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.recording import Recorder


async def collect(namesrv: str, database: str, rounds: int, every: int) -> None:
    engine = tables.open_tables(database)
    passed_ms = 0
    async with Admin(namesrv, timeout_ms=TIMEOUT_MS) as admin:
        recorder = Recorder(engine, "c", "one")
        collector = Collector(
            "c", admin, zone=zone_of("UTC"), recorder=recorder,
            wall=lambda: wall_ms() + passed_ms, steady=lambda: steady_ms() + passed_ms,
        )  # fmt: skip
        for number in range(1, rounds + 1):
            assert recorder.acquire()
            await collector.round()
            passed_ms += 60_000
            if number % every == 0:
                gc.collect()
                sys.stdout.write(f"{psutil.Process().memory_info().rss // 1024}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(collect(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
