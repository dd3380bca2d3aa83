"""The clock seam: what a jump of the time of day changes, and what it must not change."""

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.clock import Ages, Moment, anchored
from tianzhou.testing import MovingClock

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def clock() -> MovingClock:
    return MovingClock(lambda: NOON_MS, lambda: 5_000)


def test_an_anchored_clock_goes_on_where_the_wall_clock_jumps() -> None:
    moving = clock()
    now = anchored(moving, moving.steady)
    moving.jump(DAY_MS)
    moving.advance(10)
    moving.jump(-3 * DAY_MS)
    assert now() == NOON_MS + 10


def test_a_duration_ends_by_steady_time() -> None:
    at = Moment(NOON_MS, 5_000)
    assert at.end_ms(NOON_MS, 60) == 5_060
    assert at.end_ms(NOON_MS - 50, 60) == 5_010
    assert at.end_ms(NOON_MS - DAY_MS, 60) < 5_000
    assert at.end_ms(NOON_MS + DAY_MS, 60) == 5_060, "the clock was set back: not a day longer"


@given(st.lists(st.sampled_from([DAY_MS, -DAY_MS, 7_000, -7_000]), max_size=6), st.data())
def test_a_stamp_is_as_old_as_the_time_that_passed(jumps: list[int], data: st.DataObject) -> None:
    moving = clock()
    ages = Ages(moving, moving.steady)
    moving.advance(1_000)
    stamp_ms, made_ms = moving(), moving.steady()
    for jump_ms in jumps:
        moving.jump(jump_ms)
        if data.draw(st.booleans()):
            ages.detect_jump()
        moving.advance(data.draw(st.integers(0, 900)))
        ages.detect_jump()
    age_ms = moving.steady() - made_ms
    # A time of day that came again after a step back may be the later one, never an earlier one.
    assert 0 <= ages.age_ms(stamp_ms) <= age_ms
    assert ages.age_ms(moving()) == 0
    if all(jump_ms > 0 for jump_ms in jumps):
        assert ages.age_ms(stamp_ms) == age_ms


def test_a_time_of_day_that_was_jumped_over_counts_from_the_jump() -> None:
    moving = clock()
    ages = Ages(moving, moving.steady)
    moving.advance(1_000)
    moving.jump(DAY_MS)
    ages.detect_jump()
    moving.advance(500)
    assert ages.age_ms(NOON_MS + DAY_MS // 2) == 500


def test_stamps_from_before_the_start_and_from_the_future_are_known_by_the_wall_clock() -> None:
    moving = clock()
    ages = Ages(moving, moving.steady)
    assert ages.age_ms(NOON_MS - DAY_MS) == DAY_MS
    assert ages.age_ms(NOON_MS + 300) == -300
    moving.jump(-DAY_MS)
    assert ages.age_ms(NOON_MS + 300) == -300 - DAY_MS
    assert ages.age_ms(NOON_MS - 2 * DAY_MS) == 2 * DAY_MS, "from before the start"


def test_jumps_without_number_take_bounded_memory() -> None:
    moving = clock()
    ages = Ages(moving, moving.steady)
    for _ in range(1_000):
        moving.jump(DAY_MS)
        ages.detect_jump()
    assert len(ages._spans) <= 64  # pyright: ignore[reportPrivateUsage] - memory is the point
    assert ages.age_ms(moving()) == 0
