"""Pending requests: opaques, responses, time-outs, and lost connections."""

import asyncio

import pytest

from tianzhou.errors import ConnectionClosed, RequestTimeout
from tianzhou.protocol.command import Command
from tianzhou.remoting.pending_requests import NEVER_S, PendingRequests


def _future() -> asyncio.Future[Command]:
    return asyncio.get_running_loop().create_future()


async def test_a_response_is_matched_to_its_request_once() -> None:
    pending = PendingRequests()
    first, second = _future(), _future()
    one = pending.add(first, 1, 100, 1.0)
    two = pending.add(second, 1, 100, 1.0)
    assert one != two
    answer = Command(code=0, opaque=two)
    assert pending.answer(answer)
    assert second.result() is answer
    assert not first.done()
    assert not pending.answer(answer)
    assert len(pending) == 1


async def test_opaques_wrap_around_and_skip_those_in_use() -> None:
    pending = PendingRequests(opaque_max=5)
    assert [pending.add(_future(), 1, 100, 1.0) for _ in range(3)] == [0, 1, 2]
    assert [pending.next_opaque() for _ in range(3)] == [3, 4, 5]
    assert [pending.next_opaque() for _ in range(3)] == [3, 4, 5]
    pending.forget(1)
    assert [pending.next_opaque() for _ in range(3)] == [1, 3, 4]


async def test_only_requests_past_their_deadline_expire() -> None:
    pending = PendingRequests()
    late, early = _future(), _future()
    pending.add(early, 105, 500, 0.5)
    pending.add(late, 105, 2000, 2.0)
    assert pending.next_deadline_s == 0.5
    pending.expire(0.4, "peer")
    assert not early.done()
    pending.expire(0.5, "peer")
    with pytest.raises(RequestTimeout, match="peer has not answered request 105 within 500 ms"):
        early.result()
    assert not late.done()
    assert pending.next_deadline_s == 2.0
    pending.expire(3.0, "peer")
    assert isinstance(late.exception(), RequestTimeout)
    assert pending.next_deadline_s == NEVER_S
    assert len(pending) == 0


async def test_the_next_deadline_is_a_lower_bound() -> None:
    pending = PendingRequests()
    deadlines = [5.0, 3.0, 4.0, 2.0, 6.0]
    numbers = [pending.add(_future(), 1, 1, deadline) for deadline in deadlines]
    pending.forget(numbers[3])
    assert pending.next_deadline_s <= 3.0
    pending.expire(2.5, "peer")
    assert pending.next_deadline_s == 3.0
    pending.fail_all(ConnectionClosed("over"))


async def test_a_lost_connection_fails_each_request_with_its_own_exception() -> None:
    pending = PendingRequests()
    futures = [_future() for _ in range(3)]
    for future in futures:
        pending.add(future, 1, 100, 1.0)
    futures[0].cancel()
    pending.fail_all(ConnectionClosed("gone"))
    errors = [future.exception() for future in futures[1:]]
    assert [str(error) for error in errors] == ["gone", "gone"]
    assert errors[0] is not errors[1]
    assert len(pending) == 0
    assert pending.next_deadline_s == NEVER_S


async def test_no_waiter_is_called_twice() -> None:
    pending = PendingRequests()
    future = _future()
    opaque = pending.add(future, 1, 100, 1.0)
    future.cancel()
    assert not pending.answer(Command(code=0, opaque=opaque))
    other = _future()
    pending.add(other, 1, 100, 1.0)
    other.cancel()
    pending.expire(2.0, "peer")
    assert other.cancelled()
