"""A clock that runs like the real one, and that a test can put forward."""

from tianzhou.clock import Clock, wall_ms


class MovingClock:
    """Milliseconds since the epoch, plus all that was advanced."""

    def __init__(self, real: Clock = wall_ms) -> None:
        self._real = real
        self._ahead_ms = 0

    def __call__(self) -> int:
        return self._real() + self._ahead_ms

    def advance(self, by_ms: int) -> None:
        """Put the clock forward. Raises ValueError for a step back, which stores do not allow."""
        if by_ms < 0:
            raise ValueError(f"a clock is advanced by 0 ms or more, not by {by_ms}")
        self._ahead_ms += by_ms
