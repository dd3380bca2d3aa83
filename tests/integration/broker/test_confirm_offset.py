"""Each request that reads shows only what is confirmed, over real sockets.

Two messages are confirmed, one more is stored. `READS` has every way to see it; each is asked
before and after its confirmation, and once without any limit, where it must show the message: so a
request that does not apply the limit, and one that would show nothing anyway, fail.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from tests.support.brokers import Cluster, bodies_in, cluster, eventually, pull_fields
from tests.support.counted import Counted
from tests.support.pop import pop, pop_fields, popped_in

from tianzhou.names import HALF_TOPIC
from tianzhou.protocol import sysflag
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies.stats import ConsumeStats, TopicStatsTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.protocol.records.record import decode_records

TIMES: Final = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
SUSPEND = 6
"""An inline subscription, and the pull may be parked."""

Read = Callable[[Cluster, str], Awaitable[object]]
"""Called with the id of the last message."""


async def _pull(it: Cluster, _: str) -> object:
    answer = await it.peer.pull("g", "t", 0, 0)
    return len(bodies_in(answer)), answer.fields["maxOffset"], answer.fields["nextBeginOffset"]


async def _pull_again(it: Cluster, _: str) -> object:
    """The second pull is that of the fast path, where there is one."""
    await it.peer.pull("g", "t", 0, 0)
    return await _pull(it, _)


async def _lite_pull(it: Cluster, _: str) -> object:
    answer = await it.peer.ask(RequestCode.LITE_PULL_MESSAGE, pull_fields("g", "t", 0, 0))
    return len(bodies_in(answer)), answer.fields["maxOffset"]


async def _offset(it: Cluster, code: int, **fields: str) -> object:
    answer = await it.peer.expect(code, {"topic": "t", "queueId": "0"} | fields)
    return answer.fields["offset"]


async def _query(it: Cluster, key: str, **fields: str) -> object:
    answer = await it.peer.ask(
        RequestCode.QUERY_MESSAGE, {"topic": "t", "key": key, "maxNum": "9"} | TIMES | fields
    )
    return len(decode_records(answer.body))


async def _view(it: Cluster, message_id: str) -> object:
    log_offset = decode_offset_id(message_id)[1]
    answer = await it.peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(log_offset)})
    return answer.code == ResponseCode.SUCCESS


async def _pop(it: Cluster, _: str) -> object:
    answer = await it.peer.ask(RequestCode.POP_MESSAGE, pop_fields(queue_id=0, group="popping"))
    popped = popped_in(answer) if answer.code == ResponseCode.SUCCESS else []
    return [each.body for each in popped][-1:]


async def _peek(it: Cluster, _: str) -> object:
    fields = {"consumerGroup": "peeking", "topic": "t", "queueId": "0", "maxMsgNums": "9"}
    answer = await it.peer.ask(RequestCode.PEEK_MESSAGE, fields)
    return len(decode_records(answer.body)), answer.fields["restNum"]


async def _notification(it: Cluster, _: str) -> object:
    """For a group that has popped what was confirmed at first (`_store`)."""
    fields = {
        "consumerGroup": "notified", "topic": "t", "queueId": "0", "pollTime": "0", "bornTime": "0",
    }  # fmt: skip
    answer = await it.peer.expect(RequestCode.NOTIFICATION, fields)
    return answer.fields["hasMsg"]


async def _topic_stats(it: Cluster, _: str) -> object:
    answer = await it.peer.expect(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"})
    offsets = decode_body(TopicStatsTable, answer.body).offsets
    return {queue.queue_id: each.max_offset for queue, each in offsets.items()}[0]


async def _consume_stats(it: Cluster, _: str) -> object:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "1"}
    await it.peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    answer = await it.peer.expect(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    offsets = decode_body(ConsumeStats, answer.body).offsets
    return {queue.queue_id: each.broker_offset for queue, each in offsets.items()}[0]


async def _consume_queue(it: Cluster, _: str) -> object:
    fields = {"topic": "t", "queueId": "0", "index": "0", "count": "9"}
    answer = await it.peer.expect(RequestCode.QUERY_CONSUME_QUEUE, fields)
    return answer.body.count(b"physicOffset"), b'"maxQueueIndex":3' in answer.body


READS: dict[str, Read] = {
    "pull": _pull,
    "second pull": _pull_again,
    "lite pull": _lite_pull,
    "max offset": lambda it, _: _offset(it, RequestCode.GET_MAX_OFFSET),
    "committed": lambda it, _: _offset(it, RequestCode.GET_MAX_OFFSET, committed="true"),
    "not committed": lambda it, _: _offset(it, RequestCode.GET_MAX_OFFSET, committed="false"),
    "time": lambda it, _: _offset(it, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(2**62)),
    "time upper": lambda it, _: _offset(
        it, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(2**62), boundaryType="UPPER"
    ),
    "key": lambda it, _: _query(it, "key2"),
    "unique key": lambda it, _: _query(it, "unique2", _UNIQUE_KEY_QUERY="true"),
    "id": _view,
    "pop": _pop,
    "peek": _peek,
    "notification": _notification,
    "topic stats": _topic_stats,
    "consume stats": _consume_stats,
    "consume queue": _consume_queue,
}


async def _store(it: Cluster) -> str:
    """Store three messages, the first two of them confirmed; returns the id of the last."""
    message_id = ""
    for number in range(3):
        props = {"KEYS": f"key{number}", "UNIQ_KEY": f"unique{number}"}
        answer = await it.peer.send("t", b"%d" % number, props=props)
        assert answer.code == ResponseCode.SUCCESS
        message_id = answer.fields["msgId"]
        if number < 2:
            it.broker.serving.confirm(it.broker.store.end_log_offset)
        if number == 1:
            assert len(await pop(it.peer, queue_id=0, group="notified")) == 2
    return message_id


@pytest.mark.parametrize("name", READS)
async def test_a_read_shows_a_message_only_when_it_is_confirmed(tmp_path: Path, name: str) -> None:
    read = READS[name]
    async with cluster(tmp_path / "whole") as it:
        whole = await read(it, await _store(it))
    async with cluster(tmp_path / "confirmed") as it:
        it.broker.serving.show_confirmed(0)
        message_id = await _store(it)
        before = await read(it, message_id)
        assert before != whole, "shows a message that is not confirmed"
        # Repeated, as the fast path learns from handlers.
        assert await read(it, message_id) == (before if name != "pop" else [])
        it.broker.serving.confirm(it.broker.store.end_log_offset)
        assert await read(it, message_id) == whole


async def test_the_first_message_of_a_queue_has_a_time_only_when_it_is_confirmed(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it:
        it.broker.serving.show_confirmed(0)
        await it.peer.send("t", b"first")
        fields = {"topic": "t", "queueId": "0"}
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        assert (await it.peer.expect(code, fields)).fields["timestamp"] == "-1"
        assert (await it.peer.pull("g", "t", 0, 0)).code == ResponseCode.PULL_NOT_FOUND
        it.broker.serving.confirm(it.broker.store.end_log_offset)
        assert int((await it.peer.expect(code, fields)).fields["timestamp"]) > 0


# -- requests that wait ----------------------------------------------------------------------------


async def _is_parked(it: Cluster, waiting: "asyncio.Future[object]") -> None:
    """The request waits, in the broker."""

    async def count() -> int:
        assert not waiting.done(), f"answered before the confirmation: {waiting.result()}"
        parked_count = len(it.broker.parked)
        for queue_id in ("0", "-1"):
            fields = {"consumerGroup": "g", "topic": "t", "queueId": queue_id}
            answer = await it.peer.expect(RequestCode.POLLING_INFO, fields)
            parked_count += int(answer.fields["pollingNum"])
        return parked_count

    await eventually(count, "a parked request")


async def _waiting_pull(it: Cluster) -> object:
    options = pull_fields("g", "t", 0, 0, sys_flag=SUSPEND, suspend_ms=600_000)
    answer = await it.peer.ask(RequestCode.PULL_MESSAGE, options, timeout_ms=60_000)
    return bodies_in(answer)


async def _waiting_pop(it: Cluster) -> object:
    return [each.body for each in await pop(it.peer, queue_id=0, poll_ms=600_000)]


async def _waiting_notification(it: Cluster) -> object:
    fields = {
        "consumerGroup": "g", "topic": "t", "queueId": "0", "pollTime": "600000", "bornTime": "0",
    }  # fmt: skip
    answer = await it.peer.ask(RequestCode.NOTIFICATION, fields, timeout_ms=60_000)
    return answer.fields["hasMsg"]


WAITS: dict[str, tuple[Callable[[Cluster], Awaitable[object]], object]] = {
    "pull": (_waiting_pull, [b"new"]),
    "pop": (_waiting_pop, [b"new"]),
    "notification": (_waiting_notification, "true"),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["parked before", "parked after"])
@pytest.mark.parametrize("name", WAITS)
async def test_a_parked_request_is_woken_by_the_confirmation(
    tmp_path: Path, name: str, is_first: bool
) -> None:
    """Not by the append; and by no sweep, which comes every 5 s."""
    ask, expected = WAITS[name]
    async with cluster(tmp_path) as it:
        it.broker.serving.show_confirmed(0)
        await it.peer.send("t", b"of another queue", queue_id=1)
        # The fast path knows the queue after a send by the handlers.
        await it.peer.send("warm", b"")
        waiting: asyncio.Future[object] | None = None
        if is_first:
            waiting = asyncio.ensure_future(ask(it))
            await _is_parked(it, waiting)
        await it.peer.send("t", b"new")
        if waiting is None:
            waiting = asyncio.ensure_future(ask(it))
        await _is_parked(it, waiting)
        it.broker.serving.confirm(it.broker.store.end_log_offset - 1)
        for _ in range(5):
            await it.peer.send("warm", b"")  # so the loop has run, and nothing woke it
            await _is_parked(it, waiting)
        began_s = asyncio.get_running_loop().time()
        it.broker.serving.confirm(it.broker.store.end_log_offset)
        assert await waiting == expected
        assert asyncio.get_running_loop().time() - began_s < 4, "the sweep found it"


# -- what the broker does by itself ----------------------------------------------------------------


async def test_an_end_of_a_transaction_finds_a_half_that_is_not_confirmed(tmp_path: Path) -> None:
    """The half was answered with FLUSH_SLAVE_TIMEOUT, and its producer rolls it back."""
    async with cluster(tmp_path) as it:
        it.broker.serving.show_confirmed(0)
        props = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "u"}
        half = await it.peer.send("t", b"half", props=props, sys_flag=sysflag.TRANSACTION_PREPARED)
        store = it.broker.store
        assert store.max_offset(HALF_TOPIC, 0) == 0
        assert store.with_unconfirmed.max_offset(HALF_TOPIC, 0) == 1
        fields = {
            "producerGroup": "producers", "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": str(decode_offset_id(half.fields["msgId"])[1]),
            "commitOrRollback": str(sysflag.TRANSACTION_COMMIT), "msgId": "u",
            "transactionId": "u", "fromTransactionCheck": "false",
        }  # fmt: skip
        await it.peer.expect(RequestCode.END_TRANSACTION, fields)
        # The message lies behind its half, so it is confirmed after it.
        assert store.max_offset("t", 0) == 0
        it.broker.serving.confirm(store.end_log_offset)
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"half"]


async def test_a_delayed_message_is_delivered_and_shown_when_it_is_confirmed(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, messageDelayLevel="1s") as it:
        it.broker.serving.show_confirmed(0)
        await it.peer.send("t", b"delayed", props={"DELAY": "1"})
        store = it.broker.store
        await eventually(lambda: store.with_unconfirmed.max_offset("t", 0), "the delivery")
        assert store.max_offset("t", 0) == 0
        it.broker.serving.confirm(store.end_log_offset)
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"delayed"]


async def test_progress_of_deliveries_is_saved_only_when_it_is_confirmed(tmp_path: Path) -> None:
    """Rule R11: a table that a later master reads claims nothing that a switch can remove."""
    pairs = {"messageDelayLevel": "1s", "flushDelayOffsetInterval": "20"}
    saved = tmp_path / "store" / "config" / "delayOffset.json"

    def offset() -> int:
        text = saved.read_text() if saved.exists() else "{}"
        table: dict[str, int] = json.loads(text).get("offsetTable", {})
        return table.get("1", 0)

    async with cluster(tmp_path, **pairs) as it:
        it.broker.serving.show_confirmed(0)
        it.broker.serving.begin_session(Counted())
        await it.peer.send("t", b"delayed", props={"DELAY": "1"})
        store = it.broker.store
        await eventually(lambda: store.with_unconfirmed.max_offset("t", 0), "the delivery")
        for _ in range(10):
            await asyncio.sleep(0.02)
            assert offset() == 0, "progress is saved that a switch can take back"
        it.broker.serving.confirm(store.end_log_offset)
        await eventually(lambda: offset() == 1, "saved progress")
