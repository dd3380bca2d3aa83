"""Repeated failures: the first is logged, the others are counted, memory is bounded."""

from tianzhou.remoting.repeated_failures import RepeatedFailures


def test_the_first_is_logged_and_the_rest_of_the_minute_counted() -> None:
    repeats = RepeatedFailures()
    assert repeats.ending("a", 0.0) == ""
    assert [repeats.ending("a", second) for second in (1.0, 30.0, 59.9)] == [None] * 3
    assert repeats.ending("b", 2.0) == ""
    assert repeats.ending("a", 60.0) == " (3 more like it since the last such line)"
    assert repeats.ending("a", 61.0) is None
    assert repeats.pop_unlogged() == [("a", 1)]
    assert repeats.pop_unlogged() == []
    assert repeats.ending("a", 62.0) == ""


def test_memory_is_bounded() -> None:
    repeats = RepeatedFailures()
    for number in range(5_000):
        assert repeats.ending(number, 0.0) == ""
    assert repeats.ending(4_999, 1.0) is None
    assert repeats.ending(0, 1.0) == ""  # evicted before, so it is logged again
