"""Back-off of failed addresses."""

import pytest

from tianzhou.client.connection.dial_backoff import DialBackoff
from tianzhou.errors import ConnectError

REFUSED = ConnectError("no connection to a:1: Connection refused")


def pause_ms(backoff: DialBackoff, now_s: float) -> int:
    """The remaining back-off of an address, in steps of 10 ms."""
    for step in range(1_000):
        try:
            backoff.check("a:1", now_s + step / 100)
        except ConnectError:
            continue
        return step * 10
    raise AssertionError("for ever")


def test_pause_doubles_up_to_its_bound() -> None:
    backoff = DialBackoff(50, 300)
    now_s, seen = 0.0, list[int]()
    for _ in range(5):
        backoff.failed("a:1", now_s, REFUSED)
        seen.append(pause_ms(backoff, now_s))
        now_s += seen[-1] / 1000
    assert seen == [50, 100, 200, 300, 300]


def test_shared_attempts_count_once() -> None:
    backoff = DialBackoff(50, 300)
    for _ in range(4):
        backoff.failed("a:1", 0.0, REFUSED)
    assert pause_ms(backoff, 0.0) == 50


def test_others_are_not_affected_and_old_failures_are_forgotten() -> None:
    backoff = DialBackoff(50, 300)
    backoff.failed("a:1", 0.0, REFUSED)
    backoff.check("b:1", 0.0)
    with pytest.raises(ConnectError, match="a:1"):
        backoff.check("a:1", 0.01)
    backoff.failed("a:1", 60.0, REFUSED)
    assert pause_ms(backoff, 60.0) == 50


def test_memory_is_bounded() -> None:
    backoff = DialBackoff(50, 300)
    for number in range(2_000):
        backoff.failed(f"a:{number}", 0.0, REFUSED)
    backoff.check("a:0", 0.0)  # the oldest are forgotten
    with pytest.raises(ConnectError):
        backoff.check("a:1999", 0.0)
