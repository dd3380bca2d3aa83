"""Reads of a store: by queue offset, log offset, time and key. Any thread may read without locks.

Records are returned as read-only views of mapped memory, without copying; a view stays valid as
long as it is referenced, even if its file is deleted.

Records that this process neither wrote nor checked in recovery are checked when they are read: a
damaged one, or one that its queue entry does not match, is skipped and logged.

With automatic failover readers see only records that lie wholly below the confirm offset, as a
switch can remove those behind it. `MessageStore.with_unconfirmed` reads the whole log.
"""

import logging
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Final

from tianzhou.errors import RecordError
from tianzhou.limits import FILTER_MS_MAX
from tianzhou.protocol import kernel, properties
from tianzhou.store import commit_log
from tianzhou.store.commit_log import CommitLog, Window
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import BLANK_SIZE, ConsumeQueue
from tianzhou.store.consume_queue_ext import is_address
from tianzhou.store.index import Index
from tianzhou.store.queues import QueueTable

log = logging.getLogger(__name__)

ENTRIES_PER_READ = 800
"""The least number of entries that a read examines when a filter rejects most of them."""
_DAMAGE_LOGGED_MAX = 100
_QUERY_FACTOR = 8
_QUERY_OFFSETS_MAX = 1 << 18
"""The most index items that a query examines: those of one key in one second."""
_NO_WINDOW: Window = (0, 0, memoryview(b""))
NO_LIMIT: Final = 2**63 - 1
"""The confirm offset of a store whose readers see the whole log."""

_POSITION_COLUMNS = ["physicalOffset", "queueId", "queueOffset", "storeSize", "topic"]

_RecordPosition = tuple[int, int, int]
"""Queue offset, log offset and size of a record, from its queue entry."""

Limit = tuple[int, int]
"""The most messages and bytes of one read."""


class ReadStatus(StrEnum):
    """The result of a read by queue offset, named as in RocketMQ."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a read by queue offset."""

    status: ReadStatus
    records: list[memoryview]
    next_offset: int
    """The next queue offset to read, or the correction of a wrong one."""
    min_offset: int
    max_offset: int
    behind_bytes: int = 0
    """Distance of the last record that was read, filtered or not, from the end of the log."""


class Boundary(StrEnum):
    """Which message a search by time means."""

    LOWER = "lower"  # the first one stored at that time or later
    UPPER = "upper"  # the last one stored at that time or earlier


class StoreReader:
    """The readable side of a store."""

    def __init__(
        self,
        config: StoreConfig,
        log_: CommitLog,
        queues: QueueTable,
        index: Index,
        checked_from: int,
    ) -> None:
        self.config = config
        self.log = log_
        self.queues = queues
        self.index = index
        self.checked_from = checked_from if config.check_crc_on_recover else log_.written
        """Records before this log offset are checked when they are read; those from here on were
        checked or written by this process."""
        self.confirmed_log_offset: int = NO_LIMIT
        """Readers see only records that lie wholly below it; `confirm` raises it."""
        self._damage_count = 0
        self._physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def memory_bytes(self) -> int:
        """RocketMQ's estimate of how much of the log's end is in memory.

        Reads further back are sent to a slave; limits of reads follow what is in memory (`read`).
        """
        return self._physical_bytes * self.config.access_message_in_memory_max_ratio // 100

    def _release(self) -> None:
        """Unmaps all files; views that were returned stay valid."""
        self.log.release()
        for queue in self.queues.all():
            for file in queue.segments.files:
                file.unmap()
        self.index.unmap()

    # -- bounds ---------------------------------------------------------------------------------

    @property
    def first_log_offset(self) -> int:
        return self.log.first

    @property
    def end_log_offset(self) -> int:
        """The log offset after the last message, confirmed or not."""
        return self.log.readable

    @property
    def readable_log_offset(self) -> int:
        """Readers see the records that lie wholly below this log offset."""
        return min(self.log.readable, self.confirmed_log_offset)

    @property
    def shows_confirmed(self) -> bool:
        """Whether readers see only what is confirmed, not all of the log."""
        return self.confirmed_log_offset != NO_LIMIT

    def show_confirmed(self, log_offset: int) -> None:
        """Readers see only records below this log offset from now on, more after `confirm`.

        For the start of a broker, before requests are served, and for a log that was cut.
        """
        self.confirmed_log_offset = min(log_offset, self.log.readable)

    def confirm(self, log_offset: int) -> bool:
        """No switch removes what lies below this log offset: readers may see it.

        The limit never falls by this, and never passes the end of the log: what is confirmed and
        not in the log yet takes a later call. Returns whether readers see more than before.
        """
        before = self.confirmed_log_offset
        self.confirmed_log_offset = max(before, min(log_offset, self.log.readable))
        return self.confirmed_log_offset > before

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message; 0 if there is no such queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.min_offset(self.log.first) if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last readable message; 0 if there is no such queue."""
        queue = self.queues.get(topic, queue_id)
        return self.max_offset_of(queue) if queue else 0

    def max_offset_of(self, queue: ConsumeQueue) -> int:
        """The queue offset after the last readable message."""
        end = self.log.readable
        if end > self.confirmed_log_offset:
            end = self.confirmed_log_offset
        if queue.end_log_offset <= end:
            return queue.next_offset
        return _offset_after(queue, end)

    # -- by queue offset ------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        accept_tags: Callable[[int], bool] | None = None,
        accept_record: Callable[[memoryview], bool] | None = None,
        from_disk: bool = False,
    ) -> Read:
        """Up to `max_count` records from a queue offset on, within the limits of the settings.

        `from_disk`: the records are, or were a moment ago, not in memory; their limits are smaller.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return Read(ReadStatus.NO_MATCHED_LOGIC_QUEUE, [], 0, 0, 0)
        low, high = queue.min_offset(self.log.first), self.max_offset_of(queue)
        if high == 0 and not 0 < queue_offset <= queue.next_offset:
            return Read(ReadStatus.NO_MESSAGE_IN_QUEUE, [], 0, low, high)
        if queue_offset < low:
            return Read(ReadStatus.OFFSET_TOO_SMALL, [], low, low, high)
        if queue_offset == high:
            return Read(ReadStatus.OFFSET_OVERFLOW_ONE, [], high, low, high)
        if queue_offset > high:
            if queue_offset <= queue.next_offset:
                # Another master has confirmed more than this one knows: wait here, do not go back.
                return Read(ReadStatus.OFFSET_OVERFLOW_ONE, [], queue_offset, low, high)
            return Read(ReadStatus.OFFSET_OVERFLOW_BADLY, [], high, low, high)
        limit = self.limit(max_count, from_disk=from_disk)
        return self._read(queue, queue_offset, limit, accept_tags, accept_record, low, high)

    def _read(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        limit: Limit,
        accept_tags: Callable[[int], bool] | None,
        accept_record: Callable[[memoryview], bool] | None,
        low: int,
        high: int,
        *,
        one_by_one: bool = False,
    ) -> Read:
        """`one_by_one`: check unchecked records one at a time instead of all in one call."""
        end = self.log.readable
        count_max, bytes_max = limit
        checked_from = self.checked_from
        # A filter must not get a damaged record.
        one_by_one = one_by_one or accept_record is not None
        unchecked: list[_RecordPosition] = []
        records: list[memoryview] = []
        total, at, last, removed = 0, queue_offset, end, False
        # The file of the last record, which most of the following ones are in.
        window: Window = _NO_WINDOW
        ends_s = perf_counter() + FILTER_MS_MAX / 1000 if accept_record is not None else 0.0
        for log_offset, size_bytes, tags_code in queue.entries(
            queue_offset, min(max(ENTRIES_PER_READ, count_max), high - queue_offset)
        ):
            if records and (len(records) >= count_max or total + size_bytes > bytes_max):
                break
            at += 1
            if size_bytes == BLANK_SIZE:
                continue
            last = log_offset
            if accept_tags and not is_address(tags_code) and not accept_tags(tags_code):
                continue
            first, stop, view = window
            if not first <= log_offset < stop:
                window = first, stop, view = self.log.window(log_offset) or _NO_WINDOW
            start = log_offset - first
            if not 0 <= size_bytes <= stop - log_offset:
                removed = True
                continue
            record = view[start : start + size_bytes]
            if log_offset < checked_from:
                if not one_by_one:
                    unchecked.append((at - 1, log_offset, size_bytes))
                elif not self._is_sound(queue, at - 1, log_offset, size_bytes, record):
                    removed = True
                    continue
            if accept_record is None or accept_record(record):
                records.append(record)
                total += size_bytes
            if accept_record is not None and perf_counter() > ends_s:
                break
        if unchecked and not self._are_sound(queue, unchecked):
            return self._read(
                queue, queue_offset, limit, accept_tags, accept_record, low, high,
                one_by_one=True,
            )  # fmt: skip
        if at == queue_offset:
            # The file of these entries was deleted during the read.
            next_offset = max(queue.min_offset(self.log.first), queue_offset + 1)
            return Read(ReadStatus.OFFSET_FOUND_NULL, [], next_offset, low, high)
        status = ReadStatus.FOUND
        if not records:
            status = ReadStatus.MESSAGE_WAS_REMOVING if removed else ReadStatus.NO_MATCHED_MESSAGE
        return Read(status, records, at, low, high, end - last)

    def limit(self, max_count: int, *, from_disk: bool = False) -> Limit:
        """The limit of a read of messages in memory, or of messages that come from the disk."""
        config = self.config
        if from_disk:
            count_max = config.max_transfer_count_on_message_in_disk
            return min(max_count, count_max), config.max_transfer_bytes_on_message_in_disk
        count_max = config.max_transfer_count_on_message_in_memory
        return min(max_count, count_max), config.max_transfer_bytes_on_message_in_memory

    def _are_sound(self, queue: ConsumeQueue, positions: list[_RecordPosition]) -> bool:
        """Whether unchecked records are all valid and match their queue entries.

        Checks many in one call of the kernel. False may also mean that the kernel declined.
        """
        queue_offsets, log_offsets, sizes = zip(*positions, strict=True)
        window = self.log.window(log_offsets[0])
        if window is None:
            return False
        first, stop, view = window
        if min(log_offsets) < first or max(log_offsets) >= stop:
            inside = [each for each in positions if first <= each[1] < stop]
            others = [each for each in positions if not first <= each[1] < stop]
            return self._are_sound(queue, inside) and self._are_sound(queue, others)
        starts = array("q", [log_offset - first for log_offset in log_offsets])
        found = kernel.decode_columns(view, starts.tobytes(), _POSITION_COLUMNS, True)
        if found is None:
            return False
        count, (*numbers, (_, topic_ends, topics)) = found
        topic = queue.topic.encode()
        ends = array("i", range(0, (count + 1) * len(topic), len(topic)))
        return (
            numbers
            == [
                array("q", log_offsets).tobytes(),
                array("i", [queue.queue_id]).tobytes() * count,
                array("q", queue_offsets).tobytes(),
                array("i", sizes).tobytes(),
            ]
            and topic_ends == ends.tobytes()
            and topics == topic * count
        )

    def _is_sound(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        log_offset: int,
        size_bytes: int,
        record: memoryview,
    ) -> bool:
        """Whether an unchecked record is valid and matches its queue entry."""
        try:
            fields = kernel.decode_record(record, 0, True, False)
        except RecordError as e:
            self._log_damage(queue, queue_offset, str(e))
            return False
        actual = (
            fields[commit_log.TOPIC], fields[commit_log.QUEUE_ID], fields[commit_log.QUEUE_OFFSET],
            fields[commit_log.LOG_OFFSET], fields[commit_log.SIZE],
        )  # fmt: skip
        if actual != (queue.topic, queue.queue_id, queue_offset, log_offset, size_bytes):
            self._log_damage(queue, queue_offset, f"its entry leads to another record: {actual}")
            return False
        return True

    def _log_damage(self, queue: ConsumeQueue, queue_offset: int, why: str) -> None:
        self._damage_count += 1
        if self._damage_count <= _DAMAGE_LOGGED_MAX:
            log.warning(
                "queue %s/%d: message %d is damaged and left out: %s",
                queue.topic, queue.queue_id, queue_offset, why,
            )  # fmt: skip

    # -- by log offset --------------------------------------------------------------------------

    def record_at(self, log_offset: int) -> memoryview | None:
        """The record at a log offset; None if there is no valid one that readers may see."""
        fields = self.log.decode(log_offset)
        if fields is None or log_offset + fields[commit_log.SIZE] > self.confirmed_log_offset:
            return None
        return self.log.record(log_offset)

    def log_slice(self, log_offset: int, max_bytes: int) -> memoryview | None:
        """The bytes of the log from an offset on, up to the end of the file, confirmed or not."""
        file = self.log.segments.find(log_offset)
        if file is None:
            return None
        stop = min(file.stop, self.log.readable, log_offset + max_bytes)
        return self.log.slice(log_offset, stop - log_offset)

    # -- by time --------------------------------------------------------------------------------

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Queue offset of a message by its store time.

        LOWER: the first stored at `time_ms` or later, the maximum offset if there is none. UPPER:
        the last stored at `time_ms` or earlier, the minimum offset if there is none.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset(self.log.first), self.max_offset_of(queue)

        def time_of(queue_offset: int) -> int:
            # An offset without a readable message has the time of the next message.
            while queue_offset < high:
                found = self._store_time(queue, queue_offset)
                if found is not None:
                    return found
                queue_offset += 1
            return 2**63 - 1

        wanted = time_ms if boundary is Boundary.LOWER else time_ms + 1
        at = low + bisect_left(range(low, high), wanted, key=time_of)
        return at if boundary is Boundary.LOWER else max(at - 1, low)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The store time of a message; None if it does not exist."""
        queue = self.queues.get(topic, queue_id)
        return self._store_time(queue, queue_offset) if queue else None

    def _store_time(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        entry = queue.entry(queue_offset)
        if (
            entry is None
            or entry[1] == BLANK_SIZE
            or entry[0] + entry[1] > self.confirmed_log_offset
        ):
            return None
        fields = self.log.decode(entry[0], check_crc=False)
        return fields[commit_log.STORE_TIME] if fields else None

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """The store time of the oldest message of a queue."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def earliest_log_time(self) -> int | None:
        """The store time of the oldest message of the log."""
        first = self.log.first
        fields = self.log.decode(first, check_crc=False)
        if fields is None or first + fields[commit_log.SIZE] > self.confirmed_log_offset:
            return None
        return fields[commit_log.STORE_TIME]

    # -- by key ---------------------------------------------------------------------------------

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int
    ) -> list[memoryview]:
        """Records of a topic with a key or unique key, stored in a range of time, oldest first.

        If there are more than `max_count` the newest are returned.
        """
        limit = min(max_count, self.config.max_msgs_num_batch)
        found: dict[int, memoryview] = {}
        examined: set[int] = set()
        wanted = limit * _QUERY_FACTOR
        while True:
            log_offsets = self.index.find(topic, key, begin_ms, end_ms, wanted)
            for log_offset in log_offsets:
                if len(found) >= limit:
                    break
                if log_offset in examined:
                    continue
                examined.add(log_offset)
                record = self._record_with(log_offset, topic, key, begin_ms, end_ms)
                if record is not None:
                    found[log_offset] = record
            if len(found) >= limit or len(log_offsets) < wanted or wanted >= _QUERY_OFFSETS_MAX:
                break
            # Most of them only had the same hash or the same second.
            wanted *= _QUERY_FACTOR
        return [found[log_offset] for log_offset in sorted(found)]

    def _record_with(
        self, log_offset: int, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> memoryview | None:
        """The record of an index item, if it has the topic, key and time of the query."""
        fields = self.log.decode(log_offset)
        if fields is None or fields[commit_log.TOPIC] != topic:
            return None
        if log_offset + fields[commit_log.SIZE] > self.confirmed_log_offset:
            return None
        if not begin_ms <= fields[commit_log.STORE_TIME] <= end_ms:
            return None
        named = fields[commit_log.PROPERTIES]
        keys = named.get(properties.KEYS, "").split(properties.KEY_SEPARATOR)
        if key not in keys and named.get(properties.UNIQUE_KEY) != key:
            return None
        return self.log.record(log_offset)


def _offset_after(queue: ConsumeQueue, log_offset: int) -> int:
    """The queue offset after the last message that lies wholly below a log offset."""

    def is_behind(queue_offset: int) -> bool:
        entry = queue.entry(queue_offset)
        return entry is not None and entry[1] != BLANK_SIZE and entry[0] + entry[1] > log_offset

    # Few messages lie behind it, so the search begins at the end.
    next_offset, step = queue.next_offset, 1
    while step < next_offset and is_behind(next_offset - step):
        step *= 2
    return bisect_left(range(next_offset), True, lo=max(next_offset - step, 0), key=is_behind)
