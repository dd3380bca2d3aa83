"""Failures that may come a thousand times a second: logged once and counted afterwards.

The first of its kind is logged at once. What follows within a minute is counted; the next one after
that minute is logged with the count. At most `_KINDS_MAX` kinds are remembered: a flood from ever
new addresses cannot fill the memory, it only makes the oldest kinds be logged again.
"""

from collections import OrderedDict
from collections.abc import Hashable

_QUIET_S = 60.0
_KINDS_MAX = 1_024


class RepeatedFailures:
    """Remembers what was logged and when. Times are seconds of any clock that only goes forward."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def note(self, kind: Hashable, now_s: float) -> int | None:
        """None: do not log it. A number: log it, and that so many were not logged before."""
        told_s, unlogged_count = self._told.get(kind, (None, 0))
        if told_s is not None and now_s - told_s < _QUIET_S:
            self._told[kind] = (told_s, unlogged_count + 1)
            return None
        self._told[kind] = (now_s, 0)
        self._told.move_to_end(kind)
        if len(self._told) > _KINDS_MAX:
            self._told.popitem(last=False)
        return unlogged_count

    def untold(self) -> list[tuple[Hashable, int]]:
        """Kinds with failures that were not logged, and their counts; they start anew."""
        rest = [(kind, count) for kind, (_, count) in self._told.items() if count]
        self._told.clear()
        return rest


def and_more(unlogged_count: int) -> str:
    """The end of a log line: how many like it went before without a line of their own."""
    return f" ({unlogged_count} more like it since the last such line)" if unlogged_count else ""
