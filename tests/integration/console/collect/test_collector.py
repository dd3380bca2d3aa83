"""A collector on real brokers: figures, unanswered brokers, days, databases, bounded requests."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.support import namesrv
from tests.support.brokers import (
    LOOPBACK,
    Peer,
    eventually,
    peer_of,
    running_broker,
    running_namesrv,
)

from tianzhou.admin.admin_client import Admin
from tianzhou.broker.server import Broker
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.console.collect import daily, history, tables
from tianzhou.console.collect.asking import SLOW_EVERY
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import days_at, zone_of
from tianzhou.console.collect.history import SeriesName
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.collect.snapshot import Group, Snapshot, Topic
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting.address import parse_address

UTC = zone_of("UTC")
TIMEOUT_MS = 2_000


@dataclass
class Site:
    """Brokers behind a nameserver, and the admin client of a console."""

    namesrv: str
    admin: Admin
    folder: Path
    stack: AsyncExitStack
    brokers: dict[str, Broker] = field(default_factory=dict[str, Broker])
    stacks: dict[str, AsyncExitStack] = field(default_factory=dict[str, AsyncExitStack])
    addresses: dict[str, str] = field(default_factory=dict[str, str])

    async def start(self, name: str, **settings: object) -> None:
        """Start a broker, again on its port if it ran before."""
        stack = AsyncExitStack()
        if name in self.addresses:
            settings = settings | {"listenPort": parse_address(self.addresses[name])[1]}
        broker = await stack.enter_async_context(
            running_broker(
                self.folder / name,
                brokerName=name,
                namesrvAddr=self.namesrv,
                registerNameServerPeriod=10_000,
                **settings,
            )
        )
        self.brokers[name], self.stacks[name] = broker, stack
        self.addresses[name] = broker.address
        await eventually(lambda: self._is_listed(name), f"{name} is registered")

    async def _is_listed(self, name: str) -> bool:
        info = await self.admin.clusters.info()
        return name in info.brokers

    async def stop(self, name: str) -> None:
        await self.stacks.pop(name).aclose()

    @asynccontextmanager
    async def peer(self, name: str) -> AsyncGenerator[Peer]:
        async with peer_of(self.addresses[name]) as peer:
            yield peer

    async def create(self, topics: Mapping[str, int], groups: tuple[str, ...] = ()) -> None:
        """Create topics and groups on every broker."""
        for at in await self.admin.clusters.brokers(masters=True):
            for topic, queues in topics.items():
                config = TopicConfig(
                    topic_name=topic, read_queue_count=queues, write_queue_count=queues
                )
                await self.admin.topics.put(at, config)
            for group in groups:
                await self.admin.groups.put(at, SubscriptionGroupConfig(group_name=group))

    async def send(self, name: str, topic: str, count: int, queues: int = 2) -> None:
        async with self.peer(name) as peer:
            for number in range(count):
                sent = await peer.send(topic, b"x", queue_id=number % queues)
                assert sent.code == ResponseCode.SUCCESS, sent.remark

    async def commit(self, name: str, group: str, topic: str, *offsets: int) -> None:
        (at,) = await self.admin.clusters.brokers(broker=name, masters=True)
        for queue_id, queue_offset in enumerate(offsets):
            await self.admin.offsets.commit(at, group, topic, queue_id, queue_offset)

    def collector(
        self, engine: Engine | None = None, *, instance: str = "one", clock: "Clock | None" = None
    ) -> Collector:
        clock = clock or Clock()
        recorder = Recorder(engine, "c", instance) if engine is not None else None
        made = Collector(
            "c", self.admin, zone=UTC, recorder=recorder, instance=instance, wall=clock.wall,
            steady=clock.steady,
        )  # fmt: skip
        return made


@dataclass
class Clock:
    """Two clocks that a test moves; the time of day may jump."""

    passed_ms: int = 0
    jumped_ms: int = 0

    def steady(self) -> int:
        return steady_ms() + self.passed_ms

    def wall(self) -> int:
        return wall_ms() + self.passed_ms + self.jumped_ms


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(running_namesrv(tmp_path))
        admin = await stack.enter_async_context(Admin(address, timeout_ms=TIMEOUT_MS))
        found = Site(address, admin, tmp_path, stack)
        try:
            yield found
        finally:
            for each in list(found.stacks):
                await found.stop(each)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return tables.open_tables(f"sqlite:///{tmp_path / 'console.db'}")


def topic_of(snapshot: Snapshot, name: str) -> Topic:
    found = snapshot.topic(name)
    assert found is not None, [each.name for each in snapshot.topics]
    return found


def group_of(snapshot: Snapshot, name: str) -> Group:
    found = snapshot.group(name)
    assert found is not None, [each.name for each in snapshot.groups]
    return found


# -- figures ---------------------------------------------------------------------------------------


async def test_a_snapshot_has_the_figures_of_brokers_topics_and_groups(site: Site) -> None:
    await site.start("a")
    await site.start("b")
    await site.create({"PAY_orders": 2, "idle": 4}, ("PAY_bills",))
    await site.commit("a", "PAY_bills", "PAY_orders", 0, 0)
    clock = Clock()
    collector = site.collector(clock=clock)
    await collector.round()
    await site.send("a", "PAY_orders", 10)
    await site.send("b", "PAY_orders", 4)
    await site.commit("a", "PAY_bills", "PAY_orders", 5, 2)
    clock.passed_ms += 10_000
    found = await collector.round()

    assert found.version == 2
    assert found.unanswered == ()
    assert [each.label for each in found.brokers] == ["a", "b"]
    assert all(each.is_tianzhou for each in found.brokers)
    assert [each.in_today for each in found.brokers] == [10, 4]
    orders = topic_of(found, "PAY_orders")
    assert (orders.today, orders.stored, orders.queue_count) == (14, 14, 4)
    assert orders.in_per_s == pytest.approx(1.4, rel=0.3)
    assert orders.groups == ("PAY_bills",)
    assert [(each.broker, each.produced) for each in orders.queues] == [("a", 10), ("b", 4)]
    assert topic_of(found, "idle").today == 0
    bills = group_of(found, "PAY_bills")
    assert (bills.lag, bills.members) == (3, ())
    assert [(each.topic, each.lag, each.committed) for each in bills.topics] == [
        ("PAY_orders", 3, 7)
    ]
    assert found.totals.lag == 3
    assert found.totals.brokers_answered == found.totals.brokers_known == 2

    await site.commit("a", "PAY_bills", "PAY_orders", 5, 5)
    clock.passed_ms += 10_000
    bills = group_of(await collector.round(), "PAY_bills")
    assert (bills.lag, bills.topics[0].committed) == (0, 10)
    assert bills.consumed_per_s == pytest.approx(0.3, rel=0.3)


async def test_members_and_contradictions_are_found(site: Site) -> None:
    await site.start("a")
    await site.create({"t": 2, "u": 2}, ("g",))
    collector = site.collector()
    async with site.peer("a") as one, site.peer("a") as two:
        await one.heartbeat("client-1", "g", {"t": "*"})
        await two.heartbeat("client-2", "g", {"u": "*"})
        group = group_of(await collector.round(), "g")
        assert group.members is not None
        assert [each.client_id for each in group.members] == ["client-1", "client-2"]
        assert group.model == "clustering"
        assert {each.topic for each in group.contradictions} == {"t", "u"}
        # Members are read in a fifth of the rounds, and in each one for an open page.
        collector.watch(groups=["g"])
        await two.client.close()

        async def one_member() -> bool:
            return len(group_of(await collector.round(), "g").members or ()) == 1

        await eventually(one_member, "the member that left is gone")


async def test_groups_that_consume_again_show_their_members_in_the_same_round(site: Site) -> None:
    await site.start("a")
    groups = tuple(f"g{number}" for number in range(8))
    await site.create({"t": 2}, groups)
    await site.send("a", "t", 4)
    for group in groups:
        await site.commit("a", group, "t", 0, 0)
    clock = Clock()
    collector = site.collector(clock=clock)
    snapshot = await collector.round()
    assert all(group_of(snapshot, each).members == () for each in groups)
    async with site.peer("a") as peer:
        for group in groups:
            await peer.heartbeat(f"client-{group}", group, {"t": "*"})
            await site.commit("a", group, "t", 1, 1)
        clock.passed_ms += 60_000
        snapshot = await collector.round()
        assert all(len(group_of(snapshot, each).members or ()) == 1 for each in groups)


async def test_topics_without_readers_are_read_in_a_fifth_of_the_rounds(site: Site) -> None:
    await site.start("a")
    await site.create({f"t{number}": 1 for number in range(50)}, ("g",))
    await site.commit("a", "g", "t0", 0)
    collector = site.collector()
    counts: list[int] = []
    for _ in range(2 * SLOW_EVERY):
        await site.send("a", "t0", 1, queues=1)
        counts.append((await collector.round()).request_count)
    assert counts[0] > 50
    assert max(counts[1:]) < 35
    # Each topic had its turn.
    found = topic_of(await collector.round(), "t7")
    assert found.as_of_ms is not None


async def test_an_idle_broker_is_asked_little(site: Site) -> None:
    await site.start("a")
    names = {f"t{number}": 1 for number in range(40)}
    await site.create(names, ("g",))
    for name in names:
        await site.commit("a", "g", name, 0)
    await site.send("a", "t1", 5, queues=1)
    collector = site.collector()
    await collector.round()
    second = await collector.round()
    assert second.request_count < 30
    assert topic_of(second, "t1").in_per_s == 0
    assert topic_of(second, "t1").today == 5


# -- brokers that do not answer --------------------------------------------------------------------


async def test_a_broker_that_is_down_is_unknown_and_never_zero(site: Site) -> None:
    await site.start("a")
    await site.start("b")
    await site.create({"both": 2}, ("g",))
    (at_a,) = await site.admin.clusters.brokers(broker="a", masters=True)
    await site.admin.topics.put(at_a, TopicConfig(topic_name="only-a", read_queue_count=1))
    await site.send("b", "both", 6)
    await site.commit("b", "g", "both", 1, 1)
    await site.send("a", "only-a", 3, queues=1)
    collector = site.collector()
    first = await collector.round()
    assert group_of(first, "g").lag == 4
    await site.stop("b")
    found = await collector.round()

    broker = found.broker("b")
    assert broker is not None
    assert not broker.answered
    assert "no connection" in broker.problem
    assert (broker.in_per_s, broker.in_today, broker.disk_ratio) == (None, None, None)
    assert broker.problem_since_ms is not None
    assert any(line.startswith("b (") for line in found.warnings)
    both, group = topic_of(found, "both"), group_of(found, "g")
    assert (both.missing, group.missing) == (("b",), ("b",))
    # What the other broker knows is 0, which says nothing.
    assert (both.in_per_s, both.stored, group.lag) == (None, None, None)
    assert found.totals.masters_missing == ("b",)
    assert found.totals.lag is None
    assert (topic_of(found, "only-a").stored, topic_of(found, "only-a").missing) == (3, ())

    await site.start("b")
    back = await collector.round()
    assert back.unanswered == ()
    assert group_of(back, "g").lag == 4
    assert topic_of(back, "both").today == 6


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        await reader.read(-1)


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        writer.write((64 * 1024 * 1024).to_bytes(4, "big") + b"x" * 1024)
        await reader.read(-1)


@pytest.mark.parametrize(
    ("answer", "reason"), [(_silent, "within 2000 ms|time"), (_endless, "frame|bytes|closed")]
)
async def test_a_broker_that_is_silent_or_endless_does_not_stop_the_others(
    site: Site, answer: Callable[..., Awaitable[None]], reason: str
) -> None:
    await site.start("a")
    await site.create({"t": 1})
    server = await asyncio.start_server(answer, LOOPBACK, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        asker = namesrv.Asker(site.namesrv)
        fake = namesrv.Broker(name="z", addr=f"{LOOPBACK}:{port}")
        registered = await fake.register(asker)
        assert registered.code == ResponseCode.SUCCESS
        found = await site.collector().round()
        (unanswered,) = found.unanswered
        assert unanswered.name == "z"
        assert re.search(reason, unanswered.problem), unanswered.problem
        assert topic_of(found, "t").missing == ("z",)
        assert topic_of(found, "t").queue_count == 1
        assert found.totals.brokers_answered == 1
        await site.admin.requests.close()
        await asker.client.close()


async def test_a_broker_that_does_not_answer_is_asked_one_request_in_each_round(
    site: Site,
) -> None:
    await site.start("a")
    frames: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                frames.append(size)

    server = await asyncio.start_server(count, LOOPBACK, 0)
    async with server, Admin(site.namesrv, timeout_ms=200) as impatient:
        site.admin = impatient
        port = server.sockets[0].getsockname()[1]
        asker = namesrv.Asker(site.namesrv)
        fake = namesrv.Broker(name="z", addr=f"{LOOPBACK}:{port}")
        await fake.register(asker)
        collector = site.collector()
        for number in range(1, 4):
            found = await collector.round()
            assert [each.name for each in found.unanswered] == ["z"]
            assert len(frames) == number
        await asker.client.close()


async def test_without_nameservers_the_last_names_stay_and_the_problem_is_named(
    site: Site,
) -> None:
    await site.start("a")
    await site.create({"t": 1})
    collector = site.collector()
    await collector.round()
    site.admin.requests.namesrvs[:] = [f"{LOOPBACK}:1"]
    found = await collector.round()
    assert found.problem.startswith("no nameserver responds")
    assert [each.answered for each in found.nameservers] == [False]
    # The brokers answer, whatever the nameservers do.
    assert topic_of(found, "t").today == 0


# -- days ------------------------------------------------------------------------------------------


async def test_the_day_of_the_first_start_is_counted_from_midnight(
    site: Site, engine: Engine
) -> None:
    await site.start("a")
    await site.create({"t": 2})
    await site.send("a", "t", 9)
    collector = site.collector(engine)
    found = await _leading(collector)
    assert topic_of(found, "t").today == 9
    assert topic_of(found, "t").yesterday == 0
    assert daily.check_of(found) == daily.Check(topics=9, brokers=9)


async def test_the_sum_over_topics_is_the_figure_of_the_brokers(site: Site) -> None:
    """Also of delayed messages, which a broker stores twice, and of dead letters."""
    await site.start("a", messageDelayLevel=" ".join(["1s"] * 18))
    await site.create({"t": 2, "%DLQ%g": 1}, ("g",))
    collector = site.collector()
    await collector.round()
    await site.send("a", "t", 9)
    async with site.peer("a") as peer:
        for _ in range(3):
            await peer.send("t", b"later", props={"DELAY": "1"})
        await peer.send("%DLQ%g", b"dead", queue_id=0)
    collector.watch(topics=["t", "%DLQ%g"])

    async def are_delivered() -> bool:
        return topic_of(await collector.round(), "t").today == 12

    await eventually(are_delivered, "delayed messages are delivered")
    found = await collector.round()
    assert group_of(found, "g").dead_letters_today == 1
    assert daily.check_of(found) == daily.Check(topics=13, brokers=13)


async def _leading(collector: Collector) -> Snapshot:
    """The first round of a collector with a database."""
    recorder = collector._recorder  # pyright: ignore[reportPrivateUsage]
    assert recorder is not None
    assert recorder.acquire()
    collector._state = collector._loaded()  # pyright: ignore[reportPrivateUsage]
    collector.is_leader = True
    return await collector.round()


async def test_counts_survive_restarts_of_the_console(site: Site, engine: Engine) -> None:
    await site.start("a")
    await site.create({"t": 2}, ("g",))
    await site.commit("a", "g", "t", 0, 0)
    first = site.collector(engine)
    await _leading(first)
    await site.send("a", "t", 6)
    await site.commit("a", "g", "t", 2, 1)
    await first.round()
    # While no console runs:
    await site.send("a", "t", 5)
    await site.commit("a", "g", "t", 4, 3)
    found = await _leading(site.collector(engine))
    assert topic_of(found, "t").today == 11
    stored = daily.totals_between(engine, "c", found.day, found.day, topic="t")
    assert [(row.group, row.produced, row.consumed, row.source) for row in stored] == [
        ("", 11, None, "offsets"),
        ("g", None, 7, "offsets"),
    ]


async def test_days_are_split_at_midnight_even_if_the_console_was_down(
    site: Site, engine: Engine
) -> None:
    """The broker is asked which offset each queue had at midnight."""
    await site.start("a")
    await site.create({"t": 2})
    clock = Clock()
    await _leading(site.collector(engine, clock=clock))
    await site.send("a", "t", 7)
    # All messages have the time of the broker, which stays today.
    today = days_at(wall_ms(), UTC)
    clock.jumped_ms = today.tomorrow_ms + 5_000 - wall_ms()
    found = await _leading(site.collector(engine, clock=clock))
    assert found.day == today.tomorrow
    assert (topic_of(found, "t").today, topic_of(found, "t").yesterday) == (0, 7)
    rows = daily.totals_between(engine, "c", today.today, today.tomorrow, topic="t")
    assert [(row.day, row.produced) for row in rows] == [(today.today, 7)]


async def test_a_clock_that_jumps_a_day_ahead_and_back_loses_no_counts(
    site: Site, engine: Engine
) -> None:
    await site.start("a")
    await site.create({"t": 1}, ("g",))
    await site.commit("a", "g", "t", 0)
    clock = Clock()
    collector = site.collector(engine, clock=clock)
    first = await _leading(collector)
    await site.send("a", "t", 3, queues=1)
    await site.commit("a", "g", "t", 1)
    await collector.round()
    clock.jumped_ms = 24 * 3_600_000
    await site.send("a", "t", 4, queues=1)
    ahead = await collector.round()
    assert ahead.day > first.day
    assert collector.is_fresh
    clock.jumped_ms = 0
    await site.send("a", "t", 5, queues=1)
    await site.commit("a", "g", "t", 12)
    back = await collector.round()
    assert back.day == first.day
    assert collector.is_fresh
    assert topic_of(back, "t").today == 12
    rows = daily.totals_between(engine, "c", "2000-01-01", "2999-01-01", topic="t")
    assert sum(row.produced or 0 for row in rows) == 12
    assert sum(row.consumed or 0 for row in rows) == 12
    rates = [each.in_per_s for each in back.topics if each.name == "t"]
    assert all(rate is not None and rate >= 0 for rate in rates)


async def test_rows_of_spark_are_not_overwritten(site: Site, engine: Engine) -> None:
    from tianzhou.monitor import tables as shared

    await site.start("a")
    await site.create({"t": 1})
    collector = site.collector(engine)
    first = await _leading(collector)
    await site.send("a", "t", 3, queues=1)
    with engine.begin() as connection:
        row = {
            "cluster": "c", "topic": "t", "consumer_group": "", "day": first.day, "hour": -1,
            "produced": 2, "produced_bytes": 77, "distinct_keys": 1, "source": "log",
            "updated_ms": 1,
        }  # fmt: skip
        shared.upsert(connection, shared.topic_stats, [row])
    await collector.round()
    (found,) = daily.totals_between(engine, "c", first.day, first.day, topic="t")
    assert (found.source, found.produced, found.produced_bytes) == ("log", 2, 77)


async def test_an_offset_that_is_set_back_is_a_reset(site: Site, engine: Engine) -> None:
    await site.start("a")
    await site.create({"t": 1}, ("g",))
    await site.send("a", "t", 9, queues=1)
    await site.commit("a", "g", "t", 2)
    collector = site.collector(engine)
    await _leading(collector)
    await site.commit("a", "g", "t", 8)
    await collector.round()
    await site.commit("a", "g", "t", 1)
    found = await collector.round()
    await site.commit("a", "g", "t", 3)
    found = await collector.round()
    (progress,) = group_of(found, "g").topics
    assert (progress.resets_today, progress.lag) == (1, 6)
    (row,) = daily.totals_between(engine, "c", found.day, found.day, topic="t", group="g")
    assert (row.consumed, row.resets) == (8, 1)


# -- history and database --------------------------------------------------------------------------


async def test_history_has_the_lag_and_the_messages_of_each_minute(
    site: Site, engine: Engine
) -> None:
    await site.start("a")
    await site.create({"t": 1}, ("g",))
    await site.commit("a", "g", "t", 0)
    clock = Clock()
    collector = site.collector(engine, clock=clock)
    begin = await _leading(collector)
    for sent in (6, 0, 3):
        await site.send("a", "t", sent, queues=1)
        clock.passed_ms += 60_000
        last = await collector.round()
    names = (SeriesName(history.GROUP, "g"), SeriesName(history.TOPIC, "t"))
    lag, produced = (
        history.chart(engine, "c", name, begin.as_of_ms, last.as_of_ms, now_ms=last.as_of_ms).points
        for name in names
    )
    assert [point.lag for point in lag] == [0, 6, 6, 9]
    per_s = [point.done_per_s for point in produced]
    assert per_s[0] is None
    assert per_s[1:] == pytest.approx([0.1, 0, 0.05], rel=0.2)
    sparks = history.recent(engine, "c", history.GROUP, ["g"], now_ms=last.as_of_ms, minutes=4)
    assert [point.lag for point in sparks["g"]] == [0, 6, 6, 9]


async def test_rounds_go_on_without_the_database_and_counts_are_written_later(
    site: Site, engine: Engine
) -> None:
    await site.start("a")
    await site.create({"t": 1})
    collector = site.collector(engine)
    await _leading(collector)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE console_snapshots RENAME TO away")
    await site.send("a", "t", 4, queues=1)
    await collector.round()
    without = await collector.round()
    assert topic_of(without, "t").today == 4
    assert any("database" in line for line in without.warnings)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO console_snapshots")
    await collector.round()
    after = await collector.round()
    assert not any("database" in line for line in after.warnings)
    (row,) = daily.totals_between(engine, "c", after.day, after.day, topic="t")
    assert row.produced == 4
