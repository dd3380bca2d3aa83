"""Delays, timer, transactions and pops of a slave: built and stopped, they change nothing.

A master leaves messages of each kind behind that become due while its store is a slave's. A slave
builds the same parts (a promotion starts them), and everything that it leaves behind is its
master's: the log, the offsets, the topics and the progress of deliveries.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path

from tests.support.brokers import SMALL, cluster, eventually
from tests.support.pop import pop

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.pop.inflight import Key
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.halves import Halves
from tianzhou.broker.transactions.rules import GROUP, QUEUE_ID
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.names import CHECK_MAX_TOPIC, HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.sysflag import TRANSACTION_PREPARED
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 1)
DAY_MS = 24 * 3600 * 1000


async def leave_messages(folder: Path) -> None:
    """A delayed, a timed, a half and a popped message, and a half that was given up."""
    async with cluster(folder) as it:
        peer, store = it.peer, it.broker.store
        await peer.send("t", b"delayed", props={properties.DELAY_LEVEL: "16"})
        in_an_hour = str(wall_ms() + 3_600_000)
        await peer.send("t", b"timed", props={properties.TIMER_DELIVER_MS: in_an_hour})
        half = {properties.TRANSACTION_PREPARED: "true", properties.PRODUCER_GROUP: "p"}
        await peer.send("t", b"half", props=half, sys_flag=TRANSACTION_PREPARED)
        for number in range(3):
            await peer.send("t", str(number).encode(), queue_id=0)
        assert await pop(peer, topic="t", group="g", queue_id=0, count=1)
        store.append(Draft(CHECK_MAX_TOPIC, 0, b"given up", "", 1, HOST, HOST))
        await eventually(lambda: it.broker.offsets.find("g", "t", 0) >= 0, "a committed offset")


class Parts:
    """What `assemble` builds of these packages."""

    def __init__(self, folder: Path, **pairs: object) -> None:
        store_folder = folder / "store"
        everything = (
            SMALL
            | {"storePathRootDir": store_folder, "brokerConfigPath": folder / "b.properties"}
            | pairs
        )
        given = [Given(key, str(value), "test") for key, value in everything.items()]
        self.settings = settings = LiveSettings(load_broker_config(environ={}, flags=given))
        self.config_folder = settings.config.config_directory

        def clock() -> int:
            return wall_ms() + DAY_MS  # everything is due

        self.store = store = MessageStore.open(settings.config, clock=clock)
        self.state = state = BrokerState(settings, clock, steady_ms)
        durability = Durability(store, settings)
        state.load()
        self.scheduled = ScheduledMessages(settings, store, durability, state.topics, clock)
        state.add_files(self.scheduled.encoders())
        self.topics_before = dict(state.topics.topics)
        self.end = store.end_log_offset
        self.pops = Pops(
            settings=settings, store=store, durability=durability, topics=state.topics,
            groups=state.groups, offsets=state.offsets, stats=state.stats, clock=clock,
            steady=steady_ms,
            store_host=HOST, topics_saved=state.save, on_visible=lambda _: None,
        )  # fmt: skip
        self.halves = Halves(
            settings=settings, store=store, durability=durability, writer=MessageWriter(store),
            offsets=state.offsets,
            clock=clock, steady=steady_ms, store_host=HOST,
        )  # fmt: skip
        self.checks = CheckLoop(self.halves, state.topics, lambda _: True)

    async def stop(self) -> None:
        await self.checks.stop()
        await self.pops.stop()
        await self.scheduled.stop()
        await self.state.close()
        await asyncio.to_thread(self.store.close)


@asynccontextmanager
async def slave_parts(folder: Path) -> AsyncGenerator[Parts]:
    parts = Parts(folder, brokerRole="SLAVE", brokerId=1)
    try:
        yield parts
    finally:
        await parts.stop()


def progress(folder: Path) -> dict[str, bytes]:
    config = folder / "store" / "config"
    return {name: (config / name).read_bytes() for name in ("delayOffset.json", "timercheck")}


async def test_slave_parts_change_neither_log_nor_tables(tmp_path: Path) -> None:
    await leave_messages(tmp_path)
    before = progress(tmp_path)
    async with slave_parts(tmp_path) as parts:
        # The progress of checks is copied from the master.
        parts.state.offsets.commit(GROUP, HALF_TOPIC, QUEUE_ID, 1, always=True)
        copied = deepcopy(parts.state.offsets.by_key)
    assert parts.store.end_log_offset == parts.end
    assert parts.state.offsets.by_key == copied
    assert progress(tmp_path) == before, "a slave has delivered nothing"


async def test_slave_creates_no_topic_for_halves_that_were_given_up(tmp_path: Path) -> None:
    await leave_messages(tmp_path)
    async with slave_parts(tmp_path) as parts:
        assert parts.state.topics.topics == parts.topics_before
        assert CHECK_MAX_TOPIC not in parts.topics_before


async def test_slave_forgets_messages_in_flight_of_its_time_as_master(tmp_path: Path) -> None:
    """Their offsets may belong to other messages once another broker was the master."""
    await leave_messages(tmp_path)
    async with slave_parts(tmp_path) as parts:
        assert len(parts.pops.table) == 0
        committed = parts.state.offsets.find("g", "t", 0)
    again = Parts(tmp_path)
    try:
        assert again.pops.next_offset(Key("g", "t", 0)) == committed
        assert again.pops.table.in_flight_count == 0
    finally:
        await again.stop()
