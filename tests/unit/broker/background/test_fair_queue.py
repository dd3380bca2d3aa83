"""Work that can wait: its slices and rests, and the fair queue that requests pass one by one."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tianzhou.broker.background import yielding
from tianzhou.broker.background.fair_queue import HELD_S_MAX, FairQueue
from tianzhou.broker.background.yielding import (
    BURST_S,
    REST_S,
    SHARED_SLICE_S,
    SLICE_S,
    SliceScheduler,
)


class Log:
    """A log of which only the length is known, and a clock that stands still."""

    def __init__(self) -> None:
        self.written = 0
        self.now_s = 0.0
        self.slices = SliceScheduler(lambda: self.written, lambda: self.now_s)


class Owner:
    """A connection, as far as a fair queue knows it."""

    def __init__(self) -> None:
        self.is_gathering = self.has_unread = False
        self.let_go_count = 0
        self.went = asyncio.Event()

    def gather(self) -> None:
        self.is_gathering = True

    def let_go(self) -> None:
        self.is_gathering = False
        self.let_go_count += 1
        self.went.set()


class Watched:
    """A loop that sets the clock instead of waiting, and notes how far."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self.delays_s: list[float] = []

    def call_soon(self, work: Callable[..., None], *given: object) -> asyncio.Handle:
        return self._loop.call_soon(work, *given)

    def call_later(
        self, delay_s: float, work: Callable[..., None], *given: object
    ) -> asyncio.TimerHandle:
        self.delays_s.append(delay_s)
        self._log.now_s += delay_s
        return self._loop.call_later(0, work, *given)


ONE = Owner()


@pytest.fixture
def one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are over before they have begun, so that each turn lets one through."""
    monkeypatch.setattr(yielding, "SLICE_S", -1.0)
    monkeypatch.setattr(yielding, "SHARED_SLICE_S", -1.0)


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yielding, "SLICE_S", 3600.0)


async def emptied(queue: FairQueue) -> list[int]:
    """How many were in line after each turn of the loop, until nobody was."""
    seen: list[int] = []
    async with asyncio.timeout(20):
        while queue.waiting_count:
            await asyncio.sleep(0)
            seen.append(queue.waiting_count)
    return seen


# -- slices ----------------------------------------------------------------------------------------


def test_others_are_seen_for_a_while_and_own_writing_is_not() -> None:
    log = Log()
    assert log.slices.begin() == SLICE_S
    log.written += 10
    log.slices.pause()
    assert (log.slices.end(), log.slices.begin()) == (0.0, SLICE_S)
    log.written += 1
    log.slices.end()
    assert log.slices.begin() == SHARED_SLICE_S
    log.now_s += 0.5
    assert log.slices.begin() == SHARED_SLICE_S, "they were here a moment ago"
    log.now_s += 0.6
    assert log.slices.begin() == SLICE_S


def test_a_rest_comes_after_a_burst_of_slices_and_is_for_all() -> None:
    log = Log()
    log.written += 1
    work_s = list[float]()
    while not (rest_s := log.slices.end()):
        work_s.append(log.slices.begin())
        log.now_s += work_s[-1]
        log.slices.pause()
        assert len(work_s) < 100, "there is no rest"
    assert rest_s == REST_S
    assert BURST_S * 0.99 < sum(work_s) < BURST_S + 2 * SHARED_SLICE_S
    assert log.slices.end() == REST_S, "who comes during the rest rests as well"
    log.now_s += 2 * REST_S
    assert log.slices.end() == 0.0


def test_there_is_no_rest_while_nobody_else_is_there() -> None:
    log = Log()
    for _ in range(100):
        log.now_s += log.slices.begin()
        log.written += 100
        log.slices.pause()
        assert log.slices.end() == 0.0


async def test_one_slice_is_done_in_a_turn_of_the_loop() -> None:
    slices, done = Log().slices, list[str]()

    def again() -> None:
        done.append("again")
        slices.schedule(again)

    def forgotten() -> None:
        done.append("forgotten")

    slices.schedule(again)
    slices.schedule(lambda: done.append("once"))
    slices.schedule(forgotten)
    slices.cancel(forgotten)
    for count in range(1, 6):
        await asyncio.sleep(0)
        assert len(done) == count
    assert done == ["again", "once", "again", "again", "again"]
    slices.cancel(again)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(done) == 5


# -- the fair queue --------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_a_turn")
async def test_the_first_passes_at_once_and_the_rest_one_by_one_in_order() -> None:
    queue, passed = FairQueue(Log().slices), list[int]()
    assert queue.admits(ONE)
    queue.passed()
    for number in range(5):
        assert not queue.admits(ONE), "the turn is over"
        queue.wait(ONE, partial(passed.append, number))
    seen = await emptied(queue)
    assert passed == [0, 1, 2, 3, 4]
    assert max(before - after for before, after in zip([5, *seen], seen, strict=False)) == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.admits(ONE), "the line is gone"


@pytest.mark.usefixtures("long_turns")
async def test_a_turn_that_has_time_lets_many_through() -> None:
    queue, passed = FairQueue(Log().slices), list[int]()
    assert all(queue.admits(ONE) for _ in range(100))
    queue.wait(ONE, partial(passed.append, -1))
    assert not queue.admits(ONE), "nobody overtakes those in line"
    for number in range(100):
        queue.wait(ONE, partial(passed.append, number))
    await emptied(queue)
    assert passed == list(range(-1, 100))


@pytest.mark.usefixtures("one_a_turn")
async def test_those_who_wait_take_turns_by_owner() -> None:
    queue, passed = FairQueue(Log().slices), list[str]()
    for owner, name, count in ((Owner(), "a", 5), (Owner(), "b", 2)):
        for number in range(count):
            queue.wait(owner, partial(passed.append, f"{name}{number}"))
    await emptied(queue)
    assert passed == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


@pytest.mark.usefixtures("one_a_turn")
@pytest.mark.parametrize("others_write", [False, True])
async def test_there_are_rests_while_others_write(
    others_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, passed = Log(), list[int]()
    watched = Watched(log)
    monkeypatch.setattr(
        "tianzhou.broker.background.fair_queue.asyncio.get_running_loop", lambda: watched
    )
    queue, owner = FairQueue(log.slices), Owner()

    def work(number: int) -> None:
        passed.append(number)
        log.written += 100  # its own
        log.now_s += BURST_S * 0.75
        assert owner.is_gathering

    for number in range(6):
        queue.wait(owner, partial(work, number))
    log.written += 1 if others_write else 0
    await emptied(queue)
    assert passed == [0, 1, 2, 3, 4, 5], "whoever gives way is not kept from going on for good"
    assert not owner.is_gathering
    rests_s = [delay_s for delay_s in watched.delays_s if delay_s != HELD_S_MAX]
    assert rests_s == ([REST_S] * 3 if others_write else [])


@pytest.mark.usefixtures("one_a_turn")
async def test_answers_wait_for_others_of_their_owner_but_not_for_long() -> None:
    log = Log()
    queue = FairQueue(log.slices, lambda: log.now_s)
    busy, quiet = Owner(), Owner()
    let_go_counts: list[int] = []

    def work() -> None:
        let_go_counts.append(busy.let_go_count)
        log.now_s += HELD_S_MAX * 0.4

    for _ in range(8):
        queue.wait(busy, work)
    queue.wait(quiet, lambda: None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (quiet.let_go_count, busy.let_go_count) == (1, 0), "one has nothing more in line"
    await emptied(queue)
    assert let_go_counts == [0, 0, 0, 1, 1, 1, 2, 2]
    assert (busy.let_go_count, busy.is_gathering) == (3, False)


@pytest.mark.usefixtures("long_turns")
async def test_answers_of_one_who_has_sent_more_wait_a_moment() -> None:
    log = Log()
    queue, owner = FairQueue(log.slices, lambda: log.now_s), Owner()

    async def ask() -> None:
        assert queue.admits(owner)
        queue.passed()
        for _ in range(3):
            await asyncio.sleep(0)

    owner.has_unread = True
    await ask()
    await ask()
    assert (owner.is_gathering, owner.let_go_count) == (True, 0)
    owner.has_unread = False
    await ask()
    assert (owner.is_gathering, owner.let_go_count) == (False, 1), "that was all of it"
    owner.has_unread = True
    await ask()
    log.now_s += HELD_S_MAX
    owner.went.clear()
    async with asyncio.timeout(20):
        await owner.went.wait()  # though nobody comes by any more
    assert (owner.is_gathering, owner.let_go_count) == (False, 2)


@pytest.mark.usefixtures("one_a_turn")
async def test_work_that_fails_does_not_hold_up_those_behind() -> None:
    queue, passed = FairQueue(Log().slices), list[int]()
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.append(str(context.get("exception")))
    )

    def fails() -> None:
        raise ValueError("a bug")

    queue.wait(ONE, fails)
    queue.wait(ONE, partial(passed.append, 1))
    await emptied(queue)
    assert (passed, told) == ([1], ["a bug"])


@pytest.mark.usefixtures("one_a_turn")
async def test_nobody_gets_through_one_that_is_closed() -> None:
    queue, passed = FairQueue(Log().slices), list[int]()
    owner = Owner()
    for number in range(3):
        queue.wait(owner, partial(passed.append, number))
    await asyncio.sleep(0)
    queue.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (passed, queue.waiting_count) == ([0], 0)
    assert not owner.is_gathering
