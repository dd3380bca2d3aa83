"""Transactions over real sockets: visibility for consumers, checks of producers."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.brokers import (
    STAMPS,
    Cluster,
    Peer,
    bodies_in,
    cluster,
    eventually,
    messages_in,
    peer_of,
    running_broker,
    send_fields,
)

from tianzhou.broker.transactions.halves import Halves
from tianzhou.names import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from tianzhou.protocol import sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.protocol.records.record import decode_record

COMMIT, ROLLBACK, UNKNOWN = (
    sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK, sysflag.TRANSACTION_NONE,
)  # fmt: skip
QUICK = {"transactionTimeOut": 1, "transactionCheckInterval": 50}
FLUSHED = {"flushIntervalCommitLog": 20, "flushCommitLogLeastPages": 0}
PREPARED = {"TRAN_MSG": "true", "PGROUP": "producers"}


async def prepare(peer: Peer, body: bytes, **more: str) -> Command:
    """Send a half; returns the response."""
    props = PREPARED | {"UNIQ_KEY": body.decode(), "KEYS": "k", "TAGS": "a"} | more
    flag = sysflag.TRANSACTION_PREPARED
    answer = await peer.send("Orders", body, queue_id=1, props=props, sys_flag=flag)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def end_fields(answer: Command, state: int, **changes: str) -> dict[str, str]:
    log_offset = decode_offset_id(answer.fields["msgId"])[1]
    return {
        "producerGroup": "producers", "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": str(log_offset), "commitOrRollback": str(state), "msgId": "u",
        "transactionId": "u", "fromTransactionCheck": "false",
    } | changes  # fmt: skip


async def end(peer: Peer, answer: Command, state: int, **changes: str) -> Command:
    return await peer.ask(RequestCode.END_TRANSACTION, end_fields(answer, state, **changes))


def end_of_check(asked: Command, state: int) -> dict[str, str]:
    """The response of a producer to a check."""
    fields = asked.fields
    return {
        "producerGroup": "producers", "tranStateTableOffset": fields["tranStateTableOffset"],
        "commitLogOffset": fields["commitLogOffset"], "commitOrRollback": str(state),
        "msgId": fields["msgId"], "fromTransactionCheck": "true",
    }  # fmt: skip


async def delivered(peer: Peer) -> list[bytes]:
    answer = await peer.pull("g", "Orders", 1, 0)
    return bodies_in(answer) if answer.code == ResponseCode.SUCCESS else []


def checks_of(peer: Peer) -> list[Command]:
    return [each for each in peer.pushed if each.code == RequestCode.CHECK_TRANSACTION_STATE]


async def is_settled(reader: Peer) -> bool:
    """Whether the progress of the checks has reached the end of the halves."""
    place = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": "0"}
    high = await reader.expect(RequestCode.GET_MAX_OFFSET, place)
    done = await reader.ask(
        RequestCode.QUERY_CONSUMER_OFFSET, place | {"consumerGroup": "CID_RMQ_SYS_TRANS"}
    )
    if high.fields["offset"] == "0":
        return True
    return done.code == ResponseCode.SUCCESS and done.fields["offset"] == high.fields["offset"]


# -- ending ----------------------------------------------------------------------------------------


async def test_a_half_is_invisible_until_it_is_committed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        half = await prepare(it.peer, b"one", own="mine")
        assert (half.fields["queueId"], half.fields["transactionId"]) == ("1", "one")
        assert await delivered(it.peer) == []
        assert (await end(it.peer, half, COMMIT)).code == ResponseCode.SUCCESS
        (message,) = messages_in(await it.peer.pull("g", "Orders", 1, 0))
        assert (message.topic, message.queue_id, message.body) == ("Orders", 1, b"one")
        assert message.prepared_log_offset == decode_offset_id(half.fields["msgId"])[1]
        assert sysflag.transaction_state(message.sys_flag) == COMMIT
        assert message.properties == {
            "PGROUP": "producers", "UNIQ_KEY": "one", "KEYS": "k", "TAGS": "a", "own": "mine",
            "__transactionId__": "one", **STAMPS,
        }  # fmt: skip
        counted = {place: each.messages for place, each in it.broker.stats.by_queue.items()}
        assert counted == {(HALF_TOPIC, 0): 1, ("Orders", 1): 1}
        (op,) = messages_in(await it.peer.pull("CID_RMQ_SYS_TRANS", HALF_OP_TOPIC, 0, 0))
        assert (op.body, op.tags) == (half.fields["queueOffset"].encode(), "d")


async def test_rolled_back_message_is_never_delivered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        half = await prepare(it.peer, b"no")
        assert (await end(it.peer, half, ROLLBACK)).code == ResponseCode.SUCCESS
        # The first end counts: a rolled back half is not committed by a later request.
        assert (await end(it.peer, half, COMMIT)).code == ResponseCode.SUCCESS
        assert await delivered(it.peer) == []


async def test_a_repeated_commit_delivers_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        first = await prepare(it.peer, b"open")
        half = await prepare(it.peer, b"one")
        for _ in range(3):
            assert (await end(it.peer, half, COMMIT)).code == ResponseCode.SUCCESS
        assert await delivered(it.peer) == [b"one"]
        assert (await end(it.peer, first, COMMIT)).code == ResponseCode.SUCCESS
        assert await delivered(it.peer) == [b"one", b"open"]


async def test_first_end_counts_also_after_checks(
    tmp_path: Path,
) -> None:
    """After a round of checks the ended half is behind the first open one, and stays ended."""
    async with cluster(tmp_path, **QUICK, **FLUSHED) as it:
        gone, done = await prepare(it.peer, b"gone"), await prepare(it.peer, b"done")
        await end(it.peer, gone, ROLLBACK)
        await end(it.peer, done, COMMIT)
        await eventually(lambda: is_settled(it.peer), "a round after both have ended")
        for half in (gone, done):
            assert (await end(it.peer, half, COMMIT)).code == ResponseCode.SUCCESS
        assert await delivered(it.peer) == [b"done"]


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
async def test_with_sync_flush_the_end_of_a_transaction_is_on_disk(
    tmp_path: Path, state: int
) -> None:
    async with cluster(tmp_path, flushDiskType="SYNC_FLUSH") as it:
        half = await prepare(it.peer, b"one")
        store = it.broker.store
        assert store is not None
        before = store.end_log_offset
        assert (await end(it.peer, half, state)).code == ResponseCode.SUCCESS
        assert store.flushed_log_offset == store.end_log_offset > before


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"producerGroup": "other"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        (
            {"tranStateTableOffset": "7"}, ResponseCode.SYSTEM_ERROR,
            "The transaction state table offset wrong",
        ),
        (
            {"commitLogOffset": "3"}, ResponseCode.SYSTEM_ERROR,
            "Find prepared transaction message failed",
        ),
        ({"commitOrRollback": "5"}, ResponseCode.SYSTEM_ERROR, "commitOrRollback is 5"),
    ],
)  # fmt: skip
async def test_end_that_matches_no_half_is_refused(
    tmp_path: Path, changes: dict[str, str], code: int, remark: str
) -> None:
    async with cluster(tmp_path) as it:
        half = await prepare(it.peer, b"one")
        answer = await end(it.peer, half, COMMIT, **changes)
        assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
        assert await delivered(it.peer) == []


async def test_a_plain_message_cannot_be_committed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        sent = await it.peer.send("Orders", b"x", props={"PGROUP": "producers"})
        answer = await end(it.peer, sent, COMMIT)
        assert answer.remark == "Find prepared transaction message failed"


# -- refusing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("props", "remark"),
    [
        (PREPARED | {"DELAY": "3"}, "delay"),
        (PREPARED | {"TIMER_DELAY_SEC": "3"}, ""),
        ({"TRAN_MSG": "true"}, "PGROUP"),
    ],
)
async def test_invalid_halves_are_refused(
    tmp_path: Path, props: dict[str, str], remark: str
) -> None:
    async with cluster(tmp_path) as it:
        answer = await it.peer.send("Orders", b"x", props=props)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert remark in (answer.remark or "")
        assert it.broker.stats.put.messages == 0


async def test_transactions_can_be_switched_off(tmp_path: Path) -> None:
    async with cluster(tmp_path, rejectTransactionMessage="true") as it:
        answer = await it.peer.send("Orders", b"x", props=PREPARED)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "rejectTransactionMessage" in (answer.remark or "")
        assert (await it.peer.send("Orders", b"plain")).code == ResponseCode.SUCCESS


# -- checking --------------------------------------------------------------------------------------


async def test_an_open_transaction_is_checked_and_committed(tmp_path: Path) -> None:
    async with cluster(tmp_path, **QUICK) as it:
        await it.peer.heartbeat("p1", producer="producers")
        half = await prepare(it.peer, b"one")
        assert (await end(it.peer, half, UNKNOWN)).code == ResponseCode.SUCCESS
        await eventually(lambda: checks_of(it.peer), "a check")
        asked = checks_of(it.peer)[0]
        assert asked.is_oneway
        assert asked.fields["msgId"] == asked.fields["transactionId"] == "one"
        shown = decode_record(asked.body)
        assert (shown.topic, shown.queue_id, shown.body) == ("Orders", 1, b"one")
        assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert int(asked.fields["tranStateTableOffset"]) > int(half.fields["queueOffset"])
        await it.peer.expect(RequestCode.END_TRANSACTION, end_of_check(asked, COMMIT))
        assert (await delivered(it.peer))[0] == b"one"


async def test_a_producer_may_end_a_half_that_was_checked_meanwhile(tmp_path: Path) -> None:
    """A long local transaction: the half has moved, its producer knows the first offset only."""
    async with cluster(tmp_path, **QUICK, **FLUSHED) as it:
        await it.peer.heartbeat("p1", producer="producers")
        halves = {body: await prepare(it.peer, body) for body in (b"yes", b"no")}
        await eventually(lambda: len(checks_of(it.peer)) >= 4, "checks of both")
        await end(it.peer, halves[b"yes"], COMMIT)
        await end(it.peer, halves[b"no"], ROLLBACK)
        await eventually(lambda: is_settled(it.peer), "no half left open")
        await end(it.peer, halves[b"no"], UNKNOWN)
        assert await delivered(it.peer) == [b"yes"]


async def test_any_producer_of_the_group_may_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path, **QUICK) as it:
        async with peer_of(it.broker.address) as first:
            await first.heartbeat("p1", producer="producers")
            await prepare(first, b"one")
        async with peer_of(it.broker.address) as second:
            await second.heartbeat("p2", producer="producers")
            await eventually(lambda: checks_of(second), "a check of the other producer")
            asked = checks_of(second)[-1]
            await second.expect(RequestCode.END_TRANSACTION, end_of_check(asked, COMMIT))
        assert b"one" in await delivered(it.peer)


async def test_half_is_moved_to_its_own_topic_after_the_last_check_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, transactionCheckMax=2, **QUICK) as it:
        await it.peer.heartbeat("p1", producer="producers")
        await prepare(it.peer, b"one")

        async def given_up() -> list[bytes]:
            answer = await it.peer.pull("g", CHECK_MAX_TOPIC, 0, 0)
            return bodies_in(answer) if answer.code == ResponseCode.SUCCESS else []

        await eventually(given_up, "the half in the topic of those given up")
        assert len(checks_of(it.peer)) == 2
        (discarded,) = messages_in(await it.peer.pull("g", CHECK_MAX_TOPIC, 0, 0))
        assert discarded.properties["REAL_TOPIC"] == "Orders"
        own_port = int(it.broker.address.rpartition(":")[2])
        msg_id = f"7F000001{own_port:08X}{discarded.log_offset:016X}"
        await it.peer.expect(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": msg_id})
        await eventually(lambda: len(checks_of(it.peer)) > 2, "a check after the resumption")
        asked = checks_of(it.peer)[-1]
        await it.peer.expect(RequestCode.END_TRANSACTION, end_of_check(asked, COMMIT))
        assert b"one" in await delivered(it.peer)


@pytest.mark.parametrize("msg_id", ["", "zz", "7F000001" + "0" * 24, None])
async def test_only_halves_can_be_resumed(tmp_path: Path, msg_id: str | None) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("Orders", b"plain")
        fields = {} if msg_id is None else {"msgId": msg_id}
        answer = await it.peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark


async def test_immunity_time_defers_the_check_and_then_only_the_check_counts(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, **QUICK) as it:
        await it.peer.heartbeat("p1", producer="producers")
        immune = await prepare(it.peer, b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        late = send_fields("Orders", queue_id=1, props=PREPARED | {
            "UNIQ_KEY": "late", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1",
        }) | {"g": str(int(time.time() * 1000) - 10_000)}  # fmt: skip
        sent = await it.peer.expect(RequestCode.SEND_MESSAGE_V2, late, b"late")
        refused = await end(it.peer, sent, COMMIT)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        await eventually(lambda: checks_of(it.peer), "a check")
        assert {each.fields["msgId"] for each in checks_of(it.peer)} == {"late"}
        assert (await end(it.peer, immune, COMMIT)).code == ResponseCode.SUCCESS
        assert await delivered(it.peer) == [b"immune"]


# -- over restarts ---------------------------------------------------------------------------------


async def test_restart_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with running_broker(store, **QUICK) as broker, peer_of(broker.address) as peer:
        await peer.heartbeat("p1", producer="producers")
        done = await prepare(peer, b"done")
        gone = await prepare(peer, b"gone")
        await prepare(peer, b"open")
        await end(peer, done, COMMIT)
        await end(peer, gone, ROLLBACK)
        await eventually(lambda: checks_of(peer), "a check of the open one")
    async with running_broker(store, **QUICK) as broker, peer_of(broker.address) as peer:
        await peer.heartbeat("p1", producer="producers")
        await eventually(lambda: checks_of(peer), "a check after the restart")
        for asked in checks_of(peer):
            assert asked.fields["msgId"] == "open"
        asked = checks_of(peer)[-1]
        await peer.expect(RequestCode.END_TRANSACTION, end_of_check(asked, COMMIT))
        assert await delivered(peer) == [b"done", b"open"]
        half_count = broker.offsets.find("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0)
        assert half_count >= 3, "progress is kept as RocketMQ keeps it"


async def test_first_end_counts_while_a_restarted_broker_still_reads_the_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read_ends, may_read = tmp_path / "store", Halves.read_ends, False
    async with running_broker(store) as broker, peer_of(broker.address) as peer:
        # The ends behind an open half must be read again.
        open_, gone = await prepare(peer, b"open"), await prepare(peer, b"gone")
        await end(peer, gone, ROLLBACK)

    def reads_ends(halves: Halves) -> bool:
        return may_read and read_ends(halves)

    monkeypatch.setattr(Halves, "read_ends", reads_ends)
    async with running_broker(store) as broker, peer_of(broker.address) as peer:
        early = [asyncio.create_task(end(peer, half, COMMIT)) for half in (gone, open_)]
        assert await delivered(peer) == []
        may_read = True
        assert [(await each).code for each in early] == [ResponseCode.SUCCESS] * 2
        assert await delivered(peer) == [b"open"]


async def test_producers_can_end_transactions_if_the_ends_of_former_runs_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Halves) -> bool:
        raise OSError("Input/output error")

    monkeypatch.setattr(Halves, "read_ends", broken)
    async with cluster(tmp_path) as it:
        half = await prepare(it.peer, b"one")
        assert (await end(it.peer, half, COMMIT)).code == ResponseCode.SUCCESS
        assert await delivered(it.peer) == [b"one"]
    assert "not all ends of former runs can be read" in caplog.text


async def test_ends_are_batched(tmp_path: Path) -> None:
    store = tmp_path / "store"
    waits = {"transactionOpBatchInterval": 600_000}
    async with running_broker(store, **waits) as broker, peer_of(broker.address) as peer:
        for number in range(3):
            half = await prepare(peer, b"%d" % number)
            await end(peer, half, COMMIT)
        found = await peer.pull("g", HALF_OP_TOPIC, 0, 0)
        assert found.code == ResponseCode.PULL_NOT_FOUND
    async with running_broker(store) as broker, peer_of(broker.address) as peer:
        ops = bodies_in(await peer.pull("g", HALF_OP_TOPIC, 0, 0))
        assert ops == [b"0,1,2"], "a stop writes what is left"


async def oneway_ends(it: Cluster, count: int) -> None:
    halves = [await prepare(it.peer, b"%d" % number) for number in range(count)]
    for half in halves:
        command = Command(code=RequestCode.END_TRANSACTION, ext_fields=end_fields(half, COMMIT))
        await it.peer.client.oneway(it.peer.address, command)


async def test_oneway_ends_of_stock_clients_are_accepted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await oneway_ends(it, 5)

        async def all_delivered() -> bool:
            return len(await delivered(it.peer)) == 5

        await eventually(all_delivered, "all committed")
        ops = bodies_in(await it.peer.pull("g", HALF_OP_TOPIC, 0, 0))
        assert b",".join(ops) == b"0,1,2,3,4"
