"""Clocks that run like the real ones, and that a test can move."""

from tianzhou.clock import Clock, steady_ms, wall_ms


class MovingClock:
    """Milliseconds since the epoch, plus all that was advanced; `steady` is its monotonic clock."""

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
        """Let time pass on both clocks. Raises ValueError for a step back: time never does that."""
        if by_ms < 0:
            raise ValueError(f"a clock is advanced by 0 ms or more, not by {by_ms}")
        self._passed_ms += by_ms

    def jump(self, by_ms: int) -> None:
        """Set the time of day forward or back, as an operator or NTP does; no time passes."""
        self._set_ms += by_ms
