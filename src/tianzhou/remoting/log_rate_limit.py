"""A limit on lines of one kind in the log: a flood of requests must not fill the disk."""

import time
from collections.abc import Callable

LINES_A_SECOND = 20


class LogRateLimit:
    """At most so many lines a second; the next line counts those left out."""

    __slots__ = ("_left_count", "_left_out_count", "_now_s", "_second")

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._second = -1
        self._left_count = 0
        self._left_out_count = 0

    def ending(self) -> str | None:
        """What the next line ends with, empty as a rule; None if none may be written now."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._left_count = second, LINES_A_SECOND
        if not self._left_count:
            self._left_out_count += 1
            return None
        self._left_count -= 1
        left_out, self._left_out_count = self._left_out_count, 0
        return f" ({left_out} more were not written)" if left_out else ""
