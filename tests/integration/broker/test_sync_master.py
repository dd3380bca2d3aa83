"""SYNC_MASTER over real sockets, with a stand-in for its slaves: what waits for them, how long."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
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
from tests.support.pop import GROUP, TOPIC, pop
from tests.support.replicas import StandInReplicas

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.scheduled.timer_checkpoint import decode_checkpoint
from tianzhou.broker.server import Broker
from tianzhou.broker.storing.durability import Durability, Held
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.message import StoredMessage
from tianzhou.names import HALF_TOPIC
from tianzhou.protocol import kernel, sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.message_id import decode_offset_id

LONG_MS = 120_000
"""Far longer than a test waits: what is not acknowledged stays unanswered."""
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
OK = ResponseCode.SUCCESS


@dataclass
class Master:
    """A broker whose clock the test advances, its slaves and a peer."""

    broker: Broker
    peer: Peer
    slaves: StandInReplicas
    shift_ms: list[int] = field(default_factory=lambda: [0])

    def advance(self, ms: int) -> None:
        self.shift_ms[0] += ms
        self.broker.clock_moved()

    def acknowledge(self) -> None:
        """The slaves have everything."""
        self.slaves.acknowledge(self.broker.store.end_log_offset)

    async def max_offset(self, topic: str, queue_id: int = 0) -> int:
        fields = {"topic": topic, "queueId": str(queue_id)}
        return int((await self.peer.expect(RequestCode.GET_MAX_OFFSET, fields)).fields["offset"])

    async def some_requests(self) -> None:
        """Later requests of the same connection, so that whatever is due has happened."""
        for _ in range(5):
            await self.max_offset("t")

    async def waiting(self, request: Coroutine[None, None, Command]) -> asyncio.Task[Command]:
        """A request that stores something and is not answered."""
        before = self.broker.store.end_log_offset
        task = asyncio.create_task(request)
        await eventually(lambda: self.broker.store.end_log_offset > before, "a stored message")
        await self.some_requests()
        assert not task.done(), task.result()
        return task

    async def replicated(self, request: Coroutine[None, None, Command]) -> Command:
        """The response to a request after the slaves have what it stored."""
        before = self.broker.store.end_log_offset
        task = asyncio.create_task(request)
        await eventually(lambda: self.broker.store.end_log_offset > before, "a stored message")
        self.acknowledge()
        response = await task
        assert response.code == OK, response.remark
        return response

    async def send(self, body: bytes, topic: str = "t", **props: str) -> Command:
        return await self.peer.send(topic, body, props=props)

    async def bodies(self, topic: str = "t") -> list[bytes]:
        pulled = await self.peer.pull("g", topic, 0, 0)
        return bodies_in(pulled) if pulled.code == OK else []

    async def first_message(self) -> StoredMessage:
        return messages_in(await self.peer.pull("g", "t", 0, 0))[0]

    async def progress_is_asked_for(self, before: int) -> None:
        """The broker wants to save progress, and its copies are on disk."""
        await eventually(lambda: self.slaves.asked_count > before, "progress to be saved")
        store = self.broker.store
        await eventually(lambda: store.flushed_log_offset == store.end_log_offset, "a flush")
        await self.some_requests()


@asynccontextmanager
async def master(
    folder: Path, *, real_clock: bool = False, **settings: object
) -> AsyncGenerator[Master]:
    pairs = SMALL | {
        "storePathRootDir": folder, "brokerConfigPath": folder / "b.properties",
        "brokerRole": "SYNC_MASTER", "slaveTimeout": LONG_MS, "syncFlushTimeout": LONG_MS,
        "flushIntervalCommitLog": 20, "flushCommitLogLeastPages": 0,
    } | settings  # fmt: skip
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    shift_ms, began_ms = [0], wall_ms()
    slaves = StandInReplicas()

    def now_ms() -> int:
        return began_ms + shift_ms[0]

    clocks = (wall_ms, steady_ms) if real_clock else (now_ms, now_ms)
    broker = Broker(
        LiveSettings(load_broker_config(environ={}, flags=given)),
        clock=clocks[0], steady=clocks[1],
    )  # fmt: skip
    try:
        await broker.start()
        slaves.attach(broker.durability)
        async with peer_of(broker.address) as peer:
            yield Master(broker, peer, slaves, shift_ms)
    finally:
        slaves.in_reach = False
        await broker.stop()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sends of the fast path are in each block that was held."""
    counts: list[int] = []
    hold = Durability.hold

    def counted(self: Durability, held: Sequence[Held], end: int) -> None:
        counts.append(sum(send_count for _, _, send_count in held))
        hold(self, held, end)

    monkeypatch.setattr(Durability, "hold", counted)
    return counts


def by_fast_path(held: list[int]) -> bool:
    return bool(held) or kernel.WHY_PURE is not None


# -- sends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", FLUSHES)
async def test_send_is_answered_when_slaves_have_it(
    tmp_path: Path, flush: str, held: list[int]
) -> None:
    async with master(tmp_path, flushDiskType=flush) as it:
        first = await it.waiting(it.send(b"by the handlers, with a new topic"))
        it.acknowledge()
        assert (await first).code == OK
        assert not held
        for number in range(3):
            task = await it.waiting(it.send(b"%d" % number))
            it.acknowledge()
            assert (await task).code == OK
        assert by_fast_path(held)


@pytest.mark.parametrize("special", [False, True])
async def test_sends_are_answered_up_to_the_acknowledged_position(
    tmp_path: Path, special: bool, held: list[int]
) -> None:
    """By the fast path, and by the handlers, which alone know messages with special properties."""
    props = {"RETRY_TOPIC": "x"} if special else {}
    async with master(tmp_path) as it:
        await it.replicated(it.send(b"first"))
        one = await it.waiting(it.send(b"one", **props))
        between = it.broker.store.end_log_offset
        two = await it.waiting(it.send(b"two", **props))
        it.slaves.acknowledge(between - 1)
        await it.some_requests()
        assert not one.done()
        it.slaves.acknowledge(between)
        assert (await one).code == OK
        await it.some_requests()
        assert not two.done()
        it.acknowledge()
        assert (await two).code == OK
        assert bool(held) != special or kernel.WHY_PURE is not None


@pytest.mark.parametrize("flush", FLUSHES)
async def test_without_a_slave_in_reach_sends_are_stored_and_answered_at_once(
    tmp_path: Path, flush: str, held: list[int]
) -> None:
    async with master(tmp_path, flushDiskType=flush) as it:
        it.slaves.in_reach = False
        for body in (b"by the handlers", b"by the fast path"):
            assert (await it.send(body)).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert by_fast_path(held)
        assert await it.bodies() == [b"by the handlers", b"by the fast path"]
        store = it.broker.store
        assert flush == "ASYNC_FLUSH" or store.flushed_log_offset == store.end_log_offset


async def test_after_the_loss_of_a_slave_sends_do_not_wait_for_those_before(
    tmp_path: Path,
) -> None:
    async with master(tmp_path, flushDiskType="SYNC_FLUSH") as it:
        await it.replicated(it.send(b"first"))
        before = await it.waiting(it.send(b"before"))
        it.slaves.in_reach = False
        assert (await it.send(b"after")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert not before.done()
        it.acknowledge()
        assert (await before).code == OK, "the slave came back in time"


@pytest.mark.parametrize("flush", FLUSHES)
async def test_slave_timeout_is_reported_and_the_message_is_stored(
    tmp_path: Path, flush: str, held: list[int]
) -> None:
    async with master(tmp_path, flushDiskType=flush, slaveTimeout=100) as it:
        for body in (b"by the handlers", b"by the fast path"):
            assert (await it.send(body)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert by_fast_path(held)
        assert await it.bodies() == [b"by the handlers", b"by the fast path"]


async def test_producer_that_does_not_wait_is_answered_at_once(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        for _ in range(3):
            assert (await it.send(b"x", WAIT="false")).code == OK
        await it.waiting(it.send(b"x", WAIT="true"))
        it.acknowledge()


async def test_batch_waits_for_slaves(tmp_path: Path) -> None:
    fields = send_fields("t", batch=True)
    body = batch.encode([BatchItem(b"one", "", 0), BatchItem(b"two", "", 0)])
    async with master(tmp_path) as it:
        for _ in range(2):  # by the handlers, and by the fast path
            sent = await it.waiting(it.peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body))
            it.acknowledge()
            assert (await sent).code == OK


async def test_ended_role_answers_its_waits(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        await it.replicated(it.send(b"first"))
        waiting = await it.waiting(it.send(b"x"))
        settings = it.broker.settings
        flags = [
            Given("storePathRootDir", str(tmp_path), "test"),
            Given("brokerRole", "ASYNC_MASTER", "test"),
        ]
        settings.config = load_broker_config(environ={}, flags=flags).config
        it.broker.durability.role_changed()
        assert (await waiting).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert (await it.send(b"x")).code == OK


# -- transactions ----------------------------------------------------------------------------------


async def prepared(it: Master) -> Command:
    flag = sysflag.TRANSACTION_PREPARED
    props = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "u"}
    return await it.peer.send("t", b"half", props=props, sys_flag=flag)


async def commit(it: Master, half: Command) -> Command:
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(decode_offset_id(half.fields["msgId"])[1]),
        "commitOrRollback": str(sysflag.TRANSACTION_COMMIT), "msgId": "u",
        "fromTransactionCheck": "false",
    }  # fmt: skip
    return await it.peer.ask(RequestCode.END_TRANSACTION, fields)


async def ended_halves(it: Master) -> int:
    """The saved progress of transactions."""
    fields = {"topic": HALF_TOPIC, "queueId": "0", "consumerGroup": "CID_RMQ_SYS_TRANS"}
    answer = await it.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return int(answer.fields["offset"]) if answer.code == OK else 0


async def test_halves_and_their_ends_wait_and_their_progress_too(tmp_path: Path) -> None:
    async with master(tmp_path, real_clock=True, transactionCheckInterval=50) as it:
        sent = await it.waiting(prepared(it))
        it.acknowledge()
        half = await sent
        assert half.code == OK
        asked_before = it.slaves.asked_count
        end = await it.waiting(commit(it, half))
        # Rounds of checks follow each other quickly.
        await it.progress_is_asked_for(asked_before + 3)
        assert await ended_halves(it) == 0
        assert not end.done()
        it.acknowledge()
        assert (await end).code == OK

        async def is_saved() -> bool:
            return await ended_halves(it) == 1

        await eventually(is_saved, "the progress of the transaction")


async def test_committed_half_is_not_lost_if_its_copy_is_not_replicated(tmp_path: Path) -> None:
    async with master(tmp_path, slaveTimeout=100) as it:
        half = await it.replicated(prepared(it))
        # The message is stored, so a producer that repeated the request would gain nothing.
        assert (await commit(it, half)).code == OK
        assert it.slaves.replicated_log_offset < it.broker.store.end_log_offset
        assert await it.bodies() == [b"half"]
    async with master(tmp_path) as it:
        assert await it.bodies() == [b"half"]
        assert (await it.replicated(it.send(b"next"))).fields["queueOffset"] == "1"


# -- retries, delayed and timed messages -----------------------------------------------------------


async def test_message_that_is_sent_back_waits(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        body = json.dumps({"groupName": "g"}).encode()
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        await it.replicated(it.send(b"x"))
        fields = {
            "offset": str((await it.first_message()).log_offset), "group": "g", "delayLevel": "0",
        }  # fmt: skip
        for _ in range(2):  # the first one creates the retry topic
            back = await it.waiting(it.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
            it.acknowledge()
            assert (await back).code == OK


async def test_delayed_message_waits_and_so_does_the_progress_of_its_copy(tmp_path: Path) -> None:
    async with master(tmp_path, flushDelayOffsetInterval=20) as it:

        async def delivered_count() -> int:
            answer = await it.peer.expect(RequestCode.GET_ALL_DELAY_OFFSET)
            return int(json.loads(answer.body)["offsetTable"].get("1", 0))

        sent = await it.waiting(it.send(b"later", DELAY="1"))
        it.acknowledge()
        assert (await sent).code == OK
        asked_before = it.slaves.asked_count
        it.advance(2_000)
        await eventually(it.bodies, "the delivered message")
        await it.progress_is_asked_for(asked_before)
        assert await delivered_count() == 0
        it.acknowledge()
        await eventually(delivered_count, "the progress of the delay level")
        assert await delivered_count() == 1


async def test_progress_of_copies_goes_on_without_slaves_and_after_their_timeout(
    tmp_path: Path,
) -> None:
    async with master(tmp_path, flushDelayOffsetInterval=20, slaveTimeout=100) as it:

        async def delivered_count() -> int:
            answer = await it.peer.expect(RequestCode.GET_ALL_DELAY_OFFSET)
            return int(json.loads(answer.body)["offsetTable"].get("1", 0))

        for count, in_reach in ((1, True), (2, False)):
            it.slaves.in_reach = in_reach
            await it.send(b"later", DELAY="1")
            it.advance(2_000)

            async def is_saved(count: int = count) -> bool:
                return await delivered_count() == count

            await eventually(is_saved, f"the progress of {count} messages")


async def test_timed_message_waits_and_so_does_the_progress_of_its_copy(tmp_path: Path) -> None:
    async with master(tmp_path, timerFlushIntervalMs=20) as it:

        async def read_time_ms() -> int:
            answer = await it.peer.expect(RequestCode.GET_TIMER_CHECK_POINT)
            decoded = decode_checkpoint(answer.body)
            assert decoded is not None
            return decoded[0].read_time_ms

        sent = await it.waiting(it.send(b"later", TIMER_DELAY_SEC="10"))
        due_ms = wall_ms() + 3_600_000  # after the clock was advanced
        it.acknowledge()
        assert (await sent).code == OK
        await eventually(read_time_ms, "the progress of an indexed message")
        asked_before = it.slaves.asked_count
        it.advance(2 * 3_600_000)
        await eventually(it.bodies, "the delivered message")
        await it.progress_is_asked_for(asked_before)
        assert await read_time_ms() < due_ms
        it.acknowledge()

        async def is_saved() -> bool:
            return await read_time_ms() > due_ms

        await eventually(is_saved, "the progress of the timer")


async def test_popped_message_is_in_flight_until_its_copy_is_replicated(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        sent = await it.waiting(it.peer.send(TOPIC, b"x"))
        it.acknowledge()
        assert (await sent).code == OK
        assert len(await pop(it.peer, invisible_ms=60_000)) == 1
        asked_before = it.slaves.asked_count
        it.advance(61_000)
        retry = f"%RETRY%{GROUP}_{TOPIC}"

        async def is_revived() -> bool:
            return await it.max_offset(retry) == 1

        await eventually(is_revived, "the copy")
        await it.progress_is_asked_for(asked_before)
        assert it.broker.offsets.find(GROUP, TOPIC, 0) == 0
        it.acknowledge()
        await eventually(lambda: it.broker.offsets.find(GROUP, TOPIC, 0) == 1, "the end of the pop")
