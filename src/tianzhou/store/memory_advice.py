"""Limits the resident memory of the process, which would grow with the log.

Every touched page of a mapped file counts as resident until it is released. So pages further than
a window behind the end of the log, and files that were not used since the last call, are released
periodically. Nothing is lost or written: the pages stay in the page cache while memory is free.
"""

from tianzhou.store.commit_log import CommitLog
from tianzhou.store.index import Index
from tianzhou.store.queues import QueueTable


def release_log(log: CommitLog, resident_bytes: int) -> None:
    """Releases the log except its end; unmaps files that were not read since the last call."""
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
    """Releases queue and index files that were not used since the last call."""
    queues.release_unused()
    index.release()
