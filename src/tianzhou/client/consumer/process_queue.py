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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

PULL_SILENCE_MS = 120_000
"""A queue that was not pulled for so long is released and claimed again."""
LOCK_LIFE_MS = 30_000
"""A lock that was not renewed for so long counts as lost."""

_MIB = 1024 * 1024


class Held(Protocol):
    """The attributes of a message that a process queue uses."""

    @property
    def queue_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


M = TypeVar("M", bound=Held)


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

    def _add_size(self, messages: Sequence[Held]) -> None:
        self.message_count += len(messages)
        self.size_bytes += sum([each.size_bytes for each in messages])
        self.max_offset = messages[-1].queue_offset

    def _remove_size(self, count: int, size_bytes: int) -> None:
        self.message_count -= count
        self.size_bytes -= size_bytes


# -- in any order ----------------------------------------------------------------------------------


class Batch(Generic[M]):
    """Messages that one handler call gets."""

    __slots__ = ("finished", "first_offset", "messages", "size_bytes", "started_ms")

    def __init__(self, messages: list[M]) -> None:
        self.messages = messages
        """Those not finished yet."""
        self.first_offset = messages[0].queue_offset
        self.size_bytes = sum([each.size_bytes for each in messages])
        self.started_ms: int | None = None
        """When the handler was called, None before."""
        self.finished = False


class ConcurrentQueue(ProcessQueue, Generic[M]):
    """Batches that may be finished in any order."""

    __slots__ = ("_batches",)

    def __init__(self, next_offset: int, now_ms: int) -> None:
        super().__init__(next_offset, now_ms)
        self._batches: deque[Batch[M]] = deque()

    def put(self, messages: list[M], batch_size: int) -> list[Batch[M]]:
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
        self.message_count += len(messages)
        self.size_bytes += sum([each.size_bytes for each in batches])
        self.max_offset = messages[-1].queue_offset
        return batches

    @property
    def progress(self) -> int:
        """The offset to commit: of the lowest unfinished message, or the next one to pull."""
        return self._batches[0].first_offset if self._batches else self.next_offset

    @property
    def min_offset(self) -> int:
        """The lowest offset in flight, -1 if there is none."""
        return self._batches[0].first_offset if self._batches else -1

    @property
    def span(self) -> int:
        return self.max_offset - self._batches[0].first_offset if self._batches else 0

    def finish(self, batch: Batch[M], now_ms: int) -> None:
        """The batch was handled, sent back or dropped. Idempotent."""
        if batch.finished:
            return
        batch.finished = True
        self.last_consume_ms = now_ms
        self._remove_size(len(batch.messages), batch.size_bytes)
        while self._batches and self._batches[0].finished:
            self._batches.popleft()

    def retain(self, batch: Batch[M], rest: list[M], now_ms: int) -> None:
        """Of a batch only `rest` is unfinished; an empty rest finishes it."""
        if batch.finished:
            return
        if not rest:
            self.finish(batch, now_ms)
            return
        size_bytes = sum([each.size_bytes for each in rest])
        self._remove_size(len(batch.messages) - len(rest), batch.size_bytes - size_bytes)
        batch.messages, batch.size_bytes, batch.started_ms = rest, size_bytes, None
        batch.first_offset = rest[0].queue_offset

    def overdue(self, now_ms: int, timeout_ms: int, limit: int = 16) -> list[Batch[M]]:
        """The lowest batches, at most `limit`, whose handler has run for too long.

        Only those block the progress; the search ends at the first one that is in time.
        """
        found: list[Batch[M]] = []
        for batch in islice(self._batches, limit):
            if batch.finished:
                continue
            if batch.started_ms is None or now_ms - batch.started_ms <= timeout_ms:
                break
            found.append(batch)
        return found

    def clear(self) -> None:
        """Remove all messages; batches in flight count as finished."""
        for batch in self._batches:
            batch.finished = True
        self._batches.clear()
        self.message_count = self.size_bytes = 0


# -- in order --------------------------------------------------------------------------------------


class OrderedQueue(ProcessQueue, Generic[M]):
    """Messages in order, one batch at a time, with rollback.

    `taken` are messages that a handler got and that are not committed: usually one batch, more
    without auto_commit.
    """

    __slots__ = ("_taken", "_waiting", "consuming")

    def __init__(self, next_offset: int, now_ms: int) -> None:
        super().__init__(next_offset, now_ms)
        self._waiting: deque[M] = deque()
        self._taken: list[M] = []
        self.consuming = False
        """Whether a worker has the queue; there is one at a time."""

    def put(self, messages: list[M]) -> None:
        """Add pulled messages, in ascending order."""
        if messages:
            self._waiting += messages
            self._add_size(messages)

    @property
    def progress(self) -> int:
        """The offset to commit: of the lowest message that is not committed."""
        if self._taken:
            return self._taken[0].queue_offset
        return self._waiting[0].queue_offset if self._waiting else self.next_offset

    @property
    def min_offset(self) -> int:
        return self.progress if self.message_count else -1

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def taken(self) -> Sequence[M]:
        return self._taken

    def take(self, count_max: int, now_ms: int) -> list[M]:
        """The next messages, in order; an empty list if there is none."""
        self.last_consume_ms = now_ms
        waiting = self._waiting
        batch = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self._taken += batch
        return batch

    def commit(self) -> None:
        """All taken messages are done."""
        self._remove_size(len(self._taken), sum([each.size_bytes for each in self._taken]))
        self._taken.clear()

    def roll_back(self) -> None:
        """Put all taken messages back, in order."""
        self._waiting.extendleft(reversed(self._taken))
        self._taken.clear()

    def give_back(self, count: int, messages: list[M]) -> None:
        """Of the last `count` taken messages put these back; the others are done.

        They may be modified copies of the same size.
        """
        taken = self._taken[len(self._taken) - count :]
        del self._taken[len(self._taken) - count :]
        self._remove_size(
            len(taken) - len(messages),
            sum([each.size_bytes for each in taken]) - sum([each.size_bytes for each in messages]),
        )
        self._waiting.extendleft(reversed(messages))

    def clear(self) -> None:
        """Remove all messages."""
        self._waiting.clear()
        self._taken.clear()
        self.message_count = self.size_bytes = 0
