"""Reads the pop checkpoints of RocketMQ 5.x, for a store that RocketMQ has written.

    ck      a checkpoint: a group popped these messages, which are invisible until its time is up
    ack     acknowledges one of them
    bAck    acknowledges several

RocketMQ stores these records as timed messages, checkpoints until a second before their time is up
and acknowledgements until then; the timer delivers them to the revive topic, where they are read
here. A checkpoint whose time is up, and whose acknowledgements must have been delivered, names the
messages that were not acknowledged; `reviver` then makes them visible again.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tianzhou.broker.pop.inflight import InFlight, Key
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.errors import BodyError
from tianzhou.names import SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX
from tianzhou.protocol import fastjson
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

REVIVE_TOPIC_PREFIX = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
"""The name of the cluster follows."""
REVIVE_GROUP = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""The group whose offsets are the progress in the revive topic."""
_CHECKPOINT, _ACK, _BATCH_ACK = "ck", "ack", "bAck"
_GRACE_MS = 3000
"""An acknowledgement is delivered when the time of its checkpoint is up, or a little later."""
_COUNT_MAX = 127
"""A checkpoint counts its messages in a byte, and its acknowledgements in bits."""
_READ_COUNT = 64


# -- records of the revive topic -------------------------------------------------------------------


class Popped(NamedTuple):
    """One pop of a group."""

    key: Key
    start_offset: int
    pop_time_ms: int


class Checkpoint(NamedTuple):
    """A pop, and those of its messages that are not acknowledged."""

    popped: Popped
    invisible_time_ms: int
    queue_offsets: tuple[int, ...]

    @property
    def visible_ms(self) -> int:
        return self.popped.pop_time_ms + self.invisible_time_ms

    def rows(self) -> list[InFlight]:
        """The messages as this broker's own pops record them."""
        pop_time_ms = self.popped.pop_time_ms
        return [InFlight(each, pop_time_ms, self.invisible_time_ms) for each in self.queue_offsets]


class Acks(NamedTuple):
    """Messages of a pop that are acknowledged."""

    popped: Popped
    queue_offsets: tuple[int, ...]


def parse_checkpoint_record(tag: str, body: bytes) -> Checkpoint | Acks | None:
    """Decode a message of the revive topic; None for an unknown tag. Raises BodyError."""
    if tag not in (_CHECKPOINT, _ACK, _BATCH_ACK):
        return None
    fields = fastjson.loads(body)
    if not fastjson.is_object(fields):
        raise BodyError("the checkpoint record is not a JSON object")
    popped = Popped(
        Key(
            _text(fields, "c", "consumerGroup"), _text(fields, "t", "topic"),
            _number(fields, "q", "queueId"),
        ),
        _number(fields, "so", "startOffset"), _number(fields, "pt", "popTime"),
    )  # fmt: skip
    if tag == _ACK:
        return Acks(popped, (_number(fields, "ao", "ackOffset"),))
    if tag == _BATCH_ACK:
        return Acks(popped, tuple(_numbers(fields, "aol", "ackOffsetList")))
    return Checkpoint(popped, _number(fields, "it"), tuple(_open_offsets(fields, popped)))


def _open_offsets(fields: dict[str, object], popped: Popped) -> Iterable[int]:
    """The messages of a checkpoint whose bits do not mark them as acknowledged."""
    count, bits = _number(fields, "n"), _number(fields, "bm")
    if not 0 <= count <= _COUNT_MAX:
        raise BodyError(f"a checkpoint has {count} messages, at most {_COUNT_MAX} are possible")
    # Checkpoints without distances, as in the first versions, have consecutive messages.
    distances = _numbers(fields, "d")[:count] or range(count)
    for at, distance in enumerate(distances):
        if not bits >> at & 1:
            yield popped.start_offset + distance


def _number(fields: dict[str, object], *names: str) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int):
            return value
    raise BodyError(f"the checkpoint record has no number {' or '.join(names)}")


def _numbers(fields: dict[str, object], *names: str) -> list[int]:
    for name in names:
        value = fields.get(name)
        if fastjson.is_array(value):
            return [each for each in value if isinstance(each, int)]
    return []


def _text(fields: dict[str, object], *names: str) -> str:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
    raise BodyError(f"the checkpoint record has no text {' or '.join(names)}")


# -- reading ---------------------------------------------------------------------------------------


class CheckpointQueue:
    """The pending checkpoints of one queue of the revive topic, as far as it is read."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """The next queue offset to read."""
        self._pending: dict[Popped, tuple[int, Checkpoint]] = {}
        """With the queue offset of their record."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def done_offset(self) -> int:
        """The last record that need not be read again, as RocketMQ counts; -1 if there is none."""
        # Records are read in order, but a checkpoint may be repeated with another time.
        first = min((at for at, _ in self._pending.values()), default=self.next_offset)
        return first - 1

    def add(self, queue_offset: int, record: Checkpoint | Acks) -> None:
        """Add the record at a queue offset."""
        known = self._pending.get(record.popped)
        if isinstance(record, Checkpoint):
            if known is None or known[1].visible_ms <= record.visible_ms:
                self._pending[record.popped] = (queue_offset, record)
        elif known is not None:
            at, checkpoint = known
            left = tuple(
                each for each in checkpoint.queue_offsets if each not in record.queue_offsets
            )
            self._pending[record.popped] = (at, checkpoint._replace(queue_offsets=left))

    def take_due(self, now_ms: int) -> list[Checkpoint]:
        """Remove and return those whose time is up, with what was not acknowledged."""
        due = [each for _, each in self._pending.values() if each.visible_ms + _GRACE_MS <= now_ms]
        for checkpoint in due:
            del self._pending[checkpoint.popped]
        return due


class CheckpointReader:
    """Reads the revive topic of a store."""

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetTable,
        cluster: str,
        timed_until_ms: Callable[[], int],
    ) -> None:
        """`timed_until_ms` returns the time before which every due timed message is delivered."""
        self._store = store
        self._offsets = offsets
        self._topic = f"{REVIVE_TOPIC_PREFIX}{cluster}"
        self._timed_until_ms = timed_until_ms
        self._queues: dict[int, CheckpointQueue] = {}
        self._unreadable_count = 0

    def poll(self, now_ms: int) -> tuple[list[Checkpoint], bool]:
        """Read some records; returns checkpoints whose time is up, and whether more can be read."""
        is_more = False
        for queue_id in self._store.queues.by_topic.get(self._topic, ()):
            queue = self._queues.get(queue_id)
            if queue is None:
                queue = self._queues[queue_id] = CheckpointQueue(self._first(queue_id))
            self._read(queue_id, queue)
            is_more = is_more or queue.next_offset < self._store.max_offset(self._topic, queue_id)
        if is_more or not any(map(len, self._queues.values())):
            return [], is_more
        # The acknowledgements of a checkpoint are timed messages as well.
        until_ms = min(now_ms, self._timed_until_ms())
        return [each for queue in self._queues.values() for each in queue.take_due(until_ms)], False

    def _first(self, queue_id: int) -> int:
        """The first record that RocketMQ had not processed."""
        done = self._offsets.find(REVIVE_GROUP, self._topic, queue_id)
        low = self._store.min_offset(self._topic, queue_id)
        high = self._store.max_offset(self._topic, queue_id)
        first = low if done == NOT_FOUND else min(max(done + 1, low), high)
        if first < high:
            log.info(
                "topic %s queue %d: reading %d pop checkpoint records that RocketMQ left",
                self._topic, queue_id, high - first,
            )  # fmt: skip
        return first

    def _read(self, queue_id: int, queue: CheckpointQueue) -> None:
        end = self._store.max_offset(self._topic, queue_id)
        if queue.next_offset >= end:
            return
        read = self._store.read(self._topic, queue_id, queue.next_offset, _READ_COUNT)
        for stored in read.records:
            message = decode_record(stored, check_crc=False)
            try:
                record = parse_checkpoint_record(message.tags or "", message.body)
            except BodyError as e:
                self._unreadable_count += 1
                if self._unreadable_count == 1:
                    log.warning(
                        "topic %s queue %d: checkpoint record %d cannot be read: %s",
                        self._topic, queue_id, message.queue_offset, e,
                    )  # fmt: skip
                continue
            if record is not None:
                queue.add(message.queue_offset, record)
        queue.next_offset = min(max(read.next_offset, queue.next_offset + 1), end)

    def commit(self) -> None:
        """The checkpoints that `poll` returned are stored elsewhere and need not be read again."""
        for queue_id, queue in self._queues.items():
            done = queue.done_offset
            if done > self._offsets.find(REVIVE_GROUP, self._topic, queue_id):
                self._offsets.commit(REVIVE_GROUP, self._topic, queue_id, done, always=True)

    def start_over(self) -> None:
        """The checkpoints that `poll` returned could not be stored: read from the commit again."""
        self._queues.clear()
