"""The log of slow requests, with times that the test chooses."""

import asyncio
import logging
import time
from collections.abc import Awaitable

import pytest

from tianzhou.broker.requests.slow_log import SlowLog, topic_of
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import PARKED, Deferral
from tianzhou.remoting.error_responses import discard_awaitable
from tianzhou.remoting.log_rate_limit import LINES_A_SECOND

SEND = Command(code=RequestCode.SEND_MESSAGE_V2, ext_fields={"b": "orders", "topic": "other"})
PEER = "10.0.0.1:4711"


def ago(seconds: float) -> float:
    return time.perf_counter() - seconds


def test_a_slow_request_is_logged_in_one_line_with_its_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = Command(code=0)
    assert SlowLog().watch(PEER, SEND, answer, ago(2), 1000) is answer
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("slow request: SEND_MESSAGE_V2 from 10.0.0.1:4711, topic orders, took 2")
    fields = vars(record)
    assert (fields["code"], fields["peer"], fields["topic"]) == (310, PEER, "orders")
    assert 2000 <= fields["took_ms"] < 60_000


def test_fast_ones_and_parked_ones_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowLog()
    slow.watch(PEER, SEND, Command(code=0), ago(0), 60_000)
    assert slow.watch(PEER, SEND, PARKED, ago(0), 60_000) is PARKED
    assert not caplog.records


async def test_one_that_is_answered_later_is_timed_to_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> Command:
        await asyncio.sleep(0)
        return Command(code=7)

    answer = SlowLog().watch(PEER, SEND, work(), ago(2), 1000)
    assert isinstance(answer, Awaitable)
    assert not caplog.records, "it has not ended"
    response = await answer
    assert isinstance(response, Command)
    assert response.code == 7
    assert len(caplog.records) == 1


async def test_a_failure_is_timed_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> Command:
        await asyncio.sleep(0)
        raise RequestError(1, "no")

    answer = SlowLog().watch(PEER, SEND, work(), ago(2), 1000)
    assert isinstance(answer, Awaitable)
    with pytest.raises(RequestError, match="no"):
        await answer
    assert len(caplog.records) == 1


async def test_a_response_that_is_not_awaited_is_cancelled_without_a_warning() -> None:
    async def work() -> Command:
        raise AssertionError("it must not run")

    answer = SlowLog().watch(PEER, SEND, work(), ago(0), 1000)
    assert isinstance(answer, Awaitable)
    discard_awaitable(answer)
    future: asyncio.Future[Command | Deferral] = asyncio.get_running_loop().create_future()
    answer = SlowLog().watch(PEER, SEND, future, ago(0), 1000)
    assert isinstance(answer, Awaitable)
    discard_awaitable(answer)
    assert future.cancelled()


def test_a_flood_is_bounded_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowLog()
    for _ in range(LINES_A_SECOND * 50):
        slow.watch(PEER, SEND, Command(code=0), ago(2), 1000)
    # The flood may have crossed the end of a second, and even of two.
    assert LINES_A_SECOND <= len(caplog.records) <= 3 * LINES_A_SECOND
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_the_topic_of_a_request() -> None:
    assert topic_of(SEND) == "orders"
    pull = Command(code=RequestCode.PULL_MESSAGE, ext_fields={"topic": "t" * 500, "b": "x"})
    assert topic_of(pull) == "t" * 127
    assert topic_of(Command(code=4711)) == ""
    strange = Command(code=4711, ext_fields={})
    SlowLog().watch(PEER, strange, Command(code=0), ago(0), 1000)
