"""The wall clock is set by a day while a broker runs: no duration ends early or late.

The durations are far longer than a test lasts, so only a moved clock can end them.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.brokers import SMALL, Peer, eventually, peer_of
from tests.support.pop import GROUP, TOPIC, Popped, ack, change, pop

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.client import PushConsumer, ReceivedMessage
from tianzhou.client.consumer.concurrent import send_back_overdue
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.names import CHECK_MAX_TOPIC
from tianzhou.protocol import sysflag
from tianzhou.protocol.bodies import decode_request as decode_body
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.queues import LockBatchResponseBody, MessageQueue, QueueLockBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.testing import Cluster, MovingClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LOCK_LIFE = "rocketmq.broker.rebalance.lockMaxLiveTime"
jumps = pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS, 5 * DAY_MS], ids=["+1d", "-1d", "+5d"])


@dataclass(slots=True)
class Scene:
    broker: Broker
    peer: Peer
    clock: MovingClock

    def jump(self, by_ms: int) -> None:
        self.clock.jump(by_ms)
        self.broker.clock_moved()

    def advance(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.broker.clock_moved()

    async def send(self, body: bytes) -> None:
        answer = await self.peer.send(TOPIC, body, queue_id=0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


@asynccontextmanager
async def scene(
    store: Path, clock: MovingClock | None = None, **settings: object
) -> AsyncGenerator[Scene]:
    clock = clock or MovingClock()
    pairs = SMALL | {"storePathRootDir": store, "brokerConfigPath": store / "b.properties"}
    given = [
        Given(key, str(value), "test", deliberate=True) for key, value in (pairs | settings).items()
    ]
    loaded = load_broker_config(environ={}, flags=given)
    broker = Broker(LiveSettings(loaded), clock=clock, steady=clock.steady)
    try:
        await broker.start()
        async with peer_of(broker.address) as peer:
            yield Scene(broker, peer, clock)
    finally:
        await broker.stop()


async def run_loop_iterations() -> None:
    """Run the tasks that a clock change has woken."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)


# -- pop consumption -------------------------------------------------------------------------------


async def popped_again(it: Scene, *, order: bool = False) -> list[Popped]:
    messages: list[Popped] = []

    async def poll() -> bool:
        messages.extend(await pop(it.peer, order=order, invisible_ms=HOUR_MS))
        return bool(messages)

    await eventually(poll, "a message that was not acknowledged")
    return messages


@jumps
async def test_popped_messages_stay_invisible_for_the_invisible_time(
    tmp_path: Path, jump_ms: int
) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        (a,) = await pop(it.peer, init_mode=0, invisible_ms=HOUR_MS)
        it.jump(jump_ms)
        await run_loop_iterations()
        assert await pop(it.peer) == [], "a jump of the clock must not deliver it again"
        it.advance(HOUR_MS - 60_000)
        await run_loop_iterations()
        assert await pop(it.peer) == []
        it.advance(60_000)
        (again,) = await popped_again(it)
        assert again.body == b"a"
        it.jump(-jump_ms)
        assert (await ack(it.peer, again)).code == ResponseCode.SUCCESS
        assert (await ack(it.peer, a)).code == ResponseCode.SUCCESS, "worth nothing, no error"
        assert it.broker.offsets.find(GROUP, TOPIC, 0) == 1


@jumps
async def test_changed_invisible_time_counts_from_the_change(tmp_path: Path, jump_ms: int) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        (a,) = await pop(it.peer, invisible_ms=HOUR_MS)
        it.jump(jump_ms)
        answer = await change(it.peer, a, 2 * HOUR_MS)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        it.jump(-jump_ms)
        it.advance(HOUR_MS + 60_000)
        await run_loop_iterations()
        assert await pop(it.peer) == []
        it.advance(HOUR_MS)
        assert [each.body for each in await popped_again(it)] == [b"a"]


@jumps
async def test_queue_popped_in_order_stays_blocked_for_the_invisible_time(
    tmp_path: Path, jump_ms: int
) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        await it.send(b"b")
        a, _ = await pop(it.peer, order=True, count=2, invisible_ms=HOUR_MS)
        it.jump(jump_ms)
        assert await pop(it.peer, order=True) == []
        assert (await change(it.peer, a, 2 * HOUR_MS)).code == ResponseCode.SUCCESS
        it.jump(-jump_ms)
        it.advance(HOUR_MS + 60_000)
        assert await pop(it.peer, order=True) == [], "one of the two is held for longer"
        it.advance(HOUR_MS)
        messages = await pop(it.peer, order=True, invisible_ms=HOUR_MS)
        assert [each.body for each in messages] == [b"a", b"b"]


async def test_restart_with_the_clock_set_back_extends_no_invisible_time(
    tmp_path: Path,
) -> None:
    clock = MovingClock()
    async with scene(tmp_path, clock) as it:
        await it.send(b"a")
        await pop(it.peer, invisible_ms=HOUR_MS)
    clock.jump(-DAY_MS)
    async with scene(tmp_path, clock) as it:
        assert await pop(it.peer) == []
        it.advance(HOUR_MS)
        assert [each.body for each in await popped_again(it)] == [b"a"]


@jumps
async def test_parked_pops_and_pulls_wait_for_their_timeout(tmp_path: Path, jump_ms: int) -> None:
    async with scene(tmp_path) as it:
        await it.send(b"a")
        await it.peer.heartbeat("c", GROUP, {TOPIC: "*"})
        (a,) = await pop(it.peer, invisible_ms=HOUR_MS)
        await ack(it.peer, a)
        popping = asyncio.ensure_future(pop(it.peer, poll_ms=30_000))
        pulling = asyncio.ensure_future(
            it.peer.pull(GROUP, TOPIC, 0, 1, sys_flag=6, suspend_ms=30_000)
        )
        await eventually(lambda: len(it.broker.parked) == 1, "a parked pull")
        it.jump(jump_ms)
        await run_loop_iterations()
        assert not popping.done()
        assert not pulling.done()
        it.advance(31_000)
        assert await popping == []
        assert (await pulling).code == ResponseCode.PULL_NOT_FOUND


# -- locks, clients, quotas ------------------------------------------------------------------------


async def locks(peer: Peer, client_id: str) -> bool:
    queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)
    body = QueueLockBody(consumer_group=GROUP, client_id=client_id, queues=[queue])
    answer = await peer.expect(RequestCode.LOCK_BATCH_MQ, None, encode_body(body))
    return bool(decode_body(LockBatchResponseBody, answer.body).locked)


@jumps
async def test_queue_lock_expires_after_its_duration(tmp_path: Path, jump_ms: int) -> None:
    async with scene(tmp_path, None, **{LOCK_LIFE: HOUR_MS}) as it:
        await it.send(b"a")
        assert await locks(it.peer, "one")
        it.jump(jump_ms)
        assert not await locks(it.peer, "two")
        it.broker.close_silent()
        assert not await locks(it.peer, "two")
        it.advance(HOUR_MS + 1)
        assert await locks(it.peer, "two")


@jumps
async def test_silent_clients_are_removed_after_the_timeout(tmp_path: Path, jump_ms: int) -> None:
    async with scene(tmp_path, channelExpiredTimeout=HOUR_MS) as it:
        await it.peer.heartbeat("c", GROUP, {TOPIC: "*"}, producer="p")
        it.jump(jump_ms)
        it.broker.close_silent()
        assert GROUP in it.broker.consumers.groups
        assert "p" in it.broker.producers.groups
        it.advance(HOUR_MS + 1)
        it.broker.close_silent()
        await eventually(lambda: it.broker.consumers.groups == {}, "the end of the consumer")
        await eventually(lambda: it.broker.producers.groups == {}, "the end of the producer")


@jumps
async def test_a_rate_limit_is_not_refilled_by_a_jump(tmp_path: Path, jump_ms: int) -> None:
    quotas = tmp_path / "quota.yml"
    quotas.write_text(f"topics:\n  - {{topic: {TOPIC}, messagesPerSecond: 0.001}}\n")
    async with scene(tmp_path / "store", quotaFile=quotas) as it:
        await it.send(b"a")
        it.jump(jump_ms)
        assert (await it.peer.send(TOPIC, b"b")).code == ResponseCode.SYSTEM_BUSY
        it.advance(2_000_000)
        await it.send(b"b")


async def test_an_append_during_which_the_clock_jumps_is_not_slow(tmp_path: Path) -> None:
    """A broker refuses sends for a while after a slow append."""
    readings = itertools.count()

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + next(readings) % 2 * HOUR_MS

    pairs = SMALL | {"storePathRootDir": tmp_path, "brokerConfigPath": tmp_path / "b.properties"}
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    broker = Broker(LiveSettings(load_broker_config(environ={}, flags=given)), clock=now_ms)
    try:
        await broker.start()
        async with peer_of(broker.address) as peer:
            for number in range(8):
                props = {"KEYS": "k"} if number % 2 else {}  # by the kernel and by a handler
                answer = await peer.send(TOPIC, b"a", queue_id=0, props=props)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
    finally:
        await broker.stop()


# -- transactions ----------------------------------------------------------------------------------


@jumps
async def test_clock_jump_neither_checks_nor_discards_a_half(tmp_path: Path, jump_ms: int) -> None:
    settings: dict[str, object] = {
        "transactionTimeOut": HOUR_MS,
        "transactionCheckInterval": 50,
        "fileReservedTime": 72,
    }
    async with scene(tmp_path, None, **settings) as it:
        await it.peer.heartbeat("c", producer="p")
        props = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u"}
        sent = await it.peer.send(
            TOPIC, b"half", props=props, sys_flag=sysflag.TRANSACTION_PREPARED
        )
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        for by_ms in (jump_ms, -jump_ms, jump_ms):
            it.jump(by_ms)
            it.advance(100)  # a round of checks
            await run_loop_iterations()
            assert it.peer.pushed == []
            assert it.broker.topics.get(CHECK_MAX_TOPIC) is None
        it.advance(HOUR_MS)
        await eventually(lambda: it.peer.pushed, "the check of a half whose time is up")
        assert it.peer.pushed[0].code == RequestCode.CHECK_TRANSACTION_STATE


# -- the client ------------------------------------------------------------------------------------


@jumps
async def test_handler_that_runs_during_a_clock_jump_is_not_logged_as_slow(
    jump_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: ReceivedMessage) -> None:
        began.set()
        await may_end.wait()

    real_ns, shift_ns = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + shift_ns[0])
    async with Cluster(topics={"t": 1}) as cluster:
        consumer = PushConsumer(
            "g",
            namesrv=cluster.namesrv_address,
            start="first",
            consume_timeout_ms=HOUR_MS,
            close_timeout_ms=1_000,
        )
        consumer.subscribe("t", handle)
        async with consumer, peer_of(cluster.broker_addresses["broker-0"]) as peer:
            await peer.send("t", b"a", queue_id=0)
            await began.wait()
            shift_ns[0] = jump_ms * 1_000_000
            (held,) = [
                each
                for each in consumer._held.values()  # pyright: ignore[reportPrivateUsage]
                if each.queue.topic == "t"
            ]
            redelivery = consumer._redelivery  # pyright: ignore[reportPrivateUsage]
            assert redelivery is not None
            await send_back_overdue(held, redelivery, HOUR_MS)
            assert held.state.message_count == 1, "it was sent back"
            may_end.set()
            await eventually(lambda: held.state.message_count == 0, "the end of the handler")
