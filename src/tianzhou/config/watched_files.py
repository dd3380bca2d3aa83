"""Reloads files that change while a server runs.

They are polled: that costs a few system calls, and works on every file system. Files that cannot be
used, perhaps because only one half of a pair is there yet, leave what was loaded before in use; the
next change is another chance.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from tianzhou.errors import ConfigError

log = logging.getLogger(__name__)

POLL_S = 0.25
"""How often to call `poll`, so that a change takes effect within half a second."""


class WatchedFiles:
    """Reloads when one of some files is changed, created or deleted."""

    def __init__(
        self,
        paths: Callable[[], Iterable[Path]],
        reload: Callable[[], str],
        failed: str,
        level: int = logging.ERROR,
    ) -> None:
        """`reload` returns what is to be logged, or raises ConfigError, which follows `failed`."""
        self._paths = paths
        self._reload = reload
        self._failed = failed
        self._level = level
        self._state = self._current_state()

    def poll(self) -> None:
        """Reload changed files and log the outcome."""
        state = self._current_state()
        if state == self._state:
            return
        self._state = state
        try:
            log.info("%s", self._reload())
        except ConfigError as e:
            log.log(self._level, "%s: %s", self._failed, e)

    def _current_state(self) -> list[tuple[Path, int, int, int]]:
        """Path, time of change, size and number of each file that exists."""
        state: list[tuple[Path, int, int, int]] = []
        for path in self._paths():
            try:
                found = path.stat()
            except OSError:
                continue
            state.append((path, found.st_mtime_ns, found.st_size, found.st_ino))
        return state
