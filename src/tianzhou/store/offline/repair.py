"""Changes to a store that only an operator requests."""

from pathlib import Path

from tianzhou.errors import StoreError
from tianzhou.store.commit_log import LOG_OFFSET, SIZE, WalkStopped, find_record, walk
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import lock
from tianzhou.store.files.checkpoint import Checkpoint, write_checkpoint
from tianzhou.store.files.disk import Disk, explained
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.real_disk import RealDisk
from tianzhou.store.files.segments import Segments, list_files
from tianzhou.store.message_store import MessageStore
from tianzhou.store.recovery import Progress
from tianzhou.store.recovery_plan import Report


def truncate_log(
    config: StoreConfig, log_offset: int, progress: Progress, disk: Disk | None = None
) -> Report:
    """Truncates the log at a log offset and rebuilds queues and index. Raises StoreError."""
    disk = disk or RealDisk()
    root: Path = config.root_directory
    try:
        held = lock.acquire_lock(disk, root)
        try:
            _cut(config, disk, log_offset)
            # The old checkpoint may promise more than is left.
            lock.mark_running(disk, root)
            write_checkpoint(disk, root / "checkpoint", Checkpoint())
        finally:
            held.close()
    except OSError as e:
        raise explained(e, f"truncate the log of {root}") from e
    store = MessageStore.open(config, disk=disk, background=False, rebuild=True, progress=progress)
    store.close()
    return store.report


def _cut(config: StoreConfig, disk: Disk, log_offset: int) -> None:
    segments = Segments(disk, config.log_directory, config.mapped_file_size_commit_log)
    segments.load(list(list_files(disk, config.log_directory).sizes))
    file = segments.find(log_offset)
    if file is None:
        raise StoreError(f"log offset {log_offset} is not in the log, nothing is changed")
    position = log_offset - file.first
    if not _is_boundary(file, position):
        raise StoreError(
            f"no record begins or ends at log offset {log_offset}; `tianzhou store dump` shows "
            "where they do; nothing is changed"
        )
    segments.remove_from(file.first + 1)
    file.cut(position)


def _is_boundary(file: MappedFile, position: int) -> bool:
    """Whether a record begins at a position of a file, or the one before it ends there."""
    if position == 0:
        return True
    view = file.view()
    at: int | None = 0
    while at is not None and at <= position:
        try:
            for fields in walk(view, file.first, at, check_crc=False):
                start = fields[LOG_OFFSET] - file.first
                if position in (start, start + fields[SIZE]):
                    return True
            at = None
        except WalkStopped as stop:
            at = find_record(view, file.first, stop.position + 1, file.size_bytes)
    return False
