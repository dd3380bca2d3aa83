"""How far a benchmark is: what it does now, how long it has run, how long it will about take."""

import sys
import time


def say(text: str) -> None:
    """One line for whoever waits."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Progress:
    """Steps with expected durations; what they really take corrects the estimate."""

    def __init__(self, expected_s: float) -> None:
        self._left_s = expected_s
        self._expected_s = 0.0
        self._started_s = time.monotonic()

    def done(self, expected_s: float, text: str) -> None:
        """Tell that a step is over that was expected to take so long."""
        self._left_s = max(self._left_s - expected_s, 0.0)
        self._expected_s += expected_s
        gone_s = time.monotonic() - self._started_s
        left_s = self._left_s * max(gone_s / self._expected_s, 0.5)
        say(f"{text}  [{minutes(gone_s)} gone, about {minutes(left_s)} left]")
