"""Files that may be replaced while the program runs, such as certificates that are renewed."""

from collections.abc import Iterable
from pathlib import Path


class WatchedFiles:
    """Tells whether any of some files has changed since it was last asked."""

    def __init__(self, paths: Iterable[Path | None]) -> None:
        self._paths = [path for path in paths if path is not None]
        self._seen = self._stamps()

    def have_changed(self) -> bool:
        seen, self._seen = self._seen, self._stamps()
        return seen != self._seen

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
