"""The lookout: turns among places, listeners at the empty ones, news for one receiver at a time."""

import asyncio
from collections import defaultdict

from tests.support.brokers import eventually

from tianzhou.client.pop.poll_scheduler import Lookout
from tianzhou.client.queues import Queue
from tianzhou.errors import RequestTimeout

A, B, C = (Queue("t", name, -1) for name in ("a", "b", "c"))
SOON_S = 60.0


class Ears:
    """Listens at places until a test says what there is to hear."""

    def __init__(self) -> None:
        self.heard: dict[Queue, asyncio.Queue[bool | Exception]] = defaultdict(asyncio.Queue)
        self.listening: list[Queue] = []

    async def __call__(self, place: Queue) -> bool:
        self.listening.append(place)
        news = await self.heard[place].get()
        if isinstance(news, Exception):
            raise news
        return news


def lookout_at(*places: Queue) -> tuple[Lookout, Ears]:
    ears = Ears()
    lookout = Lookout(ears, "test")
    lookout.update(places)
    return lookout, ears


async def test_ready_places_take_turns() -> None:
    lookout, _ = lookout_at(A, B, C)
    first = [await lookout.take(SOON_S) for _ in range(3)]
    assert set(first) == {A, B, C}
    assert [await lookout.take(SOON_S) for _ in range(3)] == first


async def test_an_empty_place_has_no_turn_until_there_is_news() -> None:
    lookout, ears = lookout_at(A, B)
    lookout.empty(A)
    assert [await lookout.take(SOON_S) for _ in range(2)] == [B, B]
    lookout.empty(B)
    assert await lookout.take(0.001) is None
    waiting = asyncio.create_task(lookout.take(SOON_S))
    ears.heard[A].put_nowait(True)
    assert await waiting == A
    await asyncio.gather(*lookout.close(), return_exceptions=True)


async def test_a_place_of_which_nothing_was_heard_is_asked_all_the_same() -> None:
    lookout, ears = lookout_at(A)
    lookout.empty(A)
    ears.heard[A].put_nowait(False)
    assert await lookout.take(SOON_S) == A
    lookout.empty(A)
    ears.heard[A].put_nowait(RequestTimeout("nobody there"))
    assert await lookout.take(SOON_S) == A


async def test_a_place_that_failed_is_left_alone_and_asked_again_without_listening() -> None:
    lookout, ears = lookout_at(A)
    lookout.failed(A)
    assert await lookout.take(SOON_S) == A
    assert ears.listening == []


async def test_one_piece_of_news_wakes_one_receiver() -> None:
    lookout, ears = lookout_at(A)
    lookout.empty(A)
    waiting = [asyncio.create_task(lookout.take(SOON_S)) for _ in range(3)]
    ears.heard[A].put_nowait(True)
    done, waiting_set = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    lookout.found(A)  # it may have more
    done, waiting_set = await asyncio.wait(waiting_set, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    lookout.empty(A)
    ended = lookout.close()
    assert [await each for each in waiting_set] == [None]
    await asyncio.gather(*ended, return_exceptions=True)


async def test_news_for_a_receiver_that_was_cancelled_go_to_the_next() -> None:
    lookout, _ = lookout_at()
    first, second = (asyncio.create_task(lookout.take(SOON_S)) for _ in range(2))
    await asyncio.sleep(0)  # both wait
    lookout.update((A,))  # wakes the first
    first.cancel()
    assert await second == A
    assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is (
        asyncio.CancelledError
    )


async def test_listeners_end_with_their_places() -> None:
    lookout, ears = lookout_at(A, B)
    lookout.empty(A)
    await eventually(lambda: ears.listening == [A], "a listener")
    lookout.update((B, C))
    assert set(lookout.places) == {B, C}
    lookout.empty(B)
    await eventually(lambda: ears.listening == [A, B], "a listener")
    lookout.renew("t")
    assert set(lookout.places) == {B, C}, "with a new filter it may have something"
    assert lookout.close() == []
