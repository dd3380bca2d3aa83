"""The files `lock` and `abort`: one program per store, and whether it was closed cleanly.

`abort` exists while a store is open; at the start it means that the store was not closed.
"""

from pathlib import Path

from tianzhou.errors import StoreLocked
from tianzhou.store.files.disk import Disk, DiskFile


def acquire_lock(disk: Disk, root: Path) -> DiskFile:
    """Acquires the lock of a store; closing the file releases it. Raises StoreLocked, OSError."""
    file = disk.lock(root / "lock")
    if file is None:
        raise StoreLocked(
            f"{root} is in use by another program (a broker of RocketMQ or of ours), or opened "
            "twice in this one; stop the other, or choose another storePathRootDir"
        )
    try:
        file.write(0, b"lock")
    except OSError:
        file.close()
        raise
    return file


def was_aborted(disk: Disk, root: Path) -> bool:
    return disk.exists(root / "abort")


def mark_running(disk: Disk, root: Path) -> None:
    disk.open(root / "abort", create=True).close()
    disk.sync_directory(root)


def mark_closed(disk: Disk, root: Path) -> None:
    if disk.exists(root / "abort"):
        disk.remove(root / "abort")
        disk.sync_directory(root)
