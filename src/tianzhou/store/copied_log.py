"""Appends bytes of a master's log: the log of a slave is a copy of it, byte for byte.

    received bytes    | record | record | ... | filler, rest of the file | record | record, cut off
    stretches         |<-------- 1 -------->|<----------- 2 ------------>|<- 3 -->| for later

The bytes are appended in stretches, which lie in one file of the log. A stretch is checked first:
nothing that is not a record (or the filler at the end of a file) reaches the log. Then all space is
reserved, on the disk and in memory; an error up to here leaves log and queues as they are. Then
one call writes its bytes, and its queue entries and index items are added, those that recovery
would derive from the same log (`derivation.py`).

A killed process or a power cut leaves what an ordinary append leaves: recovery finds the end of the
log behind the last complete record, so it stays a prefix of the master's log. Of a filler only the
first 8 bytes matter; what lies behind them may be lost in a power cut.

A record whose queue offset needs confirmation by the next one of its queue is in no queue until
then. At a restart it is forgotten, as recovery does at the end of a log.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.errors import RecordError, StoreBroken, StoreCorrupt, StoreError
from tianzhou.protocol import derived, kernel
from tianzhou.protocol.pure.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    SIZE_MIN,
    RecordFields,
)
from tianzhou.protocol.pure.walk import LOOSE_ITEM, Run
from tianzhou.protocol.records.record import BLANK_BYTES_MIN
from tianzhou.store import commit_log
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import ENTRY_BYTES
from tianzhou.store.consume_queue import ENTRY, ConsumeQueue
from tianzhou.store.derivation import Derivation, entry_of, index_items, put_entry
from tianzhou.store.files.disk import explained
from tianzhou.store.index import item_log_offset
from tianzhou.store.recovery_plan import Report, StoreFiles

_STRETCH_BYTES = 1024 * 1024
"""A stretch ends with the first record that ends behind this size. Each has a cost per queue, so
smaller ones are slower (at 256 KiB by a tenth), also where they fit into a faster cache."""
_SLACK = bytes(BLANK_BYTES_MIN)
"""A walk passes a record only with the space for a filler behind it."""
_NEVER = 2**63 - 1


Arrived = tuple[str, int, int, int, int]
"""Topic, queue id, queue offset, tags code and store time of the last new message of a queue."""


@dataclass(slots=True)
class Stretch:
    """Checked bytes in one file of the log, and what a store gets from them."""

    data: memoryview
    first: int
    """Log offset of the first byte."""
    store_time_ms: int
    """Of the last record."""
    runs: list[Run] = field(default_factory=list[Run])
    items: bytes = b""
    """Index items."""
    special: RecordFields | None = None
    """The only record, if it is one that the bulk walk declines."""
    entries: list[tuple[ConsumeQueue, bytes, int]] = field(
        default_factory=list[tuple[ConsumeQueue, bytes, int]]
    )
    """Queue entries to append, in order; with the store time for queues with units."""
    counts: dict[ConsumeQueue, int] = field(default_factory=dict[ConsumeQueue, int])
    """How many entries each queue gets."""
    is_stored: bool = False
    entry_delta: int = 0
    """By how much the sum of the next offsets of all queues has changed."""
    queue_delta: int = 0
    """By how much the number of queues with a next offset has changed."""

    def add(self, queue: ConsumeQueue, entries: bytes, store_time_ms: int = 0) -> None:
        self.entries.append((queue, entries, store_time_ms))
        self.counts[queue] = self.counts.get(queue, 0) + len(entries) // ENTRY_BYTES

    def continues(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether a record with this queue offset is the next one of a queue."""
        return queue.next_offset + self.counts.get(queue, 0) == queue_offset


class CopiedLog:
    """The log of a store as a copy of a master's."""

    __slots__ = ("_added", "_arrivals", "_derivation", "_files", "_index_from", "_log")

    def __init__(
        self,
        files: StoreFiles,
        log_: CommitLog,
        added: Callable[[Stretch], None],
        on_removal: Callable[[], None],
    ) -> None:
        """`added` is called for each stretch, also if it could not be stored: queues may have moved
        already. `on_removal` is called before the files of a queue are removed."""
        self._files = files
        self._log = log_
        self._added = added
        self._derivation = Derivation(
            files, Report(clean=True), is_live=True, on_removal=on_removal
        )
        self._arrivals: dict[tuple[str, int], Arrived] = {}
        """The last new message of each queue."""
        self._index_from = 0 if files.config.message_index_enable else _NEVER

    def check_beginning(self, log_offset: int) -> None:
        """Raises StoreError unless the log has no records and may begin at a log offset."""
        log_, file_bytes = self._log, self._files.segments.size_bytes
        if log_.written != log_.first:
            raise StoreError(
                f"the log has messages from {log_.first} to {log_.written}, so it cannot begin at "
                f"{log_offset}; a copy of another log needs an empty store"
            )
        if log_offset < 0 or log_offset % file_bytes:
            raise StoreError(
                f"a log cannot begin at {log_offset}, which is no multiple of {file_bytes} "
                "(mappedFileSizeCommitLog)"
            )

    def begin_at(self, log_offset: int) -> None:
        """Sets the beginning of the log, after `check_beginning`. Raises OSError."""
        self._files.segments.remove_from(0)
        self._log.start_at(log_offset)
        self._files.queues.clear()
        self._files.index.clear()
        self._derivation.suspects.clear()

    def forget_from(self, log_offset: int) -> None:
        """The log is cut at a log offset: nothing is known of later records."""
        self._arrivals.clear()
        suspects = self._derivation.suspects
        for name, fields in list(suspects.items()):
            if fields[commit_log.LOG_OFFSET] >= log_offset:
                del suspects[name]

    def append(self, data: memoryview) -> int:
        """Appends all complete records of `data`, which begins at the end of the log.

        Returns how many bytes were appended. Raises StoreCorrupt at bytes that are no record; those
        before them are appended. Raises StoreError if nothing could be appended for another reason.
        """
        appended = 0
        while appended < len(data):
            try:
                size_bytes = self._append_stretch(data[appended:])
            except OSError as e:
                if appended:
                    break  # the next call raises
                raise explained(e, "store messages of the master") from e
            if not size_bytes:
                break
            appended += size_bytes
        return appended

    def _append_stretch(self, data: memoryview) -> int:
        """Appends the records at the beginning; returns how many bytes, 0 if none is complete."""
        first, file_bytes = self._log.written, self._files.segments.size_bytes
        left = file_bytes - first % file_bytes
        data = data[:left]
        stretch = self._walk(data, first, _STRETCH_BYTES)
        if not stretch.data:
            single = self._single(data, first, left)
            if single is None:
                return 0
            stretch = single
        while (split := self._store(stretch)) is not None:
            stretch = self._walk(data, first, split - first)
        return len(stretch.data)

    def drain_arrivals(self) -> list[Arrived]:
        """The last new message of each queue since the last call."""
        arrivals = list(self._arrivals.values())
        self._arrivals.clear()
        return arrivals

    # -- checking -------------------------------------------------------------------------------

    def _walk(self, data: memoryview, first: int, stop: int) -> Stretch:
        """The plain records at the beginning of `data` that begin before `stop`."""
        position, _, store_time_ms, runs, items = kernel.walk_records(
            data, first, 0, min(stop, len(data)), 0, self._index_from,
            self._files.index.item_max - 1, self._files.config.delay_levels_ms, True, False,
        )  # fmt: skip
        return Stretch(data[:position], first, store_time_ms, runs, items)

    def _single(self, data: memoryview, first: int, left: int) -> Stretch | None:
        """The record or filler that `data` begins with; None if it is incomplete.

        `left` is the number of bytes up to the end of the file. Raises StoreCorrupt.
        """
        if len(data) < SIZE_AND_MAGIC.size:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(data)
        if magic == MAGIC_BLANK:
            if size != left:
                raise _corrupt(
                    first, f"a filler of {size} bytes, {left} before the end of the log file"
                )
            return Stretch(data, first, self._log.last_store_time_ms) if len(data) == left else None
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise _corrupt(first, f"the magic number {magic:#010x} is unknown")
        if not SIZE_MIN <= size <= left - BLANK_BYTES_MIN:
            raise _corrupt(
                first, f"a record of {size} bytes, {left} before the end of the log file"
            )
        if len(data) < size:
            return None
        record = memoryview(bytes(data[:size]) + _SLACK)
        stretch = self._walk(record, first, size)
        return stretch if stretch.data else self._special(record[:size], first)

    def _special(self, record: memoryview, first: int) -> Stretch:
        try:
            fields = kernel.decode_record(record, 0, True, False)
        except RecordError as e:
            raise _corrupt(first, str(e)) from e
        if fields[commit_log.LOG_OFFSET] != first:
            raise _corrupt(first, f"its log offset field is {fields[commit_log.LOG_OFFSET]}")
        queue_id, queue_offset = fields[commit_log.QUEUE_ID], fields[commit_log.QUEUE_OFFSET]
        if queue_id < 0 or queue_offset < 0:
            raise _corrupt(first, f"it claims to be message {queue_offset} of queue {queue_id}")
        try:
            entry_of(fields, self._files.config.delay_levels_ms)
        except struct.error as e:
            raise _corrupt(first, f"its time {fields[commit_log.STORE_TIME]} is impossible") from e
        stretch = Stretch(record, first, fields[commit_log.STORE_TIME])
        if self._derivation.has_queue(fields):
            stretch.special = fields
            if not self._index_from:
                stretch.items = index_items(fields, self._files.index.item_max - 1)
        return stretch

    # -- storing --------------------------------------------------------------------------------

    def _store(self, stretch: Stretch) -> int | None:
        """Appends a stretch; or returns the log offset before which it must end, and does nothing.

        Raises OSError; then nothing was appended.
        """
        derivation = self._derivation
        suspects = dict(derivation.suspects)
        try:
            split = self._reserve(stretch)
            if split is None:
                self._log.copy(stretch.data, stretch.store_time_ms)
                stretch.is_stored = True
        finally:
            if not stretch.is_stored:
                derivation.suspects = suspects
                self._added(stretch)
        if stretch.is_stored:
            self._put(stretch)
            self._added(stretch)
        return split

    def _reserve(self, stretch: Stretch) -> int | None:
        """Reserves all space that a stretch needs; or returns where it must end. Raises OSError."""
        if stretch.items:
            # Items of one stretch are in one file.
            count = self._files.index.reserve(stretch.items)
            if count < len(stretch.items) // LOOSE_ITEM.size:
                return item_log_offset(stretch.items, count)
        if stretch.special is not None and derived.has_queue_entry(
            stretch.special[commit_log.SYS_FLAG]
        ):
            self._assign(stretch, stretch.special)
        for run in stretch.runs:
            split = self._assign_run(stretch, run)
            if split is not None:
                return split
        for queue, count in stretch.counts.items():
            queue.ensure_mapped(count)
        self._log.prepare_copy(len(stretch.data))
        return None

    def _assign_run(self, stretch: Stretch, run: Run) -> int | None:
        """Assigns consecutive records to their queue, in bulk if they continue it.

        Returns a log offset if the stretch must end there.
        """
        topic, queue_id, queue_offset, entries = run
        queues, name = self._files.queues, (topic, queue_id)
        for at in range(0, len(entries), ENTRY_BYTES):
            queue, has_suspect = queues.get(topic, queue_id), name in self._derivation.suspects
            continues = (
                queue is not None
                and not has_suspect
                and stretch.continues(queue, queue_offset + at // ENTRY_BYTES)
            )
            if queue is not None and continues and not queue.writes_ext:
                stretch.add(queue, entries[at:])
                return None
            log_offset: int = ENTRY.unpack_from(entries, at)[0]
            may_move = not continues and (queue in stretch.counts or has_suspect)
            if may_move and log_offset != stretch.first:
                # After an error the same stretch is repeated, but may be shorter. Then the queue
                # must not have moved for a record that is not in it.
                return log_offset
            # A unit needs the store time, which only the record has.
            fields = kernel.decode_record(stretch.data, log_offset - stretch.first, False, False)
            if queue is not None and continues:
                stretch.add(queue, entries[at : at + ENTRY_BYTES], fields[commit_log.STORE_TIME])
            else:
                self._assign(stretch, fields)
        return None

    def _assign(self, stretch: Stretch, fields: RecordFields) -> None:
        """Moves the queue of a record if needed."""
        topic, queue_id = fields[commit_log.TOPIC], fields[commit_log.QUEUE_ID]
        before = self._next_offset(topic, queue_id)
        try:
            queue, records = self._derivation.assign(fields)
        finally:
            after = self._next_offset(topic, queue_id)
            stretch.entry_delta += after - before
            stretch.queue_delta += bool(after) - bool(before)
        for record in records:
            entry = entry_of(record, self._files.config.delay_levels_ms)
            stretch.add(queue, entry, record[commit_log.STORE_TIME])

    def _next_offset(self, topic: str, queue_id: int) -> int:
        queue = self._files.queues.get(topic, queue_id)
        return queue.next_offset if queue else 0

    def _put(self, stretch: Stretch) -> None:
        """Adds entries and items; the space for them was reserved."""
        try:
            for queue, entries, store_time_ms in stretch.entries:
                if not queue.next_offset:
                    stretch.queue_delta += 1
                stretch.entry_delta += len(entries) // ENTRY_BYTES
                if queue.writes_ext:
                    put_entry(queue, entries, store_time_ms)
                else:
                    queue.put_many(entries)
                self._arrived(queue, entries, stretch.store_time_ms)
            self._files.index.put_many(stretch.items)
        except OSError as e:
            raise StoreBroken(
                f"messages of the master at log offset {stretch.first} could not be added to their "
                f"queues ({e.strerror or e}); the store must be opened again"
            ) from e

    def _arrived(self, queue: ConsumeQueue, entries: bytes, store_time_ms: int) -> None:
        topic, queue_id = queue.topic, queue.queue_id
        code: int = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)[2]
        self._arrivals[topic, queue_id] = (
            topic, queue_id, queue.next_offset - 1, code, store_time_ms,
        )  # fmt: skip


def _corrupt(log_offset: int, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the master sent bytes for log offset {log_offset} that are no message: {why}; nothing of "
        "it was stored"
    )
