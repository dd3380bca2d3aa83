"""Log lines are limited per second, and dropped ones are counted."""

from tianzhou.remoting.log_rate_limit import LINES_A_SECOND, LogRateLimit


def test_lines_are_limited_per_second_and_dropped_ones_reported() -> None:
    now_s = 7.25
    limit = LogRateLimit(lambda: now_s)
    written = [limit.ending() for _ in range(LINES_A_SECOND + 3)]
    assert written == [""] * LINES_A_SECOND + [None] * 3
    now_s = 8.0
    assert limit.ending() == " (3 more were not written)"
    assert limit.ending() == ""
