"""The files `lock` and `abort`: one program per store, and whether the last one ended well.

`abort` exists while a store is open; who finds it at the start knows that the last program did not
close the store.
"""

from pathlib import Path

from tianzhou.errors import StoreLocked
from tianzhou.store.files.disk import Disk, DiskFile


def acquire_lock(disk: Disk, root: Path) -> DiskFile:
    """Takes the lock of a store; closing the file gives it back. Raises StoreLocked, OSError."""
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
