"""Responses to sends: after flush and replication where promised, rejections under overload.

tests/property/test_durability.py compares all of it with a model.
"""

import asyncio
from pathlib import Path

import pytest
from tests.support.brokers import eventually
from tests.support.counted import Counted, confirm
from tests.support.framing import split
from tests.support.replicas import StandInReplicas
from tests.unit.remoting.test_connection import made

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.overload import SendGate
from tianzhou.broker.storing.serving import Serving
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.errors import RequestError, StoreError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding, decode, encode
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

DRAFT = Draft("t", 0, b"body", "", 0, ("127.0.0.1", 1), ("127.0.0.1", 2))


def durability_of(
    store: MessageStore, replicas: StandInReplicas | None = None, **pairs: object
) -> Durability:
    """By default with SYNC_FLUSH; `pairs` are settings by their RocketMQ keys."""
    flags = [
        Given(key, str(value), "test")
        for key, value in ({"flushDiskType": "SYNC_FLUSH"} | pairs).items()
    ]
    settings = LiveSettings(load_broker_config(environ={}, flags=flags))
    durability = Durability(store, settings, replicas)
    if replicas is not None:
        replicas.on_advance = durability.replicas_advanced
    return durability


def small_store(folder: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=folder, mapped_file_size_commit_log=1024 * 1024,
        mapped_file_size_consume_queue=20 * 100, max_hash_slot_num=100, max_index_num=400,
        flush_interval_commit_log=60_000,
    )  # fmt: skip
    return MessageStore.open(config)


async def test_a_wait_ends_when_the_log_is_on_disk(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = durability_of(store)
        assert durability.must_wait(wait_stored=True)
        assert not durability.must_wait(wait_stored=False)
        ends = [store.append(DRAFT).end_log_offset for _ in range(20)]
        codes = await asyncio.gather(*(durability.stored(end) for end in ends))
        assert set(codes) == {ResponseCode.SUCCESS}
        assert store.flushed_log_offset >= ends[-1]
        assert durability.waiting_count == 0


async def test_async_flush_waits_for_nothing(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = durability_of(store, flushDiskType="ASYNC_FLUSH")
        assert not durability.must_wait(wait_stored=True)
        assert durability.code_at_once(wait_stored=True) == ResponseCode.SUCCESS


async def test_a_sync_master_without_a_port_for_slaves_lacks_them(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = durability_of(store, brokerRole="SYNC_MASTER")
        end = store.append(DRAFT).end_log_offset
        assert await durability.stored(end) == ResponseCode.SLAVE_NOT_AVAILABLE
        assert durability.code_at_once(wait_stored=False) == ResponseCode.SUCCESS


async def test_a_slow_disk_gives_flush_disk_timeout(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = durability_of(store, syncFlushTimeout=1)
        beyond = store.end_log_offset + 1_000_000
        assert await durability.stored(beyond) == ResponseCode.FLUSH_DISK_TIMEOUT


async def test_a_closing_store_fails_waiting_sends(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    durability = durability_of(store)
    waiting = asyncio.create_task(durability.stored(store.end_log_offset + 1_000_000))
    await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    with pytest.raises(RequestError, match="closed") as caught:
        await waiting
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


# -- slaves ----------------------------------------------------------------------------------------


async def some_iterations() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_send_ends_when_both_disk_and_slaves_have_it(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        slaves = StandInReplicas()
        durability = durability_of(store, slaves, brokerRole="SYNC_MASTER")
        end = store.append(DRAFT).end_log_offset
        waiting = asyncio.create_task(durability.stored(end))
        await eventually(lambda: store.flushed_log_offset == end, "the flush")
        await some_iterations()
        assert (waiting.done(), durability.waiting_count) == (False, 1)
        slaves.acknowledge(end)
        assert await waiting == ResponseCode.SUCCESS


async def test_without_sync_flush_a_send_waits_for_slaves_alone(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        slaves = StandInReplicas()
        durability = durability_of(
            store, slaves, brokerRole="SYNC_MASTER", flushDiskType="ASYNC_FLUSH"
        )
        assert durability.must_wait(wait_stored=True)
        end = store.append(DRAFT).end_log_offset
        waiting = asyncio.create_task(durability.stored(end))
        await some_iterations()
        slaves.acknowledge(end)
        assert await waiting == ResponseCode.SUCCESS
        assert store.flushed_log_offset < end


async def test_slaves_that_have_it_before_the_wait_begins_end_it(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        end = store.append(DRAFT).end_log_offset
        durability = durability_of(
            store, StandInReplicas(end), brokerRole="SYNC_MASTER", flushDiskType="ASYNC_FLUSH"
        )
        assert await durability.stored(end) == ResponseCode.SUCCESS


async def test_a_bad_result_of_replication_has_precedence(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        slaves = StandInReplicas()
        durability = durability_of(
            store, slaves, brokerRole="SYNC_MASTER", syncFlushTimeout=1, slaveTimeout=1
        )
        beyond = store.append(DRAFT).end_log_offset + 1_000_000
        assert await durability.stored(beyond) == ResponseCode.FLUSH_SLAVE_TIMEOUT
        slaves.in_reach = False
        assert await durability.stored(beyond) == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_held_responses_are_sent_at_once_without_a_slave_in_reach(tmp_path: Path) -> None:
    connection, transport, _ = made()
    with small_store(tmp_path) as store:
        slaves = StandInReplicas(in_reach=False)
        durability = durability_of(
            store, slaves, brokerRole="SYNC_MASTER", flushDiskType="ASYNC_FLUSH"
        )
        end = store.append(DRAFT).end_log_offset
        durability.hold([(connection, answered([1, 2], HeaderEncoding.JSON), 2)], end)
        assert durability.waiting_count == 0
        await asyncio.sleep(0)
        answers = responses_in(transport.written)
        assert [answer.opaque for answer in answers] == [1, 2]
        assert {answer.code for answer in answers} == {ResponseCode.SLAVE_NOT_AVAILABLE}
    connection.connection_lost(None)


async def test_copies_are_secured_when_both_disk_and_slaves_have_them(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        slaves = StandInReplicas()
        durability = durability_of(
            store, slaves, brokerRole="SYNC_MASTER", flushDiskType="ASYNC_FLUSH"
        )
        end = store.append(DRAFT).end_log_offset
        assert not durability.is_secured(end, 0)
        waiting = asyncio.create_task(durability.secured(end))
        await eventually(lambda: store.flushed_log_offset == end, "the flush")
        await some_iterations()
        assert not waiting.done()
        assert durability.waiting_count == 0, "it is no send"
        assert not durability.is_secured(end, 2_999)
        assert durability.is_secured(end, 3_000), "after slaveTimeout"
        slaves.acknowledge(end)
        await waiting
        assert durability.is_secured(end, 0)


async def test_copies_without_slaves_are_secured_by_the_disk(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        slaves = StandInReplicas(in_reach=False)
        durability = durability_of(store, slaves, brokerRole="SYNC_MASTER")
        end = store.append(DRAFT).end_log_offset
        assert not durability.is_secured(end, 1_000_000), "the disk is always waited for"
        await durability.secured(end)
        assert store.flushed_log_offset >= end
        assert durability.is_secured(end, 0)


# -- answers that are held -----------------------------------------------------------------------


def answered(opaques_: list[int], encoding: HeaderEncoding) -> bytes:
    return b"".join(
        encode(
            Command(
                code=ResponseCode.SUCCESS,
                opaque=opaque,
                flag=1,
                ext_fields={"msgId": "A"},
                encoding=encoding,
            )
        )
        for opaque in opaques_
    )


def responses_in(stream: bytes) -> list[Command]:
    return [decode(stream[start:stop]) for start, stop in split(stream)[0]]


@pytest.mark.parametrize("encoding", HeaderEncoding)
async def test_held_responses_are_sent_when_the_log_is_on_disk(
    tmp_path: Path, encoding: HeaderEncoding
) -> None:
    connection, transport, _ = made()
    with small_store(tmp_path) as store:
        durability = durability_of(store)
        frames = answered([1, 2, 3], encoding)
        end = store.append(DRAFT).end_log_offset
        durability.hold([(connection, frames, 3)], end)
        assert (durability.waiting_count, transport.written) == (3, b"")
        assert await durability.stored(end) == ResponseCode.SUCCESS
        await asyncio.sleep(0)
        assert (durability.waiting_count, transport.written) == (0, frames)
    connection.connection_lost(None)


async def test_held_responses_report_a_slow_disk(tmp_path: Path) -> None:
    connection, transport, _ = made()
    with small_store(tmp_path) as store:
        durability = durability_of(store, syncFlushTimeout=1)
        beyond = store.end_log_offset + 1_000_000
        durability.hold([(connection, answered([7, 8], HeaderEncoding.JSON), 2)], beyond)
        assert await durability.stored(beyond) == ResponseCode.FLUSH_DISK_TIMEOUT
        await asyncio.sleep(0)
        answers = responses_in(transport.written)
        assert [answer.opaque for answer in answers] == [7, 8]
        assert {answer.code for answer in answers} == {ResponseCode.FLUSH_DISK_TIMEOUT}
        assert all(answer.fields == {"msgId": "A"} for answer in answers)
    connection.connection_lost(None)


async def test_held_responses_report_a_closing_store(tmp_path: Path) -> None:
    connection, transport, _ = made()
    store = small_store(tmp_path)
    durability = durability_of(store)
    beyond = store.end_log_offset + 1_000_000
    durability.hold([(connection, answered([9], HeaderEncoding.ROCKETMQ), 1)], beyond)
    waiting = asyncio.create_task(durability.stored(beyond))
    await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    with pytest.raises(RequestError):
        await waiting
    await asyncio.sleep(0)
    (answer,) = responses_in(transport.written)
    assert (answer.code, answer.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 9)
    assert answer.encoding is HeaderEncoding.ROCKETMQ
    assert answer.remark is not None
    assert "closed" in answer.remark
    connection.connection_lost(None)


async def test_a_late_wait_for_an_early_log_offset_ends_too(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = durability_of(store)
        ends = [store.append(DRAFT).end_log_offset for _ in range(3)]
        codes = await asyncio.gather(*(durability.stored(end) for end in reversed(ends)))
        assert set(codes) == {ResponseCode.SUCCESS}


# -- busy ------------------------------------------------------------------------------------------

CONFIG = BrokerConfig(send_thread_pool_queue_capacity=10, os_page_cache_busy_time_out_mills=1000)


def test_too_many_waiting_sends_are_rejected_with_the_values() -> None:
    gate = SendGate()
    gate.check(CONFIG, 0, 9)
    with pytest.raises(RequestError, match=r"10 sends wait for the disk.*Capacity is 10") as caught:
        gate.check(CONFIG, 0, 10)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert gate.refused_count == 1


def test_a_blocked_append_rejects_requests_queued_behind_it_only() -> None:
    gate = SendGate()
    gate.note_append(CONFIG, 5000, 5999)
    gate.check(CONFIG, 5999, 0)
    gate.note_append(CONFIG, 6000, 7500)
    with pytest.raises(RequestError, match="took 1500 ms, osPageCacheBusyTimeOutMills is 1000"):
        gate.check(CONFIG, 7500, 0)
    gate.check(BrokerConfig(broker_fast_failure_enable=False), 7500, 0)
    gate.check(CONFIG, 7700, 0)


def test_the_capacity_for_sends_agrees_with_the_check() -> None:
    gate = SendGate()
    assert gate.capacity(CONFIG, 0, 3) == 7
    assert gate.capacity(CONFIG, 0, 12) == 0
    gate.note_append(CONFIG, 0, 1500)
    assert gate.capacity(CONFIG, 1501, 0) == 0
    assert gate.refused_count == 0


# -- automatic failover ----------------------------------------------------------------------------


class Session:
    """A master with one session, whose set a test counts."""

    def __init__(self, store: MessageStore, **pairs: object) -> None:
        self.store = store
        role = {"brokerRole": "SYNC_MASTER", "flushDiskType": "ASYNC_FLUSH", "slaveTimeout": 60_000}
        self.durability = durability_of(store, None, **(role | pairs))
        self.serving = Serving(store, self.durability, Arrivals(), lambda: 2)
        self.serving.show_confirmed(store.end_log_offset)
        self.counted = Counted(confirm=store.end_log_offset)
        self.serving.begin_session(self.counted)

    def send(self) -> "asyncio.Future[int | StoreError]":
        return self.durability.wait_for(self.store.append(DRAFT).end_log_offset)

    def confirm(self, log_offset: int) -> None:
        confirm(self.serving, self.counted, log_offset)


async def test_a_send_is_acknowledged_when_it_is_confirmed(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        it = Session(store)
        sent = it.send()
        it.confirm(store.end_log_offset - 1)
        await asyncio.sleep(0)
        assert not sent.done(), "acknowledged before it is confirmed"
        it.confirm(store.end_log_offset)
        assert await sent == ResponseCode.SUCCESS


async def test_with_sync_flush_the_master_counts_with_what_it_has_flushed(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        it = Session(store, flushDiskType="SYNC_FLUSH")
        it.serving.on_flushed = lambda: it.confirm(store.flushed_log_offset)
        sent = it.send()
        assert await sent == ResponseCode.SUCCESS
        assert store.flushed_log_offset == store.readable_log_offset == store.end_log_offset


async def test_a_set_that_is_too_small_confirms_and_promises_nothing(tmp_path: Path) -> None:
    """minInSyncReplicas=1: readers see the message, its producer gets SLAVE_NOT_AVAILABLE."""
    with small_store(tmp_path) as store:
        it = Session(store)
        before = it.send()
        it.counted.in_force = 1
        it.serving.set_changed()
        assert await before == ResponseCode.SLAVE_NOT_AVAILABLE
        assert not it.durability.must_wait(wait_stored=True)
        assert it.durability.code_at_once(wait_stored=True) == ResponseCode.SLAVE_NOT_AVAILABLE
        end = store.append(DRAFT).end_log_offset
        it.confirm(end)
        assert store.readable_log_offset == end
        # Two again: what was confirmed by both meanwhile counts.
        it.counted.in_force = 2
        it.serving.set_changed()
        after = it.send()
        it.confirm(store.end_log_offset)
        assert await after == ResponseCode.SUCCESS


async def test_confirmed_by_too_few_is_no_promise_for_a_send_that_waits(tmp_path: Path) -> None:
    """The set shrinks and confirms before `set_changed` is called."""
    with small_store(tmp_path) as store:
        it = Session(store)
        sent = it.send()
        it.counted.in_force = 1
        it.confirm(store.end_log_offset)
        it.serving.set_changed()
        assert await sent == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_session_that_ends_answers_all_waits(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        it = Session(store, flushDiskType="SYNC_FLUSH")
        sent = it.send()
        secured = asyncio.ensure_future(it.durability.secured(store.end_log_offset))
        await asyncio.sleep(0.05)
        it.serving.end_session()
        it.confirm(store.end_log_offset)
        assert await sent == ResponseCode.FLUSH_SLAVE_TIMEOUT
        with pytest.raises(StoreError, match="no longer the master"):
            await secured
        assert it.durability.waiting_count == 0


async def test_progress_is_secured_only_by_the_confirmation(tmp_path: Path) -> None:
    """Neither by time, nor by the role: rule R11."""
    with small_store(tmp_path) as store:
        it = Session(store, brokerRole="ASYNC_MASTER", slaveTimeout=1)
        end = store.append(DRAFT).end_log_offset
        secured = asyncio.ensure_future(it.durability.secured(end))
        await eventually(lambda: store.flushed_log_offset >= end, "a flush")
        await asyncio.sleep(0.05)
        assert not secured.done()
        assert not it.durability.is_secured(end, waited_ms=10**9)
        it.confirm(end)
        await secured
        assert it.durability.is_secured(end, waited_ms=0)
