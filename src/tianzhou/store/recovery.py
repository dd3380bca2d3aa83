"""Opening a store: find the end of the log, and make queues and index agree with it.

    1. Choose where to start: where the checkpoint says that everything before is derived and on the
       disk; or, if it only has times (RocketMQ wrote it), the newest log file whose first message
       is older than those; after a clean stop the third last file.
    2. Cut queues and index there, and check their number against the checkpoint. If something is
       missing or has the wrong shape they are removed and made again from the whole log.
    3. Walk the log from there, checking each record and deriving its entry and items again.
    4. The first place without a sound record is the end of the log; the rest is cut off. Only where
       the log is known to go on (before the place of step 1, or in a file that a sound one follows
       after a clean stop) it is damage and not the end, and the walk goes on behind it.
    5. Put everything on the disk and write the checkpoint.

Each step can be interrupted and begins anew at the next start. What was cut, skipped or made
again is told in the report. The log itself is refused, not repaired, if a whole file of it is
missing or has the wrong size.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.errors import StoreCorrupt
from tianzhou.protocol import kernel
from tianzhou.protocol.pure.record import SIZE_MIN, RecordFields
from tianzhou.protocol.pure.walk import Run
from tianzhou.protocol.records.record import BLANK_BYTES_MIN
from tianzhou.store import commit_log, dispatch
from tianzhou.store.commit_log import Stop, walk
from tianzhou.store.config import ENTRY_BYTES, StoreConfig
from tianzhou.store.consume_queue import BLANK_SIZE, ENTRY, ConsumeQueue
from tianzhou.store.files.checkpoint import Checkpoint, Derived
from tianzhou.store.files.disk import Disk
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.segments import Segments, look
from tianzhou.store.index import Index
from tianzhou.store.queues import QueueTable

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told now and then: bytes of the log done, bytes to do."""

_BULK_BYTES = 32 << 20
"""How much of the log one call of the kernel walks, at most."""
_GAP_MAX = 100_000
"""More messages than this do not vanish between two; a record that says so is damaged."""
_QUEUE_OFFSET_MAX = 2**56
_CLEAN_FILES = 3
_NOTES_MAX = 100


@dataclass(slots=True)
class Report:
    """What opening a store found and did."""

    clean: bool
    start_log_offset: int = 0
    last_store_time_ms: int = 0
    end_log_offset: int = 0
    replayed_count: int = 0
    notes: list[str] = field(default_factory=list[str])
    """What was cut, skipped or made again, a sentence each."""

    def note(self, text: str) -> None:
        if len(self.notes) < _NOTES_MAX:
            self.notes.append(text)
            log.warning("store: %s", text)


@dataclass(slots=True)
class Parts:
    """What recovery works on."""

    disk: Disk
    config: StoreConfig
    segments: Segments
    queues: QueueTable
    index: Index
    checkpoint: Checkpoint


class _MustRebuild(Exception):
    """The queues contradict the log; only making them again helps."""


def recover(parts: Parts, *, clean: bool, progress: Progress, rebuild: bool = False) -> Report:
    """Brings the parts of a store to the state of its log. Raises StoreCorrupt, OSError."""
    report = Report(clean=clean)
    adopt_log(parts, report)
    plan = _plan(parts, report, clean=clean, rebuild=rebuild)
    try:
        end = _replay(parts, report, plan, progress)
    except _MustRebuild as e:
        report.note(f"{e}; all queues are made again from the log")
        _forget_queues(parts, plan)
        plan.queues_from = plan.walk_from = _first(parts)
        parts.index.cut(plan.index_from)
        plan.suspects.clear()
        report.replayed_count = 0
        end = _replay(parts, report, plan, progress)
    _settle_suspects(parts, report, plan)
    _restore_floors(parts, plan)
    _cut_log(parts, report, end, clean=clean)
    report.start_log_offset, report.end_log_offset = plan.check_from, end
    if not plan.trusted:
        _sync_all(parts, plan)
    return report


def _first(parts: Parts) -> int:
    files = parts.segments.files
    return files[0].first if files else 0


# -- the log's files -----------------------------------------------------------------------------


def adopt_log(parts: Parts, report: Report) -> None:
    """Takes over the log files, after a look at their names and sizes."""
    found = look(parts.disk, parts.segments.directory)
    for name in found.strangers:
        report.note(f"commitlog/{name} is no log file and is ignored; RocketMQ would refuse it")
    size_bytes = parts.segments.size_bytes
    sizes = set(found.sizes.values())
    if len(found.sizes) > 1 and len(sizes) == 1 and 0 not in sizes and sizes != {size_bytes}:
        raise StoreCorrupt(
            f"the log files have {sizes.pop()} bytes each, not {size_bytes}; set "
            "mappedFileSizeCommitLog to the size with which the store was made"
        )
    last = max(found.sizes, default=0)
    for first, actual in sorted(found.sizes.items()):
        if actual != size_bytes and not (first == last and actual < size_bytes):
            raise StoreCorrupt(
                f"log file {parts.segments.file_at(first).path} has {actual} bytes instead of "
                f"{size_bytes} (mappedFileSizeCommitLog); restore it from a copy, or set the size "
                "with which the store was made"
            )
        if first % size_bytes:
            raise StoreCorrupt(
                f"log file {parts.segments.file_at(first).path} does not begin at a multiple of "
                f"{size_bytes}; set mappedFileSizeCommitLog to the size the store was made with"
            )
    gap = found.gap(size_bytes)
    if gap is not None:
        raise StoreCorrupt(
            f"log file {parts.segments.file_at(gap).path} is missing between older and newer ones; "
            "restore it from a copy, or move the older files away to give up their messages"
        )
    _finish_last_log_file(parts, found.sizes, report)
    parts.segments.adopt(list(found.sizes))


def _finish_last_log_file(parts: Parts, sizes: dict[int, int], report: Report) -> None:
    """The last file is short if its making or cutting was interrupted, or if someone cut it."""
    last = max(sizes, default=None)
    if last is None or sizes[last] >= parts.segments.size_bytes:
        return
    file = parts.segments.file_at(last)
    if sizes[last] == 0:
        report.note(f"log file {file.path.name} was empty and is removed")
        file.remove()
        parts.disk.sync_directory(parts.segments.directory)
        del sizes[last]
        return
    report.note(f"log file {file.path.name} had {sizes[last]} bytes and is filled up with zeros")
    own = parts.checkpoint.derived
    if own is not None and own.log_offset > last + sizes[last]:
        # Less is there than the checkpoint knows of, so it cannot be believed any more.
        parts.checkpoint = Checkpoint(
            parts.checkpoint.log_time_ms, parts.checkpoint.queue_time_ms,
            parts.checkpoint.index_time_ms,
        )  # fmt: skip
    with file.opened(writable=True) as handle:
        handle.resize(parts.segments.size_bytes)
        handle.sync()
    sizes[last] = parts.segments.size_bytes


# -- where to start ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    check_from: int
    """Everything before is known to be on the disk and derived."""
    walk_from: int
    queues_from: int
    index_from: int
    """From where on records are filed under their keys."""
    clean: bool
    own: Derived | None
    """What the checkpoint says, if it can be believed."""
    trusted: bool
    """The files agree with the checkpoint of a clean stop; nothing has to be synced again."""
    floors: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Next offsets of queues before they were removed."""
    suspects: dict[tuple[str, int], RecordFields] = field(
        default_factory=dict[tuple[str, int], RecordFields]
    )
    """Of each queue, a last record whose number does not go on where the queue ends."""
    set_aside: set[str] = field(default_factory=set[str])
    """Topics whose names no folder can have."""
    lost_count_max: int = 0
    """How many messages may have lain where the log is damaged."""


def _plan(parts: Parts, report: Report, *, clean: bool, rebuild: bool) -> _Plan:
    files, own = parts.segments.files, parts.checkpoint.derived
    if own is not None and not (files and files[0].first <= own.log_offset <= files[-1].stop):
        own = None
    start = own.log_offset if own else _start_by_files(parts, clean=clean)
    complaints = parts.queues.load(start, counted=own is not None, clean=clean)
    plan = _Plan(start, start, start, start, clean, own, trusted=clean and own is not None)
    if not files:
        if parts.queues.all():
            report.note("there are no log files, so the queues are removed")
        parts.queues.clear()
    elif own and not complaints:
        counts = (parts.queues.count, parts.queues.entry_count)
        if counts != (own.queue_count, own.entry_count):
            complaints.append(
                f"{counts[0]} queues with {counts[1]} entries were found, the checkpoint knows of "
                f"{own.queue_count} with {own.entry_count}"
            )
    if files and (complaints or rebuild):
        for complaint in complaints:
            report.note(complaint)
        report.note("all queues are made again from the log")
        _forget_queues(parts, plan)
        plan.queues_from = plan.walk_from = files[0].first
        plan.trusted = False
    elif not plan.trusted:
        _cut_queues(parts, report, tails=own is None)
    _plan_index(parts, report, plan, rebuild=rebuild)
    plan.walk_from = min(plan.queues_from, plan.index_from, plan.check_from)
    return plan


def _start_by_files(parts: Parts, *, clean: bool) -> int:
    files = parts.segments.files
    if not files:
        return 0
    if clean:
        return files[max(len(files) - _CLEAN_FILES, 0)].first
    for file in reversed(files):
        fields = _first_record(file)
        if fields and 0 < fields[commit_log.STORE_TIME] <= parts.checkpoint.safe_time_ms:
            return file.first
    return files[0].first


def _first_record(file: MappedFile) -> RecordFields | None:
    try:
        return next(walk(file.view(), file.first, 0, check_crc=True), None)
    except Stop:
        return None


def _forget_queues(parts: Parts, plan: _Plan) -> None:
    for queue in parts.queues.all():
        plan.floors[queue.topic, queue.queue_id] = queue.next_offset
    parts.queues.clear()


def _cut_queues(parts: Parts, report: Report, *, tails: bool) -> None:
    """Whatever lies behind the entries that count must not look like entries later."""
    for queue in parts.queues.all():
        if tails:
            _check_tail(parts, report, queue)
        queue.cut(queue.next_offset)


def _check_tail(parts: Parts, report: Report, queue: ConsumeQueue) -> None:
    """RocketMQ leaves old entries behind the end when it cuts; they point nowhere."""
    before = queue.next_offset
    while queue.next_offset:
        entry = queue.entry(queue.next_offset - 1)
        if entry is None or entry[1] == BLANK_SIZE or entry[0] < _first(parts):
            break
        if _is_entry_of(parts, queue, entry[0], queue.next_offset - 1):
            break
        queue.step_back()
    if queue.next_offset != before:
        report.note(
            f"queue {queue.topic}/{queue.queue_id}: {before - queue.next_offset} entries at the "
            "end belong to no message and are cut"
        )


def _is_entry_of(parts: Parts, queue: ConsumeQueue, log_offset: int, queue_offset: int) -> bool:
    file = parts.segments.find(log_offset)
    if file is None:
        return False
    try:
        fields = next(walk(file.view(), file.first, log_offset - file.first, check_crc=False), None)
    except Stop:
        return False
    return fields is not None and (
        fields[commit_log.TOPIC], fields[commit_log.QUEUE_ID], fields[commit_log.QUEUE_OFFSET],
    ) == (queue.topic, queue.queue_id, queue_offset)  # fmt: skip


def _plan_index(parts: Parts, report: Report, plan: _Plan, *, rebuild: bool) -> None:
    index, first = parts.index, _first(parts)
    if not parts.config.message_index_enable:
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
    if parts.segments.files or index.files:
        report.note("the index is made again from the log")
    index.clear()
    plan.index_from = first
    plan.trusted = False


# -- the walk ------------------------------------------------------------------------------------


def _replay(parts: Parts, report: Report, plan: _Plan, progress: Progress) -> int:
    """Derives again what the plan asks for; answers where the log ends."""
    files = parts.segments.files
    total = files[-1].stop - plan.walk_from if files else 0
    position = plan.walk_from
    end = plan.check_from

    def told(log_offset: int) -> None:
        progress(log_offset - plan.walk_from, total)

    for file in files:
        if file.stop <= position:
            continue
        end = max(position, file.first)
        while True:
            try:
                _replay_file(parts, report, plan, file, end, told)
                end = file.stop
                break
            except Stop as stop:
                place = file.first + stop.position
                following = _sound_after(parts, plan, file, place)
                if following is None:
                    if not stop.unused:
                        report.note(f"the log is cut at {place}: {stop.why}")
                    progress(total, total)
                    return place
                report.note(f"the log is damaged at {place} and goes on at {following}: {stop.why}")
                plan.lost_count_max += (following - place) // SIZE_MIN + 1
                end = following
                if following >= file.stop:
                    break
        position = file.stop
        file.unmap()
    progress(total, total)
    return end


def _replay_file(
    parts: Parts,
    report: Report,
    plan: _Plan,
    file: MappedFile,
    end: int,
    told: Callable[[int], None],
) -> None:
    """Derives the records of one file from a log offset on; raises Stop where `walk` does.

    Plain records go in bulk; whatever stops that is looked at on its own.
    """
    view, config, released = file.view(), parts.config, end
    while True:
        known = end < plan.check_from
        torn = not plan.clean and not known
        stop = min(end + _BULK_BYTES, plan.check_from if known else file.stop, file.stop)
        position, count, time_ms, runs, items = kernel.walk_records(
            view, file.first, end - file.first, stop - file.first, plan.queues_from,
            plan.index_from, parts.index.item_max - 1, config.delay_levels_ms,
            config.check_crc_on_recover, torn,
        )  # fmt: skip
        if count:
            for run in runs:
                _enqueue_run(parts, report, plan, view, file.first, run)
            parts.index.put_many(items)
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
            _derive(parts, report, plan, fields)
            report.replayed_count += 1
            report.last_store_time_ms = fields[commit_log.STORE_TIME]
            end += fields[commit_log.SIZE]
        if end + BLANK_BYTES_MIN > file.stop:
            position = end - file.first
            raise Stop(position, f"record at {position}: no room for a filler", unused=False)
        if end - released >= _BULK_BYTES:
            parts.disk.release(view, released - file.first, end - file.first)
            released = end
            told(end)


def _enqueue_run(
    parts: Parts, report: Report, plan: _Plan, view: memoryview, first: int, run: Run
) -> None:
    """Puts consecutive records into their queue, all at once if they go on where it ends."""
    topic, queue_id, queue_offset, entries = run
    queue = parts.queues.get_or_make(topic, queue_id)
    for at in range(0, len(entries), ENTRY_BYTES):
        wanted = queue_offset + at // ENTRY_BYTES
        # A unit beside the entry needs the store time, which only the record has.
        fits = wanted == queue.next_offset and not queue.writes_ext
        if fits and (topic, queue_id) not in plan.suspects:
            queue.put_many(entries[at:])
            return
        log_offset = ENTRY.unpack_from(entries, at)[0]
        _enqueue(parts, report, plan, kernel.decode_record(view, log_offset - first, False, False))


def _sound_after(parts: Parts, plan: _Plan, file: MappedFile, place: int) -> int | None:
    """Where the log goes on behind a bad place; None if that place is its end."""
    files = parts.segments.files
    later = next((other for other in files if other.first == file.stop), None)
    stop = file.stop
    if place < plan.check_from:
        stop = min(plan.check_from, file.stop)
    elif not plan.clean or later is None or _first_record(later) is None:
        # After a power cut pages may be there or not in any order. None of those behind a hole was
        # acknowledged, and keeping them would leave gaps in the queues.
        return None
    at = commit_log.find_record(
        file.view(), file.first, place - file.first + 1, stop - file.first
    )  # fmt: skip
    return file.first + at if at is not None else stop


def _derive(parts: Parts, report: Report, plan: _Plan, fields: RecordFields) -> None:
    log_offset, sys_flag = fields[commit_log.LOG_OFFSET], fields[commit_log.SYS_FLAG]
    topic = fields[commit_log.TOPIC]
    if not dispatch.is_topic_name(topic):
        if topic not in plan.set_aside:
            plan.set_aside.add(topic)
            report.note(
                f"the record at {log_offset} and others of its topic are in no queue: "
                f"{topic[:80]!r} ({dispatch.name_bytes(topic)} bytes) cannot name a folder"
            )
        return
    if log_offset >= plan.queues_from and dispatch.has_queue_entry(sys_flag):
        _enqueue(parts, report, plan, fields)
    if log_offset >= plan.index_from:
        keys = dispatch.index_keys(fields[commit_log.PROPERTIES], sys_flag)
        keys = keys[: parts.index.item_max - 1]
        if keys:
            hashes = (dispatch.key_hash(topic, key) for key in keys)
            parts.index.make_room(len(keys), hashes)
            parts.index.put(topic, keys, log_offset, fields[commit_log.STORE_TIME])


def _enqueue(parts: Parts, report: Report, plan: _Plan, fields: RecordFields) -> None:
    """Puts a record into its queue, if its number goes on where the queue ends.

    A number that does not is believed once the next record of that queue goes on from it: then the
    queue was deleted and made anew, or messages before it are gone. Otherwise the number is
    damaged, for no checksum covers it.
    """
    queue = parts.queues.get_or_make(fields[commit_log.TOPIC], fields[commit_log.QUEUE_ID])
    place = (queue.topic, queue.queue_id)
    wanted, here = fields[commit_log.QUEUE_OFFSET], queue.next_offset
    suspect = plan.suspects.pop(place, None)
    if suspect is not None:
        if wanted == suspect[commit_log.QUEUE_OFFSET] + 1:
            _jump(report, queue, suspect[commit_log.QUEUE_OFFSET])
            _put(parts, queue, suspect)
            here = queue.next_offset
        elif wanted == here + 1:
            # The damaged one was the one in between.
            _drop(report, queue, suspect)
            queue.skip_to(wanted)
            here = wanted
        else:
            _drop(report, queue, suspect)
    whole = plan.queues_from <= _first(parts)
    if wanted == here:
        _put(parts, queue, fields)
    elif wanted > here and not whole and plan.own is None:
        where = f"queue {queue.topic}/{queue.queue_id}"
        raise _MustRebuild(f"{where}: entries {here} to {wanted - 1} are missing")
    elif wanted > here and whole and not queue.segments.files and wanted <= _QUEUE_OFFSET_MAX:
        queue.skip_to(wanted)
        _put(parts, queue, fields)
    elif 0 < wanted - here <= plan.lost_count_max:
        _jump(report, queue, wanted)
        _put(parts, queue, fields)
    else:
        plan.suspects[place] = fields


def _put(parts: Parts, queue: ConsumeQueue, fields: RecordFields) -> None:
    code = dispatch.tags_code(
        queue.topic, fields[commit_log.PROPERTIES], fields[commit_log.STORE_TIME],
        parts.config.delay_levels_ms,
    )  # fmt: skip
    queue.make_room(1)
    code = queue.code_of(code, fields[commit_log.STORE_TIME])
    queue.put(fields[commit_log.LOG_OFFSET], fields[commit_log.SIZE], code)


def _jump(report: Report, queue: ConsumeQueue, wanted: int) -> None:
    """The queue goes on at another number."""
    here, where = queue.next_offset, f"queue {queue.topic}/{queue.queue_id}"
    if here < wanted <= here + _GAP_MAX:
        report.note(f"{where}: messages {here} to {wanted - 1} are not in the log")
    else:
        report.note(f"{where}: goes on at message {wanted} instead of {here}; the older are gone")
        queue.remove()
    queue.skip_to(wanted)


def _drop(report: Report, queue: ConsumeQueue, fields: RecordFields) -> None:
    report.note(
        f"the record at {fields[commit_log.LOG_OFFSET]} claims to be message "
        f"{fields[commit_log.QUEUE_OFFSET]} of queue {queue.topic}/{queue.queue_id}, where "
        f"{queue.next_offset} is next; it is in no queue"
    )


def _settle_suspects(parts: Parts, report: Report, plan: _Plan) -> None:
    """No later record speaks for these; one that is the first of its queue needs none."""
    for (topic, queue_id), fields in plan.suspects.items():
        queue = parts.queues.get_or_make(topic, queue_id)
        if fields[commit_log.QUEUE_OFFSET] == 0:
            _jump(report, queue, 0)
            _put(parts, queue, fields)
        else:
            _drop(report, queue, fields)
            if not queue.next_offset:
                parts.queues.forget(topic, queue_id)


# -- the end -------------------------------------------------------------------------------------


def _restore_floors(parts: Parts, plan: _Plan) -> None:
    """A queue without messages in the log keeps its next offset, or its consumers would be lost."""
    for (topic, queue_id), next_offset in plan.floors.items():
        if next_offset and parts.queues.get(topic, queue_id) is None:
            queue = parts.queues.get_or_make(topic, queue_id)
            queue.skip_to(next_offset)


def _cut_log(parts: Parts, report: Report, end: int, *, clean: bool) -> None:
    files = parts.segments.files
    useless = [file for file in files if file.first >= end and file.first > _first(parts)]
    for file in useless:
        if file.has_data(0):
            report.note(f"log file {file.path.name} lies beyond the end of the log and is removed")
    parts.segments.remove_from(max(end, _first(parts) + 1))
    last = parts.segments.files[-1] if parts.segments.files else None
    if last is not None and last.first <= end < last.stop:
        position = end - last.first
        untouched = not any(last.view()[position : position + 8])
        if not (clean and untouched):
            last.cut(position)


def _sync_all(parts: Parts, plan: _Plan) -> None:
    for file in parts.segments.files:
        if file.stop > plan.check_from:
            file.sync()
    queues = parts.queues.all()
    if plan.own is None:
        for queue in queues:
            queue.flushed_offset = 0
    parts.queues.flush([queue for queue in queues if queue.waiting_pages()])
    if plan.own is None:
        for index_file in parts.index.files:
            index_file.flushed_count = 0
    parts.index.flush()
