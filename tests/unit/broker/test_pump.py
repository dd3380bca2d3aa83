"""Turns of background work: soon, again, later, after a failure; and the turnstile."""

import asyncio

import pytest
from tests.integration.brokers import eventually

from tianzhou.broker.pump import Pump
from tianzhou.broker.turnstile import Turnstile
from tianzhou.clock import wall_ms
from tianzhou.errors import StoreError


async def test_work_goes_on_while_there_is_more_and_lets_others_live() -> None:
    order: list[str] = []

    def work(now_ms: int) -> int | None:
        order.append("work")
        return now_ms if order.count("work") < 3 else None

    pump = Pump("test", work, wall_ms)
    pump.start()
    while order.count("work") < 3:
        order.append("other")
        await asyncio.sleep(0)
    assert order.count("other") >= 3, "each turn lets the loop do something else"
    pump.stop()


async def test_an_earlier_moment_beats_the_planned_one() -> None:
    turns: list[int] = []

    def work(now_ms: int) -> int | None:
        turns.append(now_ms)
        return now_ms + 3_600_000

    pump = Pump("test", work, wall_ms)
    pump.start()
    await eventually(lambda: turns, "first turn")
    pump.wake(wall_ms() + 7_200_000)
    pump.wake(wall_ms() + 5)
    await eventually(lambda: len(turns) == 2, "the earlier one")
    pump.wake_now()
    await eventually(lambda: len(turns) == 3, "at once")
    pump.stop()
    pump.wake(wall_ms())
    await asyncio.sleep(0)
    assert len(turns) == 3


@pytest.mark.parametrize("problem", [StoreError("no room"), ValueError("a bug")])
async def test_a_failure_is_logged_once_and_tried_again(
    problem: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.broker.pump._PAUSE_MS", 1)
    turns = 0

    def work(_: int) -> int | None:
        nonlocal turns
        turns += 1
        if turns < 4:
            raise problem
        return None

    pump = Pump("test", work, wall_ms)
    pump.start()
    await eventually(lambda: turns == 4, "success after failures")
    assert len([record for record in caplog.records if "trying again" in record.message]) == 1
    assert ("Traceback" in caplog.text) is isinstance(problem, ValueError)
    pump.stop()


async def test_a_turnstile_admits_a_few_a_turn_in_their_order() -> None:
    stile = Turnstile(2)
    passed: list[int] = []

    async def go(number: int) -> None:
        if not stile.admits():
            await stile.wait()
        passed.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(9)]
    tasks[5].cancel()
    seen: list[int] = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append(len(passed))
    assert passed == [0, 1, 2, 3, 4, 6, 7, 8]
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 2
    await asyncio.sleep(0)
    assert stile.admits(), "the line is gone"
