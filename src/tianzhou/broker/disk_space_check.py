"""Whether the disk has room for the log file that comes next, told at the start.

A log file takes disk space as it is written, so a disk with less room than a whole file refuses
messages before that is full, perhaps hours after a start at which all looked well.
"""

import shutil
from pathlib import Path

from tianzhou.store.config import StoreConfig

_MIB = 1024 * 1024


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write on the disk of a folder. Raises OSError."""
    return shutil.disk_usage(folder).free


def problem(config: StoreConfig) -> str | None:
    """What is wrong, and what to do; None if there is room."""
    folder, file_bytes = config.log_directory, config.mapped_file_size_commit_log
    try:
        has_log = any(folder.iterdir())
        left_bytes = free_bytes(folder)
    except OSError:
        return None  # the store says what is wrong with its folder
    if left_bytes >= file_bytes:
        return None
    which, advice = "next", "free some space, or lower fileReservedTime"
    if not has_log:
        which = "first"
        advice = (
            "free some space, take another storePathRootDir or a smaller mappedFileSizeCommitLog"
        )
    return (
        f"{folder}: the disk has {left_bytes // _MIB:,} MiB left, and the {which} log file takes "
        f"{file_bytes // _MIB:,} MiB as it fills, so messages will be refused by then: {advice}"
    )
