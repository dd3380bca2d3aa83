"""The scheduler: generators, background work, the fair queue, and the busy poll."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Generator
from functools import partial

import pytest
from tests.support.brokers import eventually

from tianzhou.clock import wall_ms
from tianzhou.errors import StoreError
from tianzhou.remoting import scheduler
from tianzhou.remoting.scheduler import (
    BURST_S,
    HELD_S_MAX,
    IMMEDIATE_S,
    PAUSE_REQUESTS,
    POLL_S,
    REST_S,
    SHARED_SLICE_S,
    SLICE_S,
    BackgroundWork,
    Budget,
    BusyPoll,
    FairQueue,
    InOrder,
    answer,
    usable_processor_count,
)

# -- generators ------------------------------------------------------------------------------------


def steps(count: int, seen: list[str], name: str) -> Generator[None, None, str]:
    """Each step takes longer than a slice."""
    for _ in range(count):
        ends_s = time.perf_counter() + scheduler.STEPS_SLICE_S * 1.1
        while time.perf_counter() < ends_s:
            pass
        seen.append(name)
        yield
    return name


def quick() -> Generator[None, None, str]:
    yield
    return "done"


async def test_short_work_is_answered_at_once() -> None:
    assert answer(quick()) == "done"


async def test_long_work_lets_the_loop_run_and_is_answered_later() -> None:
    seen: list[str] = []
    future = answer(steps(5, seen, "a"))
    assert isinstance(future, asyncio.Future)
    asyncio.get_running_loop().call_soon(seen.append, "other")
    assert await future == "a"
    assert seen.index("other") <= 2
    assert seen.count("a") == 5


async def test_an_iteration_runs_one_slice_of_all_generators() -> None:
    seen: list[str] = []
    answers = [answer(steps(3, seen, name)) for name in "abc"]
    assert all(isinstance(future, asyncio.Future) for future in answers)
    seen.clear()
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert len(seen) <= count
    await asyncio.gather(*(future for future in answers if isinstance(future, asyncio.Future)))
    assert seen == ["a", "b", "c", "a", "b", "c"], "round-robin"


async def test_an_iteration_runs_one_slice_of_generators_and_background_work() -> None:
    seen: list[str] = []

    def work(now_ms: int, _: float) -> int | None:
        seen.append("b")
        return now_ms

    background = BackgroundWork("test", work, wall_ms, Log().budget)
    background.start()
    future = answer(steps(4, seen, "a"))
    assert isinstance(future, asyncio.Future)
    await future
    background.stop()
    assert seen[:8] == ["a", "b", "a", "b", "a", "b", "a", "b"]


async def test_what_the_steps_raise_reaches_the_caller() -> None:
    def failing(late: bool) -> Generator[None, None, str]:
        if late:
            yield from steps(2, [], "x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        answer(failing(late=False))
    future = answer(failing(late=True))
    assert isinstance(future, asyncio.Future)
    with pytest.raises(ValueError, match="no"):
        await future


class Result:
    """An object that a weak reference can watch."""


async def test_a_result_is_freed_without_a_garbage_collection() -> None:
    def work() -> Generator[None, None, Result]:
        yield from steps(3, [], "a")
        return Result()

    gc.disable()
    try:
        future = answer(work())
        assert isinstance(future, asyncio.Future)
        watched = weakref.ref(await future)
        del future
        await asyncio.sleep(0)
        assert watched() is None
    finally:
        gc.enable()


async def test_cancelled_work_is_not_continued() -> None:
    seen: list[str] = []
    future = answer(steps(100, seen, "a"))
    assert isinstance(future, asyncio.Future)
    future.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(seen) == 1


async def test_generators_in_order_run_one_after_the_other() -> None:
    seen: list[str] = []
    changes, others = InOrder(), InOrder()
    first = changes.answer(steps(3, seen, "a"))
    second = changes.answer(steps(1, seen, "b"))
    assert others.answer(quick()) == "done", "another order does not wait"
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    assert await second == "b"
    assert seen == ["a", "a", "a", "b"]
    assert changes.answer(quick()) == "done"


# -- the budget ------------------------------------------------------------------------------------


class Log:
    """A log of which only the length is known, and a clock that stands still."""

    def __init__(self) -> None:
        self.written = 0
        self.now_s = 0.0
        self.budget = Budget(lambda: self.written, lambda: self.now_s)


class RecordedLoop:
    """The event loop, but timers fire at once: their delay is recorded and added to the clock."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self.delays_s: list[float] = []
        monkeypatch.setattr("tianzhou.remoting.scheduler.asyncio.get_running_loop", lambda: self)

    def call_soon(self, work: Callable[..., None], *given: object) -> asyncio.Handle:
        return self._loop.call_soon(work, *given)

    def call_later(
        self, delay_s: float, work: Callable[..., None], *given: object
    ) -> asyncio.TimerHandle:
        def fire() -> None:
            self._log.now_s += delay_s
            work(*given)

        self.delays_s.append(delay_s)
        return self._loop.call_later(0, fire)


def test_clients_that_send_are_noticed_for_a_second_and_own_appends_are_not() -> None:
    log = Log()
    assert log.budget.begin() == SLICE_S
    log.written += 10
    log.budget.end()
    assert (log.budget.rest_s(), log.budget.begin()) == (0.0, SLICE_S)
    log.written += 1
    assert log.budget.begin() == SHARED_SLICE_S
    log.now_s += 0.5
    assert log.budget.begin() == SHARED_SLICE_S, "a client sent less than a second ago"
    log.now_s += 0.6
    assert log.budget.begin() == SLICE_S


def test_a_rest_follows_a_burst_of_slices_and_holds_for_all_work() -> None:
    log = Log()
    log.written += 1
    work_s = list[float]()
    while not log.budget.rest_s():
        work_s.append(log.budget.begin())
        log.now_s += work_s[-1]
        log.budget.end()
        assert len(work_s) < 100, "there is no rest"
    assert log.budget.rest_s() == REST_S
    assert BURST_S * 0.99 < sum(work_s) < BURST_S + 2 * SHARED_SLICE_S
    assert log.budget.rest_s() == REST_S, "work that becomes due in the rest waits as well"
    log.now_s += 2 * REST_S
    assert log.budget.rest_s() == 0.0


def test_there_is_no_rest_while_no_client_sends() -> None:
    log = Log()
    for _ in range(100):
        log.now_s += log.budget.begin()
        log.written += 100
        log.budget.end()
        assert log.budget.rest_s() == 0.0


# -- background work -------------------------------------------------------------------------------


async def test_work_continues_while_there_is_more_and_the_loop_runs_in_between() -> None:
    order: list[str] = []

    def work(now_ms: int, _: float) -> int | None:
        order.append("work")
        return now_ms if order.count("work") < 3 else None

    background = BackgroundWork("test", work, wall_ms, Log().budget)
    background.start()
    while order.count("work") < 3:
        order.append("other")
        await asyncio.sleep(0)
    assert order.count("other") >= 3
    background.stop()


@pytest.mark.parametrize("clients_send", [False, True])
async def test_work_rests_while_clients_send(
    clients_send: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    done, slice_count = asyncio.Event(), 0
    loop = RecordedLoop(log, monkeypatch)

    def work(now_ms: int, slice_s: float) -> int | None:
        nonlocal slice_count
        assert slice_s == (SHARED_SLICE_S if clients_send else SLICE_S)
        slice_count += 1
        log.written += 100  # its own
        log.now_s += 2 * BURST_S
        if slice_count == 8:
            done.set()
        return None if done.is_set() else now_ms

    background = BackgroundWork("test", work, wall_ms, log.budget)
    background.start()
    if clients_send:
        log.written += 1
    await done.wait()
    assert loop.delays_s == ([REST_S] * 7 if clients_send else [])
    background.stop()


async def test_an_earlier_due_time_replaces_a_later_one() -> None:
    slices: list[int] = []

    def work(now_ms: int, _: float) -> int | None:
        slices.append(now_ms)
        return now_ms + 3_600_000

    background = BackgroundWork("test", work, wall_ms, Log().budget)
    background.wake(wall_ms())
    await asyncio.sleep(0)
    assert not slices, "it is not started"
    background.start()
    await eventually(lambda: slices, "first slice")
    background.wake(wall_ms() + 7_200_000)
    background.wake(wall_ms() + 5)
    await eventually(lambda: len(slices) == 2, "the earlier one")
    background.wake_now()
    await eventually(lambda: len(slices) == 3, "at once")
    background.stop()
    background.wake(wall_ms())
    await asyncio.sleep(0)
    assert len(slices) == 3


async def test_a_slice_that_is_ready_does_not_run_after_a_stop() -> None:
    slices: list[int] = []

    def work(now_ms: int, _: float) -> int | None:
        slices.append(now_ms)
        return now_ms

    background = BackgroundWork("test", work, wall_ms, Log().budget)
    background.start()
    background.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not slices


@pytest.mark.parametrize("problem", [StoreError("disk full"), ValueError("a bug")])
async def test_a_failure_is_logged_once_and_retried(
    problem: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tianzhou.remoting.scheduler._RETRY_MS", 1)
    slice_count = 0

    def work(_: int, __: float) -> int | None:
        nonlocal slice_count
        slice_count += 1
        if slice_count < 4:
            raise problem
        return None

    background = BackgroundWork("test", work, wall_ms, Log().budget)
    background.start()
    await eventually(lambda: slice_count == 4, "success after failures")
    assert len([record for record in caplog.records if "trying again" in record.message]) == 1
    assert ("Traceback" in caplog.text) is isinstance(problem, ValueError)
    background.stop()


# -- the fair queue --------------------------------------------------------------------------------


class Owner:
    """A connection, as far as a fair queue knows it."""

    def __init__(self) -> None:
        self.is_held = self.has_unread = False
        self.sent_count = 0
        self.sent = asyncio.Event()

    def hold_responses(self) -> None:
        self.is_held = True

    def send_held(self) -> None:
        self.is_held = False
        self.sent_count += 1
        self.sent.set()


ONE = Owner()


@pytest.fixture
def one_per_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are over before they have begun, so that each serves one request."""
    monkeypatch.setattr(scheduler, "SLICE_S", -1.0)
    monkeypatch.setattr(scheduler, "SHARED_SLICE_S", -1.0)


@pytest.fixture
def long_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SLICE_S", 3600.0)


async def emptied(queue: FairQueue) -> list[int]:
    """How many requests were queued after each loop iteration, until none was."""
    counts: list[int] = []
    async with asyncio.timeout(20):
        while queue.waiting_count:
            await asyncio.sleep(0)
            counts.append(queue.waiting_count)
    return counts


@pytest.mark.usefixtures("one_per_slice")
async def test_the_first_request_is_admitted_and_the_rest_run_one_by_one_in_order() -> None:
    queue, served = FairQueue(Log().budget), list[int]()
    assert queue.admits(ONE)
    queue.passed()
    for number in range(5):
        assert not queue.admits(ONE), "the slice is over"
        queue.wait(ONE, partial(served.append, number))
    counts = await emptied(queue)
    assert served == [0, 1, 2, 3, 4]
    assert max(before - after for before, after in zip([5, *counts], counts, strict=False)) == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.admits(ONE), "the queue is empty"


@pytest.mark.usefixtures("long_slices")
async def test_a_slice_that_has_time_serves_many_requests() -> None:
    queue, served = FairQueue(Log().budget), list[int]()
    assert all(queue.admits(ONE) for _ in range(100))
    queue.wait(ONE, partial(served.append, -1))
    assert not queue.admits(ONE), "no request overtakes queued ones"
    for number in range(100):
        queue.wait(ONE, partial(served.append, number))
    await emptied(queue)
    assert served == list(range(-1, 100))


@pytest.mark.usefixtures("one_per_slice")
async def test_queued_requests_are_served_round_robin_by_connection() -> None:
    queue, served = FairQueue(Log().budget), list[str]()
    for owner, name, count in ((Owner(), "a", 5), (Owner(), "b", 2)):
        for number in range(count):
            queue.wait(owner, partial(served.append, f"{name}{number}"))
    await emptied(queue)
    assert served == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


@pytest.mark.usefixtures("one_per_slice")
@pytest.mark.parametrize("clients_send", [False, True])
async def test_queued_requests_rest_while_clients_send(
    clients_send: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, served = Log(), list[int]()
    loop = RecordedLoop(log, monkeypatch)
    queue, owner = FairQueue(log.budget), Owner()

    def work(number: int) -> None:
        served.append(number)
        log.written += 100  # its own
        log.now_s += BURST_S * 0.75
        assert owner.is_held

    for number in range(6):
        queue.wait(owner, partial(work, number))
    log.written += 1 if clients_send else 0
    await emptied(queue)
    assert served == [0, 1, 2, 3, 4, 5], "a rest is followed by work"
    assert not owner.is_held
    rests_s = [delay_s for delay_s in loop.delays_s if delay_s != HELD_S_MAX]
    # The third rest begins after the last request, so nothing waits for its end.
    assert rests_s == ([REST_S] * 2 if clients_send else [])


async def test_no_request_is_admitted_during_a_rest() -> None:
    log = Log()
    queue = FairQueue(log.budget)
    log.written += 1
    assert queue.admits(ONE)
    log.now_s += 2 * BURST_S
    queue.passed()
    await asyncio.sleep(0)
    assert not queue.admits(ONE)
    log.now_s += REST_S
    assert queue.admits(ONE)


@pytest.mark.usefixtures("one_per_slice")
async def test_responses_are_held_while_their_connection_has_requests_but_not_for_long() -> None:
    log = Log()
    queue = FairQueue(log.budget)
    busy, quiet = Owner(), Owner()
    sent_counts: list[int] = []

    def work() -> None:
        sent_counts.append(busy.sent_count)
        log.now_s += HELD_S_MAX * 0.4

    for _ in range(8):
        queue.wait(busy, work)
    queue.wait(quiet, lambda: None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (quiet.sent_count, busy.sent_count) == (1, 0), "one has no queued request any more"
    await emptied(queue)
    assert sent_counts == [0, 0, 0, 1, 1, 1, 2, 2]
    assert (busy.sent_count, busy.is_held) == (3, False)


@pytest.mark.usefixtures("long_slices")
async def test_responses_are_held_while_their_connection_has_unread_requests() -> None:
    log = Log()
    queue, owner = FairQueue(log.budget), Owner()

    async def ask() -> None:
        assert queue.admits(owner)
        queue.passed()
        for _ in range(3):
            await asyncio.sleep(0)

    owner.has_unread = True
    await ask()
    await ask()
    assert (owner.is_held, owner.sent_count) == (True, 0)
    owner.has_unread = False
    await ask()
    assert (owner.is_held, owner.sent_count) == (False, 1), "all is read"
    owner.has_unread = True
    await ask()
    log.now_s += HELD_S_MAX
    owner.sent.clear()
    async with asyncio.timeout(20):
        await owner.sent.wait()  # though no further request comes
    assert (owner.is_held, owner.sent_count) == (False, 2)


@pytest.mark.usefixtures("one_per_slice")
async def test_a_request_that_fails_does_not_delay_those_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, served = FairQueue(Log().budget), list[int]()

    def fails() -> None:
        raise ValueError("a bug")

    queue.wait(ONE, fails)
    queue.wait(ONE, partial(served.append, 1))
    await emptied(queue)
    assert served == [1]
    assert "ValueError: a bug" in caplog.text


@pytest.mark.usefixtures("one_per_slice")
async def test_a_closed_queue_serves_no_request() -> None:
    queue, served = FairQueue(Log().budget), list[int]()
    owner = Owner()
    for number in range(3):
        queue.wait(owner, partial(served.append, number))
    await asyncio.sleep(0)
    queue.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (served, queue.waiting_count) == ([0], 0)
    assert not owner.is_held


# -- the busy poll ---------------------------------------------------------------------------------


class PolledLoop:
    """Time, and what runs in the next loop iteration."""

    def __init__(self, processor_count: int = 2) -> None:
        self.now_s = 100.0
        self.ready: list[Callable[[], None]] = []
        self.busy_poll = BusyPoll(self.ready.append, lambda: self.now_s, processor_count)

    def request(self, after_s: float) -> None:
        self.now_s += after_s
        self.busy_poll.answered()

    def poll_count(self, step_s: float) -> int:
        """How many iterations follow before the loop sleeps, if each takes so long."""
        count = 0
        while self.ready:
            self.ready.pop()()
            self.now_s += step_s
            count += 1
            assert count < 1_000
        return count


def test_the_loop_polls_after_an_immediate_request() -> None:
    loop = PolledLoop()
    loop.request(0)
    assert not loop.ready, "the first request may be the only one"
    loop.request(IMMEDIATE_S / 2)
    assert loop.poll_count(POLL_S / 10) in (10, 11, 12)


def test_each_immediate_request_prolongs_the_poll() -> None:
    loop = PolledLoop()
    loop.request(0)
    for _ in range(50):
        loop.request(POLL_S / 2)
        assert len(loop.ready) == 1
        loop.ready.pop()()
    assert loop.poll_count(POLL_S) == 2


def test_the_loop_does_not_poll_after_rare_requests() -> None:
    loop = PolledLoop()
    for _ in range(50):
        loop.request(2 * IMMEDIATE_S)
        assert not loop.ready


def test_the_loop_pauses_after_a_poll_without_a_request() -> None:
    loop = PolledLoop()
    loop.request(0)
    polled = 0
    for _ in range(3 * (PAUSE_REQUESTS + 1)):
        loop.request(IMMEDIATE_S - POLL_S)
        polled += loop.poll_count(POLL_S) > 0
    assert polled == 3


@pytest.mark.parametrize("count", [1, usable_processor_count()])
def test_the_loop_does_not_poll_on_a_single_processor(count: int) -> None:
    loop = PolledLoop(count)
    loop.request(0)
    loop.request(IMMEDIATE_S / 2)
    assert bool(loop.ready) is (count > 1)
