"""Clocks that run like the real ones and that a test can move."""

from tianzhou.clock import Clock, steady_ms, wall_ms


class MovingClock:
    """A wall clock in milliseconds that can be moved; `steady` is its monotonic clock."""

    def __init__(self, real: Clock = wall_ms, real_steady: Clock = steady_ms) -> None:
        self._real = real
        self._real_steady = real_steady
        self._passed_ms = 0
        self._set_ms = 0

    def __call__(self) -> int:
        return self._real() + self._passed_ms + self._set_ms

    def steady(self) -> int:
        """Milliseconds of a clock that `jump` does not move."""
        return self._real_steady() + self._passed_ms

    def advance(self, by_ms: int) -> None:
        """Advance both clocks. Raises ValueError for a negative step."""
        if by_ms < 0:
            raise ValueError(f"a clock is advanced by 0 ms or more, not by {by_ms}")
        self._passed_ms += by_ms

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP does."""
        self._set_ms += by_ms
