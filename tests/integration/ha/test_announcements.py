"""Announcements of changed topics and groups on real connections to the HA port of a master."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.brokers import eventually
from tests.support.ha import ScriptedSlave, hello
from tests.support.store import draft, open_store, small_config

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.replication.announcements import Announcements
from tianzhou.broker.state import BrokerState
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.ha.frames import CHANGES_BYTES_MAX, CHANGES_STATE, HEAD
from tianzhou.ha.listener import Listener
from tianzhou.ha.progress import Acknowledgements
from tianzhou.ha.tables import Table, TableChange, decode_changes
from tianzhou.limits import HA_CHANGES_MAX
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.store.message_store import MessageStore


@dataclass
class Master:
    """The tables of a broker, its log and its HA port."""

    state: BrokerState
    store: MessageStore
    listener: Listener
    announcements: Announcements
    port: int
    slaves: list[ScriptedSlave] = field(default_factory=list[ScriptedSlave])

    def append(self) -> None:
        self.store.append(draft("t", 0, b"x"))
        self.listener.log_grew()

    async def slave(self) -> ScriptedSlave:
        slave = await ScriptedSlave.connect(self.port, self.listener.issue_token(hello(1)))
        self.slaves.append(slave)
        await slave.report(0)
        return slave


@asynccontextmanager
async def master(folder: Path) -> AsyncGenerator[Master]:
    defaults = [Given("storePathRootDir", str(folder), "test")]
    settings = LiveSettings(load_broker_config(environ={}, defaults=defaults))
    state = BrokerState(settings, wall_ms, steady_ms)
    with open_store(small_config(folder)) as store:
        listener = Listener(store, Acknowledgements(2))
        port = await listener.start("127.0.0.1", 0)
        announcements = Announcements(state, listener)
        announcements.begin()
        it = Master(state, store, listener, announcements, port)
        try:
            yield it
        finally:
            announcements.end()
            await listener.stop()
            for slave in it.slaves:
                slave.close()


async def changes(slave: ScriptedSlave) -> list[TableChange]:
    """Those of the next frame, which must have some."""
    state, size, *_ = HEAD.unpack(await slave.exactly(HEAD.size))
    assert state == CHANGES_STATE
    return list(decode_changes(await slave.exactly(size)))


async def test_a_connection_that_begins_gets_recent_changes_before_the_log(
    tmp_path: Path,
) -> None:
    async with master(tmp_path) as it:
        topic = TopicConfig(topic_name="made", read_queue_count=3, order=True)
        it.state.topics.put(TopicConfig(topic_name="made"))
        it.append()
        it.state.groups.put(SubscriptionGroupConfig(group_name="readers", retry_max_times=5))
        it.state.topics.put(topic)
        slave = await it.slave()
        group, made = await changes(slave)
        assert (group.table, group.group) == (Table.GROUPS, it.state.groups.get("readers"))
        assert (made.table, made.topic) == (Table.TOPICS, topic)
        assert made.counter == it.state.topics.data_version.counter
        await slave.follow(it.store.end_log_offset)


async def test_a_removed_entry_and_one_too_long_mean_that_the_table_is_read(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        it.state.topics.put(TopicConfig(topic_name="gone"))
        it.state.topics.remove("gone")
        long = TopicConfig(topic_name="long", attributes={"x": "x" * CHANGES_BYTES_MAX})
        it.state.topics.put(long)
        slave = await it.slave()
        for change in await changes(slave):
            assert (change.table, change.topic, change.group) == (Table.TOPICS, None, None)


async def test_only_the_newest_changes_are_kept_for_connections_that_begin(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        for number in range(HA_CHANGES_MAX + 5):
            it.state.topics.put(TopicConfig(topic_name=f"t{number}"))
            if number % 100 == 0:
                await asyncio.sleep(0)
        slave = await it.slave()
        names = list[str | None]()
        while len(names) < HA_CHANGES_MAX:
            names += [each.topic.topic_name for each in await changes(slave) if each.topic]
        assert names == [f"t{number}" for number in range(5, HA_CHANGES_MAX + 5)]


async def test_nothing_is_announced_after_the_end(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        slave = await it.slave()
        await eventually(lambda: it.listener.status()[0].is_ours, "the slave")
        it.announcements.end()
        it.state.topics.put(TopicConfig(topic_name="later"))
        it.append()
        await slave.follow(it.store.end_log_offset)
