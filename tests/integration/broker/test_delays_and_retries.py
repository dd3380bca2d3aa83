"""Delayed messages: delay levels, timed messages, retries, dead letters, over real sockets.

The broker's clock is the real one plus a shift that the test changes, so no test waits for minutes.
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.brokers import (
    SMALL,
    Peer,
    bodies_in,
    eventually,
    messages_in,
    peer_of,
    send_fields,
)

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.scheduled.timer_index import TimerIndex
from tianzhou.broker.server import Broker
from tianzhou.broker.storing import disk_prefetch
from tianzhou.clock import wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.message import StoredMessage
from tianzhou.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.queues import MessageQueue, QueueLockBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.recall import decode_handle
from tianzhou.store.message_store import MessageStore

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGAN_MS = wall_ms()
"""The time of all clocks until the test advances them: results do not depend on speed."""


@dataclass(slots=True)
class Running:
    """A broker whose clock can be set, and a peer of it."""

    broker: Broker
    peer: Peer
    shift_ms: list[int] = field(default_factory=lambda: [0])

    def advance(self, ms: int) -> None:
        self.shift_ms[0] += ms
        self.broker.clock_moved()

    def now_ms(self) -> int:
        return BEGAN_MS + self.shift_ms[0]

    async def visible_messages(self, topic: str, queue_count: int = 4) -> list[StoredMessage]:
        """All messages of a topic that a consumer can see."""
        messages: list[StoredMessage] = []
        for queue_id in range(queue_count):
            offset = 0
            while True:
                answer = await self.peer.pull("g", topic, queue_id, offset, sys_flag=4)
                if answer.code != ResponseCode.SUCCESS:
                    break
                messages += messages_in(answer)
                offset = int(answer.fields["nextBeginOffset"])
        return messages

    async def arrived(self, topic: str, count: int, queue_count: int = 4) -> list[StoredMessage]:
        seen: list[StoredMessage] = []

        async def enough() -> bool:
            seen[:] = await self.visible_messages(topic, queue_count)
            return len(seen) >= count

        await eventually(enough, f"{count} messages of {topic}")
        assert len(seen) == count
        return seen

    async def count_stays(self, topic: str, count: int, queue_count: int = 4) -> None:
        """After a later message was delivered, there are still `count`."""
        await self.peer.send(f"probe-{topic.strip('%')}", b"probe")
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(await self.visible_messages(topic, queue_count)) == count

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """How many messages were stored in a queue."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        return int((await self.peer.expect(RequestCode.GET_MAX_OFFSET, fields)).fields["offset"])

    async def send_back(self, message: StoredMessage, **changes: str) -> Command:
        fields = {"offset": str(message.log_offset), "group": "g", "delayLevel": "0"} | changes
        return await self.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    async def group(self, **settings: object) -> None:
        body = json.dumps({"groupName": "g", **settings}).encode()
        await self.peer.expect(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


@asynccontextmanager
async def running(
    store: Path, shift_ms: list[int] | None = None, **settings: object
) -> AsyncGenerator[Running]:
    pairs = SMALL | {
        "storePathRootDir": store, "brokerConfigPath": store / "b.properties",
        "messageDelayLevel": "1s 5s 10s 30s", "recallMessageEnable": "true",
    } | settings  # fmt: skip
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    shift = shift_ms if shift_ms is not None else [0]
    loaded = load_broker_config(environ={}, flags=given)

    def now_ms() -> int:
        return BEGAN_MS + shift[0]

    broker = Broker(LiveSettings(loaded), clock=now_ms, steady=now_ms)
    try:
        await broker.start()
        async with peer_of(broker.address) as peer:
            yield Running(broker, peer, shift)
    finally:
        await broker.stop()


# -- delay levels ----------------------------------------------------------------------------------


async def test_delayed_message_is_delivered_after_its_level(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        sent = await it.peer.send(
            "t", b"later", queue_id=2, props={"DELAY": "3", "TAGS": "a", "KEYS": "k"}
        )
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        assert sent.fields["queueId"] == "2"
        sent_ms = it.now_ms()
        it.advance(9_000)
        await it.count_stays("t", 0)
        it.advance(1_000)
        (message,) = await it.arrived("t", 1)
        assert message.body == b"later"
        assert message.queue_id == 2
        assert message.store_time_ms >= sent_ms + 9_990
        assert message.born_time_ms <= wall_ms()
        assert "DELAY" not in message.properties
        assert message.properties["REAL_TOPIC"] == "t"
        assert message.properties["REAL_QID"] == "2"
        tagged = await it.peer.pull("g", "t", 2, 0, subscription="a")
        assert bodies_in(tagged) == [b"later"]
        assert (await it.peer.pull("g", "t", 2, 0, subscription="b")).code != ResponseCode.SUCCESS


@pytest.mark.parametrize("wait", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "10"}])
async def test_due_message_restores_a_topic_that_a_crash_lost(
    tmp_path: Path, wait: dict[str, str]
) -> None:
    async with running(tmp_path) as it:
        await it.peer.send("t", b"later", queue_id=2, props=wait)
        # As if the broker had been killed before the new topic was saved.
        assert it.broker.topics.remove("t")
        it.advance(10_000)
        await eventually(lambda: it.broker.topics.get("t"), "the topic")
        (message,) = await it.arrived("t", 1)
        assert (message.body, message.queue_id) == (b"later", 2)


@pytest.mark.parametrize("wait", [{"DELAY": "2"}, {"TIMER_DELAY_SEC": "5"}])
async def test_messages_are_prefetched_before_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: dict[str, str]
) -> None:
    fetched: list[str] = []
    fetch = disk_prefetch.prefetch

    def fetching(store: MessageStore, ranges: Iterable[disk_prefetch.QueueRange]) -> None:
        ranges = list(ranges)
        fetched.extend(each.topic for each in ranges)
        fetch(store, ranges)

    monkeypatch.setattr(disk_prefetch, "prefetch", fetching)
    monkeypatch.setattr(disk_prefetch, "HOT_BYTES", 0)
    async with running(tmp_path) as it:
        await it.peer.send("t", b"later", props=wait)
        it.advance(4_000)
        topic = SCHEDULE_TOPIC if "DELAY" in wait else TIMER_TOPIC
        await eventually(lambda: topic in fetched, "fetched")
        it.advance(1_000)
        await it.arrived("t", 1)


async def test_parked_pull_is_woken_by_a_due_message(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.peer.send("t", b"now")
        waiting = asyncio.create_task(it.peer.pull("g", "t", 0, 1, sys_flag=6, suspend_ms=15_000))
        await eventually(lambda: len(it.broker.parked), "a parked pull")
        await it.peer.send("t", b"later", props={"DELAY": "1"})
        it.advance(1_000)
        assert bodies_in(await waiting) == [b"later"]


@pytest.mark.parametrize(("level", "delay_ms"), [("4", 30_000), ("5", 30_000), ("99", 30_000)])
async def test_a_level_above_the_highest_is_the_highest(
    tmp_path: Path, level: str, delay_ms: int
) -> None:
    async with running(tmp_path) as it:
        await it.peer.send("t", b"x", props={"DELAY": level})
        assert await it.max_offset(SCHEDULE_TOPIC, 3) == 1
        it.advance(delay_ms)
        assert len(await it.arrived("t", 1)) == 1


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_a_level_below_one_is_no_delay(tmp_path: Path, level: str) -> None:
    async with running(tmp_path) as it:
        await it.peer.send("t", b"x", props={"DELAY": level})
        assert len(await it.visible_messages("t")) == 1


async def test_progress_is_saved_in_the_format_of_rocketmq(tmp_path: Path) -> None:
    shift = [0]
    async with running(tmp_path, shift) as it:
        for number in range(3):
            await it.peer.send("t", b"%d" % number, props={"DELAY": "1"})
        await it.peer.send("t", b"long", props={"DELAY": "4"})
        it.advance(1_000)
        await it.arrived("t", 3)
    saved = json.loads((tmp_path / "config" / "delayOffset.json").read_bytes())
    assert saved["offsetTable"]["1"] == 3
    assert saved["offsetTable"].get("4", 0) == 0
    async with running(tmp_path, shift) as it:
        await it.count_stays("t", 3)
        it.advance(29_000)
        assert [each.body for each in await it.arrived("t", 4)][-1] == b"long"


async def test_messages_that_became_due_while_stopped_are_delivered_at_the_start(
    tmp_path: Path,
) -> None:
    shift = [0]
    async with running(tmp_path, shift) as it:
        await it.peer.send("t", b"delayed", props={"DELAY": "2"})
        await it.peer.send("t", b"timed", props={"TIMER_DELAY_SEC": "60"})
    shift[0] += HOUR_MS
    async with running(tmp_path, shift) as it:
        assert {each.body for each in await it.arrived("t", 2)} == {b"delayed", b"timed"}


# -- any moment ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]
)  # fmt: skip
async def test_timed_message_is_delivered_at_its_time(tmp_path: Path, asked: str) -> None:
    async with running(tmp_path) as it:
        start_ms = it.now_ms()
        wanted = {
            "TIMER_DELAY_SEC": "20", "TIMER_DELAY_MS": "20000",
            "TIMER_DELIVER_MS": str(start_ms + 20_000),
        }[asked]  # fmt: skip
        sent = await it.peer.send("t", b"timed", queue_id=1, props={asked: wanted, "UNIQ_KEY": "u"})
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        it.advance(19_000)
        await it.count_stays("t", 0)
        it.advance(1_000)
        (message,) = await it.arrived("t", 1)
        assert message.store_time_ms >= start_ms + 20_000
        assert message.queue_id == 1
        assert "REAL_TOPIC" not in message.properties
        assert message.properties[asked] == wanted


async def test_timed_message_in_the_past_is_delivered_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.peer.send("t", b"x", props={"TIMER_DELIVER_MS": str(it.now_ms() - 1)})
        await it.peer.send("t", b"y", props={"TIMER_DELAY_MS": "0"})
        assert len(await it.visible_messages("t")) == 2


async def test_delay_level_takes_precedence_over_a_time(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.peer.send("t", b"x", props={"DELAY": "1", "TIMER_DELAY_SEC": "999"})
        it.advance(1_000)
        (message,) = await it.arrived("t", 1)
        assert "TIMER_DELAY_SEC" not in message.properties


async def test_timed_messages_can_be_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path, timerWheelEnable="false") as it:
        answer = await it.peer.send("t", b"x", props={"TIMER_DELAY_SEC": "9"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable" in (answer.remark or "")
        assert not (tmp_path / "timer").exists()


async def test_messages_are_delivered_in_the_order_of_their_times(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        moment_ms = it.now_ms() + 60_000
        for late_ms in (300, 100, 200, 0):
            await it.peer.send(
                "t", b"%d" % late_ms, props={"TIMER_DELIVER_MS": str(moment_ms + late_ms)}
            )
        it.advance(61_000)
        seen = [each.body for each in await it.arrived("t", 4)]
        assert seen == [b"0", b"100", b"200", b"300"]


async def test_recalled_message_is_never_delivered(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        answers = [
            await it.peer.send("t", b"%d" % n, props={"TIMER_DELAY_SEC": "30", "UNIQ_KEY": f"u{n}"})
            for n in range(3)
        ]
        handle = answers[1].fields["recallHandle"]
        assert decode_handle(handle).unique_key == "u1"
        fields = {"topic": "t", "recallHandle": handle, "producerGroup": "p"}
        recalled = await it.peer.expect(RequestCode.RECALL_MESSAGE, fields)
        assert recalled.fields["msgId"] == "u1"
        it.advance(30_000)
        assert [each.body for each in await it.arrived("t", 2)] == [b"0", b"2"]
        late = await it.peer.ask(RequestCode.RECALL_MESSAGE, fields)
        assert late.code == ResponseCode.ILLEGAL_OPERATION


async def test_recalls_are_refused_unless_enabled(tmp_path: Path) -> None:
    async with running(tmp_path, recallMessageEnable="false") as it:
        props = {"TIMER_DELAY_SEC": "30", "UNIQ_KEY": "u"}
        sent = await it.peer.send("t", b"x", props=props)
        fields = {"topic": "t", "recallHandle": sent.fields["recallHandle"]}
        answer = await it.peer.ask(RequestCode.RECALL_MESSAGE, fields)
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_recall_survives_a_restart_and_a_lost_index(tmp_path: Path) -> None:
    shift = [0]
    async with running(tmp_path, shift) as it:
        for name in ("kept", "recalled"):
            props = {"TIMER_DELAY_SEC": "30", "UNIQ_KEY": name}
            sent = await it.peer.send("t", name.encode(), props=props)
        fields = {"topic": "t", "recallHandle": sent.fields["recallHandle"]}
        await it.peer.expect(RequestCode.RECALL_MESSAGE, fields)
    for path in (tmp_path / "timer").iterdir():
        path.unlink()
    async with running(tmp_path, shift) as it:
        it.advance(30_000)
        assert [each.body for each in await it.arrived("t", 1)] == [b"kept"]
        await it.count_stays("t", 1)


async def test_lost_index_is_rebuilt_and_nothing_is_delivered_twice(tmp_path: Path) -> None:
    shift = [0]
    async with running(tmp_path, shift) as it:
        for second in range(10):
            await it.peer.send("t", b"%d" % second, props={"TIMER_DELAY_SEC": str(second + 1)})
        it.advance(5_000)
        await it.arrived("t", 5)
    for path in (tmp_path / "timer").iterdir():
        path.write_bytes(b"this is no database" * 1000)
    async with running(tmp_path, shift) as it:
        await it.count_stays("t", 5)
        it.advance(6_000)
        seen = [each.body for each in await it.arrived("t", 10)]
        assert sorted(seen) == sorted(b"%d" % second for second in range(10))


async def test_long_delayed_message_outlives_its_log_file(tmp_path: Path) -> None:
    shift = [0]
    async with running(tmp_path, shift, timerMaxDelaySec=60 * 86_400) as it:
        start_ms = it.now_ms()
        moment_ms = start_ms + 30 * DAY_MS
        await it.peer.send(
            "t", b"in thirty days", props={"TIMER_DELIVER_MS": str(moment_ms), "UNIQ_KEY": "u"}
        )
        for day in range(1, 30):
            it.advance(DAY_MS)

            async def is_rolled(wanted: int = day // 2 + 1) -> bool:
                return await it.max_offset(TIMER_TOPIC, 0) >= wanted

            await eventually(is_rolled, f"rolled on day {day}")
        assert await it.visible_messages("t") == []
        it.advance(DAY_MS)
        (message,) = await it.arrived("t", 1)
        assert message.store_time_ms >= moment_ms
        assert int(message.properties["TIMER_ROLL_TIMES"]) >= 14


# -- retries and dead letters ----------------------------------------------------------------------


async def test_message_is_retried_with_back_off_and_then_dead_lettered(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group(retryMaxTimes=2, retryQueueNums=1)
        sent = await it.peer.send("t", b"bad", props={"TAGS": "a", "UNIQ_KEY": "u"})
        (first,) = await it.visible_messages("t")
        assert (await it.send_back(first)).code == ResponseCode.SUCCESS
        it.advance(9_000)
        await it.count_stays("%RETRY%g", 0, 1)
        it.advance(1_000)
        (second,) = await it.arrived("%RETRY%g", 1, 1)
        assert second.reconsume_count == 1
        assert second.properties["RETRY_TOPIC"] == "t"
        assert second.properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
        assert second.properties["UNIQ_KEY"] == "u"
        assert second.born_time_ms == first.born_time_ms
        assert (await it.send_back(second)).code == ResponseCode.SUCCESS
        it.advance(30_000)
        third = (await it.arrived("%RETRY%g", 2, 1))[1]
        assert third.reconsume_count == 2
        assert (await it.send_back(third)).code == ResponseCode.SUCCESS
        (dead,) = await it.arrived("%DLQ%g", 1, 1)
        assert dead.body == b"bad"
        assert dead.reconsume_count == 3
        assert dead.properties["RETRY_TOPIC"] == "t"
        assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
        topic = it.broker.topics.get("%DLQ%g")
        assert topic is not None
        assert (topic.write_queue_count, topic.perm) == (1, 6)
        assert it.broker.stats.dead["t", "g"] == 1
        assert it.broker.stats.sent_back["t", "g"] == 3


async def test_consumer_chooses_the_delay_level_or_the_dead_letter_queue(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group()
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        await it.send_back(message, delayLevel="1")
        it.advance(1_000)
        await it.arrived("%RETRY%g", 1, 1)
        await it.send_back(message, delayLevel="-1")
        assert len(await it.arrived("%DLQ%g", 1, 1)) == 1


async def test_retry_limit_of_the_consumer_takes_precedence_over_the_group(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group(retryMaxTimes=16)
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        await it.send_back(message, maxReconsumeTimes="0")
        assert len(await it.arrived("%DLQ%g", 1, 1)) == 1


async def test_a_group_without_retry_queues_has_no_retries(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group(retryQueueNums=0)
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        before = dict(it.broker.topics.topics)
        assert (await it.send_back(message)).code == ResponseCode.SUCCESS
        assert it.broker.topics.topics == before


@pytest.mark.parametrize(
    ("policy", "delays_ms"),
    [
        ({"type": "EXPONENTIAL",
          "exponentialRetryPolicy": {"initial": 3000, "max": 8000, "multiplier": 2}},
         [3000, 6000, 8000]),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 4000, 7000]}},
         [4000, 7000, 7000]),
        ({"type": "CUSTOMIZED"}, [10_000, 30_000, 30_000]),
    ],
)  # fmt: skip
async def test_retry_policy_of_a_group_is_applied(
    tmp_path: Path, policy: dict[str, object], delays_ms: list[int]
) -> None:
    async with running(tmp_path) as it:
        await it.group(groupRetryPolicy=policy)
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        for times, delay_ms in enumerate(delays_ms):
            sent_ms = it.now_ms()
            await it.send_back(message)
            it.advance(delay_ms - 700)
            await it.count_stays("%RETRY%g", times, 1)
            it.advance(700)
            message = (await it.arrived("%RETRY%g", times + 1, 1))[times]
            assert message.store_time_ms >= sent_ms + delay_ms
            assert message.reconsume_count == times + 1


async def test_a_client_may_send_the_retry_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group(retryMaxTimes=2)
        fields = send_fields("%RETRY%g", props={"DELAY": "1", "RETRY_TOPIC": "t"})
        for times in ("1", "2", "3"):
            await it.peer.expect(RequestCode.SEND_MESSAGE_V2, fields | {"j": times}, b"x")
        await it.arrived("%DLQ%g", 1, 1)
        it.advance(1_000)
        assert [m.reconsume_count for m in await it.arrived("%RETRY%g", 2)] == [1, 2]
        await it.peer.expect(RequestCode.SEND_MESSAGE_V2, fields | {"j": "5", "l": "9"}, b"x")
        await it.peer.expect(RequestCode.SEND_MESSAGE_V2, fields | {"j": "5", "l": "4"}, b"x")
        (_, dead) = await it.arrived("%DLQ%g", 2, 1)
        assert "DELAY" not in dead.properties
        assert it.broker.stats.dead["t", "g"] == 2


async def test_message_that_an_orderly_consumer_gives_up_is_dead_lettered(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group()
        body = QueueLockBody(
            consumer_group="g", client_id="c",
            queues=[MessageQueue(topic="t", broker_name="broker-a", queue_id=0)],
        )  # fmt: skip
        await it.peer.expect(RequestCode.LOCK_BATCH_MQ, None, encode_body(body))
        fields = send_fields("%RETRY%g", props={"RETRY_TOPIC": "t"}) | {"j": "16", "l": "16"}
        await it.peer.expect(RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert len(await it.arrived("%DLQ%g", 1, 1)) == 1


async def test_pending_delayed_message_cannot_be_sent_back(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group()
        sent = await it.peer.send("t", b"x", props={"DELAY": "4"})
        log_offset = int(sent.fields["msgId"][-16:], 16)
        fields = {"offset": str(log_offset), "group": "g", "delayLevel": "1"}
        answer = await it.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not delivered yet" in (answer.remark or "")


async def test_concurrent_retries_and_sends_are_all_stored(tmp_path: Path) -> None:
    """From several connections, some of them refused."""
    async with (
        running(tmp_path) as it,
        peer_of(it.broker.address) as second,
        peer_of(it.broker.address) as third,
    ):
        await it.group(retryMaxTimes=3)
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        fields = {"group": "g", "delayLevel": "1"}
        good = fields | {"offset": str(message.log_offset)}
        dead = good | {"delayLevel": "-1"}
        bad = fields | {"offset": str(message.log_offset + 1)}
        asked = [good, good, good, dead, bad] * 40

        async def send_back(peer: Peer) -> list[int]:
            code = RequestCode.CONSUMER_SEND_MSG_BACK
            return [a.code for a in await asyncio.gather(*(peer.ask(code, f) for f in asked))]

        storm = [asyncio.create_task(send_back(peer)) for peer in (it.peer, second, third)]
        sent_count = 0
        while not all(task.done() for task in storm):
            assert (await it.peer.send("t", b"y", queue_id=1)).code == ResponseCode.SUCCESS
            sent_count += 1
        for task in storm:
            assert await task == ([ResponseCode.SUCCESS] * 4 + [ResponseCode.SYSTEM_ERROR]) * 40
        assert len(await it.visible_messages("t")) == 1 + sent_count
        it.advance(1_000)
        await it.arrived("%RETRY%g", 360, 1)
        await it.arrived("%DLQ%g", 120, 1)
        assert it.broker.stats.sent_back["t", "g"] == 480


async def test_retries_above_the_limit_are_refused_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.broker.handlers.send_back._WAITING_MAX", 0)
    # Each loop iteration serves one, and others of that iteration would have to wait.
    monkeypatch.setattr("tianzhou.remoting.scheduler.SLICE_S", -1.0)
    monkeypatch.setattr("tianzhou.remoting.scheduler.SHARED_SLICE_S", -1.0)
    async with running(tmp_path) as it:
        await it.group()
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        assert (await it.send_back(message)).code == ResponseCode.SUCCESS
        answers = await asyncio.gather(*(it.send_back(message) for _ in range(20)))
        busy = [answer for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY]
        assert busy
        assert "are queued already" in (busy[0].remark or "")
        done_count = 1 + len(answers) - len(busy)
        assert it.broker.stats.sent_back["t", "g"] == done_count


async def test_stop_answers_pending_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.remoting.scheduler.SLICE_S", -1.0)
    async with running(tmp_path, shutdownWaitTimeSeconds=30) as it:
        await it.group()
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        assert (await it.send_back(message)).code == ResponseCode.SUCCESS
        asked = [asyncio.create_task(it.send_back(message)) for _ in range(50)]
        sent_back = it.broker.stats.sent_back
        await eventually(lambda: sent_back["t", "g"] > 1, "the first of them")
        await it.broker.stop()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        done = [a for a in answers if isinstance(a, Command) and a.code == ResponseCode.SUCCESS]
        assert len(done) == len(asked)
        assert sent_back["t", "g"] == 1 + len(asked)


async def test_a_retry_topic_without_write_permission_refuses(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.group()
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        await it.send_back(message)
        fields = {
            "topic": "%RETRY%g", "defaultTopic": "TBW102", "readQueueNums": "1",
            "writeQueueNums": "1", "perm": "4", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert (await it.send_back(message)).code == ResponseCode.NO_PERMISSION


async def test_with_sync_flush_retries_are_on_disk_before_the_response(tmp_path: Path) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as it:
        await it.group()
        await it.peer.send("t", b"x")
        (message,) = await it.visible_messages("t")
        assert (await it.send_back(message, delayLevel="-1")).code == ResponseCode.SUCCESS
        store = it.broker.store
        assert store is not None
        assert store.flushed_log_offset == store.end_log_offset


async def test_failing_index_does_not_prevent_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: TimerIndex) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    shift = [0]
    async with running(tmp_path, shift) as it:
        await it.peer.send("t", b"timed", props={"TIMER_DELAY_SEC": "60"})
        monkeypatch.setattr(TimerIndex, "close", broken)
    assert "not closed cleanly: disk I/O error" in caplog.text
    monkeypatch.undo()
    async with running(tmp_path, shift) as it:
        it.advance(60_000)
        assert len(await it.arrived("t", 1)) == 1
