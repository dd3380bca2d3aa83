"""Calls of handlers, and the meaning of their return values."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tianzhou.client.consumer.callbacks import Caller, Decision, Later, bind, outcome_of
from tianzhou.client.consumer.rates import Rates
from tianzhou.client.message import ReceivedMessage
from tianzhou.message import StoredMessage

MESSAGE = ReceivedMessage(
    StoredMessage(
        topic="t", body=b"b", properties={"UNIQ_KEY": "K"}, queue_id=0, queue_offset=0,
        log_offset=0, flag=0, sys_flag=0, born_time_ms=0, born_host=("127.0.0.1", 1),
        store_time_ms=0, store_host=("127.0.0.1", 2), reconsume_count=0, prepared_log_offset=0,
        body_crc=0, size_bytes=100,
    )
)  # fmt: skip


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_returned_values_decide() -> None:
    assert outcome_of(None).later is None
    assert outcome_of(True).later is None
    assert outcome_of("anything").later is None
    assert outcome_of(False).later == Later()
    assert outcome_of(Later(3)).later == Later(3)
    assert outcome_of(Decision.ROLLBACK).decision is Decision.ROLLBACK


async def test_functions_run_in_threads_and_coroutines_on_the_loop(
    executor: ThreadPoolExecutor,
) -> None:
    threads: list[int] = []

    def plain(message: ReceivedMessage) -> None:
        assert message is MESSAGE
        threads.append(threading.get_ident())

    class Callable:
        async def __call__(self, messages: list[ReceivedMessage]) -> bool:
            assert messages == [MESSAGE]
            threads.append(threading.get_ident())
            return False

    caller = Caller("g", executor, None)
    handler = bind("t", plain)
    assert handler.batch_size == 1
    assert (await caller.call(handler, [MESSAGE])).later is None
    outcome = await caller.call(bind("t", Callable(), 9), [MESSAGE])
    assert outcome.later == Later()
    assert threads[0] != threading.get_ident()
    assert threads[1] == threading.get_ident()


async def test_function_may_return_an_awaitable(executor: ThreadPoolExecutor) -> None:
    async def later() -> bool:
        await asyncio.sleep(0)
        return False

    def plain(_: ReceivedMessage) -> Awaitable[bool]:
        return later()

    handler = bind("t", plain)
    assert (await Caller("g", executor, None).call(handler, [MESSAGE])).later == Later()


async def test_failures_are_logged_rate_limited(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: ReceivedMessage) -> None:
        raise ValueError("no good")

    caller = Caller("g", executor, None)
    handler = bind("t", fail)
    for _ in range(5):
        outcome = await caller.call(handler, [MESSAGE])
        assert isinstance(outcome.error, ValueError)
    assert caplog.text.count("group g, topic t: the handler failed with message K") == 1
    assert caplog.text.count("ValueError: no good") == 1


def test_rates_cover_one_minute() -> None:
    rates = Rates()
    for second in range(120):
        rates.pulled("t", 10, second * 1000 - 4, second * 1000)
        rates.consumed("t", 9, 1, second * 1000 - 2, second * 1000)
    status = rates.status("t", 119_999)
    assert (status.pull_tps, status.consume_ok_tps, status.consume_failed_tps) == (10.0, 9.0, 1.0)
    assert (status.pull_ms, status.consume_ms, status.consume_failed_count) == (4.0, 2.0, 120)
    quiet = rates.status("t", 300_000)
    assert (quiet.pull_tps, quiet.consume_ms) == (0.0, 0.0)


def test_rates_of_many_topics_take_bounded_memory() -> None:
    rates = Rates()
    for number in range(30_000):
        rates.pulled(f"t{number}", 1, 0, 0)
    assert len(rates._topics) <= 10_000  # pyright: ignore[reportPrivateUsage] - memory is the point
    assert rates.status("t29999", 0).pull_tps > 0
