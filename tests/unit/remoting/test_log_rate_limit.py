"""Lines in the log are limited by the second, and those left out are told."""

from tianzhou.remoting.log_rate_limit import LINES_A_SECOND, LogRateLimit


def test_so_many_lines_a_second_and_then_how_many_were_left_out() -> None:
    now_s = 7.25
    limit = LogRateLimit(lambda: now_s)
    written = [limit.ending() for _ in range(LINES_A_SECOND + 3)]
    assert written == [""] * LINES_A_SECOND + [None] * 3
    now_s = 8.0
    assert limit.ending() == " (3 more were not written)"
    assert limit.ending() == ""
