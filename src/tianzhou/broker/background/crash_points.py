"""A seam for tests: parts that move messages call a `CrashPoint` with a name between any two moves.

In a running broker nobody listens. Tests of crashes hand in a step that ends the process at one of
the names, so that every point between two moves is tried and none is missed by luck.
"""

from collections.abc import Callable

CrashPoint = Callable[[str], None]


def no_crash_point(_: str) -> None:
    """Nobody listens."""
