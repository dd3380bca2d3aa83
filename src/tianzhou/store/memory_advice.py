"""Keeps the memory of the process from growing with the log.

Every page of a mapped file that is touched counts as the process's memory until it is let go. So
what lies behind the end of the log by more than a window, and every file that nobody used since
the last look, is let go of now and then. Nothing is lost or written by that: the pages stay in
the system's cache as long as there is room, and whoever touches them again gets them from there.
"""

from tianzhou.store.commit_log import CommitLog
from tianzhou.store.index import Index
from tianzhou.store.queues import QueueTable


def release_log(log: CommitLog, resident_bytes: int) -> None:
    """Lets go of the log but for its end, and of files that nobody read since the last time."""
    for file in log.segments.files:
        cold_bytes = min(log.written - resident_bytes - file.first, file.size_bytes)
        if cold_bytes <= 0 or not file.mapped:
            continue
        if cold_bytes == file.size_bytes and not file.touched:
            file.unmap()
        else:
            file.touched = False
            file.release(0, cold_bytes)


def release_derived(queues: QueueTable, index: Index) -> None:
    """Lets go of queue and index files that nobody used since the last time."""
    queues.release_unused()
    index.release()
