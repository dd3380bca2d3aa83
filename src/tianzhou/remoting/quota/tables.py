"""Limits of tables that requests can grow: what is new is refused while a table is full.

A refusal names the table, its size, the limit and the setting. It is counted by the name of the
limit, and logged once a minute for each.
"""

import logging
from collections.abc import Callable

from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting.repeated_failures import RepeatedFailures, and_more

log = logging.getLogger(__name__)


class TableLimits:
    """Counts what was refused because a table is full."""

    def __init__(self, steady: Clock = steady_ms) -> None:
        self._steady = steady
        self._repeats = RepeatedFailures()
        self.refused: dict[str, int] = {}
        """How many additions were refused, by the name of the limit."""

    def is_full(self, name: str, limit: int, count: int, what: str) -> bool:
        """Whether a table of so many entries takes no more. If so that is counted and logged.

        `name` is that of the setting, or a few words for a limit that cannot be set.
        """
        if count < limit:
            return False
        self.refused[name] = self.refused.get(name, 0) + 1
        unlogged_count = self._repeats.note(name, self._steady() / 1000)
        if unlogged_count is not None:
            log.warning("%s%s", _refusal(name, limit, count, what), and_more(unlogged_count))
        return True

    def checker(self, name: str, limit: Callable[[], int]) -> Callable[[int, str], None]:
        """`check` for a table that is handed its check, with the limit of the moment."""
        return lambda count, what: self.check(name, limit(), count, what)

    def check(self, name: str, limit: int, count: int, what: str) -> None:
        """Raises RequestError if a table of so many entries takes no more."""
        if self.is_full(name, limit, count, what):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, _refusal(name, limit, count, what)
            )  # fmt: skip


def _refusal(name: str, limit: int, count: int, what: str) -> str:
    if " " in name:
        return f"{what}: the limit of {name} is {limit} and {count} are there"
    return (
        f"{what}: {name} is {limit} and {count} are there; remove what is not needed, or raise "
        f"{name}"
    )
