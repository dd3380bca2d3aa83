"""Reads the notes that RocketMQ left of popped messages (`pop_notes.py`), as the timer delivers."""

import logging
from collections.abc import Callable

from tianzhou.broker.pop.apache_checkpoints import (
    NOTES_GROUP,
    NOTES_TOPIC,
    CheckPoint,
    Notes,
    parse_checkpoint_record,
)
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.errors import BodyError
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_NOTES_A_LOOK = 64


class CheckpointReader:
    """The notes in a store."""

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetTable,
        cluster: str,
        timed_until_ms: Callable[[], int],
    ) -> None:
        """`timed_until_ms` tells until when all timed messages are delivered that were due."""
        self._store = store
        self._offsets = offsets
        self._topic = f"{NOTES_TOPIC}{cluster}"
        self._timed_until_ms = timed_until_ms
        self._queues: dict[int, Notes] = {}
        self._strange_count = 0

    def look(self, now_ms: int) -> tuple[list[CheckPoint], bool]:
        """Read some notes: pops whose time is up, and whether there is more to read."""
        is_more = False
        for queue_id in self._store.queues.by_topic.get(self._topic, ()):
            notes = self._queues.get(queue_id)
            if notes is None:
                notes = self._queues[queue_id] = Notes(self._first(queue_id))
            self._read(queue_id, notes)
            is_more = is_more or notes.next_offset < self._store.max_offset(self._topic, queue_id)
        if is_more or not any(map(len, self._queues.values())):
            return [], is_more
        # The acknowledgements of a check point are timed messages as well.
        until_ms = min(now_ms, self._timed_until_ms())
        return [each for notes in self._queues.values() for each in notes.take_due(until_ms)], False

    def _first(self, queue_id: int) -> int:
        """The first note that RocketMQ was not done with."""
        done = self._offsets.find(NOTES_GROUP, self._topic, queue_id)
        low = self._store.min_offset(self._topic, queue_id)
        high = self._store.max_offset(self._topic, queue_id)
        first = low if done == NOT_FOUND else min(max(done + 1, low), high)
        if first < high:
            log.info(
                "topic %s queue %d: %d notes of popped messages are left by RocketMQ, reading them",
                self._topic, queue_id, high - first,
            )  # fmt: skip
        return first

    def _read(self, queue_id: int, notes: Notes) -> None:
        end = self._store.max_offset(self._topic, queue_id)
        if notes.next_offset >= end:
            return
        read = self._store.read(self._topic, queue_id, notes.next_offset, _NOTES_A_LOOK)
        for record in read.records:
            message = decode_record(record, check_crc=False)
            try:
                note = parse_checkpoint_record(message.tags or "", message.body)
            except BodyError as e:
                self._strange_count += 1
                if self._strange_count == 1:
                    log.warning(
                        "topic %s queue %d: note %d cannot be read: %s",
                        self._topic, queue_id, message.queue_offset, e,
                    )  # fmt: skip
                continue
            if note is not None:
                notes.add(message.queue_offset, note)
        notes.next_offset = min(max(read.next_offset, notes.next_offset + 1), end)

    def commit(self) -> None:
        """What `look` named is noted elsewhere now and need not be read again."""
        for queue_id, notes in self._queues.items():
            done = notes.done_offset
            if done > self._offsets.find(NOTES_GROUP, self._topic, queue_id):
                self._offsets.commit(NOTES_GROUP, self._topic, queue_id, done, always=True)

    def start_over(self) -> None:
        """What `look` named could not be noted; read it again from what was committed."""
        self._queues.clear()
