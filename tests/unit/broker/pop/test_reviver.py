"""Popped messages: loading the index at a start, and reviving despite failures."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.pop.index import PopIndex
from tianzhou.broker.pop.inflight import Change, InFlight, Key
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.errors import StoreError
from tianzhou.protocol import properties
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import Appended, Draft, MessageStore

HOST = ("127.0.0.1", 10911)
KEY = Key("g", "t", 0)
RETRY = "%RETRY%g_t"
NOW_MS = 1_700_000_000_000
DEADLINE_S = 60.0

SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 17, "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 50, "maxIndexNum": 500, "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 99, "diskSpaceWarningLevelRatio": 100,
}  # fmt: skip


@dataclass
class Bench:
    """The dependencies of `Pops`, without a broker."""

    root: Path
    store: MessageStore
    topics: TopicTable
    offsets: OffsetTable
    now_ms: int = NOW_MS
    saves_left: int = 1000
    visible_count: int = 0
    timed_until_ms: int = NOW_MS
    looks: int = 0

    def timed_until(self) -> int:
        self.looks += 1
        return self.timed_until_ms

    def send(self, *bodies: bytes, topic: str = "t", text: str = "") -> None:
        for body in bodies:
            self.store.append(Draft(topic, 0, body, text, self.now_ms, HOST, HOST))

    def pops(self) -> Pops:
        given = [
            Given(key, str(value), "test", deliberate=True)
            for key, value in (SETTINGS | {"storePathRootDir": self.root}).items()
        ]

        async def saved() -> bool:
            self.saves_left -= 1
            return self.saves_left >= 0

        def visible(_: str) -> None:
            self.visible_count += 1

        settings = LiveSettings(load_broker_config(environ={}, flags=given))
        return Pops(
            settings, self.store, Durability(self.store, settings), self.topics,
            GroupTable(lambda: self.now_ms), self.offsets, Stats(started_ms=0),
            lambda: self.now_ms, lambda: self.now_ms, HOST, saved, visible,
             timed_until_ms=self.timed_until,
        )  # fmt: skip

    def noted(self, *changes: Change) -> None:
        """Write to the index before it is opened next."""
        index = PopIndex.open(self.root / "pop" / "inflight.sqlite")
        index.write(changes)
        index.close()

    def bodies(self, topic: str) -> list[bytes]:
        read = self.store.read(topic, 0, 0, 100)
        return [decode_record(each).body for each in read.records]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    given = [
        Given(key, str(value), "test", deliberate=True)
        for key, value in (SETTINGS | {"storePathRootDir": tmp_path}).items()
    ]
    config = load_broker_config(environ={}, flags=given).config
    store = MessageStore.open(config, clock=lambda: NOW_MS)
    yield Bench(tmp_path, store, TopicTable((), lambda: NOW_MS), OffsetTable())
    store.close()


@asynccontextmanager
async def running(pops: Pops) -> AsyncGenerator[None]:
    task = asyncio.create_task(pops.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pops.stop()


async def until(condition: Callable[[], object]) -> None:
    """Poll until the condition holds."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        seen = condition()
        if seen:
            return
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S} s, last seen {seen!r}"
        await asyncio.sleep(0.005)


# -- what a start makes of its files ---------------------------------------------------------------


async def test_messages_beyond_the_end_of_the_log_are_not_popped(bench: Bench) -> None:
    """A power cut truncated the log."""
    bench.send(b"a", b"b", b"c")
    rows = tuple(InFlight(at, NOW_MS, 1000) for at in (1, 2, 7))
    bench.noted(Change(KEY, 9, put=rows))
    pops = bench.pops()
    assert pops.next_offset(KEY) == 3
    assert [row.queue_offset for row in pops.table.in_flight(KEY)] == [1, 2]
    assert bench.offsets.find(*KEY) == 1
    await pops.stop()
    pops = bench.pops()
    assert pops.next_offset(KEY) == 3, "and that is what the index says from now on"
    await pops.stop()


async def test_committed_messages_are_not_popped_again(bench: Bench) -> None:
    """The index is older than the offsets: a power cut, or another broker used the store."""
    bench.send(b"a", b"b", b"c", b"d")
    bench.noted(Change(KEY, 2, put=(InFlight(0, NOW_MS, 1), InFlight(1, NOW_MS, 1))))
    bench.offsets.commit(*KEY, 3)
    pops = bench.pops()
    assert pops.next_offset(KEY) == 3
    assert pops.table.in_flight_count == 0
    await pops.stop()


async def test_offsets_that_were_not_saved_follow_the_index(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c")
    bench.noted(Change(KEY, 3, put=(InFlight(2, NOW_MS, 1000),)))
    bench.offsets.commit(*KEY, 1)
    pops = bench.pops()
    assert (pops.next_offset(KEY), bench.offsets.find(*KEY)) == (3, 2)
    await pops.stop()


# -- what RocketMQ left ----------------------------------------------------------------------------

NOTES = "rmq_sys_REVIVE_LOG_DefaultCluster"
NOTES_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"


def check_point(start_offset: int, count: int, pop_time_ms: int, invisible_ms: int) -> bytes:
    note = {
        "bm": 0, "bn": "b", "c": "g", "d": list(range(count)), "it": invisible_ms, "n": count,
        "pt": pop_time_ms, "q": 0, "so": start_offset, "t": "t",
    }  # fmt: skip
    return json.dumps(note).encode()


def ack_of(start_offset: int, queue_offset: int, pop_time_ms: int) -> bytes:
    note = {
        "ao": queue_offset, "bn": "b", "c": "g", "pt": pop_time_ms, "q": 0, "so": start_offset,
        "t": "t",
    }  # fmt: skip
    return json.dumps(note).encode()


async def test_unacknowledged_messages_of_rocketmq_are_redelivered(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c", b"d")
    bench.offsets.commit(*KEY, 3)
    long_ago_ms = NOW_MS - 60_000
    bench.send(check_point(0, 3, long_ago_ms, 1000), topic=NOTES, text="TAGS\x01ck\x02")
    bench.send(ack_of(0, 1, long_ago_ms), topic=NOTES, text="TAGS\x01ack\x02")
    bench.send(b"no note", topic=NOTES, text="TAGS\x01ck\x02")
    pops = bench.pops()
    async with running(pops):
        await until(lambda: bench.bodies(RETRY) == [b"a", b"c"] and not pops.table.in_flight_count)
        assert bench.offsets.find(NOTES_GROUP, NOTES, 0) == 2
    assert (pops.next_offset(KEY), bench.offsets.find(*KEY)) == (3, 3)
    pops = bench.pops()
    async with running(pops):
        # A record written later is read as well: it was delayed by the timer.
        bench.send(check_point(2, 2, long_ago_ms, 2000), topic=NOTES, text="TAGS\x01ck\x02")
        pops.clock_changed()
        await until(lambda: len(bench.bodies(RETRY)) == 3)
        await until(lambda: bench.offsets.find(NOTES_GROUP, NOTES, 0) == 3)
    assert bench.bodies(RETRY)[2] == b"c", "what the group has not come to is popped anyway"


async def test_checkpoints_wait_for_acknowledgements_in_the_timer(
    bench: Bench,
) -> None:
    bench.send(b"a", b"b")
    bench.offsets.commit(*KEY, 2)
    popped_ms = NOW_MS - 60_000
    bench.timed_until_ms = popped_ms
    bench.send(check_point(0, 2, popped_ms, 1000), topic=NOTES, text="TAGS\x01ck\x02")
    pops = bench.pops()
    async with running(pops):
        await until(lambda: bench.looks > 1)
        assert (bench.bodies(RETRY), bench.offsets.find(NOTES_GROUP, NOTES, 0)) == ([], -1)
        bench.send(ack_of(0, 0, popped_ms), topic=NOTES, text="TAGS\x01ack\x02")
        bench.timed_until_ms = NOW_MS
        pops.clock_changed()
        await until(lambda: bench.bodies(RETRY) == [b"b"])


async def test_messages_that_were_popped_here_meanwhile_keep_their_order(bench: Bench) -> None:
    """The committed offset is the first message in flight."""
    bench.send(*(b"%d" % number for number in range(6)))
    bench.offsets.commit(*KEY, 4)
    bench.send(check_point(1, 2, NOW_MS - 60_000, 1000), topic=NOTES, text="TAGS\x01ck\x02")
    bench.saves_left = 0  # What is revived stays in flight.
    pops = bench.pops()
    pops.apply([Change(KEY, 6, put=(InFlight(4, NOW_MS, 60_000), InFlight(5, NOW_MS, 60_000)))])
    async with running(pops):
        await until(lambda: pops.table.count(KEY) == 4)
        assert [row.queue_offset for row in pops.table.in_flight(KEY)] == [1, 2, 4, 5]
        assert bench.offsets.find(*KEY) == 1


# -- reviving --------------------------------------------------------------------------------------


async def test_a_due_message_is_stored_again_once(bench: Bench) -> None:
    bench.send(b"a", b"b")
    pops = bench.pops()
    pops.apply([Change(KEY, 2, put=(InFlight(0, NOW_MS, 0), InFlight(1, NOW_MS, 60_000)))])
    async with running(pops):
        await until(lambda: bench.offsets.find(*KEY) == 1)
    assert bench.bodies(RETRY) == [b"a"]
    assert bench.topics.get(RETRY) is not None
    assert bench.visible_count > 0
    pops = bench.pops()
    async with running(pops):
        await until(lambda: pops.table.count(KEY) == 1)
    assert bench.bodies(RETRY) == [b"a"], "it is not revived by the next run"


async def test_a_message_that_the_log_has_deleted_is_dropped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"a")
    pops = bench.pops()
    # No message is at this offset, as if its file had expired.
    pops.apply([Change(Key("g", "gone", 0), 1, put=(InFlight(0, NOW_MS, 0),))])
    with caplog.at_level(logging.WARNING):
        async with running(pops):
            await until(lambda: pops.table.in_flight_count == 0)
    assert "1 were not acknowledged and cannot be redelivered" in caplog.text


async def test_a_refused_append_is_retried_and_no_message_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(b"a", b"b", b"c")
    pops = bench.pops()
    append = MessageStore.append
    refused: list[str] = []

    def refusing(store: MessageStore, draft: Draft) -> Appended:
        if draft.body == b"b" and len(refused) < 2:
            refused.append(draft.topic)
            pops.clock_changed()
            raise StoreError("the disk is full")
        return append(store, draft)

    monkeypatch.setattr(MessageStore, "append", refusing)
    rows = tuple(InFlight(at, NOW_MS, 0) for at in range(3))
    pops.apply([Change(KEY, 3, put=rows)])
    async with running(pops):
        await until(lambda: pops.table.in_flight_count == 0)
    assert len(refused) == 2
    assert sorted(bench.bodies(RETRY)) == [b"a", b"b", b"c"]


async def test_rows_stay_until_the_retry_topic_is_saved(bench: Bench) -> None:
    bench.send(b"a")
    bench.saves_left = 0
    pops = bench.pops()
    pops.apply([Change(KEY, 1, put=(InFlight(0, NOW_MS, 0),))])
    async with running(pops):
        await until(lambda: bench.bodies(RETRY))
        assert pops.table.count(KEY) == 1
        bench.saves_left = 1000
        pops.clock_changed()
        await until(lambda: pops.table.count(KEY) == 0)
    assert set(bench.bodies(RETRY)) == {b"a"}


async def test_properties_without_space_for_more_are_stored_unchanged(bench: Bench) -> None:
    text = properties.encode({"k": "v" * 32_700})
    bench.send(b"a", text=text)
    pops = bench.pops()
    pops.apply([Change(KEY, 1, put=(InFlight(0, NOW_MS, 0),))])
    async with running(pops):
        await until(lambda: pops.table.in_flight_count == 0)
    (record,) = bench.store.read(RETRY, 0, 0, 10).records
    again = decode_record(record)
    assert again.properties == {"k": "v" * 32_700}
    assert again.reconsume_count == 1
