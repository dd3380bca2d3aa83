"""Back pressure."""

import asyncio

import pytest

from tianzhou.client.producer.in_flight_limit import Flow
from tianzhou.errors import RemoteBusy


async def test_waits_when_full_and_goes_on_with_room_to_spare() -> None:
    flow = Flow(4, 1_000)
    for _ in range(4):
        assert not flow.is_full
        flow.enter(1)
    assert flow.is_full
    waiting = asyncio.create_task(flow.room(10_000))
    await asyncio.sleep(0)
    flow.leave(1)
    await waiting
    assert flow.count == 4  # three on their way, and the one that was let in
    flow.enter(1, 0)
    assert flow.bytes == 4


async def test_bytes_count_too() -> None:
    flow = Flow(100, 10)
    flow.enter(50)  # one is let through, however large
    assert flow.is_full
    flow.leave(50)
    assert not flow.is_full


async def test_in_order_and_no_more_than_fit() -> None:
    flow = Flow(2, 1_000)
    flow.enter(1)
    flow.enter(1)
    order: list[int] = []

    async def come(number: int) -> None:
        await flow.room(10_000)
        order.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(3)]
    await asyncio.sleep(0)
    flow.leave(1)
    await asyncio.sleep(0.001)
    assert (order, flow.count, flow.is_full) == ([0], 2, True)
    flow.leave(1)
    flow.leave(1)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_time_is_up() -> None:
    flow = Flow(1, 1_000)
    flow.enter(7)
    with pytest.raises(RemoteBusy, match="1 messages of 7 bytes"):
        await flow.room(1)
    flow.leave(7)
    assert not flow.is_full


async def test_a_place_given_to_one_who_left_goes_to_the_next() -> None:
    flow = Flow(1, 1_000)
    flow.enter(1)
    first = asyncio.create_task(flow.room(10_000))
    second = asyncio.create_task(flow.room(10_000))
    await asyncio.sleep(0)
    flow.leave(1)  # the first is let in, and is cancelled before it goes on
    first.cancel()
    await second
    assert flow.count == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_emptied() -> None:
    flow = Flow(5, 1_000)
    assert await flow.emptied(1)
    flow.enter(1)
    assert not await flow.emptied(1)
    waiting = asyncio.create_task(flow.emptied(10_000))
    await asyncio.sleep(0)
    flow.leave(1)
    assert await waiting
