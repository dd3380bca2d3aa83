"""A slave uses its master's progress of delayed and timed messages, and continues from it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import SMALL, eventually

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.scheduled.timer_checkpoint import (
    TimerCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.names import TIMER_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
NOON_MS = 1_700_000_000_000


class Clock:
    """A clock that the test moves."""

    now_ms = NOON_MS

    def __call__(self) -> int:
        return self.now_ms


class Slave:
    """The store, the tables and the scheduled messages of a slave."""

    def __init__(self, root: Path) -> None:
        pairs = SMALL | {"storePathRootDir": root, "messageDelayLevel": "1s 5s"}
        given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
        self.settings = LiveSettings[BrokerConfig](load_broker_config(environ={}, flags=given))
        self.clock = Clock()
        self.store = MessageStore.open(self.settings.config, clock=self.clock)
        self.state = BrokerState(self.settings, self.clock, self.clock)
        self.scheduled = ScheduledMessages(
            self.settings, self.store, Durability(self.store, self.settings), self.state.topics,
            self.clock,
        )  # fmt: skip
        self.state.load()
        self.state.add_files(self.scheduled.encoders())

    def copied(self, body: bytes, **props: str) -> None:
        """A message that the master has stored, and that waits."""
        text = properties.encode(props)
        draft = Draft("t", 0, body, text, self.clock.now_ms, HOST, HOST)
        instead = self.scheduled.redirect(draft, props)
        assert instead is not None
        self.store.append(instead)

    def delivered(self) -> list[bytes]:
        records = self.store.read("t", 0, 0, 32).records
        return [decode_record(record).body for record in records]

    async def close(self) -> None:
        await self.scheduled.stop()
        await self.state.close()
        self.store.close()


@asynccontextmanager
async def slave(root: Path) -> AsyncGenerator[Slave]:
    it = Slave(root)
    try:
        yield it
    finally:
        await it.close()


async def test_a_slave_continues_from_the_delay_offsets_of_its_master(tmp_path: Path) -> None:
    async with slave(tmp_path) as it:
        for body in (b"1", b"2", b"3"):
            it.copied(body, DELAY="1")
        it.scheduled.replace_delays({"offsetTable": {1: 2}, "dataVersion": {"counter": 9}})
    async with promoted(tmp_path) as it:
        await eventually(it.delivered, "a delivered message")
        assert it.delivered() == [b"3"], "the master has delivered the others"


async def test_a_slave_continues_from_the_timer_of_its_master(tmp_path: Path) -> None:
    async with slave(tmp_path) as it:
        for body in (b"1", b"2", b"3"):
            it.copied(body, TIMER_DELAY_SEC="5")
        done = TimerCheckpoint(NOON_MS + 9_000, 2, 2, NOON_MS)
        it.scheduled.replace_timer(done, is_ours=True)
    async with promoted(tmp_path) as it:
        await eventually(it.delivered, "a delivered message")
        assert it.delivered() == [b"3"]
        assert it.store.max_offset(TIMER_TOPIC, 0) == 3


@pytest.mark.parametrize("is_ours", [True, False])
async def test_an_index_of_a_former_mastership_is_not_used(tmp_path: Path, is_ours: bool) -> None:
    async with slave(tmp_path) as it:
        it.copied(b"1", TIMER_DELAY_SEC="5")
        it.scheduled.start()
        timer = it.scheduled.timer
        await eventually(lambda: timer and timer.index.waiting_count, "an indexed message")
    async with slave(tmp_path) as it:
        # Delivered long ago: the log has no copy of it any more.
        check = TimerCheckpoint(NOON_MS + 9_000, 1, 1, NOON_MS)
        it.scheduled.replace_timer(check, is_ours=is_ours)
        it.copied(b"2", TIMER_DELAY_SEC="5")
    async with promoted(tmp_path) as it:
        await eventually(it.delivered, "a delivered message")
        assert it.delivered() == [b"2"]


@asynccontextmanager
async def promoted(root: Path) -> AsyncGenerator[Slave]:
    """The slave as the master, ten seconds later."""
    async with slave(root) as it:
        it.clock.now_ms += 10_000
        it.scheduled.start()
        yield it


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_slave_saves_the_progress_of_its_master_and_none_of_its_own(
    tmp_path: Path, is_ours: bool
) -> None:
    check = TimerCheckpoint(NOON_MS + 9_000, 7, 6, NOON_MS)
    async with slave(tmp_path) as it:
        it.copied(b"1", DELAY="1")
        it.copied(b"2", TIMER_DELAY_SEC="5")
        it.scheduled.replace_delays({"offsetTable": {"1": 4}, "dataVersion": {"counter": 9}})
        it.scheduled.replace_timer(check, is_ours=is_ours)
    saved = decode_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert saved == (check, is_ours)
    async with slave(tmp_path) as it:
        assert it.scheduled.delays.safe_offsets == {1: 4}
        assert it.scheduled.delays.data_version.counter == 9


def test_a_checkpoint_of_rocketmq_is_not_marked_as_ours() -> None:
    check = TimerCheckpoint(1, 2, 3, 4)
    assert decode_checkpoint(encode_checkpoint(check)) == (check, True)
    assert decode_checkpoint(encode_checkpoint(check, is_ours=False)) == (check, False)
