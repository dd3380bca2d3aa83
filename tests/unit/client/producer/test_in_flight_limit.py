"""The limit of messages in flight."""

import asyncio

import pytest

from tianzhou.client.producer.in_flight_limit import InFlightLimit
from tianzhou.errors import RemoteBusy


async def test_waits_when_full_and_continues_below_the_limit() -> None:
    in_flight = InFlightLimit(4, 1_000)
    for _ in range(4):
        assert not in_flight.is_full
        in_flight.add(1)
    assert in_flight.is_full
    waiting = asyncio.create_task(in_flight.wait_for_capacity(10_000))
    await asyncio.sleep(0)
    in_flight.remove(1)
    await waiting
    assert in_flight.count == 4  # three on their way, and the one that was let in
    in_flight.add(1, 0)
    assert in_flight.bytes == 4


async def test_bytes_count_too() -> None:
    in_flight = InFlightLimit(100, 10)
    in_flight.add(50)  # one is let through, however large
    assert in_flight.is_full
    in_flight.remove(50)
    assert not in_flight.is_full


async def test_in_order_and_no_more_than_fit() -> None:
    in_flight = InFlightLimit(2, 1_000)
    in_flight.add(1)
    in_flight.add(1)
    order: list[int] = []

    async def come(number: int) -> None:
        await in_flight.wait_for_capacity(10_000)
        order.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(3)]
    await asyncio.sleep(0)
    in_flight.remove(1)
    await asyncio.sleep(0.001)
    assert (order, in_flight.count, in_flight.is_full) == ([0], 2, True)
    in_flight.remove(1)
    in_flight.remove(1)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_time_is_up() -> None:
    in_flight = InFlightLimit(1, 1_000)
    in_flight.add(7)
    with pytest.raises(RemoteBusy, match="1 messages of 7 bytes"):
        await in_flight.wait_for_capacity(1)
    in_flight.remove(7)
    assert not in_flight.is_full


async def test_slot_of_a_cancelled_waiter_is_passed_on() -> None:
    in_flight = InFlightLimit(1, 1_000)
    in_flight.add(1)
    first = asyncio.create_task(in_flight.wait_for_capacity(10_000))
    second = asyncio.create_task(in_flight.wait_for_capacity(10_000))
    await asyncio.sleep(0)
    in_flight.remove(1)  # the first is let in, and is cancelled before it goes on
    first.cancel()
    await second
    assert in_flight.count == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_emptied() -> None:
    in_flight = InFlightLimit(5, 1_000)
    assert await in_flight.wait_until_empty(1)
    in_flight.add(1)
    assert not await in_flight.wait_until_empty(1)
    waiting = asyncio.create_task(in_flight.wait_until_empty(10_000))
    await asyncio.sleep(0)
    in_flight.remove(1)
    assert await waiting
