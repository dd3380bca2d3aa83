"""The collector on 1,000 topics x 2,300 groups x 4 brokers: time, CPU, memory, database."""

import asyncio
import logging
import sys
import time
from pathlib import Path

import pytest
from tests.support.big_cluster import BROKERS, GROUPS, TOPICS, BigCluster, big_cluster

from tianzhou.admin.admin_client import Admin
from tianzhou.console.collect import tables
from tianzhou.console.collect.asking import TIMEOUT_MS
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.collect.snapshot import NORMAL, pack

pytestmark = pytest.mark.full

log = logging.getLogger(__name__)

ROUND_S_MAX = 15.0
CPU_S_MAX = 6.0
"""10 % of a core at a round a minute."""


async def test_a_round_of_a_large_cluster_is_cheap_enough_for_every_minute(
    tmp_path: Path,
) -> None:
    engine = tables.open_tables(f"sqlite:///{tmp_path / 'console.db'}")
    async with (
        big_cluster(tmp_path) as cluster,
        Admin(cluster.namesrv, timeout_ms=TIMEOUT_MS) as admin,
    ):
        recorder = Recorder(engine, "c", "one")
        collector = Collector("c", admin, zone=zone_of("UTC"), recorder=recorder)
        assert recorder.acquire()
        first = await collector.round()
        assert first.unanswered == (), first.warnings
        assert sum(each.kind == NORMAL for each in first.topics) == TOPICS
        assert len([each for each in first.groups if not each.is_internal]) == GROUPS
        await cluster.send(TOPICS)
        busy = [server.cpu_s() for server in cluster.brokers.values()]
        costs: list[tuple[float, float]] = []
        found = first
        for _ in range(6):
            # Every broker stores something, so that no round is the short one of idle brokers.
            await cluster.send(1)
            assert recorder.acquire()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            found = await collector.round()
            costs.append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
        spent = [
            server.cpu_s() - before
            for server, before in zip(cluster.brokers.values(), busy, strict=True)
        ]
        log.info(
            "rounds: %s; %d requests; CPU s of the brokers: %s; packed snapshot: %d bytes",
            "; ".join(f"{wall:.2f} s, CPU {cpu:.2f} s" for wall, cpu in costs),
            found.request_count,
            spent,
            len(pack(found)),
        )
        # A message in each topic of each broker, and each group reads one topic.
        assert found.totals.lag is not None
        assert found.totals.lag >= GROUPS * BROKERS
        assert max(wall for wall, _ in costs) < ROUND_S_MAX
        assert sorted(cpu for _, cpu in costs)[len(costs) // 2] < CPU_S_MAX
        assert found.interval_ms == 60_000
        stored = recorder.newer_than(0)
        assert stored is not None
        assert stored.version == found.version
        assert len(pack(found)) < 150 * GROUPS
    engine.dispose()


async def test_memory_is_level_over_500_rounds(tmp_path: Path) -> None:
    """On a tenth of the large cluster, where a round takes a tenth of the time."""
    async with big_cluster(tmp_path, topics=100, groups=230, brokers=2) as cluster:
        sizes_kib = await memory_of_rounds(cluster, tmp_path, rounds=500, every=50)
    assert len(sizes_kib) == 10
    assert sizes_kib[-1] - sizes_kib[1] < 5 * 1024


async def test_a_large_cluster_takes_less_than_150_mib(tmp_path: Path) -> None:
    async with big_cluster(tmp_path) as cluster:
        sizes_kib = await memory_of_rounds(cluster, tmp_path, rounds=30, every=10)
    assert len(sizes_kib) == 3
    assert max(sizes_kib) < 150 * 1024


async def memory_of_rounds(
    cluster: BigCluster, folder: Path, *, rounds: int, every: int
) -> list[int]:
    """The resident memory of a collector in KiB, after every so many rounds under traffic."""
    collector = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.collector_memory", cluster.namesrv,
        f"sqlite:///{folder / 'console.db'}", str(rounds), str(every),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    reading = asyncio.create_task(collector.communicate())
    while not reading.done():
        await cluster.send(20)
    output, _ = await reading
    assert collector.returncode == 0
    sizes_kib = [int(line) for line in output.split()]
    log.info("resident memory, KiB, after every %d rounds: %s", every, sizes_kib)
    return sizes_kib
