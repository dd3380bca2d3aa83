"""Progress lines of a benchmark: current step, elapsed and remaining time."""

import sys
import time


def say(text: str) -> None:
    """Print a progress line."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Progress:
    """Steps with expected durations; actual durations correct the estimate."""

    def __init__(self, expected_s: float) -> None:
        self._left_s = expected_s
        self._expected_s = 0.0
        self._started_s = time.monotonic()

    def done(self, expected_s: float, text: str) -> None:
        """Report the end of a step with this expected duration."""
        self._left_s = max(self._left_s - expected_s, 0.0)
        self._expected_s += expected_s
        elapsed_s = time.monotonic() - self._started_s
        left_s = self._left_s * max(elapsed_s / self._expected_s, 0.5)
        say(f"{text}  [{minutes(elapsed_s)} elapsed, about {minutes(left_s)} left]")
