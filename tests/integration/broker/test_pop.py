"""Pop consumption over real sockets: sharing, acknowledgement, redelivery, order, long polls."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import pytest
from tests.support.brokers import (
    SMALL,
    Peer,
    cluster,
    eventually,
    messages_in,
    peer_of,
    running_broker,
)
from tests.support.pop import (
    GROUP,
    LONG_MS,
    TOPIC,
    PopOptions,
    Popped,
    ack,
    batch_ack,
    change,
    handle_fields,
    pop,
    pop_fields,
    popped_in,
)

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.clock import wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.protocol.bodies import encode
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.pop import ChangeInvisibleTimeResponse

POLL_MS = 5 * 60_000
"""Far longer than a test waits: a pop that is not woken fails."""


@dataclass
class ManualClock:
    """A clock that only the test advances."""

    began_ms: int = field(default_factory=wall_ms)
    ahead_ms: int = 0

    def __call__(self) -> int:
        return self.began_ms + self.ahead_ms


@dataclass
class Scene:
    """A broker with a manual clock, and a client."""

    broker: Broker
    peer: Peer
    clock: ManualClock

    def later(self, ms: int) -> None:
        self.clock.ahead_ms += ms
        self.broker.clock_moved()

    async def send(self, *bodies: bytes, queue_id: int = 0, tags: str = "") -> None:
        for body in bodies:
            props = {"TAGS": tags} if tags else {}
            answer = await self.peer.send(TOPIC, body, queue_id=queue_id, props=props)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def committed(self, queue_id: int = 0, topic: str = TOPIC) -> int:
        return self.broker.offsets.find(GROUP, topic, queue_id)


@asynccontextmanager
async def scene(
    store: Path, clock: ManualClock | None = None, **settings: object
) -> AsyncGenerator[Scene]:
    clock = clock or ManualClock()
    pairs = SMALL | {"storePathRootDir": store, "brokerConfigPath": store / "b.properties"}
    given = [
        Given(key, str(value), "test", deliberate=True) for key, value in (pairs | settings).items()
    ]
    loaded = load_broker_config(environ={}, flags=given)
    broker = Broker(LiveSettings(loaded), clock=clock, steady=clock)
    try:
        await broker.start()
        async with peer_of(broker.address) as peer:
            yield Scene(broker, peer, clock)
    finally:
        await broker.stop()


async def revived(it: Scene, at_least: int = 1, **options: Unpack[PopOptions]) -> list[Popped]:
    """Messages delivered again."""
    popped: list[Popped] = []

    async def poll() -> bool:
        popped.extend(await pop(it.peer, **options))
        return len(popped) >= at_least

    await eventually(poll, f"{at_least} messages that come back")
    return popped


def bodies(popped: list[Popped]) -> list[bytes]:
    return [each.body for each in popped]


# -- sharing and acknowledging ---------------------------------------------------------------------


async def test_consumers_share_one_queue_without_getting_the_same_message(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, peer_of(it.broker.address) as other:
        await it.send(*(b"%d" % each for each in range(10)))
        first = await pop(it.peer, count=4)
        second = await pop(other, count=32)
        assert bodies(first) + bodies(second) == [b"%d" % each for each in range(10)]
        assert await pop(it.peer) == []


async def test_the_committed_offset_is_the_first_unacknowledged_message(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        a, b, c = await pop(it.peer)
        assert it.committed() == 0
        await ack(it.peer, b)
        assert it.committed() == 0
        await ack(it.peer, a)
        assert it.committed() == 2
        await ack(it.peer, c)
        assert it.committed() == 3


async def test_a_pop_of_any_queue_returns_the_offsets_for_handles(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", queue_id=1)
        await it.send(b"c", queue_id=3)
        answer = await it.peer.expect(RequestCode.POP_MESSAGE, pop_fields())
        fields = answer.fields
        assert sorted(fields["startOffsetInfo"].split(";")) == ["0 1 0", "0 3 0"]
        assert sorted(fields["msgOffsetInfo"].split(";")) == ["0 1 0,1", "0 3 0"]
        assert fields["reviveQid"] == "0"
        assert fields["restNum"] == "0"
        assert "orderCountInfo" not in fields
        popped = popped_in(answer)
        assert sorted(bodies(popped)) == [b"a", b"b", b"c"]
        for one in popped:
            assert (await ack(it.peer, one)).code == ResponseCode.SUCCESS
        assert (it.committed(1), it.committed(3)) == (2, 1)


async def test_several_acknowledgements_in_one_request(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        a, b, c = await pop(it.peer)
        assert (await batch_ack(it.peer, a, c)).code == ResponseCode.SUCCESS
        assert it.committed() == 1
        await batch_ack(it.peer, b, b)
        assert it.committed() == 3
        answer = await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, None, b'{"acks":[]}')
        assert answer.code == ResponseCode.NO_MESSAGE


async def test_groups_pop_independently(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        assert bodies(await pop(it.peer)) == [b"a"]
        assert bodies(await pop(it.peer, group="other")) == [b"a"]


async def test_a_new_group_may_start_at_the_last_message(tmp_path: Path) -> None:
    async with scene(tmp_path, initPopOffsetByCheckMsgInMem="false") as it:
        await it.send(b"a", b"b", b"c")
        assert bodies(await pop(it.peer, init_mode=1)) == [b"c"]
        assert bodies(await pop(it.peer, init_mode=0, group="other")) == [b"a", b"b", b"c"]


async def test_a_group_that_pulled_before_continues_at_its_offset(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        it.broker.offsets.commit(GROUP, TOPIC, 0, 2)
        assert bodies(await pop(it.peer)) == [b"c"]


async def test_a_group_continues_at_an_offset_that_was_set(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        (a, *_) = await pop(it.peer)
        it.broker.offsets.commit(GROUP, TOPIC, 0, 1)
        again = await pop(it.peer)
        assert bodies(again) == [b"b", b"c"]
        await ack(it.peer, a)
        assert it.committed() == 1, "the old handle is worth nothing"


async def test_a_topic_that_was_deleted_and_created_again_is_popped_from_its_start(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b")
        assert len(await pop(it.peer)) == 2
        await it.peer.expect(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
        await it.send(b"c", b"d", b"e")
        assert bodies(await pop(it.peer)) == [b"c", b"d", b"e"]


async def test_messages_that_a_filter_rejects_are_skipped_and_committed(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"no", tags="x")
        await it.send(b"yes", tags="y")
        await it.send(b"no", b"no", tags="x")
        (yes,) = await pop(it.peer, tags="y")
        assert yes.body == b"yes"
        assert await pop(it.peer, tags="y") == []
        await ack(it.peer, yes)
        assert it.committed() == 4


async def test_the_in_flight_limit_of_a_queue_stops_pops_until_an_acknowledgement(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {
        "enablePopMessageThreshold": "true",
        "popInflightMessageThreshold": 1,
    }
    async with scene(tmp_path, **settings) as it:
        await it.send(b"a", b"b", b"c")
        a, _ = await pop(it.peer, count=2)
        assert await pop(it.peer) == []
        waiting = asyncio.create_task(pop(it.peer, poll_ms=POLL_MS))
        await eventually(lambda: polling(it), "a pop that waits")
        await ack(it.peer, a)
        assert bodies(await waiting) == [b"c"]


async def test_the_messages_in_flight_of_all_groups_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path, popCkMaxBufferSize=8) as it:
        await it.send(*(b"%d" % number for number in range(8)))
        first = await pop(it.peer)
        assert len(first) == 8
        assert await pop(it.peer, group="other") == [], "the limit holds for all groups"
        waiting = asyncio.create_task(pop(it.peer, group="other", poll_ms=POLL_MS))
        await eventually(lambda: polling(it, group="other"), "a pop that waits")
        assert len(await pop(it.peer, group="ordered", order=True)) == 8, "little is kept of it"
        await ack(it.peer, first[0])
        assert len(await waiting) == 8
        assert "no more can be popped" in caplog.text
        it.later(LONG_MS + 1000)
        again = await revived(it, 7)
        assert sorted(bodies(again)) == [b"%d" % number for number in range(1, 8)]


# -- coming back -----------------------------------------------------------------------------------


async def test_an_unacknowledged_message_is_delivered_again_with_its_origin(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b")
        a, b = await pop(it.peer, invisible_ms=60_000)
        await ack(it.peer, b)
        it.later(59_000)
        assert await pop(it.peer) == []
        it.later(2_000)
        (again,) = await revived(it)
        assert (again.body, again.message.topic) == (b"a", TOPIC)
        assert again.message.reconsume_count == 1
        assert again.handle.topic_mark == "1"
        assert again.message.properties["1ST_POP_TIME"] == str(a.handle.pop_time_ms)
        assert it.broker.topics.get(f"%RETRY%{GROUP}_{TOPIC}") is not None
        await eventually(lambda: it.committed() == 2, "the old place is done with")
        await ack(it.peer, again)
        assert it.committed(topic=f"%RETRY%{GROUP}_{TOPIC}") == 1
        assert (await ack(it.peer, a)).code == ResponseCode.SUCCESS, "it does nothing"


async def test_retry_topics_of_version_2_are_used_when_enabled(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "enableRetryTopicV2": "true",
        "popResponseReturnActualRetryTopic": "true",
    }
    async with scene(tmp_path, **settings) as it:
        await it.send(b"a")
        await pop(it.peer, invisible_ms=1000)
        it.later(2000)
        (again,) = await revived(it)
        assert again.message.topic == f"%RETRY%{GROUP}+{TOPIC}"
        assert again.handle.topic_mark == "2"
        await ack(it.peer, again)
        assert it.committed(topic=again.message.topic) == 1


async def test_retry_topics_of_version_1_are_still_popped_beside_version_2(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scene(tmp_path, clock) as it:
        await it.send(b"a")
        await pop(it.peer, invisible_ms=1000)
        it.later(2000)
        await eventually(lambda: it.committed() == 1, "revived")
    async with scene(tmp_path, clock, enableRetryTopicV2="true") as it:
        assert bodies(await revived(it)) == [b"a"]


async def test_a_changed_invisible_time_invalidates_the_old_handle(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        (a,) = await pop(it.peer, invisible_ms=60_000)
        answer = await change(it.peer, a, 300_000)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields["invisibleTime"] == "300000"
        assert int(answer.fields["popTime"]) >= a.handle.pop_time_ms
        await ack(it.peer, a)
        assert it.committed() == 0, "the old handle is worth nothing"
        it.later(100_000)
        assert await pop(it.peer) == []
        stale = await change(it.peer, a, 1000)
        assert stale.code == ResponseCode.NO_MESSAGE
        it.later(201_000)
        (again,) = await revived(it)
        assert again.message.reconsume_count == 1
        assert (await change(it.peer, again, 0)).code == ResponseCode.SUCCESS
        (third,) = await revived(it)
        assert third.message.reconsume_count == 2


async def test_a_message_that_is_never_acknowledged_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=2)
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(group))
        await it.send(b"a")
        times = [one.message.reconsume_count for one in await pop(it.peer, invisible_ms=1000)]
        for _ in range(2):
            it.later(2000)
            (again,) = await revived(it, invisible_ms=1000)
            times.append(again.message.reconsume_count)
        assert times == [0, 1, 2]
        it.later(2000)
        dead = f"%DLQ%{GROUP}"
        await eventually(lambda: it.broker.topics.get(dead), "the dead letters")
        answer = await it.peer.pull("other", dead, 0, 0)
        (letter,) = messages_in(answer)
        assert letter.body == b"a"
        assert letter.properties["RETRY_TOPIC"] == TOPIC
        assert letter.properties["ORIGIN_MESSAGE_ID"]
        assert letter.reconsume_count == 3
        assert await pop(it.peer) == []


async def test_in_flight_messages_and_acknowledgements_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scene(tmp_path, clock) as it:
        await it.send(b"a", b"b", b"c", b"d")
        _, b, *_ = await pop(it.peer, count=3, invisible_ms=60_000)
        await ack(it.peer, b)
    async with scene(tmp_path, clock) as it:
        assert bodies(await pop(it.peer)) == [b"d"], "a and c are with a consumer"
        it.later(61_000)
        assert sorted(bodies(await revived(it, 2))) == [b"a", b"c"]


async def test_a_damaged_index_causes_only_repeated_deliveries(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        a, _, c = await pop(it.peer)
        await ack(it.peer, a)
        await ack(it.peer, c)
    (tmp_path / "pop" / "inflight.sqlite").write_bytes(b"not SQLite" * 1000)
    async with scene(tmp_path) as it:
        assert bodies(await pop(it.peer)) == [b"b", b"c"]


# -- order -----------------------------------------------------------------------------------------


async def test_an_ordered_queue_has_one_consumer_at_a_time(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        a, b = await pop(it.peer, order=True, count=2)
        assert a.handle.revive_queue_id == 999
        assert await pop(it.peer, order=True) == []
        await ack(it.peer, b)
        assert await pop(it.peer, order=True) == []
        await ack(it.peer, a)
        assert it.committed() == 2
        assert bodies(await pop(it.peer, order=True)) == [b"c"]


async def test_an_ordered_batch_is_delivered_again_from_the_first_unacknowledged(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b", b"c")
        a, _, _ = await pop(it.peer, order=True, invisible_ms=60_000)
        await ack(it.peer, a)
        it.later(61_000)
        again = await pop(it.peer, order=True)
        assert [(one.body, one.count) for one in again] == [(b"b", 1), (b"c", 1)]
        it.later(LONG_MS + 1)
        thrice = await pop(it.peer, order=True)
        assert [one.count for one in thrice] == [2, 2]


async def test_a_repeated_attempt_gets_the_same_messages(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        assert bodies(await pop(it.peer, order=True, attempt="x")) == [b"a"]
        (again,) = await pop(it.peer, order=True, attempt="x")
        assert (again.body, again.count) == (b"a", 0)
        assert await pop(it.peer, order=True, attempt="y") == []


async def test_a_changed_invisible_time_blocks_an_ordered_queue(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b")
        (a, _) = await pop(it.peer, order=True, invisible_ms=60_000)
        answer = await change(it.peer, a, 120_000)
        assert answer.fields["popTime"] == str(a.handle.pop_time_ms), "handles stay as they are"
        it.later(61_000)
        assert await pop(it.peer, order=True) == []
        await ack(it.peer, a)
        assert bodies(await pop(it.peer, order=True)) == [b"b"]


async def test_order_survives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with scene(tmp_path, clock) as it:
        await it.send(b"a", b"b", b"c")
        a, b = await pop(it.peer, order=True, count=2, invisible_ms=60_000)
        await ack(it.peer, a)
    async with scene(tmp_path, clock) as it:
        assert await pop(it.peer, order=True) == []
        await ack(it.peer, b)
        assert bodies(await pop(it.peer, order=True)) == [b"c"]


async def test_a_pop_parked_for_an_ordered_queue_is_woken_when_it_is_free(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b")
        (a,) = await pop(it.peer, order=True, count=1, invisible_ms=60_000)
        waiting = asyncio.create_task(pop(it.peer, order=True, count=1, poll_ms=POLL_MS))
        await eventually(lambda: polling(it), "a pop that waits")
        await ack(it.peer, a)
        assert bodies(await waiting) == [b"b"]
        waiting = asyncio.create_task(pop(it.peer, order=True, count=1, poll_ms=10 * LONG_MS))
        await eventually(lambda: polling(it), "a pop that waits")
        it.later(LONG_MS + 1)
        assert bodies(await waiting) == [b"b"]


async def test_ordered_acknowledgement_of_another_pop_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a", b"b")
        (a,) = await pop(it.peer, order=True, count=1)
        fields = handle_fields(a) | {"offset": "1"}
        answer = await it.peer.ask(RequestCode.ACK_MESSAGE, fields)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


# -- waiting and looking ---------------------------------------------------------------------------


async def polling(it: Scene, queue_id: int = -1, group: str = GROUP) -> int:
    fields = {"consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id)}
    answer = await it.peer.expect(RequestCode.POLLING_INFO, fields)
    return int(answer.fields["pollingNum"])


async def test_one_of_many_parked_pops_gets_a_message(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"first")
        await pop(it.peer)
        waiting = [asyncio.create_task(pop(it.peer, poll_ms=POLL_MS)) for _ in range(3)]

        async def all_wait() -> bool:
            return await polling(it) == 3

        await eventually(all_wait, "three that wait")
        await it.send(b"a")
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [bodies(task.result()) for task in done] == [[b"a"]]
        await it.send(b"b", queue_id=2)
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        assert [bodies(task.result()) for task in done] == [[b"b"]]
        it.later(POLL_MS + 1000)
        done, _ = await asyncio.wait(left)
        assert [task.result() for task in done] == [[]]
        assert await polling(it) == 0


async def test_a_pop_of_one_queue_is_parked_for_that_queue(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"x", queue_id=1)
        waiting = asyncio.create_task(pop(it.peer, poll_ms=POLL_MS, queue_id=0))

        async def waits() -> bool:
            return await polling(it, 0) == 1

        await eventually(waits, "a pop that waits")
        await it.send(b"y", queue_id=1)
        await it.send(b"a", queue_id=0)
        assert bodies(await waiting) == [b"a"]


async def test_a_message_that_becomes_visible_wakes_a_parked_pop(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        await pop(it.peer, invisible_ms=60_000)
        waiting = asyncio.create_task(pop(it.peer, poll_ms=POLL_MS))
        await eventually(lambda: polling(it), "a pop that waits")
        it.later(61_000)
        assert bodies(await waiting) == [b"a"]


async def test_parked_pops_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"x")
        await pop(it.peer)
        waiting = asyncio.create_task(pop(it.peer, poll_ms=POLL_MS))
        await eventually(lambda: polling(it), "a pop that waits")
        await it.broker.stop()
        assert await waiting == []


async def test_a_notification_comes_with_the_first_message(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"x")
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "pollTime": str(POLL_MS),
            "bornTime": str(wall_ms()),
        }  # fmt: skip
        answer = await it.peer.expect(RequestCode.NOTIFICATION, fields)
        assert answer.fields["hasMsg"] == "true"
        await pop(it.peer)
        waiting = asyncio.create_task(it.peer.expect(RequestCode.NOTIFICATION, fields))
        await eventually(lambda: polling(it), "a notification that waits")
        await it.send(b"a", queue_id=3)
        assert (await waiting).fields["hasMsg"] == "true"
        assert bodies(await pop(it.peer)) == [b"a"], "it was not taken"
        at_once = await it.peer.expect(RequestCode.NOTIFICATION, fields | {"pollTime": "0"})
        assert at_once.fields["hasMsg"] == "false"


async def test_a_peek_puts_nothing_in_flight(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "2"}
        await it.send(b"a", b"b", b"c")
        for _ in range(2):
            answer = await it.peer.expect(RequestCode.PEEK_MESSAGE, fields)
            assert [each.body for each in messages_in(answer)] == [b"a", b"b"]
            assert answer.fields["restNum"] == "3"
        await pop(it.peer)
        nothing = await it.peer.ask(RequestCode.PEEK_MESSAGE, fields)
        assert nothing.code == ResponseCode.PULL_NOT_FOUND


async def test_parked_pops_are_limited_by_the_settings(tmp_path: Path) -> None:
    async with scene(tmp_path, popPollingSize=0) as it:
        await it.send(b"x")
        await pop(it.peer)
        waiting = asyncio.create_task(pop(it.peer, poll_ms=POLL_MS))
        await eventually(lambda: polling(it), "a pop that waits")
        answer = await it.peer.ask(RequestCode.POP_MESSAGE, pop_fields(poll_ms=POLL_MS))
        assert answer.code == ResponseCode.POLLING_FULL
        await it.send(b"a")
        assert bodies(await waiting) == [b"a"]


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "99"}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": "33"}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": str(2**62)}, ResponseCode.INVALID_PARAMETER),
        ({"exp": "a >", "expType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"consumerGroup": "no good"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_bad_pop_is_refused(tmp_path: Path, changed: dict[str, str], code: int) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        answer = await it.peer.ask(RequestCode.POP_MESSAGE, pop_fields() | changed)
        assert answer.code == code, answer.remark
        assert answer.remark


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"extraInfo": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 2 3 9 b 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": f"0 {2**70} 2 3 0 b 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "-1"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": "99"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": "77"}, ResponseCode.NO_MESSAGE),
        ({"offset": "-1"}, ResponseCode.NO_MESSAGE),
    ],
)
async def test_a_bad_handle_is_refused_and_changes_nothing(
    tmp_path: Path, changed: dict[str, str], code: int
) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        (a,) = await pop(it.peer)
        fields = handle_fields(a) | {"invisibleTime": "1000"} | changed
        for request in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
            answer = await it.peer.ask(request, fields)
            assert answer.code == code, (request, answer.remark)
            assert "internal error" not in (answer.remark or "")
        assert it.committed() == 0


@pytest.mark.parametrize("order", [False, True])
async def test_handles_with_a_log_offset_are_accepted(tmp_path: Path, *, order: bool) -> None:
    """Apache's proxy appends the log offset of a message to its handle."""

    def as_of_a_proxy(one: Popped) -> Popped:
        return replace(one, handle=replace(one.handle, log_offset=one.message.log_offset))

    async with scene(tmp_path) as it:
        await it.send(b"a", b"b")
        a, b = map(as_of_a_proxy, await pop(it.peer, order=order, queue_id=0))
        assert len(str(a.handle).split()) == 9
        changed = await change(it.peer, a, LONG_MS)
        assert changed.code == ResponseCode.SUCCESS, changed.remark
        decoded = decode(ChangeInvisibleTimeResponse, changed.fields)
        again = replace(
            a.handle, pop_time_ms=decoded.pop_time_ms, invisible_time_ms=decoded.invisible_time_ms
        )
        for each in (replace(a, handle=again), b):
            assert (await ack(it.peer, each)).code == ResponseCode.SUCCESS
        assert it.committed() == 2


@pytest.mark.parametrize("bits", ["", "!", "A", "/" * 100_000])
async def test_malformed_bit_sets_acknowledge_nothing(tmp_path: Path, bits: str) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        (a,) = await pop(it.peer)
        body = (
            '{"brokerName":"broker-a","acks":[{"c":"g","t":"t","r":"0","so":5,"q":0,"rq":0,'
            f'"pt":{a.handle.pop_time_ms},"it":{a.handle.invisible_time_ms},"b":"{bits}"}}]}}'
        )
        answer = await it.peer.ask(RequestCode.BATCH_ACK_MESSAGE, None, body.encode())
        assert "internal error" not in (answer.remark or "")
        assert it.committed() == 0


async def test_a_group_must_be_allowed_to_pop(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        await peer.send(TOPIC, b"a")
        group = SubscriptionGroupConfig(group_name=GROUP, consume_enable=False)
        await peer.expect(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(group))
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_fields())
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_fast_path_sends_wake_parked_pops(tmp_path: Path) -> None:
    """Sends of the fast path wake parked pops."""
    async with cluster(tmp_path) as it:
        for _ in range(3):
            await it.peer.send(TOPIC, b"x")
        await pop(it.peer)
        for at in range(5):
            waiting = asyncio.create_task(pop(it.peer, poll_ms=POLL_MS))

            async def waits() -> bool:
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"}
                answer = await it.peer.expect(RequestCode.POLLING_INFO, fields)
                return answer.fields["pollingNum"] == "1"

            await eventually(waits, "a pop that waits")
            await it.peer.send(TOPIC, b"%d" % at)
            assert bodies(await waiting) == [b"%d" % at]
