"""Recovery when a store is opened: finds the end of the log, and makes queues and index match it.

    1. Choose the start: the log offset of the checkpoint, before which everything is derived and on
       disk; if it only has times (written by RocketMQ), the newest log file whose first message is
       older than those; after a clean stop the third last file.
    2. Cut queues and index there, and compare their number with the checkpoint. If something is
       missing or has a wrong size they are removed and derived again from the whole log.
    3. Walk the log from there, check each record and derive its entry and items again.
    4. The first position without a valid record is the end of the log; the rest is cut off. Where
       the log is known to continue (before the start of step 1, or in a file that a valid file
       follows after a clean stop) it is damage, and the walk continues after it.
    5. Flush everything and write the checkpoint.

Each step can be interrupted and starts again at the next start. The report lists what was cut,
skipped or rebuilt. The store is refused, not repaired, if a log file is missing or has a wrong
size. `recovery_plan.py` has steps 1 and 2, this module the others.
"""

from collections.abc import Callable

from tianzhou.errors import StoreCorrupt
from tianzhou.protocol import derived, kernel
from tianzhou.protocol.pure.record import SIZE_MIN, RecordFields
from tianzhou.protocol.pure.walk import Run
from tianzhou.protocol.records.record import BLANK_BYTES_MIN
from tianzhou.store import commit_log
from tianzhou.store.commit_log import WalkStopped, walk
from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import ENTRY
from tianzhou.store.derivation import (
    Assigned,
    Derivation,
    MustRebuild,
    entry_of,
    index_items,
    put_entry,
)
from tianzhou.store.files import lock
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.recovery_plan import (
    Plan,
    Report,
    StoreFiles,
    first_log_offset,
    first_record,
    forget_queues,
    load_log,
    make_plan,
    warn_of_low_space,
)

Progress = Callable[[int, int], None]
"""Called periodically with the bytes of the log that are done, and all bytes."""

_BULK_BYTES = 32 << 20
"""The most bytes of the log that one call of the kernel walks."""


def recover_at_start(
    files: StoreFiles, *, clean: bool, rebuild: bool, progress: Progress
) -> Report:
    """The recovery of a store that is opened; warns of low disk space. Raises as `recover`."""
    try:
        report = recover(files, clean=clean, progress=progress, rebuild=rebuild)
    except StoreCorrupt:
        # Nothing was changed, so a clean store stays clean.
        if clean:
            lock.mark_closed(files.disk, files.config.root_directory)
        raise
    warn_of_low_space(files)
    return report


def recover(files: StoreFiles, *, clean: bool, progress: Progress, rebuild: bool = False) -> Report:
    """Brings the files of a store to the state of its log. Raises StoreCorrupt, OSError."""
    report = Report(clean=clean)
    load_log(files, report)
    plan = make_plan(files, report, clean=clean, rebuild=rebuild)
    derivation = Derivation(files, report)
    try:
        end = _replay(files, report, plan, derivation, progress)
    except MustRebuild as e:
        report.note(f"{e}; all queues are made again from the log")
        forget_queues(files, plan)
        plan.queues_from = plan.walk_from = first_log_offset(files)
        files.index.cut(plan.index_from)
        derivation.suspects.clear()
        report.replayed_count = 0
        end = _replay(files, report, plan, derivation, progress)
    for assigned in derivation.resolve_suspects():
        _put(files, assigned)
    _restore_next_offsets(files, plan)
    _cut_log(files, report, end, clean=clean)
    report.start_log_offset, report.end_log_offset = plan.check_from, end
    if not plan.trusted:
        _sync_all(files, plan)
    return report


# -- the walk ------------------------------------------------------------------------------------


def _replay(
    files: StoreFiles, report: Report, plan: Plan, derivation: Derivation, progress: Progress
) -> int:
    """Derives what the plan requires; returns the end of the log."""
    # With a valid checkpoint their number was compared.
    is_whole = plan.queues_from <= first_log_offset(files)
    derivation.misses_nothing = is_whole or plan.own is not None
    log_files = files.segments.files
    total = log_files[-1].stop - plan.walk_from if log_files else 0
    position = plan.walk_from
    end = plan.check_from

    def report_progress(log_offset: int) -> None:
        progress(log_offset - plan.walk_from, total)

    for file in log_files:
        if file.stop <= position:
            continue
        end = max(position, file.first)
        while True:
            try:
                _replay_file(files, report, plan, derivation, file, end, report_progress)
                end = file.stop
                break
            except WalkStopped as stop:
                log_offset = file.first + stop.position
                following = _valid_after(files, plan, file, log_offset)
                if following is None:
                    if not stop.unused:
                        report.note(f"the log is cut at {log_offset}: {stop.why}")
                    progress(total, total)
                    return log_offset
                report.note(
                    f"the log is damaged at {log_offset} and continues at {following}: {stop.why}"
                )
                derivation.lost_count_max += (following - log_offset) // SIZE_MIN + 1
                end = following
                if following >= file.stop:
                    break
        position = file.stop
        file.unmap()
    progress(total, total)
    return end


def _replay_file(
    files: StoreFiles,
    report: Report,
    plan: Plan,
    derivation: Derivation,
    file: MappedFile,
    end: int,
    report_progress: Callable[[int], None],
) -> None:
    """Derives the records of one file from a log offset on; raises WalkStopped as `walk` does.

    Ordinary records are derived in bulk; a record that ends a bulk is handled alone.
    """
    view, config, released = file.view(), files.config, end
    while True:
        known = end < plan.check_from
        torn = not plan.clean and not known
        stop = min(end + _BULK_BYTES, plan.check_from if known else file.stop, file.stop)
        position, count, time_ms, runs, items = kernel.walk_records(
            view, file.first, end - file.first, stop - file.first, plan.queues_from,
            plan.index_from, files.index.item_max - 1, config.delay_levels_ms,
            config.check_crc_on_recover, torn,
        )  # fmt: skip
        if count:
            for run in runs:
                _enqueue_run(files, derivation, view, file.first, run)
            files.index.put_many(items)
            report.replayed_count += count
            report.last_store_time_ms = time_ms
            end = file.first + position
        if end < stop:
            walker = walk(
                view, file.first, position, check_crc=config.check_crc_on_recover, torn=torn
            )
            fields = next(walker, None)
            if fields is None:
                return
            _derive(files, plan, derivation, fields)
            report.replayed_count += 1
            report.last_store_time_ms = fields[commit_log.STORE_TIME]
            end += fields[commit_log.SIZE]
        if end + BLANK_BYTES_MIN > file.stop:
            position = end - file.first
            raise WalkStopped(
                position, f"record at {position}: no space for a filler", unused=False
            )
        if end - released >= _BULK_BYTES:
            files.disk.release(view, released - file.first, end - file.first)
            released = end
            report_progress(end)


def _enqueue_run(
    files: StoreFiles, derivation: Derivation, view: memoryview, first: int, run: Run
) -> None:
    """Appends consecutive records to their queue, in bulk if they continue it."""
    topic, queue_id, queue_offset, entries = run
    for at in range(0, len(entries), ENTRY_BYTES):
        queue = files.queues.get_or_make(topic, queue_id)
        wanted = queue_offset + at // ENTRY_BYTES
        # A unit needs the store time, which only the record has.
        fits = wanted == queue.next_offset and not queue.writes_ext
        if fits and (topic, queue_id) not in derivation.suspects:
            queue.put_many(entries[at:])
            return
        log_offset = ENTRY.unpack_from(entries, at)[0]
        fields = kernel.decode_record(view, log_offset - first, False, False)
        _put(files, derivation.assign(fields))


def _valid_after(files: StoreFiles, plan: Plan, file: MappedFile, log_offset: int) -> int | None:
    """Log offset at which the log continues after an invalid position; None if it ends there."""
    log_files = files.segments.files
    later = next((other for other in log_files if other.first == file.stop), None)
    stop = file.stop
    if log_offset < plan.check_from:
        stop = min(plan.check_from, file.stop)
    elif not plan.clean or later is None or first_record(later) is None:
        # After a power cut any pages may be missing. Records after a hole were not acknowledged,
        # and keeping them would leave gaps in the queues.
        return None
    at = commit_log.find_record(
        file.view(), file.first, log_offset - file.first + 1, stop - file.first
    )  # fmt: skip
    return file.first + at if at is not None else stop


def _derive(files: StoreFiles, plan: Plan, derivation: Derivation, fields: RecordFields) -> None:
    if not derivation.has_queue(fields):
        return
    log_offset = fields[commit_log.LOG_OFFSET]
    if log_offset >= plan.queues_from and derived.has_queue_entry(fields[commit_log.SYS_FLAG]):
        _put(files, derivation.assign(fields))
    if log_offset >= plan.index_from:
        files.index.put_many(index_items(fields, files.index.item_max - 1))


def _put(files: StoreFiles, assigned: Assigned) -> None:
    queue, records = assigned
    for fields in records:
        entry = entry_of(fields, files.config.delay_levels_ms)
        put_entry(queue, entry, fields[commit_log.STORE_TIME])


# -- the end -------------------------------------------------------------------------------------


def _restore_next_offsets(files: StoreFiles, plan: Plan) -> None:
    """Restores the next offsets of queues without messages in the log; consumers rely on them."""
    for (topic, queue_id), next_offset in plan.removed_next_offsets.items():
        if next_offset and files.queues.get(topic, queue_id) is None:
            queue = files.queues.get_or_make(topic, queue_id)
            queue.skip_to(next_offset)


def _cut_log(files: StoreFiles, report: Report, end: int, *, clean: bool) -> None:
    log_files = files.segments.files
    useless = [
        file for file in log_files if file.first >= end and file.first > first_log_offset(files)
    ]
    for file in useless:
        if file.has_data(0):
            report.note(f"log file {file.path.name} begins after the end of the log and is removed")
    files.segments.remove_from(max(end, first_log_offset(files) + 1))
    last = files.segments.files[-1] if files.segments.files else None
    if last is not None and last.first <= end < last.stop:
        position = end - last.first
        untouched = not any(last.view()[position : position + 8])
        if not (clean and untouched):
            last.cut(position)


def _sync_all(files: StoreFiles, plan: Plan) -> None:
    for file in files.segments.files:
        if file.stop > plan.check_from:
            file.sync()
    queues = files.queues.all()
    if plan.own is None:
        for queue in queues:
            queue.flushed_offset = 0
    files.queues.flush([queue for queue in queues if queue.waiting_pages()])
    if plan.own is None:
        for index_file in files.index.files:
            index_file.flushed_count = 0
    files.index.flush()
