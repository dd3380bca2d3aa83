"""A hook for crash tests: code that moves messages calls it with a name between any two moves.

In a running broker it does nothing. A crash test passes one that ends the process at one of the
names, so every point between two moves is tested.
"""

from collections.abc import Callable

CrashPoint = Callable[[str], None]


def no_crash_point(_: str) -> None:
    """Does nothing."""
