"""The first half of recovery: check the files of the log, choose where to start, cut the rest.

See `recovery.py` for all steps.
"""

import logging
from dataclasses import dataclass, field, replace

from tianzhou.clock import Clock
from tianzhou.errors import StoreCorrupt
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.store import commit_log
from tianzhou.store.commit_log import WalkStopped, walk
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import BLANK_SIZE, ConsumeQueue
from tianzhou.store.files.checkpoint import Checkpoint, Derived, read_checkpoint
from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.segments import Segments, list_files
from tianzhou.store.index import Index
from tianzhou.store.queues import QueueTable

log = logging.getLogger(__name__)

_CLEAN_FILES = 3
_NOTES_MAX = 100


@dataclass(slots=True)
class Report:
    """What recovery found and did."""

    clean: bool
    start_log_offset: int = 0
    last_store_time_ms: int = 0
    end_log_offset: int = 0
    replayed_count: int = 0
    notes: list[str] = field(default_factory=list[str])
    """What was cut, skipped or rebuilt, one sentence each."""

    def note(self, text: str) -> None:
        if len(self.notes) < _NOTES_MAX:
            self.notes.append(text)
            log.warning("store: %s", text)


@dataclass(slots=True)
class StoreFiles:
    """The files of a store."""

    disk: Disk
    config: StoreConfig
    segments: Segments
    queues: QueueTable
    index: Index
    checkpoint: Checkpoint


def load_files(disk: Disk, config: StoreConfig, clock: Clock) -> StoreFiles:
    """The files of a store before recovery; creates the directories. Raises OSError."""
    for directory in (config.log_directory, config.queue_directory):
        disk.make_directory(directory)
    segments = Segments(disk, config.log_directory, config.mapped_file_size_commit_log)
    checkpoint = read_checkpoint(disk, config.root_directory / "checkpoint")
    index = Index(disk, config, clock)
    return StoreFiles(disk, config, segments, QueueTable(disk, config), index, checkpoint)


def warn_of_low_space(files: StoreFiles) -> None:
    """Disk blocks are allocated while a log file is written, so it may fill the disk half-way."""
    config, segments = files.config, files.segments
    free_bytes = files.disk.free_bytes(config.log_directory)
    if not segments.files and free_bytes < segments.size_bytes:
        log.warning(
            "store %s: %d bytes are free on the disk, the first log file needs %d as it fills; "
            "when the disk is full every message is refused (free some space)",
            config.root_directory, free_bytes, segments.size_bytes,
        )  # fmt: skip


def first_log_offset(files: StoreFiles) -> int:
    log_files = files.segments.files
    return log_files[0].first if log_files else 0


# -- files of the log ----------------------------------------------------------------------------


def load_log(files: StoreFiles, report: Report) -> None:
    """Loads the log files after a check of their names and sizes."""
    found = list_files(files.disk, files.segments.directory)
    for name in found.unknown_names:
        report.note(f"commitlog/{name} is no log file and is ignored; RocketMQ would refuse it")
    size_bytes = files.segments.size_bytes
    sizes = set(found.sizes.values())
    if len(found.sizes) > 1 and len(sizes) == 1 and 0 not in sizes and sizes != {size_bytes}:
        raise StoreCorrupt(
            f"the log files have {sizes.pop()} bytes each, not {size_bytes}; set "
            "mappedFileSizeCommitLog to the size with which the store was created"
        )
    last = max(found.sizes, default=0)
    for first, actual in sorted(found.sizes.items()):
        if actual != size_bytes and not (first == last and actual < size_bytes):
            raise StoreCorrupt(
                f"log file {files.segments.file_at(first).path} has {actual} bytes instead of "
                f"{size_bytes} (mappedFileSizeCommitLog); restore it from a copy, or set the size "
                "with which the store was created"
            )
        if first % size_bytes:
            raise StoreCorrupt(
                f"log file {files.segments.file_at(first).path} does not begin at a multiple of "
                f"{size_bytes}; set mappedFileSizeCommitLog to the size the store was created with"
            )
    gap = found.gap(size_bytes)
    if gap is not None:
        raise StoreCorrupt(
            f"log file {files.segments.file_at(gap).path} is missing between older and newer ones; "
            "restore it from a copy, or move the older files away to give up their messages"
        )
    _finish_last_log_file(files, found.sizes, report)
    files.segments.load(list(found.sizes))


def _finish_last_log_file(files: StoreFiles, sizes: dict[int, int], report: Report) -> None:
    """The last file is short if its creation or truncation was interrupted."""
    last = max(sizes, default=None)
    if last is None or sizes[last] >= files.segments.size_bytes:
        return
    file = files.segments.file_at(last)
    if sizes[last] == 0:
        report.note(f"log file {file.path.name} was empty and is removed")
        file.remove()
        files.disk.sync_directory(files.segments.directory)
        del sizes[last]
        return
    report.note(f"log file {file.path.name} had {sizes[last]} bytes and is filled up with zeros")
    own = files.checkpoint.derived
    if own is not None and own.log_offset > last + sizes[last]:
        # The checkpoint promises more than there is, so it is not used.
        files.checkpoint = replace(files.checkpoint, derived=None)
    with file.opened(writable=True) as handle:
        handle.resize(files.segments.size_bytes)
        handle.sync()
    sizes[last] = files.segments.size_bytes


# -- where to start ------------------------------------------------------------------------------


@dataclass(slots=True)
class Plan:
    check_from: int
    """Everything before is on disk and derived."""
    walk_from: int
    queues_from: int
    index_from: int
    """Log offset from which keys are added to the index."""
    clean: bool
    own: Derived | None
    """The counts of the checkpoint, if it is valid."""
    trusted: bool
    """The files match the checkpoint of a clean stop; nothing must be synced again."""
    removed_next_offsets: dict[tuple[str, int], int] = field(
        default_factory=dict[tuple[str, int], int]
    )
    """Next offsets of queues that were removed."""


def make_plan(files: StoreFiles, report: Report, *, clean: bool, rebuild: bool) -> Plan:
    log_files, own = files.segments.files, files.checkpoint.derived
    if own is not None and not (
        log_files and log_files[0].first <= own.log_offset <= log_files[-1].stop
    ):
        own = None
    start = own.log_offset if own else _start_by_files(files, clean=clean)
    complaints = files.queues.load(start, counted=own is not None, clean=clean)
    plan = Plan(start, start, start, start, clean, own, trusted=clean and own is not None)
    if not log_files:
        if files.queues.all():
            report.note("there are no log files, so the queues are removed")
        files.queues.clear()
    elif own and not complaints:
        counts = (files.queues.count, files.queues.entry_count)
        if counts != (own.queue_count, own.entry_count):
            complaints.append(
                f"{counts[0]} queues with {counts[1]} entries exist, the checkpoint counts "
                f"{own.queue_count} with {own.entry_count}"
            )
    if log_files and (complaints or rebuild):
        for complaint in complaints:
            report.note(complaint)
        report.note("all queues are made again from the log")
        forget_queues(files, plan)
        plan.queues_from = plan.walk_from = log_files[0].first
        plan.trusted = False
    elif not plan.trusted:
        _cut_queues(files, report, tails=own is None)
    _plan_index(files, report, plan, rebuild=rebuild)
    plan.walk_from = min(plan.queues_from, plan.index_from, plan.check_from)
    return plan


def _start_by_files(files: StoreFiles, *, clean: bool) -> int:
    log_files = files.segments.files
    if not log_files:
        return 0
    if clean:
        return log_files[max(len(log_files) - _CLEAN_FILES, 0)].first
    for file in reversed(log_files):
        fields = first_record(file)
        if fields and 0 < fields[commit_log.STORE_TIME] <= files.checkpoint.safe_time_ms:
            return file.first
    return log_files[0].first


def first_record(file: MappedFile) -> RecordFields | None:
    try:
        return next(walk(file.view(), file.first, 0, check_crc=True), None)
    except WalkStopped:
        return None


def forget_queues(files: StoreFiles, plan: Plan) -> None:
    for queue in files.queues.all():
        plan.removed_next_offsets[queue.topic, queue.queue_id] = queue.next_offset
    files.queues.clear()


def _cut_queues(files: StoreFiles, report: Report, *, tails: bool) -> None:
    """Clears what follows the valid entries, so that it is not read as entries later."""
    for queue in files.queues.all():
        if tails:
            _check_tail(files, report, queue)
        queue.cut(queue.next_offset)


def _check_tail(files: StoreFiles, report: Report, queue: ConsumeQueue) -> None:
    """Drops old entries after the end, which RocketMQ leaves there; their records do not exist."""
    before = queue.next_offset
    while queue.next_offset:
        entry = queue.entry(queue.next_offset - 1)
        if entry is None or entry[1] == BLANK_SIZE or entry[0] < first_log_offset(files):
            break
        if _is_entry_of(files, queue, entry[0], queue.next_offset - 1):
            break
        queue.drop_last_entry()
    if queue.next_offset != before:
        report.note(
            f"queue {queue.topic}/{queue.queue_id}: {before - queue.next_offset} entries at the "
            "end belong to no message and are cut"
        )


def _is_entry_of(
    files: StoreFiles, queue: ConsumeQueue, log_offset: int, queue_offset: int
) -> bool:
    file = files.segments.find(log_offset)
    if file is None:
        return False
    try:
        fields = next(walk(file.view(), file.first, log_offset - file.first, check_crc=False), None)
    except WalkStopped:
        return False
    return fields is not None and (
        fields[commit_log.TOPIC], fields[commit_log.QUEUE_ID], fields[commit_log.QUEUE_OFFSET],
    ) == (queue.topic, queue.queue_id, queue_offset)  # fmt: skip


def _plan_index(files: StoreFiles, report: Report, plan: Plan, *, rebuild: bool) -> None:
    index, first = files.index, first_log_offset(files)
    if not files.config.message_index_enable:
        plan.index_from = 2**63 - 1
        return
    complaints = index.load()
    own = plan.own
    if not complaints and not rebuild:
        if plan.trusted and own and index.item_count == own.index_count:
            return
        plan.index_from = index.cut(plan.check_from, counted=own is not None)
        short = own is not None and index.item_count != own.index_count
        if plan.index_from == plan.check_from and not short:
            return
        if not short or not own:
            report.note(f"the index is made again from log offset {plan.index_from} on")
            return
        complaints = [f"the index has {index.item_count} items instead of {own.index_count}"]
    for complaint in complaints:
        report.note(complaint)
    if files.segments.files or index.files:
        report.note("the index is made again from the log")
    index.clear()
    plan.index_from = first
    plan.trusted = False
