"""The timer: indexes the messages of its topic and delivers those that are due.

    the timer topic  --index-->  TimerIndex  --due-->  the real topic
                                     |
                                     +-- pending long: stored again in the timer topic (rolled)

A delivered message is removed from the index in the commit after its append. What a killed broker
delivered after its last commit is found in the log at the next start (`store/delivered_copies.py`).
If the log is shorter than the index expects (a power cut), if the index is missing, or if RocketMQ
has used the store, the index is rebuilt from the topic; `timercheck` says what was delivered.

A message that is pending for long is stored again before its log file expires.
"""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from tianzhou.broker.background.sqlite_file import remove
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import NO_HOOKS, Hooks
from tianzhou.broker.scheduled.timer_checkpoint import TimerCheckpoint, decode_checkpoint
from tianzhou.broker.scheduled.timer_index import TimerIndex
from tianzhou.broker.scheduled.timer_rules import Recall, Waiting
from tianzhou.broker.scheduled.timer_stats import DUE_COUNTED_MAX, RateMeter, TimerStats
from tianzhou.broker.storing.disk_prefetch import QueueRange, may_be_cold
from tianzhou.errors import RecordError, StoreError
from tianzhou.names import TIMER_TOPIC
from tianzhou.remoting.scheduler import SLICE_S
from tianzhou.store.commit_log import PREPARED, QUEUE_OFFSET, TOPIC
from tianzhou.store.consume_queue import BLANK_SIZE, Entry
from tianzhou.store.delivered_copies import copied_from, mark, search_from
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

GATHER_MS = 10
"""New messages are indexed together after this time; it bounds their lateness."""
_SLICE_S_MIN = 0.0005
"""Also while clients send: each slice ends with a commit of the index, which takes a while."""
_INDEX_BATCH = 16
_DELIVER_BATCH = 4
_ROLL_INTERVAL_MS = 60_000
_SKIPPED_LOGGED_MAX = 100


class Rolled(NamedTuple):
    """A message that was stored again, and the row of the record that it replaces."""

    row: Waiting
    before: Waiting


class Timer:
    """The timed messages of a broker."""

    def __init__(
        self,
        store: MessageStore,
        index_path: Path,
        check: tuple[TimerCheckpoint, bool] | None,
        roll_after_ms: Callable[[], int],
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        """`check` is the content of `timercheck`. Raises StoreError."""
        self._store = store
        self._roll_after_ms = roll_after_ms
        self._crash_point, self._ensure_topic, self._delivered = hooks
        self._index_path = index_path
        self.index = TimerIndex.open(index_path)
        self.check = check[0] if check else TimerCheckpoint()
        """The progress to save as `timercheck`."""
        self._loaded_check = self.check
        """The progress that was loaded: messages that were due then are delivered."""
        self._undropped: list[Waiting] = []
        """Delivered, but still in the index."""
        self._next_roll_ms = 0
        self._skipped_count = 0
        self._indexed_count = self._delivered_count = 0
        self._index_rate, self._delivery_rate = RateMeter(), RateMeter()
        self.unsaved = False
        """Whether anything changed since the last call of `progress`."""
        self._check_index(is_ours=check is None or check[1])

    def _check_index(self, *, is_ours: bool) -> None:
        store, index = self._store, self.index
        why = ""
        if not is_ours:
            why = "RocketMQ has used the store"
        elif index.log_end > store.end_log_offset:
            why = f"the log ends at {store.end_log_offset}, the index expects {index.log_end}"
        elif index.next_queue_offset > store.with_unconfirmed.max_offset(TIMER_TOPIC, 0):
            why = "the timer topic is shorter than the index expects"
        elif index.next_queue_offset == 0:
            why = "it is empty"
        if why:
            first = store.min_offset(TIMER_TOPIC, 0)
            if store.with_unconfirmed.max_offset(TIMER_TOPIC, 0) > first:
                log.info("timer index: rebuilt from the timer topic: %s", why)
            index.clear(first)
            index.commit()
        self._drop_copied(rebuilt=bool(why))

    def _drop_copied(self, *, rebuilt: bool) -> None:
        """Remove messages that were delivered or rolled after the last commit, by the log.

        A `rebuilt` index has no rows yet; `_read` leaves out what was copied.
        """
        self._copied: set[int] = set()
        log_, index = self._store.log, self.index
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        oldest = queue.entry(self._store.min_offset(TIMER_TOPIC, 0)) if queue is not None else None
        due_ms = self._loaded_check.read_time_ms if rebuilt else index.first_due_ms()
        if oldest is None or due_ms is None or due_ms > log_.last_store_time_ms:
            return
        start = max(oldest[0], index.log_end, search_from(log_, due_ms))
        rows = [row for row in map(self._waiting_at, copied_from(log_, start)) if row is not None]
        self._copied.update(row.log_offset for row in rows)
        before = index.waiting_count
        index.remove(rows)
        index.commit()
        if index.waiting_count < before:
            count = before - index.waiting_count
            log.info("timer: %d messages were delivered after the last commit", count)

    def _waiting_at(self, log_offset: int) -> Waiting | None:
        fields = self._store.log.decode(log_offset, check_crc=False)
        if fields is None or fields[TOPIC] != TIMER_TOPIC:
            return None
        try:
            one = timer_rules.waiting(fields, fields[QUEUE_OFFSET])
        except RecordError:
            return None
        return one if isinstance(one, Waiting) else None

    # -- slices ------------------------------------------------------------------------------------

    def run_slice(self, now_ms: int, slice_s: float = SLICE_S) -> int | None:
        """Index new and deliver due messages for about so long; returns when the next is needed.

        Each slice makes some progress, however busy the machine is.
        """
        try:
            return self._run_slice(now_ms, perf_counter() + max(slice_s, _SLICE_S_MIN))
        except sqlite3.OperationalError as e:
            self.index.roll_back()
            raise StoreError(f"the timer index cannot be written: {e}") from e
        except sqlite3.DatabaseError as e:
            log.warning("timer index: damaged (%s), rebuilding it", e)
            self.index.abandon()
            remove(self._index_path)
            self.index = TimerIndex.open(self._index_path)
            self._undropped = []
            self._loaded_check = self.check
            self._check_index(is_ours=True)
            return now_ms

    def _run_slice(self, now_ms: int, ends_s: float) -> int | None:
        self._index_rate.sample(now_ms, self._indexed_count)
        self._delivery_rate.sample(now_ms, self._delivered_count)
        if self._undropped:
            self._drop_delivered()
        is_behind = self._index_new(ends_s)
        if self._deliver_due(now_ms, ends_s) or is_behind:
            return now_ms
        if now_ms >= self._next_roll_ms and self._roll(now_ms, ends_s):
            return now_ms
        first_ms = self.index.first_due_ms()
        return self._next_roll_ms if first_ms is None else min(first_ms, self._next_roll_ms)

    # -- indexing ----------------------------------------------------------------------------------

    def _index_new(self, ends_s: float) -> bool:
        """Index new messages; returns whether there are more."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None or self.index.next_queue_offset >= queue.next_offset:
            return False
        index = self.index
        self.unsaved = True
        low = queue.min_offset(self._store.first_log_offset)
        if index.next_queue_offset < low:
            log.warning(
                "timer: messages %d to %d expired before they were indexed",
                index.next_queue_offset, low - 1,
            )  # fmt: skip
            index.next_queue_offset = low
        began_at = index.next_queue_offset
        while index.next_queue_offset < queue.next_offset:
            rows: list[Waiting] = []
            for entry in queue.entries(index.next_queue_offset, _INDEX_BATCH):
                one = self._read(index.next_queue_offset, entry)
                index.next_queue_offset += 1
                if isinstance(one, Waiting):
                    rows.append(one)
                elif one is not None:
                    # The message that it recalls or replaces may be among the rows before it.
                    index.add(rows)
                    rows = []
                    if isinstance(one, Recall):
                        index.recall(one)
                    else:
                        index.remove([one.before])
                        rows.append(one.row)
            index.add(rows)
            if perf_counter() > ends_s:
                break
        index.log_end = self._store.end_log_offset
        self._crash_point("timer: before new messages are in the index")
        index.commit()
        self._indexed_count += index.next_queue_offset - began_at
        self._crash_point("timer: new messages are in the index")
        return index.next_queue_offset < queue.next_offset

    def _read(self, queue_offset: int, entry: Entry) -> Waiting | Rolled | Recall | None:
        """Decode an entry of the topic; None if it needs no row."""
        if entry[1] == BLANK_SIZE:
            return None
        fields = self._store.log.decode(entry[0])
        try:
            if fields is None or fields[0] != TIMER_TOPIC:
                raise RecordError("the log has no valid record at the offset of its queue entry")  # noqa: TRY301 - one log line for both
            one = timer_rules.waiting(fields, queue_offset)
        except RecordError as e:
            self._skip(queue_offset, e)
            return None
        done = self._loaded_check
        if isinstance(one, Waiting) and (
            one.log_offset in self._copied
            or (queue_offset < done.queue_offset and one.due_ms <= done.read_time_ms)
        ):
            return None
        before = self._waiting_at(mark(fields[PREPARED])) if fields[PREPARED] < 0 else None
        return one if isinstance(one, Recall) or before is None else Rolled(one, before)

    def _skip(self, queue_offset: int, why: RecordError) -> None:
        self._skipped_count += 1
        if self._skipped_count <= _SKIPPED_LOGGED_MAX:
            log.warning("timer: message %d cannot be delivered: %s", queue_offset, why)

    # -- delivering --------------------------------------------------------------------------------

    def _deliver_due(self, now_ms: int, ends_s: float) -> bool:
        """Deliver due messages; returns whether there are more."""
        while True:
            rows = self.index.due(now_ms, _DELIVER_BATCH)
            if not rows:
                return False
            try:
                for row in rows:
                    self._deliver(row, now_ms)
                    self._undropped.append(row)
            finally:
                # Also if the store refuses one: those before it are delivered.
                self._drop_delivered()
            if perf_counter() > ends_s:
                return True

    def _deliver(self, row: Waiting, now_ms: int) -> None:
        fields = self._store.log.decode(row.log_offset, read_body=True)
        try:
            if fields is None or fields[0] != TIMER_TOPIC:
                raise RecordError("its record is no longer in the log")  # noqa: TRY301 - one log line for both
            draft = timer_rules.due(fields, now_ms)
            self._ensure_topic(draft.topic, draft.queue_id)
            self._crash_point("timer: before a due message is stored")
            appended = self._store.append(draft)
        except RecordError as e:
            self._skip(row.queue_offset, e)
            return
        self._crash_point("timer: a due message is stored")
        self._delivered(draft.topic, draft.queue_id, appended.size_bytes)

    def _drop_delivered(self) -> None:
        if self._undropped:
            self.unsaved = True
            self.index.remove(self._undropped)
            self.index.log_end = self._store.end_log_offset
            self._crash_point("timer: before delivered messages leave the index")
            self.index.commit()
            self._crash_point("timer: delivered messages have left the index")
            self._delivered_count += len(self._undropped)
            self._undropped = []

    # -- rolling -----------------------------------------------------------------------------------

    def _roll(self, now_ms: int, ends_s: float) -> bool:
        """Store messages of old log files again; returns whether any were stored or are left."""
        roll_after_ms = max(self._roll_after_ms(), _ROLL_INTERVAL_MS)
        any_rolled = False
        while True:
            rows = self.index.oldest(_DELIVER_BATCH)
            rolled: list[Waiting] = []
            for row in rows:
                fields = self._store.log.decode(row.log_offset, read_body=True)
                if fields is None:
                    rolled.append(row)
                    self._skip(row.queue_offset, RecordError("its record is not in the log"))
                elif fields[10] + roll_after_ms > now_ms:
                    break
                else:
                    self._crash_point("timer: before an old message is stored again")
                    self._store.append(timer_rules.rolled(fields, row.due_ms))
                    self._crash_point("timer: an old message is stored again")
                    rolled.append(row)
            self.unsaved = self.unsaved or bool(rolled)
            self.index.remove(rolled)
            self.index.log_end = self._store.end_log_offset
            self.index.commit()
            self._crash_point("timer: old messages have left the index")
            any_rolled = any_rolled or bool(rolled)
            if not rolled or len(rolled) < len(rows):
                self._next_roll_ms = now_ms + _ROLL_INTERVAL_MS
                return any_rolled
            if perf_counter() > ends_s:
                return True

    # -- progress ----------------------------------------------------------------------------------

    def progress(self, now_ms: int) -> TimerCheckpoint:
        """The current progress; it may be saved once the log is on disk up to its current end."""
        self.unsaved = False
        first_ms = self.index.first_due_ms()
        behind = first_ms is not None and first_ms <= now_ms
        oldest = self.index.oldest(1)
        next_offset = self.index.next_queue_offset
        return TimerCheckpoint(
            read_time_ms=first_ms - 1 if behind and first_ms is not None else now_ms,
            queue_offset=next_offset,
            first_waiting=oldest[0].queue_offset if oldest else next_offset,
            changed_ms=now_ms,
            log_end=self._store.end_log_offset,
        )

    def log_truncated(self, log_offset: int) -> None:
        """The log was cut there: deliveries behind it do not exist, which the progress may count.

        The index is empty, durably, and rebuilt at the next start, or by `reload`.
        """
        if not self.check.log_end or self.check.log_end > log_offset:
            # The log has the copies of all messages that it has, so nothing else is needed.
            self.check = TimerCheckpoint()
        self.limit()
        self._undropped = []
        self.index.clear_durably()

    def limit(self) -> None:
        """Claim nothing that the log lacks: the progress cannot be further than the topic."""
        end = self._store.with_unconfirmed.max_offset(TIMER_TOPIC, 0)
        self.check = self.check._replace(
            queue_offset=min(self.check.queue_offset, end),
            first_waiting=min(self.check.first_waiting, end),
        )

    def reload(self) -> None:
        """Build the index again, by the present progress, where it does not fit the log."""
        self._loaded_check = self.check
        self._check_index(is_ours=True)

    def replace_check(self, check: TimerCheckpoint) -> None:
        """Use the progress of another broker; the index is rebuilt at the next start.

        It is of a time when this broker was the master itself, and what it has may be delivered.
        """
        self.check = check
        if self.index.next_queue_offset or self.index.waiting_count:
            self.index.clear(0)
            self.index.commit()

    # -- queries -----------------------------------------------------------------------------------

    def upcoming(self, until_ms: int, count: int) -> list[QueueRange]:
        """Those of the next `count` messages that are due by then and may not be cached."""
        return [
            QueueRange(TIMER_TOPIC, 0, range(row.queue_offset, row.queue_offset + 1))
            for row in self.index.due(until_ms, count)
            if may_be_cold(self._store, row.log_offset)
        ]

    def delivered_until_ms(self, now_ms: int) -> int:
        """The time before which every due message is delivered."""
        until_ms = now_ms
        first_ms = self.index.first_due_ms()
        if first_ms is not None:
            until_ms = min(until_ms, first_ms)
        next_offset, stored = self.index.next_queue_offset, self._store.with_unconfirmed
        if next_offset < stored.max_offset(TIMER_TOPIC, 0):
            # A message is never due before it is stored.
            stored_ms = stored.store_time(TIMER_TOPIC, 0, next_offset)
            until_ms = min(until_ms, 0 if stored_ms is None else stored_ms)
        return until_ms

    def stats(self, now_ms: int) -> TimerStats:
        """The statistics of the timer."""
        first_ms = self.index.first_due_ms()
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        end = 0 if queue is None else queue.next_offset
        behind = max(end - self.index.next_queue_offset, 0)
        stored = self._store.with_unconfirmed
        next_offset = self.index.next_queue_offset
        stored_ms = stored.store_time(TIMER_TOPIC, 0, next_offset) if behind else None
        return TimerStats(
            read_behind_ms=0 if first_ms is None else max(now_ms - first_ms, 0),
            offset_behind=behind,
            waiting_count=self.index.waiting_count,
            enqueue_rate=self._index_rate.rate(now_ms, self._indexed_count),
            dequeue_rate=self._delivery_rate.rate(now_ms, self._delivered_count),
            index_behind_ms=0 if stored_ms is None else max(now_ms - stored_ms, 0),
            due_count=self.index.due_count(now_ms, DUE_COUNTED_MAX),
            enqueued_count=self._indexed_count,
            dequeued_count=self._delivered_count,
        )

    def close(self) -> None:
        """Stop delivering and close the index."""
        self.index.close()


def load_checkpoint(path: Path) -> tuple[TimerCheckpoint, bool] | None:
    """The content of `timercheck`, and whether this program wrote it; None without a file."""
    try:
        return decode_checkpoint(path.read_bytes())
    except FileNotFoundError:
        return None
