"""Failures told once and counted: nothing is lost, nothing floods."""

from tianzhou.remoting.repeated_failures import RepeatedFailures, and_more


def test_the_first_is_told_and_the_rest_of_the_minute_counted() -> None:
    repeats = RepeatedFailures()
    assert repeats.note("a", 0.0) == 0
    assert [repeats.note("a", second) for second in (1.0, 30.0, 59.9)] == [None] * 3
    assert repeats.note("b", 2.0) == 0
    assert repeats.note("a", 60.0) == 3
    assert repeats.note("a", 61.0) is None
    assert repeats.untold() == [("a", 1)]
    assert repeats.untold() == []
    assert repeats.note("a", 62.0) == 0


def test_memory_is_bounded() -> None:
    repeats = RepeatedFailures()
    for number in range(5_000):
        assert repeats.note(number, 0.0) == 0
    assert repeats.note(4_999, 1.0) is None
    assert repeats.note(0, 1.0) == 0  # forgotten long ago, so it is told again


def test_counts_are_put_into_words() -> None:
    assert and_more(0) == ""
    assert and_more(2) == " (2 more like it since the last such line)"
