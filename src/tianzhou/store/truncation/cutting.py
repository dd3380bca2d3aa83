"""Cuts the end off a log, and all that is derived from it: for a slave whose log has diverged (R9).

    1. flush everything                        what stays is on disk, and derived
    2. write the record `truncation`, durably  from here on a start completes the truncation
    3. empty the checkpoint                    a recovery without the record derives all again
    4. cut queues, their units, the index
    5. remove later log files, newest first; zero the end of the last one
    6. write the files that the record carries (the epochs)
    7. write the checkpoint
    8. the caller adapts the tables of the broker
    9. remove the record                       before this nothing can be appended

Steps 3 to 7 can be interrupted anywhere, and repeated: `complete` does them again when a store is
opened, from nothing but the record. They write no byte before the cut. Readers with views of mapped
memory may be at work: files never become shorter, and removed files stay mapped while they are
referenced, so the views read zeros or the old bytes.
"""

import logging
from bisect import bisect_left

from tianzhou.errors import TruncationRefused
from tianzhou.protocol.pure.record import MAGIC_BLANK, SIZE_AND_MAGIC
from tianzhou.store import queues as queue_table
from tianzhou.store.commit_log import STORE_TIME, CommitLog, WalkStopped, walk
from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import BLANK_SIZE, GAP_CODE, ConsumeQueue, Entry
from tianzhou.store.consume_queue_ext import is_address
from tianzhou.store.files.checkpoint import Checkpoint, Derived, write_checkpoint
from tianzhou.store.files.segments import list_files
from tianzhou.store.recovery_plan import StoreFiles
from tianzhou.store.truncation.record import Truncation, describe, read_record, write_file

log = logging.getLogger(__name__)

_INDEX_IS_DAMAGED = -1


# -- checking --------------------------------------------------------------------------------------


def check(log_: CommitLog, to: int, confirm: int) -> None:
    """Raises TruncationRefused unless a log may be cut at a log offset.

    `confirm` is the largest confirm offset that this replica has seen: what lies before it was
    acknowledged, and may have been read.
    """
    if to < confirm:
        raise TruncationRefused(
            f"the log would have to be cut at {to}, but everything before {confirm} was confirmed: "
            "the group was forced to elect a replica that lacks it. Nothing is changed; save what "
            "you need, then let this replica start again from the master's log: tianzhou broker "
            "resync"
        )
    if to > log_.readable:
        raise TruncationRefused(f"the log cannot be cut at {to}, it ends at {log_.readable}")
    if to < log_.first:
        raise TruncationRefused(
            f"the log cannot be cut at {to}, it begins at {log_.first}: this replica has to start "
            "again from the master's log: tianzhou broker resync"
        )
    if not _is_boundary(log_, to):
        raise TruncationRefused(
            f"the log cannot be cut at {to}, no message begins there; nothing is changed"
        )


def _is_boundary(log_: CommitLog, log_offset: int) -> bool:
    """Whether a record or a filler begins at a log offset, or the log ends there."""
    file = log_.segments.find(log_offset)
    if log_offset == log_.readable or (file is not None and file.first == log_offset):
        return True
    # A record contains its own log offset, so bytes of a body do not look like one.
    if log_.decode(log_offset) is not None:
        return True
    head = log_.slice(log_offset, SIZE_AND_MAGIC.size)
    if head is None or file is None:
        return False
    return bool(SIZE_AND_MAGIC.unpack(head) == (file.stop - log_offset, MAGIC_BLANK))


# -- cutting ---------------------------------------------------------------------------------------


def cut(files: StoreFiles, truncation: Truncation) -> None:
    """Steps 3 to 6, for an open store that was flushed. Raises OSError.

    Queues without entries stay in the table until `drop_empty_queues`, so that the caller sees
    which ones have lost all their messages.
    """
    _empty_checkpoint(files)
    if truncation.to is None:
        _empty(files)
    else:
        changed = [queue for queue in files.queues.all() if cut_queue(queue, truncation.to)]
        _sync_queues(files, changed)
        files.index.drop_from(truncation.to)
        _cut_log(files, truncation.to)
    _write_files(files, truncation)


def complete_begun(files: StoreFiles) -> Truncation | None:
    """Completes a truncation that has begun, at the start of a store; None if there is none.

    Raises OSError.
    """
    begun = read_record(files.disk, files.config.root_directory)
    if begun is not None:
        complete(files, begun)
    return begun


def complete(files: StoreFiles, truncation: Truncation) -> None:
    """Steps 3 to 7, at the start, before the recovery of the store. Raises OSError.

    An earlier attempt may have done any part of it, and a power cut may have kept any part of that.
    """
    log.info("store %s: completing %s", files.config.root_directory, describe(truncation))
    _empty_checkpoint(files)
    files.segments.load(list(list_files(files.disk, files.segments.directory).sizes))
    if truncation.to is None:
        files.queues.load(0, counted=False, clean=False)
        files.index.load()
        _empty(files)
        _write_files(files, truncation)
    else:
        _cut_log(files, truncation.to)
        complaints = files.queues.load(truncation.to, counted=False, clean=False)
        for queue in files.queues.all():
            # Any bytes may follow the entries that were loaded.
            queue.cut(queue.next_offset, durable=False)
            cut_queue(queue, truncation.to)
        _sync_queues(files, files.queues.all())
        index_count = _cut_index(files, truncation.to)
        _write_files(files, truncation)
        if not complaints:
            _write_checkpoint(files, truncation.to, index_count)
    # Recovery loads all of them again.
    files.queues.by_topic.clear()
    files.index.files = ()


def drop_empty_queues(files: StoreFiles) -> None:
    """Removes the queues that have lost all their messages. Raises OSError."""
    for queue in files.queues.all():
        if not queue.next_offset and queue.segments.files:
            files.queues.remove(queue)


def cut_queue(queue: ConsumeQueue, log_offset: int) -> bool:
    """Removes the entries of records at or after a log offset; False if there are none.

    The caller syncs the last file. A gap before such a record goes with it: the next record may
    fill it.
    """
    if 0 < queue.end_log_offset <= log_offset:
        return False  # Most queues: their files are not even mapped.
    files = queue.segments.files
    first = files[0].first // ENTRY_BYTES if files else 0

    def entry_at(queue_offset: int) -> Entry | None:
        return next(queue.raw_entries(queue_offset, 1), None)

    def is_cut(queue_offset: int) -> bool:
        while queue_offset < queue.next_offset:
            entry = entry_at(queue_offset)
            if entry is None or entry[1] != BLANK_SIZE or entry[2] != GAP_CODE:
                return entry is None or (entry[1] != BLANK_SIZE and entry[0] >= log_offset)
            queue_offset += 1  # A gap; the next message decides.
        return True

    kept = first + bisect_left(range(first, queue.next_offset), True, key=is_cut)
    if kept == queue.next_offset:
        return False
    queue.cut(kept, durable=False)
    last = entry_at(kept - 1) if kept > first else None
    queue.end_log_offset = last[0] + last[1] if last and last[1] != BLANK_SIZE else 0
    if queue.ext is not None:
        queue.ext.cut_after(last[2] if last and is_address(last[2]) else None)
    return True


def last_store_time_ms(files: StoreFiles) -> int:
    """The store time of the last record that is in a queue; 0 if there is none."""
    last = max(files.queues.all(), key=lambda queue: queue.end_log_offset, default=None)
    entry = next(last.raw_entries(last.next_offset - 1, 1), None) if last else None
    file = files.segments.find(entry[0]) if entry else None
    if entry is None or file is None:
        return 0
    try:
        fields = next(walk(file.view(), file.first, entry[0] - file.first, check_crc=False), None)
    except WalkStopped:
        return 0
    return fields[STORE_TIME] if fields else 0


def _empty_checkpoint(files: StoreFiles) -> None:
    files.checkpoint = Checkpoint()
    write_checkpoint(files.disk, files.config.root_directory / "checkpoint", files.checkpoint)


def _write_checkpoint(files: StoreFiles, to: int, index_count: int) -> None:
    time_ms = last_store_time_ms(files)
    derived = Derived(to, files.queues.count, files.queues.entry_count, index_count)
    files.checkpoint = Checkpoint(time_ms, time_ms, time_ms, derived)
    write_checkpoint(files.disk, files.config.root_directory / "checkpoint", files.checkpoint)


def _empty(files: StoreFiles) -> None:
    files.queues.clear()
    files.index.clear()
    files.segments.remove_from(0)


def _sync_queues(files: StoreFiles, queues: list[ConsumeQueue]) -> None:
    """Makes the ends of queues durable, as `QueueTable.flush` does. Raises OSError."""
    many = len(queues) > queue_table.SYNC_EACH_MAX
    if not (many and files.disk.sync_file_system(files.queues.directory)):
        for file in (file for queue in queues for file in queue.segments.files[-1:]):
            if file.made:
                file.sync()


def _cut_log(files: StoreFiles, to: int) -> None:
    segments = files.segments
    if not segments.files:
        return
    # The first file stays: it says where the log begins.
    segments.remove_from(max(to, segments.files[0].first + 1))
    file = segments.find(to)
    if file is not None:
        file.cut(to - file.first)


def _cut_index(files: StoreFiles, to: int) -> int:
    """Cuts an index whose slots may be wrong; returns the number of items, or that it is bad."""
    index = files.index
    if index.load() or index.cut(to, counted=True) != to:
        return _INDEX_IS_DAMAGED
    for file in index.files[-1:]:
        file.zero_rest()
    return index.item_count


def _write_files(files: StoreFiles, truncation: Truncation) -> None:
    root = files.config.root_directory
    for name, content in truncation.files.items():
        if content is not None:
            write_file(files.disk, root / name, content.encode())
        elif files.disk.exists(root / name):
            files.disk.remove(root / name)
    if truncation.files:
        files.disk.sync_directory(root)
