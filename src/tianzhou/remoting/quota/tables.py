"""Limits of tables that requests can grow: new entries are refused while a table is full.

A refusal names the table, its size, the limit and the setting. It is counted by the name of the
limit, and logged once a minute for each.
"""

import logging
from collections.abc import Callable

from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)


class TableLimits:
    """Refuses and counts additions to full tables."""

    def __init__(self, steady: Clock = steady_ms) -> None:
        self._steady = steady
        self._repeats = RepeatedFailures()
        self.refused: dict[str, int] = {}
        """The number of refused additions, by the name of the limit."""

    def is_full(self, name: str, limit: int, count: int, what: str) -> bool:
        """Whether a table of `count` entries is full. If so, the refusal is counted and logged.

        `name` is the setting, or a text with spaces for a limit that cannot be set.
        """
        if count < limit:
            return False
        self.refused[name] = self.refused.get(name, 0) + 1
        if (ending := self._repeats.ending(name, self._steady() / 1000)) is not None:
            log.warning("%s%s", _refusal(name, limit, count, what), ending)
        return True

    def checker(self, name: str, limit: Callable[[], int]) -> Callable[[int, str], None]:
        """`check` as a function for a table, with the current limit."""
        return lambda count, what: self.check(name, limit(), count, what)

    def check(self, name: str, limit: int, count: int, what: str) -> None:
        """Raises RequestError if a table of `count` entries is full."""
        if self.is_full(name, limit, count, what):
            raise RequestError(ResponseCode.SYSTEM_ERROR, _refusal(name, limit, count, what))


def _refusal(name: str, limit: int, count: int, what: str) -> str:
    if " " in name:
        return f"{what}: the limit of {name} is {limit} and {count} are there"
    return (
        f"{what}: {name} is {limit} and {count} are there; remove what is not needed, or raise "
        f"{name}"
    )
