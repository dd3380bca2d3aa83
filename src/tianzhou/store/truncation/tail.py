"""Saves the end of a log in a side file, before a resync removes the log.

    cut-tail-EPOCH-OFFSET     the bytes of the log from log offset OFFSET on

EPOCH is the one in which the first of these bytes was written. The records follow each other as in
the files of the log, with a filler wherever a file of the log ended. Nothing reads or removes the
file by itself.
"""

import logging
from contextlib import closing
from pathlib import Path

from tianzhou.errors import StoreError, StoreFull
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.files.disk import Disk, DiskFile, explained

log = logging.getLogger(__name__)

TAIL_BYTES_MAX = 16 << 30
"""A longer tail is refused: it is more than a switch leaves behind."""
_PIECE_BYTES = 1 << 20
_SPARE_BYTES = 256 << 20
"""What stays free on the disk, for the log that is copied next."""
_NAMES_MAX = 100


def save_tail(
    log_: CommitLog,
    disk: Disk,
    root: Path,
    log_offset: int,
    *,
    epoch: int,
    bytes_max: int = TAIL_BYTES_MAX,
) -> Path | None:
    """Copies the log from a log offset on to a side file, durably; returns its path.

    None if there is nothing to copy. To be called when nothing is appended. Raises StoreError; then
    there is no new file.
    """
    start, end = max(log_offset, log_.first), log_.readable
    if start >= end:
        return None
    _check_size(disk, root, end - start, bytes_max)
    try:
        path = _free_path(disk, root, f"cut-tail-{epoch}-{start}")
        _write(log_, disk, path, start, end)
    except OSError as e:
        raise explained(e, "save the end of the log") from e
    log.warning("the log from %d to %d is saved in %s", start, end, path)
    return path


def _check_size(disk: Disk, root: Path, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise StoreError(
            f"the end of the log has {size_bytes} bytes, {bytes_max} are saved at most; copy the "
            "store directory yourself, then resync without saving it"
        )
    free_bytes = disk.free_bytes(root)
    if free_bytes < size_bytes + _SPARE_BYTES:
        raise StoreFull(
            f"the end of the log has {size_bytes} bytes and the disk of {root} has {free_bytes} "
            f"free, of which {_SPARE_BYTES} are left; free some space"
        )


def _free_path(disk: Disk, root: Path, name: str) -> Path:
    for number in range(_NAMES_MAX):
        path = root / (f"{name}-{number}" if number else name)
        if not disk.exists(path):
            return path
    raise StoreError(f"{root} has {_NAMES_MAX} files {name} already; move them away")


def _write(log_: CommitLog, disk: Disk, path: Path, start: int, end: int) -> None:
    handle = disk.open(path, create=True)
    try:
        with closing(handle):
            _copy(log_, handle, start, end)
            handle.sync()
        disk.sync_directory(path.parent)
    except BaseException:
        disk.remove(path)
        raise


def _copy(log_: CommitLog, handle: DiskFile, start: int, end: int) -> None:
    at = start
    while at < end:
        file = log_.segments.find(at)
        stop = min(end, at + _PIECE_BYTES, file.stop if file is not None else end)
        piece = log_.slice(at, stop - at)
        if piece is None:
            raise StoreError(f"the log cannot be read at {at}")
        handle.write(at - start, piece)
        at = stop
