"""Checks at the start whether the disk has space for the next log file.

A log file uses disk space as it is written, so with less space than one file the broker refuses
messages before the file is full, perhaps hours after a start without warnings.
"""

import shutil
from pathlib import Path

from tianzhou.store.config import StoreConfig

_MIB = 1024 * 1024


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user can still write on the disk of a folder. Raises OSError."""
    return shutil.disk_usage(folder).free


def problem(config: StoreConfig) -> str | None:
    """What is wrong and what to do; None if the space suffices."""
    folder, file_bytes = config.log_directory, config.mapped_file_size_commit_log
    try:
        has_log = any(folder.iterdir())
        left_bytes = free_bytes(folder)
    except OSError:
        return None  # the store reports problems with its folder
    if left_bytes >= file_bytes:
        return None
    which, advice = "next", "free some space, or lower fileReservedTime"
    if not has_log:
        which = "first"
        advice = (
            "free some space, use another storePathRootDir or a smaller mappedFileSizeCommitLog"
        )
    return (
        f"{folder}: the disk has {left_bytes // _MIB:,} MiB left, and the {which} log file uses "
        f"{file_bytes // _MIB:,} MiB as it fills, so messages will be refused "
        f"before it is full: {advice}"
    )
