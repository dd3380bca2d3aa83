"""When the loop stays awake for someone who asks again at once."""

from collections.abc import Callable

import pytest

from tianzhou.broker.requests.busy_poll import (
    IMMEDIATE_S,
    PAUSE_REQUESTS,
    POLL_S,
    BusyPoll,
    usable_processor_count,
)


class Loop:
    """Time, and the callbacks of the next loop iteration."""

    def __init__(self, processor_count: int = 2) -> None:
        self.now_s = 100.0
        self.planned: list[Callable[[], None]] = []
        self.busy_poll = BusyPoll(self.planned.append, lambda: self.now_s, processor_count)

    def asked(self, after_s: float) -> None:
        self.now_s += after_s
        self.busy_poll.answered()

    def looks(self, step_s: float) -> int:
        """How many turns follow before the loop sleeps, if each takes so long."""
        count = 0
        while self.planned:
            self.planned.pop()()
            self.now_s += step_s
            count += 1
            assert count < 1_000
        return count


def test_the_loop_polls_for_the_next_request_of_a_client() -> None:
    loop = Loop()
    loop.asked(0)
    assert not loop.planned, "who asks for the first time may be the last for long"
    loop.asked(IMMEDIATE_S / 2)
    assert loop.looks(POLL_S / 10) in (10, 11, 12)


def test_each_request_prolongs_polling() -> None:
    loop = Loop()
    loop.asked(0)
    for _ in range(50):
        loop.asked(POLL_S / 2)
        assert len(loop.planned) == 1
        loop.planned.pop()()
    assert loop.looks(POLL_S) == 2


def test_rare_requests_are_not_polled_for() -> None:
    loop = Loop()
    for _ in range(50):
        loop.asked(2 * IMMEDIATE_S)
        assert not loop.planned


def test_polling_pauses_after_it_received_nothing() -> None:
    loop = Loop()
    loop.asked(0)
    looked = 0
    for _ in range(3 * (PAUSE_REQUESTS + 1)):
        loop.asked(IMMEDIATE_S - POLL_S)
        looked += loop.looks(POLL_S) > 0
    assert looked == 3


@pytest.mark.parametrize("count", [1, usable_processor_count()])
def test_there_is_no_polling_on_a_single_processor(count: int) -> None:
    loop = Loop(count)
    loop.asked(0)
    loop.asked(IMMEDIATE_S / 2)
    assert bool(loop.planned) is (count > 1)
