"""Work in slices: short work is done at once, long work shares the event loop."""

import asyncio
import time
from collections.abc import Generator

import pytest

from tianzhou.remoting import slices


def steps(count: int, seen: list[str], name: str) -> Generator[None, None, str]:
    """Each step takes longer than a slice."""
    for _ in range(count):
        ends_s = time.perf_counter() + slices.SLICE_S * 1.1
        while time.perf_counter() < ends_s:
            pass
        seen.append(name)
        yield
    return name


def quick() -> Generator[None, None, str]:
    yield
    return "done"


async def test_short_work_is_answered_at_once() -> None:
    assert slices.answer(quick()) == "done"


async def test_long_work_lets_the_loop_run_and_is_answered_later() -> None:
    seen: list[str] = []
    answer = slices.answer(steps(5, seen, "a"))
    assert isinstance(answer, asyncio.Future)
    asyncio.get_running_loop().call_soon(seen.append, "other")
    assert await answer == "a"
    assert seen.index("other") <= 2
    assert seen.count("a") == 5


async def test_one_slice_runs_in_an_iteration_whatever_waits() -> None:
    seen: list[str] = []
    answers = [slices.answer(steps(3, seen, name)) for name in "abc"]
    assert all(isinstance(answer, asyncio.Future) for answer in answers)
    seen.clear()
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert len(seen) <= count
    await asyncio.gather(*(answer for answer in answers if isinstance(answer, asyncio.Future)))
    assert seen == ["a", "b", "c", "a", "b", "c"], "they take turns"


async def test_what_the_steps_raise_reaches_the_caller() -> None:
    def failing(late: bool) -> Generator[None, None, str]:
        if late:
            yield from steps(2, [], "x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        slices.answer(failing(late=False))
    answer = slices.answer(failing(late=True))
    assert isinstance(answer, asyncio.Future)
    with pytest.raises(ValueError, match="no"):
        await answer


async def test_cancelled_work_is_not_gone_on_with() -> None:
    seen: list[str] = []
    answer = slices.answer(steps(100, seen, "a"))
    assert isinstance(answer, asyncio.Future)
    answer.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(seen) == 1


async def test_work_under_one_key_comes_one_after_the_other() -> None:
    seen: list[str] = []
    unfinished: dict[str, asyncio.Future[object]] = {}
    first = slices.in_order(unfinished, "k", steps(3, seen, "a"))
    second = slices.in_order(unfinished, "k", steps(1, seen, "b"))
    other = slices.in_order(unfinished, "l", quick())
    assert other == "done", "another key does not wait"
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    assert await second == "b"
    assert seen == ["a", "a", "a", "b"]
    await asyncio.sleep(0)
    assert not unfinished
