"""The age of a backlog, compared with a model that knows when each message was stored."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.console.collect.ages import READINGS_MAX, Age, Recording


def test_without_a_backlog_there_is_no_age() -> None:
    recording = Recording()
    assert recording.oldest((), 5) is None
    recording.add((3, 4), 10)
    assert recording.oldest((3, 4), 20) is None
    assert recording.oldest((9, 9), 20) is None


def test_a_backlog_from_before_the_first_reading_has_a_minimum_age() -> None:
    recording = Recording()
    recording.add((3, 4), 10)
    assert recording.oldest((3, 3), 70) == Age(60, is_minimum=True)
    assert recording.oldest((), 70) == Age(60, is_minimum=True)


def test_the_age_is_that_of_the_first_message_not_consumed() -> None:
    recording = Recording()
    for at_ms, ends in ((0, (0,)), (100, (5,)), (200, (9,)), (300, (12,))):
        recording.add(ends, at_ms)
    assert recording.oldest((4,), 400) == Age(300)
    assert recording.oldest((5,), 400) == Age(200)
    assert recording.oldest((11,), 400) == Age(100)
    assert recording.oldest((11,), 299) == Age(0)


def test_a_topic_that_was_created_again_begins_again() -> None:
    recording = Recording()
    recording.add((100,), 0)
    recording.add((2,), 50)
    assert recording.oldest((1,), 60) == Age(10, is_minimum=True)


@given(st.randoms(use_true_random=False))
def test_the_error_is_at_most_a_share_of_the_age(chance: random.Random) -> None:
    recording, interval_ms = Recording(), 60
    stored_ms: list[int] = []
    recording.add((0,), 0)
    now_ms = 0
    for _ in range(chance.randint(1, 120)):
        count = chance.choice((0, 0, 1, 5))
        stored_ms += [now_ms + chance.randint(1, interval_ms) for _ in range(count)]
        now_ms += interval_ms
        stored_ms.sort()
        recording.add((len(stored_ms),), now_ms)
    assert len(recording._ends) <= READINGS_MAX  # pyright: ignore[reportPrivateUsage]
    for committed in range(len(stored_ms)):
        found = recording.oldest((committed,), now_ms)
        assert found is not None
        true_ms = now_ms - stored_ms[committed]
        assert found.age_ms <= true_ms
        assert found.age_ms >= 0.2 * true_ms - interval_ms
