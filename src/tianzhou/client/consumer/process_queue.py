"""The state of one consumed queue: messages in flight, progress, when to pull again.

    pulled ──put──> waiting ──(handler)──> finished        progress: lowest unfinished message

`progress` is the offset to commit: everything below it is done, and a consumer that restarts there
repeats the messages in flight and loses none.

* `ConcurrentQueue` divides pulled messages into batches that finish in any order. Its unit is the
  batch, so a message costs nothing here when batches are large.
* `OrderedQueue` returns messages in order, and puts failed ones back.

Sans-IO: no waits, locks or clocks; `now_ms` is a monotonic time. Use it on one event loop.
"""

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import islice

from tianzhou.client.message import ReceivedMessage

PULL_SILENCE_MS = 120_000
"""A queue that was not pulled for so long is released and claimed again."""
LOCK_LIFE_MS = 30_000
"""A lock that was not renewed for so long counts as lost."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Flow control: how many messages of one queue may be in flight."""

    message_count: int = 1000
    size_mib: int = 100
    span: int = 2000
    """Between the lowest and the highest offset; for concurrent consumption only."""


def limits_per_queue(
    limits: FlowLimits, topic_message_count: int, topic_size_mib: int, queue_count: int
) -> FlowLimits:
    """The limits of each of `queue_count` queues, if all together have limits too (-1: none)."""
    shared = max(queue_count, 1)
    count, size_mib = limits.message_count, limits.size_mib
    if topic_message_count != -1:
        count = max(1, topic_message_count // shared)
    if topic_size_mib != -1:
        size_mib = max(1, topic_size_mib // shared)
    return FlowLimits(count, size_mib, limits.span)


class ProcessQueue(ABC):
    """Common state: sizes, times, the lock, the next offset to pull."""

    __slots__ = (
        "dropped", "last_consume_ms", "last_lock_ms", "last_pull_ms", "locked", "max_offset",
        "message_count", "next_offset", "size_bytes",
    )  # fmt: skip

    def __init__(self, next_offset: int, now_ms: int) -> None:
        self.next_offset = next_offset
        """The offset of the next pull."""
        self.max_offset = -1
        """Highest offset ever pulled, -1 if there was none."""
        self.message_count = 0
        self.size_bytes = 0
        self.dropped = False
        """Released: no handler may be called, nothing committed."""
        self.locked = False
        self.last_pull_ms = self.last_consume_ms = self.last_lock_ms = now_ms

    @property
    @abstractmethod
    def progress(self) -> int:
        """The offset to commit: everything below it is done."""

    @property
    def span(self) -> int:
        return 0

    def full(self, limits: FlowLimits) -> str | None:
        """The exceeded limit, None if more may be pulled."""
        if self.message_count > limits.message_count:
            return (
                f"{self.message_count} messages are in flight, the limit is {limits.message_count}"
            )
        if self.size_bytes // _MIB > limits.size_mib:
            return f"{self.size_bytes // _MIB} MiB are in flight, the limit is {limits.size_mib}"
        if self.span > limits.span:
            return f"the messages in flight span {self.span} offsets, the limit is {limits.span}"
        return None

    def silent(self, now_ms: int) -> bool:
        """Whether the queue was not pulled for PULL_SILENCE_MS."""
        return now_ms - self.last_pull_ms > PULL_SILENCE_MS

    def lock_holds(self, now_ms: int) -> bool:
        """Whether the queue is locked, and the lock was renewed recently."""
        return self.locked and now_ms - self.last_lock_ms <= LOCK_LIFE_MS

    def set_lock(self, locked: bool, now_ms: int) -> None:
        self.locked = locked
        if locked:
            self.last_lock_ms = now_ms

    def _resize(self, count: int, size_bytes: int) -> None:
        self.message_count += count
        self.size_bytes += size_bytes


# -- in any order ----------------------------------------------------------------------------------


class Batch:
    """Messages that one handler call gets."""

    __slots__ = ("finished", "first_offset", "messages", "size_bytes", "started_ms")

    def __init__(self, messages: list[ReceivedMessage]) -> None:
        self.messages = messages
        """Those not finished yet."""
        self.first_offset = messages[0].queue_offset
        self.size_bytes = _size_of(messages)
        self.started_ms: int | None = None
        """When the handler was called, None before."""
        self.finished = False


class ConcurrentQueue(ProcessQueue):
    """Batches that may be finished in any order."""

    __slots__ = ("_batches",)

    def __init__(self, next_offset: int, now_ms: int) -> None:
        super().__init__(next_offset, now_ms)
        self._batches: deque[Batch] = deque()

    def put(self, messages: list[ReceivedMessage], batch_size: int) -> list[Batch]:
        """Add pulled messages, in ascending order; returns their batches."""
        if not messages:
            return []
        if len(messages) <= batch_size:
            batches = [Batch(messages)]
        else:
            batches = [
                Batch(messages[start : start + batch_size])
                for start in range(0, len(messages), batch_size)
            ]
        self._batches += batches
        self._resize(len(messages), sum([each.size_bytes for each in batches]))
        self.max_offset = messages[-1].queue_offset
        return batches

    @property
    def progress(self) -> int:
        """The offset to commit: of the lowest unfinished message, or the next one to pull."""
        return self._batches[0].first_offset if self._batches else self.next_offset

    @property
    def span(self) -> int:
        return self.max_offset - self._batches[0].first_offset if self._batches else 0

    def finish(self, batch: Batch, now_ms: int) -> None:
        """The batch was handled, sent back or dropped. Idempotent."""
        if batch.finished:
            return
        batch.finished = True
        self.last_consume_ms = now_ms
        self._resize(-len(batch.messages), -batch.size_bytes)
        while self._batches and self._batches[0].finished:
            self._batches.popleft()

    def retain(self, batch: Batch, rest: list[ReceivedMessage], now_ms: int) -> None:
        """Of a batch only `rest` is unfinished; an empty rest finishes it."""
        if batch.finished:
            return
        if not rest:
            self.finish(batch, now_ms)
            return
        size_bytes = _size_of(rest)
        self._resize(len(rest) - len(batch.messages), size_bytes - batch.size_bytes)
        batch.messages, batch.size_bytes, batch.started_ms = rest, size_bytes, None
        batch.first_offset = rest[0].queue_offset

    def overdue(self, now_ms: int, timeout_ms: int, limit: int = 16) -> list[Batch]:
        """The lowest batches, at most `limit`, whose handler has run for too long.

        Only those block the progress; the search ends at the first one that is in time.
        """
        found: list[Batch] = []
        for batch in islice(self._batches, limit):
            if batch.finished:
                continue
            if batch.started_ms is None or now_ms - batch.started_ms <= timeout_ms:
                break
            found.append(batch)
        return found


# -- in order --------------------------------------------------------------------------------------


class OrderedQueue(ProcessQueue):
    """Messages in order, one batch at a time, with rollback.

    `uncommitted` are messages that a handler got: usually one batch, more without auto_commit.
    """

    __slots__ = ("consuming", "uncommitted", "waiting")

    def __init__(self, next_offset: int, now_ms: int) -> None:
        super().__init__(next_offset, now_ms)
        self.waiting: deque[ReceivedMessage] = deque()
        self.uncommitted: list[ReceivedMessage] = []
        self.consuming = False
        """Whether a worker has the queue; there is one at a time."""

    def put(self, messages: list[ReceivedMessage]) -> None:
        """Add pulled messages, in ascending order."""
        if messages:
            self.waiting += messages
            self._resize(len(messages), _size_of(messages))
            self.max_offset = messages[-1].queue_offset

    @property
    def progress(self) -> int:
        """The offset to commit: of the lowest message that is not committed."""
        if self.uncommitted:
            return self.uncommitted[0].queue_offset
        return self.waiting[0].queue_offset if self.waiting else self.next_offset

    def next_messages(self, count_max: int, now_ms: int) -> list[ReceivedMessage]:
        """The next messages, in order; an empty list if there is none."""
        self.last_consume_ms = now_ms
        waiting = self.waiting
        batch = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self.uncommitted += batch
        return batch

    def commit(self) -> None:
        """All uncommitted messages are done."""
        self._resize(-len(self.uncommitted), -_size_of(self.uncommitted))
        self.uncommitted.clear()

    def roll_back(self) -> None:
        """Put all uncommitted messages back, in order."""
        self.waiting.extendleft(reversed(self.uncommitted))
        self.uncommitted.clear()

    def give_back(self, count: int, messages: list[ReceivedMessage]) -> None:
        """Of the last `count` uncommitted messages put these back; the others are done.

        They may be modified copies of the same size.
        """
        taken = self.uncommitted[len(self.uncommitted) - count :]
        del self.uncommitted[len(self.uncommitted) - count :]
        self._resize(len(messages) - len(taken), _size_of(messages) - _size_of(taken))
        self.waiting.extendleft(reversed(messages))


def _size_of(messages: list[ReceivedMessage]) -> int:
    return sum([each.size_bytes for each in messages])
