"""While too few replicas are in sync, or the master is suspended, nothing is stored, over sockets.

Every request that stores messages, on the fast path and in the handlers, and what the broker stores
by itself: each is refused before it changes the log, and succeeds when writes are accepted again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.brokers import Cluster, bodies_in, cluster, eventually, send_fields
from tests.support.counted import GAP_MAX_MS, Counted, confirm, obey
from tests.support.pop import pop

from tianzhou.broker.storing.serving import Refusal, not_enough_in_sync, suspended
from tianzhou.protocol import sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.message_id import decode_offset_id

NOT_ENOUGH = not_enough_in_sync(1, 2, "broker-a")
SUSPENDED = suspended("broker-a", "its lease is over")
PREPARED = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "u"}

Write = Callable[[Cluster, dict[str, Command]], Awaitable[Command]]
"""Called with the responses to what was stored before."""


async def _send(it: Cluster, _: dict[str, Command]) -> Command:
    return await it.peer.send("t", b"x")


async def _send_v1(it: Cluster, _: dict[str, Command]) -> Command:
    fields = {
        "producerGroup": "p", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
        "reconsumeTimes": "0", "unitMode": "false",
    }  # fmt: skip
    return await it.peer.ask(RequestCode.SEND_MESSAGE, fields, b"x")


async def _new_topic(it: Cluster, _: dict[str, Command]) -> Command:
    return await it.peer.send("new", b"x")


async def _batch(it: Cluster, _: dict[str, Command]) -> Command:
    body = batch.encode([batch.BatchItem(b"1"), batch.BatchItem(b"2")])
    return await it.peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("t", batch=True), body)


async def _half(it: Cluster, _: dict[str, Command]) -> Command:
    flag = sysflag.TRANSACTION_PREPARED
    return await it.peer.send("t", b"half", props=PREPARED, sys_flag=flag)


async def _delayed(it: Cluster, _: dict[str, Command]) -> Command:
    return await it.peer.send("t", b"later", props={"DELAY": "2"})


async def _end(it: Cluster, half: Command, state: int) -> Command:
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(decode_offset_id(half.fields["msgId"])[1]),
        "commitOrRollback": str(state), "msgId": "u", "transactionId": "u",
        "fromTransactionCheck": "false",
    }  # fmt: skip
    return await it.peer.ask(RequestCode.END_TRANSACTION, fields)


async def _commit(it: Cluster, stored: dict[str, Command]) -> Command:
    return await _end(it, stored["half 1"], sysflag.TRANSACTION_COMMIT)


async def _roll_back(it: Cluster, stored: dict[str, Command]) -> Command:
    return await _end(it, stored["half 2"], sysflag.TRANSACTION_ROLLBACK)


async def _send_back(it: Cluster, stored: dict[str, Command]) -> Command:
    fields = {
        "offset": str(decode_offset_id(stored["plain"].fields["msgId"])[1]), "group": "g",
        "delayLevel": "1", "originMsgId": "m", "originTopic": "t", "unitMode": "false",
        "maxReconsumeTimes": "16",
    }  # fmt: skip
    return await it.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def _recall(it: Cluster, stored: dict[str, Command]) -> Command:
    fields = {
        "topic": "t", "recallHandle": stored["timed"].fields["recallHandle"], "producerGroup": "p",
    }  # fmt: skip
    return await it.peer.ask(RequestCode.RECALL_MESSAGE, fields)


WRITES: dict[str, Write] = {
    "send": _send, "send in the long form": _send_v1, "new topic": _new_topic, "batch": _batch,
    "half": _half, "delayed": _delayed, "commit": _commit, "rollback": _roll_back,
    "send back": _send_back, "recall": _recall,
}  # fmt: skip


async def _prepare(it: Cluster) -> dict[str, Command]:
    """Store what the writes refer to; the fast path knows the queue of topic t after that."""
    stored = {
        "plain": await it.peer.send("t", b"plain"),
        "half 1": await _half(it, {}),
        "half 2": await _half(it, {}),
        "timed": await it.peer.send(
            "t", b"timed", props={"TIMER_DELAY_SEC": "600", "UNIQ_KEY": "timed"}
        ),
    }
    assert {answer.code for answer in stored.values()} == {ResponseCode.SUCCESS}
    return stored


@pytest.mark.parametrize("refusal", [NOT_ENOUGH, SUSPENDED], ids=["too few", "suspended"])
@pytest.mark.parametrize("at_entrance", [True, False])
async def test_each_write_is_refused_before_it_is_stored(
    tmp_path: Path, refusal: Refusal, at_entrance: bool
) -> None:
    """Also by the store alone, as for a request that has passed the entrance before."""
    async with cluster(tmp_path, recallMessageEnable="true") as it:
        if at_entrance:
            obey(it.broker)
        stored = await _prepare(it)
        store, serving = it.broker.store, it.broker.serving
        for name, write in WRITES.items():
            serving.refuse(writes=refusal, reads=None)
            end = store.end_log_offset
            answer = await write(it, stored)
            assert refusal.text in (answer.remark or ""), name
            assert store.end_log_offset == end, name
            if at_entrance:
                assert (answer.code, answer.remark) == (refusal.code, refusal.text), name
                was_created = name == "new topic" and "new" in it.broker.topics.topics
                assert not was_created, "a refused send has created a topic"
            serving.refuse(writes=None, reads=None)
            answer = await write(it, stored)
            assert answer.code == ResponseCode.SUCCESS, (name, answer.remark)
            assert store.end_log_offset > end, name
        # The broker still answers readers.
        serving.refuse(writes=refusal, reads=None)
        assert bodies_in(await it.peer.pull("g", "t", 0, 0))[0] == b"plain"


async def test_a_refusal_says_what_happened_and_what_to_do() -> None:
    assert NOT_ENOUGH.code == ResponseCode.SYSTEM_ERROR
    assert NOT_ENOUGH.text.startswith("in-sync replicas not enough: 1 of the 2")
    assert "minInSyncReplicas" in NOT_ENOUGH.text
    assert SUSPENDED.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_the_broker_itself_stores_nothing_while_writes_are_refused(tmp_path: Path) -> None:
    """Due delayed and timed messages and revived pops come when writes are accepted again."""
    async with cluster(
        tmp_path, messageDelayLevel="1s", timerWheelEnable="true", timerPrecisionMs="100"
    ) as it:
        store, serving = it.broker.store, it.broker.serving
        await it.peer.send("popped", b"popped")
        assert len(await pop(it.peer, topic="popped", invisible_ms=1000)) == 1
        await it.peer.send("t", b"delayed", props={"DELAY": "1"})
        await it.peer.send("t", b"timed", props={"TIMER_DELAY_SEC": "1"}, queue_id=1)
        serving.refuse(writes=NOT_ENOUGH, reads=None)
        end = store.end_log_offset
        await asyncio.sleep(2.5)
        assert store.end_log_offset == end, "the broker stored a message"
        serving.refuse(writes=None, reads=None)
        await eventually(lambda: store.max_offset("t", 0), "the delayed message")
        await eventually(lambda: store.max_offset("t", 1), "the timed message")

        async def revived() -> bool:
            return len(await pop(it.peer, topic="popped")) == 1

        await eventually(revived, "the message that was popped and not acknowledged")


async def test_readers_are_refused_if_the_broker_shows_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        serving = it.broker.serving
        obey(it.broker)
        await it.peer.send("t", b"x")
        for _ in range(2):  # the second one is that of the fast path
            assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"x"]
        serving.refuse(writes=SUSPENDED, reads=SUSPENDED)
        for _ in range(2):
            answer = await it.peer.pull("g", "t", 0, 0)
            assert (answer.code, answer.remark) == (SUSPENDED.code, SUSPENDED.text)
        serving.refuse(writes=None, reads=None)
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"x"]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_MAX_OFFSET, {}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(2**62)}),
    ],
)
async def test_ends_of_queues_never_go_back_with_a_new_master(
    tmp_path: Path, code: int, fields: dict[str, str]
) -> None:
    """Readers saw all three messages at its predecessor; as a slave it knew of one of them."""
    async with cluster(tmp_path, brokerRole="SYNC_MASTER", slaveTimeout="60000") as it:
        serving, store, counted = it.broker.serving, it.broker.store, Counted()
        obey(it.broker)
        ends = list[int]()
        for _ in range(3):
            await it.peer.send("t", b"x")
            ends.append(store.end_log_offset)
        serving.show_confirmed(ends[0])
        serving.begin_session(counted)
        question = {"topic": "t", "queueId": "0"} | fields
        confirm(serving, counted, ends[1])
        answer = await it.peer.ask(code, question)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "does not know yet" in (answer.remark or "")
        confirm(serving, counted, ends[2])
        assert (await it.peer.expect(code, question)).fields["offset"] == "3"
        # No reader has seen what this master stores itself: the end is known.
        sending = asyncio.ensure_future(it.peer.send("t", b"y"))
        await eventually(lambda: it.broker.durability.waiting_count == 1, "a send that waits")
        assert (await it.peer.expect(code, question)).fields["offset"] == "3"
        confirm(serving, counted, store.end_log_offset)
        await sending


# -- what waits for other replicas -----------------------------------------------------------------


async def test_sends_are_answered_by_the_counted_set(tmp_path: Path) -> None:
    """SEND_OK when it is confirmed by enough replicas; without enough SLAVE_NOT_AVAILABLE."""
    async with cluster(tmp_path, brokerRole="SYNC_MASTER", slaveTimeout="60000") as it:
        serving, store, counted = it.broker.serving, it.broker.store, Counted()
        serving.show_confirmed(store.end_log_offset)
        serving.begin_session(counted)
        await _confirmed(it, counted, it.peer.send("t", b"first"))
        sending = asyncio.ensure_future(it.peer.send("t", b"second"))
        await eventually(lambda: it.broker.durability.waiting_count == 1, "a send that waits")
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"first"]
        confirm(serving, counted, store.end_log_offset)
        assert (await sending).code == ResponseCode.SUCCESS
        assert len(bodies_in(await it.peer.pull("g", "t", 0, 0))) == 2
        # The other replica leaves: the set in force is this master alone (minInSyncReplicas=1).
        waiting = asyncio.ensure_future(it.peer.send("t", b"third"))
        await eventually(lambda: it.broker.durability.waiting_count == 1, "a send that waits")
        counted.in_force = 1
        serving.set_changed()
        assert (await waiting).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert (await it.peer.send("t", b"fourth")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def _confirmed(it: Cluster, counted: Counted, sent: Awaitable[Command]) -> None:
    sending = asyncio.ensure_future(sent)
    await eventually(lambda: it.broker.durability.waiting_count == 1, "a send that waits")
    confirm(it.broker.serving, counted, it.broker.store.end_log_offset)
    assert (await sending).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("topic", ["t", "a-new-topic"])
async def test_a_session_that_ends_acknowledges_nothing(tmp_path: Path, topic: str) -> None:
    """Not even if the next session of this broker confirms the same log offset.

    On the fast path, and in the handlers, where a new topic is saved between append and response.
    """
    async with cluster(tmp_path, brokerRole="SYNC_MASTER", slaveTimeout="60000") as it:
        serving, store, counted = it.broker.serving, it.broker.store, Counted()
        serving.show_confirmed(store.end_log_offset)
        serving.begin_session(counted)
        await _confirmed(it, counted, it.peer.send("t", b"first"))
        sending = asyncio.ensure_future(it.peer.send(topic, b"second"))
        await eventually(lambda: it.broker.durability.waiting_count == 1, "a send that waits")
        serving.end_session()
        after = Counted()
        serving.begin_session(after)
        confirm(serving, after, store.end_log_offset)
        assert (await sending).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


@pytest.mark.parametrize("name", ["commit", "rollback", "send back", "recall"])
async def test_what_a_session_did_not_confirm_is_not_reported_as_done(
    tmp_path: Path, name: str
) -> None:
    """A consumer would go on without the message that it sent back, which a switch may remove."""
    async with cluster(
        tmp_path, brokerRole="SYNC_MASTER", slaveTimeout="60000", recallMessageEnable="true"
    ) as it:
        serving, store = it.broker.serving, it.broker.store
        serving.show_confirmed(store.end_log_offset)
        serving.begin_session(Counted(confirm=1 << 40))
        stored = await _prepare(it)
        serving.end_session()
        counted = Counted(confirm=store.end_log_offset)
        serving.begin_session(counted)
        serving.confirm(counted.confirm)
        asked = asyncio.ensure_future(WRITES[name](it, stored))
        await eventually(lambda: it.broker.durability.waiting_count == 1, "a request that waits")
        serving.end_session()
        answer = await asked
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "repeat the request" in (answer.remark or "")


# -- after the event loop stood still --------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET])
async def test_a_broker_holds_requests_on_both_paths(tmp_path: Path, code: RequestCode) -> None:
    """The fast path leaves the sends that it could store to the handlers, which wait."""
    async with cluster(tmp_path) as it:
        gap = obey(it.broker)
        await it.peer.send("t", b"first")
        gap.now_ms += GAP_MAX_MS + 1
        end = it.broker.store.end_log_offset
        asked = [asyncio.ensure_future(_ask(it, code)) for _ in range(3)]
        await eventually(lambda: gap.gaps, "the check")
        for _ in range(10):
            await asyncio.sleep(0.005)
            assert not any(each.done() for each in asked)
        assert it.broker.store.end_log_offset == end
        gap.checked.set()
        assert await asyncio.gather(*asked) == [ResponseCode.SUCCESS] * 3
        await gap.gap.stop()


async def _ask(it: Cluster, code: int) -> int:
    if code == RequestCode.SEND_MESSAGE_V2:
        return (await it.peer.send("t", b"held")).code
    return (await it.peer.ask(code, {"topic": "t", "queueId": "0"})).code
