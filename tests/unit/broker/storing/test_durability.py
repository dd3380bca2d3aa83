"""Responses to sends: after the flush where promised, rejections under overload."""

import asyncio
from pathlib import Path

import pytest
from tests.support.framing import split
from tests.unit.remoting.test_connection import made

from tianzhou.broker.config import BrokerConfig, BrokerRole
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.overload import SendGate
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding, decode, encode
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

DRAFT = Draft("t", 0, b"body", "", 0, ("127.0.0.1", 1), ("127.0.0.1", 2))


def small_store(folder: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=folder, mapped_file_size_commit_log=1024 * 1024,
        mapped_file_size_consume_queue=20 * 100, max_hash_slot_num=100, max_index_num=400,
        flush_interval_commit_log=60_000,
    )  # fmt: skip
    return MessageStore.open(config)


async def test_a_wait_ends_when_the_log_is_on_disk(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 10_000)
        assert durability.must_wait(wait_stored=True)
        assert not durability.must_wait(wait_stored=False)
        ends = [store.append(DRAFT).end_log_offset for _ in range(20)]
        codes = await asyncio.gather(*(durability.stored(end) for end in ends))
        assert set(codes) == {ResponseCode.SUCCESS}
        assert store.flushed_log_offset >= ends[-1]
        assert durability.waiting_count == 0


async def test_async_flush_waits_for_nothing(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = Durability(store, FlushDiskType.ASYNC_FLUSH, BrokerRole.ASYNC_MASTER, 10)
        assert not durability.must_wait(wait_stored=True)
        assert durability.code_at_once(wait_stored=True) == ResponseCode.SUCCESS


async def test_a_sync_master_has_no_slave_in_this_version(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.SYNC_MASTER, 10_000)
        end = store.append(DRAFT).end_log_offset
        assert await durability.stored(end) == ResponseCode.SLAVE_NOT_AVAILABLE
        assert durability.code_at_once(wait_stored=False) == ResponseCode.SUCCESS


async def test_a_slow_disk_gives_flush_disk_timeout(tmp_path: Path) -> None:
    with small_store(tmp_path) as store:
        durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 1)
        beyond = store.end_log_offset + 1_000_000
        assert await durability.stored(beyond) == ResponseCode.FLUSH_DISK_TIMEOUT


async def test_a_closing_store_fails_waiting_sends(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 10_000)
    waiting = asyncio.create_task(durability.stored(store.end_log_offset + 1_000_000))
    await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    with pytest.raises(RequestError, match="closed") as caught:
        await waiting
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


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
        durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 10_000)
        frames = answered([1, 2, 3], encoding)
        end = store.append(DRAFT).end_log_offset
        durability.hold(connection, frames, 3, end)
        assert (durability.waiting_count, transport.written) == (3, b"")
        assert await durability.stored(end) == ResponseCode.SUCCESS
        await asyncio.sleep(0)
        assert (durability.waiting_count, transport.written) == (0, frames)
    connection.connection_lost(None)


async def test_held_responses_report_a_slow_disk(tmp_path: Path) -> None:
    connection, transport, _ = made()
    with small_store(tmp_path) as store:
        durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 1)
        beyond = store.end_log_offset + 1_000_000
        durability.hold(connection, answered([7, 8], HeaderEncoding.JSON), 2, beyond)
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
    durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 10_000)
    beyond = store.end_log_offset + 1_000_000
    durability.hold(connection, answered([9], HeaderEncoding.ROCKETMQ), 1, beyond)
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
        durability = Durability(store, FlushDiskType.SYNC_FLUSH, BrokerRole.ASYNC_MASTER, 10_000)
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
