"""Verifies a store: every record, its queue entry and index items, and that there are no others.

In a store that is open or was not closed, queues and index are complete up to the checkpoint; what
follows is derived later and not checked. While a program uses the directory, files are added and
removed between two reads. So a finding counts only if a second pass finds it again.
"""

from dataclasses import dataclass, field

from tianzhou.protocol import derived
from tianzhou.store import commit_log
from tianzhou.store.consume_queue import BLANK_SIZE
from tianzhou.store.files.checkpoint import Checkpoint, read_checkpoint
from tianzhou.store.index_file import IndexFile
from tianzhou.store.offline.inspect import Progress, StoreDirectory, Verdict

_PASSES_MAX = 5
_ENDLESS = 2**63 - 1

Queue = tuple[str, int]
Position = tuple[int, int]
"""Log offset and size of a record."""


@dataclass(slots=True)
class _Pass:
    """One verification of a directory, up to one point of its log."""

    directory: StoreDirectory
    checkpoint: Checkpoint
    running: bool
    clean: bool
    verdict: Verdict = field(default_factory=Verdict)
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Findings by a key that stays the same from pass to pass."""
    expected: dict[Queue, dict[int, Position]] = field(
        default_factory=dict[Queue, dict[int, Position]]
    )
    indexed: dict[int, tuple[int, set[int]]] = field(
        default_factory=dict[int, tuple[int, set[int]]]
    )
    """By log offset, the store time of a message and the hashes of its keys."""
    stop: int = _ENDLESS
    """The log offset before which everything is derived."""

    def report(self, text: str, key: str | None = None) -> None:
        self.keys.setdefault(text if key is None else key, text)
        self.verdict.add(text)


def verify(directory: StoreDirectory, progress: Progress) -> Verdict:
    """Checks a store, which may be in use. Raises OSError, StoreError."""
    before: _Pass | None = None
    for _ in range(_PASSES_MAX):
        running = directory.is_running()
        try:
            this_pass = _run_pass(directory, progress, running=running)
        except FileNotFoundError:
            # Expired, or deleted with its topic.
            if not running:
                raise
        else:
            if not running or not this_pass.keys:
                return this_pass.verdict
            if before is not None:
                this_pass.verdict.findings = [
                    text for key, text in this_pass.keys.items() if key in before.keys
                ]
                return this_pass.verdict
            before = this_pass
        directory = StoreDirectory(directory.root, directory.disk)
    raise FileNotFoundError(
        2, "files are removed while they are read; try again", str(directory.root)
    )


def _run_pass(directory: StoreDirectory, progress: Progress, *, running: bool) -> _Pass:
    disk, root = directory.disk, directory.root
    clean = not running and not disk.exists(root / "abort")
    this_pass = _Pass(directory, read_checkpoint(disk, root / "checkpoint"), running, clean)
    this_pass.verdict.running = running
    own = this_pass.checkpoint.derived
    if not clean and own is not None:
        this_pass.stop = own.log_offset
    _verify_files(this_pass)
    _verify_log(this_pass, progress)
    _verify_queues(this_pass)
    _verify_index(this_pass)
    return this_pass


def _verify_files(this_pass: _Pass) -> None:
    directory = this_pass.directory
    size_bytes, sizes = directory.log_file_bytes, directory.found.sizes
    gap = directory.found.gap(size_bytes)
    if gap is not None:
        this_pass.report(f"log: the file that begins at {gap} is missing")
    for first, size in sorted(sizes.items()):
        # The last file may be in creation.
        is_new = this_pass.running and first == max(sizes) and first >= this_pass.stop
        if size != size_bytes and not is_new:
            this_pass.report(f"log: file {first} has {size} bytes, not {size_bytes}")


def _verify_log(this_pass: _Pass, progress: Progress) -> None:
    verdict = this_pass.verdict
    limit_ms = None
    if this_pass.running and this_pass.checkpoint.derived is None:
        # RocketMQ has the store open; its checkpoint only has times.
        limit_ms = this_pass.checkpoint.safe_time_ms
    stop = this_pass.stop if this_pass.running else _ENDLESS
    for record, fields in this_pass.directory.records(progress, this_pass.report, stop=stop):
        log_offset, size_bytes = fields[commit_log.LOG_OFFSET], fields[commit_log.SIZE]
        if limit_ms is not None and fields[commit_log.STORE_TIME] > limit_ms:
            this_pass.stop = log_offset
            break
        verdict.messages += 1
        verdict.log_bytes += len(record)
        verdict.end_log_offset = log_offset + size_bytes
        if log_offset >= this_pass.stop:
            continue
        topic, sys_flag = fields[commit_log.TOPIC], fields[commit_log.SYS_FLAG]
        if derived.has_queue_entry(sys_flag):
            queue = this_pass.expected.setdefault((topic, fields[commit_log.QUEUE_ID]), {})
            queue[fields[commit_log.QUEUE_OFFSET]] = (log_offset, size_bytes)
        keys = derived.index_keys(fields[commit_log.PROPERTIES], sys_flag)
        if keys:
            hashes = {derived.key_hash(topic, key) for key in keys}
            this_pass.indexed[log_offset] = (fields[commit_log.STORE_TIME], hashes)


# -- queues --------------------------------------------------------------------------------------


def _verify_queues(this_pass: _Pass) -> None:
    existing = set(this_pass.directory.queue_names())
    without_files: list[tuple[str, int]] = []
    """Queues without a file, and how many of their messages the log has."""
    queue_count = entry_count = 0
    for topic, queue_id in sorted(existing | this_pass.expected.keys()):
        wanted = this_pass.expected.get((topic, queue_id), {})
        where = f"queue {topic}/{queue_id}"
        first, end = _verify_entries(this_pass, topic, queue_id, wanted)
        queue_count += end > 0
        entry_count += end
        if first is None and not this_pass.directory.has_queue_files(topic, queue_id):
            without_files += [(where, len(wanted))] if wanted else []
            continue
        # Messages before the first entry belong to a deleted queue of the same name.
        missing = [
            at for at, (log_offset, _) in wanted.items() if first is None or log_offset >= first
        ]
        if missing:
            this_pass.report(
                f"{where}: {len(missing)} messages of the log have no entry, the first is "
                f"{min(missing)}",
                f"{where}: missing",
            )
    own = this_pass.checkpoint.derived
    counted = own and (queue_count, entry_count) == (own.queue_count, own.entry_count)
    if this_pass.running or counted:
        return  # the queues were deleted: no expected entry is missing
    for where, count in without_files:
        this_pass.report(
            f"{where}: no file, but {count} messages in the log, as after the deletion of a topic"
        )


def _verify_entries(
    this_pass: _Pass, topic: str, queue_id: int, wanted: dict[int, Position]
) -> tuple[int | None, int]:
    """Removes what has an entry from `wanted`; returns the log offset of the first, and the end."""
    first_log_offset = min(this_pass.directory.found.sizes, default=0)
    where, first, end, late = f"queue {topic}/{queue_id}", None, 0, list[int]()
    for queue_offset, (log_offset, size_bytes, _) in this_pass.directory.entries(topic, queue_id):
        if first is None and size_bytes != BLANK_SIZE:
            first = log_offset
        if log_offset >= this_pass.stop:
            # Written after the stop, unless an older one follows.
            late.append(queue_offset)
            continue
        end = queue_offset + 1
        if size_bytes == BLANK_SIZE or log_offset < first_log_offset:
            continue
        wrong = (
            late
            if wanted.pop(queue_offset, None) == (log_offset, size_bytes)
            else ([*late, queue_offset])
        )
        for each in wrong:
            wanted.pop(each, None)
            this_pass.report(f"{where}: entry {each} leads to no message of this queue")
        late.clear()
    return first, end


# -- index ---------------------------------------------------------------------------------------


def _verify_index(this_pass: _Pass) -> None:
    directory = this_pass.directory
    files = directory.index_files()
    known = {file.path.name for file in files}
    for name in directory.disk.names(directory.config.index_directory):
        if name not in known:
            this_pass.report(f"index: file {name} has an unexpected size")
    seen: set[Position] = set()
    bounds: list[Position] = []
    for file in files:
        if not file.plausible:
            this_pass.report(f"index: file {file.path.name} has an impossible header")
            return
        try:
            _verify_items(this_pass, file, seen)
        finally:
            file.unmap()
        if file.count > 1:
            bounds.append((file.begin_log_offset, file.end_log_offset))
    # The index may lag behind the log; before its first item it was switched off.
    missing = [
        log_offset
        for log_offset, (_, hashes) in this_pass.indexed.items()
        if bounds
        and bounds[0][0] <= log_offset <= bounds[-1][1]
        and any((log_offset, hashed) not in seen for hashed in hashes)
    ]
    if missing:
        this_pass.report(
            f"index: keys of {len(missing)} messages are not indexed, the first is at log "
            f"offset {min(missing)}",
            "index: missing",
        )


def _verify_items(this_pass: _Pass, file: IndexFile, seen: set[Position]) -> None:
    """Each item must name a message with such a key and time, and be on its slot's chain."""
    first_log_offset = min(this_pass.directory.found.sizes, default=0)
    newest: dict[int, int] = {}
    late = list[int]()
    for number, (hashed, log_offset, seconds, previous) in file.items():
        if log_offset >= this_pass.stop:
            late.append(number)
            continue
        where = f"index: item {number} of file {file.path.name}"
        for each in late:
            this_pass.report(f"index: item {each} of file {file.path.name} follows a newer item")
        late.clear()
        slot = hashed % file.slot_count
        if previous != newest.get(slot, 0):
            this_pass.report(f"{where} is not on the chain of its slot")
        newest[slot] = number
        if log_offset < first_log_offset:
            continue
        store_time_ms, hashes = this_pass.indexed.get(log_offset, (0, set[int]()))
        if hashed not in hashes:
            this_pass.report(f"{where} leads to {log_offset}, where no message has such a key")
        elif number > 1 and seconds != max((store_time_ms - file.begin_time_ms) // 1000, 0):
            # RocketMQ computes the time of a file's first item from the end of the file before.
            this_pass.report(f"{where} does not have the time of its message at {log_offset}")
        seen.add((log_offset, hashed))
    for slot, number in newest.items():
        if _newest_below(file, slot, number) != number:
            this_pass.report(
                f"index: slot {slot} of file {file.path.name} does not point to its newest item"
            )


def _newest_below(file: IndexFile, slot: int, number: int) -> int:
    """The item of a slot's chain that is not newer than another; newer ones are being added."""
    at = file.slot(slot)
    while number < at < file.item_max:
        previous = file.previous(at)
        if previous >= at:
            break
        at = previous
    return at
