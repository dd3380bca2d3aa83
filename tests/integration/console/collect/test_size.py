"""The collector on 1,000 topics x 2,300 groups x 4 brokers: time, CPU, memory, database."""

import gc
import logging
import time
from pathlib import Path

import psutil
import pytest
from tests.support.big_cluster import BROKERS, GROUPS, TOPICS, big_cluster

from tianzhou.admin.admin_client import Admin
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.console.collect import tables
from tianzhou.console.collect.asking import TIMEOUT_MS
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.collect.snapshot import NORMAL, pack

log = logging.getLogger(__name__)

ROUND_S_MAX = 15.0
ROUNDS = 500
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


@pytest.mark.full
async def test_memory_is_level_over_500_rounds(tmp_path: Path) -> None:
    engine = tables.open_tables(f"sqlite:///{tmp_path / 'console.db'}")
    passed_ms = 0
    async with (
        big_cluster(tmp_path) as cluster,
        Admin(cluster.namesrv, timeout_ms=TIMEOUT_MS) as admin,
    ):
        recorder = Recorder(engine, "c", "one")
        collector = Collector(
            "c", admin, zone=zone_of("UTC"), recorder=recorder,
            wall=lambda: wall_ms() + passed_ms, steady=lambda: steady_ms() + passed_ms,
        )  # fmt: skip
        sizes: dict[int, int] = {}
        for number in range(1, ROUNDS + 1):
            assert recorder.acquire()
            await cluster.send(20)
            await collector.round()
            passed_ms += 60_000
            if number % 50 == 0:
                gc.collect()
                sizes[number] = psutil.Process().memory_info().rss
                log.info("RSS after %d rounds: %d KiB", number, sizes[number] // 1024)
        assert sizes[ROUNDS] - sizes[100] < 10 * 1024 * 1024
        assert sizes[ROUNDS] < 150 * 1024 * 1024
    engine.dispose()
