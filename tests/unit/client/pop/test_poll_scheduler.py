"""The scheduler polls targets round robin, listens at empty ones, wakes one receiver at a time."""

import asyncio
from collections import defaultdict

from tests.support.brokers import eventually

from tianzhou.client.pop.poll_scheduler import PollScheduler
from tianzhou.client.queues import Queue
from tianzhou.errors import RequestTimeout

A, B, C = (Queue("t", name, -1) for name in ("a", "b", "c"))
TIMEOUT_S = 60.0


class FakeListener:
    """A listener whose notifications come from the test."""

    def __init__(self) -> None:
        self.notifications: dict[Queue, asyncio.Queue[bool | Exception]] = defaultdict(
            asyncio.Queue
        )
        self.listening: list[Queue] = []

    async def __call__(self, target: Queue) -> bool:
        self.listening.append(target)
        notification = await self.notifications[target].get()
        if isinstance(notification, Exception):
            raise notification
        return notification


def scheduler_of(*targets: Queue) -> tuple[PollScheduler, FakeListener]:
    listener = FakeListener()
    scheduler = PollScheduler(listener, "test")
    scheduler.update(targets)
    return scheduler, listener


async def test_ready_targets_are_polled_round_robin() -> None:
    scheduler, _ = scheduler_of(A, B, C)
    first = [await scheduler.next_target(TIMEOUT_S) for _ in range(3)]
    assert set(first) == {A, B, C}
    assert [await scheduler.next_target(TIMEOUT_S) for _ in range(3)] == first


async def test_empty_target_is_skipped_until_a_notification() -> None:
    scheduler, listener = scheduler_of(A, B)
    scheduler.on_empty(A)
    assert [await scheduler.next_target(TIMEOUT_S) for _ in range(2)] == [B, B]
    scheduler.on_empty(B)
    assert await scheduler.next_target(0.001) is None
    waiting = asyncio.create_task(scheduler.next_target(TIMEOUT_S))
    listener.notifications[A].put_nowait(True)
    assert await waiting == A
    await asyncio.gather(*scheduler.close(), return_exceptions=True)


async def test_target_without_notification_is_polled_after_the_time_out() -> None:
    scheduler, listener = scheduler_of(A)
    scheduler.on_empty(A)
    listener.notifications[A].put_nowait(False)
    assert await scheduler.next_target(TIMEOUT_S) == A
    scheduler.on_empty(A)
    listener.notifications[A].put_nowait(RequestTimeout("no response"))
    assert await scheduler.next_target(TIMEOUT_S) == A


async def test_failed_target_is_suspended_without_listening() -> None:
    scheduler, listener = scheduler_of(A)
    scheduler.on_failure(A)
    assert await scheduler.next_target(TIMEOUT_S) == A
    assert listener.listening == []


async def test_one_notification_wakes_one_receiver() -> None:
    scheduler, listener = scheduler_of(A)
    scheduler.on_empty(A)
    waiting = [asyncio.create_task(scheduler.next_target(TIMEOUT_S)) for _ in range(3)]
    listener.notifications[A].put_nowait(True)
    done, waiting_set = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    scheduler.on_messages(A)  # it may have more
    done, waiting_set = await asyncio.wait(waiting_set, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    scheduler.on_empty(A)
    ended = scheduler.close()
    assert [await each for each in waiting_set] == [None]
    await asyncio.gather(*ended, return_exceptions=True)


async def test_wake_up_of_a_cancelled_receiver_is_passed_on() -> None:
    scheduler, _ = scheduler_of()
    first, second = (asyncio.create_task(scheduler.next_target(TIMEOUT_S)) for _ in range(2))
    await asyncio.sleep(0)  # both wait
    scheduler.update((A,))  # wakes the first
    first.cancel()
    assert await second == A
    assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is (
        asyncio.CancelledError
    )


async def test_listeners_end_with_their_targets() -> None:
    scheduler, listener = scheduler_of(A, B)
    scheduler.on_empty(A)
    await eventually(lambda: listener.listening == [A], "a listener")
    scheduler.update((B, C))
    assert set(scheduler.targets) == {B, C}
    scheduler.on_empty(B)
    await eventually(lambda: listener.listening == [A, B], "a listener")
    scheduler.renew("t")
    assert set(scheduler.targets) == {B, C}, "with a new filter it may have something"
    assert scheduler.close() == []
