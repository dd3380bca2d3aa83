"""How long the oldest message of a backlog has waited, without reading a message. No I/O, no clock.

The end offsets of a topic on a broker are recorded with the time of each reading. A message at an
offset was stored after the last reading whose end was not past it, and before the first one whose
end was: its age is known to one interval. Old readings are thinned, so that a recording holds few
of them and the error stays a fraction of the age.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tianzhou.console.collect.counting import NO_OFFSET, Offsets

READINGS_MAX = 12


class Age(NamedTuple):
    """How long a message has waited."""

    age_ms: int
    is_minimum: bool = False
    """It is older than the first reading."""


class Recording:
    """The end offsets of a topic on one broker at some times, by steady time."""

    __slots__ = ("_ends", "_times_ms")

    def __init__(self) -> None:
        self._times_ms: list[int] = []
        self._ends: list[Offsets] = []

    def add(self, ends: Offsets, at_ms: int) -> None:
        """Record a reading; one that shows no new message is not needed."""
        if self._ends and self._ends[-1] == ends:
            return
        if any(map(_is_less, ends, self._ends[-1] if self._ends else ())):
            self._times_ms.clear()  # the topic was created again, or its log was cut
            self._ends.clear()
        self._times_ms.append(at_ms)
        self._ends.append(ends)
        if len(self._ends) > READINGS_MAX:
            drop = self._closest(at_ms)
            del self._times_ms[drop], self._ends[drop]

    def _closest(self, now_ms: int) -> int:
        """The reading to drop: that which adds least to the error, relative to its age."""
        times = self._times_ms
        return min(
            range(1, len(times) - 1),
            key=lambda index: (times[index + 1] - times[index - 1]) / (now_ms - times[index] + 1),
        )

    def oldest(self, committed: Offsets, now_ms: int) -> Age | None:
        """The age of the oldest message that is not consumed; None without a backlog."""
        if not self._ends or not _is_behind(committed, self._ends[-1]):
            return None
        for index, ends in enumerate(self._ends):
            if _is_behind(committed, ends):
                # The round may have begun just before this reading.
                return Age(max(now_ms - self._times_ms[index], 0), is_minimum=index == 0)
        return None


def _is_less(now: int, before: int) -> bool:
    return now < before


def _is_behind(committed: Offsets, ends: Sequence[int]) -> bool:
    """Whether any queue has a message that is not consumed; no offset means from the beginning."""
    for queue_id, end in enumerate(ends):
        done = committed[queue_id] if queue_id < len(committed) else NO_OFFSET
        if end > max(done, 0):
            return True
    return False
