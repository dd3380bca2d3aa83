"""Requests wait after the event loop stood still, until the check has ended, and then in order."""

import asyncio

from tests.support.brokers import eventually
from tests.support.counted import GAP_MAX_MS, MovedGap


async def test_nothing_is_held_while_the_loop_runs() -> None:
    it = MovedGap()
    for _ in range(5):
        it.now_ms += GAP_MAX_MS
        assert not it.gap.is_holding()
    assert it.gaps == []
    await it.gap.stop()


async def test_requests_are_held_after_a_gap_until_the_check_has_ended() -> None:
    it, handled = MovedGap(), list[int]()
    it.now_ms += GAP_MAX_MS + 1
    assert it.gap.is_holding()
    it.gap.hold(lambda: handled.append(1))
    it.now_ms += GAP_MAX_MS + 1  # another gap during the check is the same
    assert it.gap.is_holding()
    it.gap.hold(lambda: handled.append(2))
    await asyncio.sleep(0)
    assert (it.gaps, handled) == ([GAP_MAX_MS + 1], [])
    it.checked.set()
    await eventually(lambda: not it.gap.is_holding(), "the end of the check")
    assert handled == [1, 2]
    await it.gap.stop()


async def test_the_timer_finds_a_gap_without_requests() -> None:
    it = MovedGap()
    it.now_ms += GAP_MAX_MS + 1
    it.gap._tick()  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(0)
    assert it.gaps == [GAP_MAX_MS + 1]
    it.now_ms += 1
    assert it.gap.is_holding(), "the request that comes after the timer is held, too"
    await it.gap.stop()


async def test_what_is_held_is_handled_when_it_stops_or_the_check_fails() -> None:
    it, handled = MovedGap(), list[int]()
    it.now_ms += GAP_MAX_MS + 1
    assert it.gap.is_holding()
    it.gap.hold(lambda: handled.append(1))
    await asyncio.sleep(0)
    await it.gap.stop()
    assert handled == [1]
