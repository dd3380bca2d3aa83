"""Certificates that are renewed while the program runs: new files are taken when they come.

Files are looked at, not watched: a look costs a few calls, and works on every file system. A pair
that does not fit, perhaps because only one half of it is there yet, leaves the old one in use; the
next change is another chance.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from tianzhou.errors import ConfigError

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int] | None


class Renewal:
    """Reloads when one of some files has changed. `look` every few seconds."""

    def __init__(self, paths: Iterable[Path], *reloads: Callable[[], None]) -> None:
        """Each of `reloads` raises ConfigError if it cannot use the files."""
        self._paths = tuple(paths)
        self._reloads = reloads
        self._seen = self._stamps()

    def look(self) -> None:
        """Take renewed files, if there are any; what happens is logged."""
        seen, self._seen = self._seen, self._stamps()
        if seen == self._seen:
            return
        try:
            for reload in self._reloads:
                reload()
        except ConfigError as e:
            log.warning("TLS: new certificates are not used: %s", e)
        else:
            log.info("TLS: new certificates are used for connections to come")

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
