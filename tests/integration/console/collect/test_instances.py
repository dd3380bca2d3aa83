"""Several console instances on one database, and a database that is away for some time."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine
from tests.support.brokers import LOOPBACK, eventually, running_broker, running_namesrv
from tests.support.databases import postgresql

from tianzhou.admin.admin_client import Admin
from tianzhou.clock import wall_ms
from tianzhou.console.collect import tables
from tianzhou.console.collect.collector import FOLLOW_S, Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.leases import LEASE_MS, RENEW_S, holder_of
from tianzhou.console.collect.recording import Recorder, lease_of
from tianzhou.console.collect.snapshot import Snapshot, pack
from tianzhou.protocol.bodies.topics import TopicConfig

INTERVAL_MS, SHORT_LEASE_MS = 300, 1_500


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with postgresql(tmp_path_factory.mktemp("postgresql")) as url:
        yield url


@pytest.fixture
def engine(server_url: str) -> Generator[Engine]:
    made = tables.open_tables(server_url)
    yield made
    made.dispose()


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncGenerator[str]:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(running_namesrv(tmp_path))
        await stack.enter_async_context(running_broker(tmp_path / "a", namesrvAddr=address))
        admin = await stack.enter_async_context(Admin(address))

        async def is_listed() -> bool:
            return bool((await admin.clusters.info()).brokers)

        await eventually(is_listed, "the broker is registered")
        (at,) = await admin.clusters.brokers()
        await admin.topics.put(at, TopicConfig(topic_name="t", read_queue_count=1))
        yield address


def test_a_follower_takes_over_within_20_s() -> None:
    assert LEASE_MS / 1000 + FOLLOW_S <= 20
    assert 2 * RENEW_S < LEASE_MS / 1000


async def test_a_follower_serves_the_snapshots_of_the_leader_and_takes_over_when_it_is_killed(
    namesrv: str, server_url: str, engine: Engine
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.collector_program", namesrv, server_url, "first",
        str(INTERVAL_MS), str(SHORT_LEASE_MS), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    async with Admin(namesrv) as admin:
        follower = Collector(
            "c", admin, zone=zone_of("UTC"), instance="second", interval_ms=INTERVAL_MS,
            recorder=Recorder(engine, "c", "second", lease_ms=SHORT_LEASE_MS), renew_s=0.3,
            follow_s=0.1,
        )  # fmt: skip
        line = (await asyncio.wait_for(program.stdout.readline(), 60)).decode().split()
        assert line[1:] == ["leader", "first"]
        running = asyncio.create_task(follower.run())
        try:
            for _ in range(3):
                before = follower.snapshot.version if follower.snapshot is not None else 0
                found = await follower.newer_than(before, 60)
                assert found is not None
                assert found.collector == "first"
                assert found.topic("t") is not None
                assert not follower.is_leader
            program.kill()
            await program.wait()
            last = follower.snapshot.version if follower.snapshot is not None else 0
            while True:
                found = await follower.newer_than(last, 60)
                assert found is not None, "no instance took over"
                # The versions go on where the leader was, so that pages see them as newer.
                assert found.version > last
                last = found.version
                if found.collector == "second":
                    break
            assert follower.is_leader
            assert holder_of(engine, lease_of("c")) == "second"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        # A collector that stops gives the lease up.
        assert holder_of(engine, lease_of("c")) is None


async def test_an_instance_that_lost_the_lease_writes_nothing_and_follows(
    namesrv: str, engine: Engine
) -> None:
    async with Admin(namesrv) as admin:
        one = Recorder(engine, "d", "one")
        collector = Collector(
            "d", admin, zone=zone_of("UTC"), instance="one", interval_ms=INTERVAL_MS, recorder=one,
            renew_s=0.1, follow_s=0.1,
        )  # fmt: skip
        running = asyncio.create_task(collector.run())
        try:
            assert await collector.newer_than(0, 60) is not None
            assert collector.is_leader
            other = Recorder(engine, "d", "two")
            await eventually(lambda: other.newer_than(0), "the first snapshot is written")
            with engine.begin() as connection:
                connection.execute(
                    tables.leases.update()
                    .where(tables.leases.c.name == lease_of("d"))
                    .values(holder="two")
                )
            await eventually(lambda: not collector.is_leader, "the lease is lost")
            written = other.newer_than(0)
            assert written is not None
            await asyncio.sleep(3 * INTERVAL_MS / 1000)
            after = other.newer_than(0)
            assert after is not None
            assert after.version == written.version
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_snapshot_that_an_earlier_instance_left_is_not_fresh(
    namesrv: str, engine: Engine
) -> None:
    old = Snapshot(cluster="f", version=7, as_of_ms=wall_ms() - 3_600_000)
    row = {"cluster": "f", "version": 7, "at_ms": old.as_of_ms, "body": pack(old)}
    with engine.begin() as connection:
        connection.execute(tables.snapshots.insert().values(row))
        until_ms = tables.database_now(connection) + 60_000
        lease = {"name": lease_of("f"), "holder": "other", "until_ms": until_ms}
        connection.execute(tables.leases.insert().values(lease))
    async with Admin(namesrv) as admin:
        follower = Collector(
            "f", admin, zone=zone_of("UTC"), instance="one", follow_s=0.05,
            recorder=Recorder(engine, "f", "one"),
        )  # fmt: skip
        running = asyncio.create_task(follower.run())
        try:
            assert await follower.newer_than(0, 60) == old
            assert not follower.is_fresh
            newer = replace(old, version=8, as_of_ms=wall_ms())
            with engine.begin() as connection:
                connection.execute(
                    tables.snapshots.update()
                    .where(tables.snapshots.c.cluster == "f")
                    .values(version=8, body=pack(newer))
                )
            assert await follower.newer_than(7, 60) == newer
            assert follower.is_fresh
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


# -- a database that is away -----------------------------------------------------------------------


class Gate:
    """A proxy before the database that can be shut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.is_open = True
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        self.writers += [writer, far_writer]
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    def shut(self) -> None:
        self.is_open = False
        for each in self.writers:
            each.close()
        self.writers.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def gate(url: str) -> AsyncGenerator[tuple[str, Gate]]:
    """A proxy to the database of a URL, and the URL through it."""
    address, _, name = url.rpartition("/")
    user, _, port = address.rpartition(":")
    found = Gate((LOOPBACK, int(port)))
    server = await asyncio.start_server(found.serve, LOOPBACK, 0)
    async with server:
        own_port = server.sockets[0].getsockname()[1]
        yield f"{user}:{own_port}/{name}", found
        found.shut()


async def test_a_database_that_is_away_costs_no_round_and_no_count(
    namesrv: str, server_url: str, engine: Engine
) -> None:
    async with gate(server_url) as (url, way), Admin(namesrv) as admin:
        through = await asyncio.to_thread(tables.open_tables, url)
        collector = Collector(
            "e", admin, zone=zone_of("UTC"), instance="one", interval_ms=INTERVAL_MS,
            recorder=Recorder(through, "e", "one", lease_ms=60_000), renew_s=0.2, follow_s=0.1,
        )  # fmt: skip
        running = asyncio.create_task(collector.run())
        reader = Recorder(engine, "e", "reader")
        try:
            first = await collector.newer_than(0, 60)
            assert first is not None
            await eventually(lambda: reader.newer_than(0), "the first snapshot is written")
            way.shut()
            version = first.version

            async def is_named() -> bool:
                assert collector.snapshot is not None
                return any("database" in line for line in collector.snapshot.warnings)

            await eventually(is_named, "the snapshot names the problem")
            assert collector.snapshot is not None
            version = collector.snapshot.version
            # Rounds go on.
            assert await collector.newer_than(version + 2, 60) is not None
            way.is_open = True
            newest = collector.snapshot.version

            await eventually(
                lambda: (reader.newer_than(newest)) is not None, "snapshots are written again"
            )

            async def is_over() -> bool:
                assert collector.snapshot is not None
                return not any("database" in line for line in collector.snapshot.warnings)

            await eventually(is_over, "the problem is over")
            assert collector.is_leader
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.to_thread(through.dispose)
