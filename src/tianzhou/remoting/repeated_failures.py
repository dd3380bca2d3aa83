"""Log rate limit per kind of failure, for failures that may occur a thousand times a second.

The first failure of a kind is logged. Those within the next minute are counted, and the first one
after that minute is logged with the count. At most `_KINDS_MAX` kinds are stored: a flood from ever
new addresses cannot exhaust the memory; kinds that were evicted are just logged again.
"""

from collections import OrderedDict
from collections.abc import Hashable

_QUIET_S = 60.0
_KINDS_MAX = 1_024


class RepeatedFailures:
    """When each kind was logged last. Times are seconds of any monotonic clock."""

    __slots__ = ("_logged",)

    def __init__(self) -> None:
        self._logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def ending(self, kind: Hashable, now_s: float) -> str | None:
        """The end of the log line: the number of unlogged failures, if any; None: do not log it."""
        logged_s, unlogged_count = self._logged.get(kind, (None, 0))
        if logged_s is not None and now_s - logged_s < _QUIET_S:
            self._logged[kind] = (logged_s, unlogged_count + 1)
            return None
        self._logged[kind] = (now_s, 0)
        self._logged.move_to_end(kind)
        if len(self._logged) > _KINDS_MAX:
            self._logged.popitem(last=False)
        return (
            f" ({unlogged_count} more like it since the last such line)" if unlogged_count else ""
        )

    def pop_unlogged(self) -> list[tuple[Hashable, int]]:
        """Kinds with unlogged failures, and their counts; all kinds are removed."""
        rest = [(kind, count) for kind, (_, count) in self._logged.items() if count]
        self._logged.clear()
        return rest
