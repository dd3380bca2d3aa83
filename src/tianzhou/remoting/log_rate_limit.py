"""Log rate limit per second: a flood of requests must not fill the disk."""

import time
from collections.abc import Callable

LINES_A_SECOND = 20


class LogRateLimit:
    """At most `LINES_A_SECOND` lines; the next line reports how many were dropped before."""

    __slots__ = ("_dropped_count", "_left_count", "_now_s", "_second")

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._second = -1
        self._left_count = 0
        self._dropped_count = 0

    def ending(self) -> str | None:
        """The end of the next line, usually empty; None if no line may be written now."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._left_count = second, LINES_A_SECOND
        if not self._left_count:
            self._dropped_count += 1
            return None
        self._left_count -= 1
        dropped_count, self._dropped_count = self._dropped_count, 0
        return f" ({dropped_count} more were not written)" if dropped_count else ""
