"""More than three elections in ten minutes are slowed down (R15).

A master that crashes whenever it is promoted would otherwise be elected for ever. The switches of
the last minutes are in the state of the group, so that every candidate counts the same ones. A
wrong clock makes the wait longer or shorter, and harms nothing else.
"""

from typing import Final

from tianzhou.ha.authority.values import GroupState
from tianzhou.ha.roles.reasons import Code

PERIOD_MS: Final = 10 * 60 * 1000
FREE_COUNT: Final = 3
WAIT_MS_MAX: Final = 60_000
_INTENDED: Final = frozenset({Code.PLANNED.value, Code.FORCED.value, Code.FIRST.value})


def recent_count(state: GroupState, wall_ms: int) -> int:
    """Elections of the last ten minutes that no operator asked for."""
    return sum(
        each.cause not in _INTENDED and abs(wall_ms - each.time_ms) < PERIOD_MS
        for each in state.history
    )


def wait_ms(state: GroupState, wall_ms: int) -> int:
    """How long a candidate waits before the next election: 2, 4, 8 ... 60 s."""
    extra = recent_count(state, wall_ms) - FREE_COUNT
    return min(1000 << min(extra, 16), WAIT_MS_MAX) if extra > 0 else 0
