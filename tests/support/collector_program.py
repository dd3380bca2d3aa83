"""A console instance without pages: collects a cluster until it is killed.

python -m tests.support.collector_program NAMESRV DATABASE INSTANCE INTERVAL_MS LEASE_MS
"""

import asyncio
import sys

from tianzhou.admin.admin_client import Admin
from tianzhou.console.collect import tables
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.recording import Recorder


async def collect(
    namesrv: str, database: str, instance: str, interval_ms: int, lease_ms: int
) -> None:
    engine = tables.open_tables(database)
    async with Admin(namesrv, timeout_ms=2_000) as admin:
        collector = Collector(
            "c", admin, zone=zone_of("UTC"), instance=instance, interval_ms=interval_ms,
            recorder=Recorder(engine, "c", instance, lease_ms=lease_ms), renew_s=lease_ms / 3000,
        )  # fmt: skip
        running = asyncio.create_task(collector.run())
        version = 0
        while True:
            newer = await collector.newer_than(version, 3600)
            if running.done():
                await running
            if newer is not None:
                version = newer.version
                # The role, as of when the version was published.
                role = "leader" if collector.is_leader else "follower"
                sys.stdout.write(f"{version} {role} {newer.collector}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(collect(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
