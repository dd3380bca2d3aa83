"""The timer at work: what was stored in its topic is indexed, what is due is delivered.

    the timer topic  --index-->  TimerIndex  --due-->  the real topic
                                     |
                                     +-- waited long: stored anew in the timer topic (rolled)

A delivered message leaves the index in the commit that follows its storing. What a killed broker
delivered after its last commit is found in the log at the next start
(`store/delivered_copies.py`) and leaves
the index then. If the log turns out to be shorter than the index knew
(a power cut), or the index is missing or RocketMQ had the store meanwhile, the index is made again
from the topic; `timercheck` tells what need not be delivered again.

A message that waits long is stored anew before the log file that holds it expires.
"""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.background.sqlite_file import remove
from tianzhou.broker.background.ticker import TICK_S
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import (
    Delivered,
    EnsureTopic,
    ignore_delivery,
    ignore_topic,
)
from tianzhou.broker.scheduled.timer_checkpoint import TimerCheckpoint, decode_checkpoint
from tianzhou.broker.scheduled.timer_index import TimerIndex
from tianzhou.broker.scheduled.timer_rules import Recall, Waiting
from tianzhou.broker.scheduled.timer_stats import DUE_COUNTED_MAX, RateMeter, TimerStats
from tianzhou.broker.storing.disk_prefetch import QueueRange, may_be_cold
from tianzhou.errors import RecordError, StoreError
from tianzhou.names import TIMER_TOPIC
from tianzhou.store.commit_log import PREPARED, QUEUE_OFFSET, TOPIC
from tianzhou.store.consume_queue import BLANK_SIZE, Entry
from tianzhou.store.delivered_copies import copied_from, mark, search_from
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

GATHER_MS = 10
"""New messages are indexed together after so long; none of them is late by more than this."""
_INDEXED_A_TIME = 16
_FIRED_A_TIME = 4
_ROLL_LOOK_MS = 60_000
_SKIPPED_LOGGED_MAX = 100


class Rolled(NamedTuple):
    """A message that was stored anew, and the row of the record that it replaces."""

    row: Waiting
    before: Waiting


class Timer:
    """The waiting messages of a broker."""

    def __init__(
        self,
        store: MessageStore,
        index_path: Path,
        check: tuple[TimerCheckpoint, bool] | None,
        roll_after_ms: Callable[[], int],
        step: CrashPoint = no_crash_point,
        ensure_topic: EnsureTopic = ignore_topic,
        delivered: Delivered = ignore_delivery,
    ) -> None:
        """`check` is what `timercheck` says. Raises StoreError."""
        self._store = store
        self._roll_after_ms = roll_after_ms
        self._step = step
        self._ensure_topic = ensure_topic
        self._delivered = delivered
        self._index_path = index_path
        self.index = TimerIndex.open(index_path)
        self.check = check[0] if check else TimerCheckpoint()
        """What may be saved as `timercheck`."""
        self._told = self.check
        """Of messages before this, those are delivered that were due then."""
        self._fired: list[Waiting] = []
        """Delivered, but for some reason still in the index."""
        self._next_roll_ms = 0
        self._skipped_count = 0
        self._indexed_count = self._fired_count = 0
        self._indexing, self._firing = RateMeter(), RateMeter()
        self.unsaved = False
        """Whether something happened since `progress` was asked last."""
        self._look_at_index(is_ours=check is None or check[1])

    def _look_at_index(self, *, is_ours: bool) -> None:
        store, index = self._store, self.index
        why = ""
        if not is_ours:
            why = "RocketMQ had the store"
        elif index.log_end > store.end_log_offset:
            why = f"the log ends at {store.end_log_offset}, it knew {index.log_end}"
        elif index.next_queue_offset > store.max_offset(TIMER_TOPIC, 0):
            why = "its topic is shorter than it knew"
        elif index.next_queue_offset == 0:
            why = "it is empty"
        if why:
            first = store.min_offset(TIMER_TOPIC, 0)
            if store.max_offset(TIMER_TOPIC, 0) > first:
                log.info("timer index: made again from the timer topic, for %s", why)
            index.clear(first)
            index.commit()
        self._forget_copied(anew=bool(why))

    def _forget_copied(self, *, anew: bool) -> None:
        """What the log says was delivered or stored anew after the last commit waits no more.

        If the index is made `anew` there are no rows yet; `_read` leaves out what was copied.
        """
        self._copied: set[int] = set()
        log_, index = self._store.log, self.index
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        oldest = queue.entry(self._store.min_offset(TIMER_TOPIC, 0)) if queue is not None else None
        due_ms = self._told.read_time_ms if anew else index.first_due_ms()
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

    # -- turns -------------------------------------------------------------------------------------

    def run_slice(self, now_ms: int) -> int | None:
        """Index what is new and deliver what is due, for a moment; answers when to come again.

        However busy the machine is, each turn gets some of it done.
        """
        try:
            return self._run_slice(now_ms, perf_counter() + TICK_S)
        except sqlite3.OperationalError as e:
            self.index.roll_back()
            raise StoreError(f"the timer index cannot be written: {e}") from e
        except sqlite3.DatabaseError as e:
            log.warning("timer index: damaged (%s), it is made again", e)
            self.index.abandon()
            remove(self._index_path)
            self.index = TimerIndex.open(self._index_path)
            self._fired = []
            self._told = self.check
            self._look_at_index(is_ours=True)
            return now_ms

    def _run_slice(self, now_ms: int, ends_s: float) -> int | None:
        self._indexing.look(now_ms, self._indexed_count)
        self._firing.look(now_ms, self._fired_count)
        if self._fired:
            self._forget_fired()
        is_behind = self._index_new(ends_s)
        if self._fire(now_ms, ends_s) or is_behind:
            return now_ms
        if now_ms >= self._next_roll_ms and self._roll(now_ms, ends_s):
            return now_ms
        first_ms = self.index.first_due_ms()
        return self._next_roll_ms if first_ms is None else min(first_ms, self._next_roll_ms)

    # -- indexing ----------------------------------------------------------------------------------

    def _index_new(self, ends_s: float) -> bool:
        """Whether there is more to index."""
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
            for entry in queue.entries(index.next_queue_offset, _INDEXED_A_TIME):
                one = self._read(index.next_queue_offset, entry)
                index.next_queue_offset += 1
                if isinstance(one, Waiting):
                    rows.append(one)
                elif one is not None:
                    # What it recalls or replaces may be among the rows before it.
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
        self._step("timer: before new messages are in the index")
        index.commit()
        self._indexed_count += index.next_queue_offset - began_at
        self._step("timer: new messages are in the index")
        return index.next_queue_offset < queue.next_offset

    def _read(self, queue_offset: int, entry: Entry) -> Waiting | Rolled | Recall | None:
        """What an entry of the topic is about; None if nothing follows from it."""
        if entry[1] == BLANK_SIZE:
            return None
        fields = self._store.log.decode(entry[0])
        try:
            if fields is None or fields[0] != TIMER_TOPIC:
                raise RecordError("no sound record lies where its queue says")  # noqa: TRY301 - one log line for both
            one = timer_rules.waiting(fields, queue_offset)
        except RecordError as e:
            self._skip(queue_offset, e)
            return None
        done = self._told
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

    def _fire(self, now_ms: int, ends_s: float) -> bool:
        """Whether there is more to deliver."""
        while True:
            rows = self.index.due(now_ms, _FIRED_A_TIME)
            if not rows:
                return False
            try:
                for row in rows:
                    self._deliver(row, now_ms)
                    self._fired.append(row)
            finally:
                # Also when the store refuses one of them: those before it are delivered.
                self._forget_fired()
            if perf_counter() > ends_s:
                return True

    def _deliver(self, row: Waiting, now_ms: int) -> None:
        fields = self._store.log.decode(row.log_offset, read_body=True)
        try:
            if fields is None or fields[0] != TIMER_TOPIC:
                raise RecordError("its record is not in the log any more")  # noqa: TRY301 - one log line for both
            draft = timer_rules.due(fields, now_ms)
            self._ensure_topic(draft.topic, draft.queue_id)
            self._step("timer: before a due message is stored")
            appended = self._store.append(draft)
        except RecordError as e:
            self._skip(row.queue_offset, e)
            return
        self._step("timer: a due message is stored")
        self._delivered(draft.topic, draft.queue_id, appended.size_bytes)

    def _forget_fired(self) -> None:
        if self._fired:
            self.unsaved = True
            self.index.remove(self._fired)
            self.index.log_end = self._store.end_log_offset
            self._step("timer: before delivered messages leave the index")
            self.index.commit()
            self._step("timer: delivered messages have left the index")
            self._fired_count += len(self._fired)
            self._fired = []

    # -- rolling -----------------------------------------------------------------------------------

    def _roll(self, now_ms: int, ends_s: float) -> bool:
        """Store anew what lies in old log files; whether there is something to do now."""
        roll_after_ms = max(self._roll_after_ms(), _ROLL_LOOK_MS)
        any_rolled = False
        while True:
            rows = self.index.oldest(_FIRED_A_TIME)
            rolled: list[Waiting] = []
            for row in rows:
                fields = self._store.log.decode(row.log_offset, read_body=True)
                if fields is None:
                    rolled.append(row)
                    self._skip(row.queue_offset, RecordError("its record is not in the log"))
                elif fields[10] + roll_after_ms > now_ms:
                    break
                else:
                    self._step("timer: before an old message is stored anew")
                    self._store.append(timer_rules.rolled(fields, row.due_ms))
                    self._step("timer: an old message is stored anew")
                    rolled.append(row)
            self.unsaved = self.unsaved or bool(rolled)
            self.index.remove(rolled)
            self.index.log_end = self._store.end_log_offset
            self.index.commit()
            self._step("timer: old messages have left the index")
            any_rolled = any_rolled or bool(rolled)
            if not rolled or len(rolled) < len(rows):
                self._next_roll_ms = now_ms + _ROLL_LOOK_MS
                return any_rolled
            if perf_counter() > ends_s:
                return True

    # -- what is certain ---------------------------------------------------------------------------

    def progress(self, now_ms: int) -> TimerCheckpoint:
        """What is true now, and certain once the log is on disk up to its present end."""
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
        )

    # -- for others --------------------------------------------------------------------------------

    def upcoming(self, until_ms: int, count: int) -> list[QueueRange]:
        """Messages that are due by then and may not be in memory, of the next so many."""
        return [
            QueueRange(TIMER_TOPIC, 0, range(row.queue_offset, row.queue_offset + 1))
            for row in self.index.due(until_ms, count)
            if may_be_cold(self._store, row.log_offset)
        ]

    def delivered_until_ms(self, now_ms: int) -> int:
        """Everything that was due before this is delivered."""
        until_ms = now_ms
        first_ms = self.index.first_due_ms()
        if first_ms is not None:
            until_ms = min(until_ms, first_ms)
        if self.index.next_queue_offset < self._store.max_offset(TIMER_TOPIC, 0):
            # Nothing is due before it is stored.
            stored_ms = self._store.store_time(TIMER_TOPIC, 0, self.index.next_queue_offset)
            until_ms = min(until_ms, 0 if stored_ms is None else stored_ms)
        return until_ms

    def stats(self, now_ms: int) -> TimerStats:
        """How it is doing."""
        first_ms = self.index.first_due_ms()
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        end = 0 if queue is None else queue.next_offset
        behind = max(end - self.index.next_queue_offset, 0)
        stored_ms = (
            self._store.store_time(TIMER_TOPIC, 0, self.index.next_queue_offset) if behind else None
        )
        return TimerStats(
            read_behind_ms=0 if first_ms is None else max(now_ms - first_ms, 0),
            offset_behind=behind,
            waiting_count=self.index.waiting_count,
            enqueue_rate=self._indexing.rate(now_ms, self._indexed_count),
            dequeue_rate=self._firing.rate(now_ms, self._fired_count),
            index_behind_ms=0 if stored_ms is None else max(now_ms - stored_ms, 0),
            due_count=self.index.due_count(now_ms, DUE_COUNTED_MAX),
            enqueued_count=self._indexed_count,
            dequeued_count=self._fired_count,
        )

    def close(self) -> None:
        """Nothing is delivered from here on."""
        self.index.close()


def load_checkpoint(path: Path) -> tuple[TimerCheckpoint, bool] | None:
    """What `timercheck` says, and whether we wrote it; None if there is none."""
    try:
        return decode_checkpoint(path.read_bytes())
    except FileNotFoundError:
        return None
