"""Turns of background work: soon, again, later, after a failure."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.brokers import eventually

from tianzhou.broker.background.ticker import Ticker
from tianzhou.broker.background.yielding import BURST_S, REST_S, SliceScheduler
from tianzhou.clock import wall_ms
from tianzhou.errors import StoreError


def quiet() -> SliceScheduler:
    """Nobody else is there."""
    return SliceScheduler(lambda: 0)


async def test_work_goes_on_while_there_is_more_and_lets_others_live() -> None:
    order: list[str] = []

    def work(now_ms: int) -> int | None:
        order.append("work")
        return now_ms if order.count("work") < 3 else None

    ticker = Ticker("test", work, wall_ms, quiet())
    ticker.start()
    while order.count("work") < 3:
        order.append("other")
        await asyncio.sleep(0)
    assert order.count("other") >= 3, "each turn lets the loop do something else"
    ticker.stop()


@pytest.mark.parametrize("others_write", [False, True])
async def test_work_rests_while_others_write(
    others_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, delays_s = asyncio.get_running_loop(), list[float]()
    done = asyncio.Event()
    written, now_s, turns = 0, 0.0, 0

    class Watched:
        """The loop, as far as a ticker knows it."""

        def call_soon(self, work: Callable[..., None]) -> asyncio.Handle:
            return loop.call_soon(work)

        def call_later(
            self, delay_s: float, work: Callable[..., None], *given: object
        ) -> asyncio.TimerHandle:
            delays_s.append(delay_s)
            return loop.call_later(0, work, *given)

    def work(now_ms: int) -> int | None:
        nonlocal turns, written, now_s
        turns += 1
        written += 100
        now_s += 2 * BURST_S
        if turns == 8:
            done.set()
        return None if done.is_set() else now_ms

    ticker = Ticker("test", work, wall_ms, SliceScheduler(lambda: written, lambda: now_s))
    with monkeypatch.context() as patch:
        patch.setattr("tianzhou.broker.background.ticker.asyncio.get_running_loop", Watched)
        ticker.start()
    if others_write:
        written += 1
    await done.wait()
    assert delays_s == ([REST_S] * 7 if others_write else [])
    ticker.stop()


async def test_an_earlier_moment_beats_the_planned_one() -> None:
    turns: list[int] = []

    def work(now_ms: int) -> int | None:
        turns.append(now_ms)
        return now_ms + 3_600_000

    ticker = Ticker("test", work, wall_ms, quiet())
    ticker.start()
    await eventually(lambda: turns, "first turn")
    ticker.wake(wall_ms() + 7_200_000)
    ticker.wake(wall_ms() + 5)
    await eventually(lambda: len(turns) == 2, "the earlier one")
    ticker.wake_now()
    await eventually(lambda: len(turns) == 3, "at once")
    ticker.stop()
    ticker.wake(wall_ms())
    await asyncio.sleep(0)
    assert len(turns) == 3


@pytest.mark.parametrize("problem", [StoreError("no room"), ValueError("a bug")])
async def test_a_failure_is_logged_once_and_tried_again(
    problem: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.broker.background.ticker._RETRY_MS", 1)
    turns = 0

    def work(_: int) -> int | None:
        nonlocal turns
        turns += 1
        if turns < 4:
            raise problem
        return None

    ticker = Ticker("test", work, wall_ms, quiet())
    ticker.start()
    await eventually(lambda: turns == 4, "success after failures")
    assert len([record for record in caplog.records if "trying again" in record.message]) == 1
    assert ("Traceback" in caplog.text) is isinstance(problem, ValueError)
    ticker.stop()
