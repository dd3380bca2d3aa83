"""Delay levels: a message is stored in the queue of its level until it is due.

    sent with DELAY=3  ->  SCHEDULE_TOPIC_XXXX, queue 2; REAL_TOPIC and REAL_QID name its real queue
    due                ->  the real topic and queue, without DELAY

All messages of a level have the same delay, so each queue is in the order of delivery, and the
progress of a level is one queue offset. The offsets are saved in `delayOffset.json`, as by
RocketMQ, up to the deliveries that are on disk. Later deliveries are found in the log at the next
start (`store/delivered_copies.py`): after `kill -9` no message is delivered twice, after a power
cut only those whose copies were lost. The queue entry of a delayed message has its due time.
"""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import msgspec

from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.storing.disk_prefetch import QueueRange, may_be_cold
from tianzhou.broker.storing.redraft import redraft
from tianzhou.broker.tables.saver import convert_table, encode_body, unknown_keys
from tianzhou.broker.tables.versioned import next_version
from tianzhou.errors import RecordError, RequestError
from tianzhou.names import HALF_TOPIC, SCHEDULE_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.remoting.scheduler import SLICE_S
from tianzhou.store import delivered_copies
from tianzhou.store.commit_log import LOG_OFFSET, QUEUE_ID, QUEUE_OFFSET, TOPIC
from tianzhou.store.consume_queue import BLANK_SIZE, ConsumeQueue, Entry
from tianzhou.store.message_store import Draft, MessageStore

log = logging.getLogger(__name__)


class Hooks(NamedTuple):
    """What is called when the delay levels or the timer deliver a message."""

    crash_point: CrashPoint = no_crash_point
    ensure_topic: Callable[[str, int], None] = lambda _, __: None
    """Called with the topic and queue of each message before it is delivered there."""
    delivered: Callable[[str, int, int], None] = lambda _, __, ___: None
    """Called with the topic, the queue and the size of each delivered message."""


NO_HOOKS = Hooks()
_ENTRIES_PER_READ = 64
_ANY_DELAY_MS = 2**62
"""For a level that was removed from the settings: its entries' due times are not limited."""
_SKIPPED_LOGGED_MAX = 100
_COUNTED_TO = "countedToLogOffset"
"""A key of our own; RocketMQ drops it when it writes the file."""
_DELAY_PROPERTIES = (properties.DELAY_LEVEL, *properties.TIMER_REQUESTS)
_TIMER_PROPERTIES = (*properties.TIMER_REQUESTS, properties.TIMER_DEL_UNIQKEY)
"""Ignored if there is a delay level."""
_ADDED = frozenset((*_TIMER_PROPERTIES, properties.REAL_TOPIC, properties.REAL_QUEUE_ID))


# -- storing ---------------------------------------------------------------------------------------


def may_wait(draft: Draft) -> bool:
    """Whether a message can be delayed: halves and rolled-back messages are not delivered."""
    state = sysflag.transaction_state(draft.sys_flag)
    return state in (sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_COMMIT)


def level_of(props: dict[str, str]) -> int:
    """The delay level of a message; 0 if it has none. Raises RequestError."""
    text = props.get(properties.DELAY_LEVEL)
    if text is None:
        return 0
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, f"the delay level (DELAY) is {text[:80]!r}, not a number"
        )
    return int(text)


def delayed(draft: Draft, props: dict[str, str], level_count: int) -> Draft | None:
    """The draft for the schedule topic; None if it has no delay level.

    A level above the highest becomes the highest, in `props` as well.
    """
    level = level_of(props)
    if level <= 0 or draft.topic == SCHEDULE_TOPIC or not may_wait(draft):
        return None
    if not level_count:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "this broker has no delay levels (messageDelayLevel)"
        )
    level = min(level, level_count)
    if props.get(properties.DELAY_LEVEL) == str(level) and _ADDED.isdisjoint(props):
        # No property changes, so the new ones can be appended to the text.
        added = {properties.REAL_TOPIC: draft.topic, properties.REAL_QUEUE_ID: str(draft.queue_id)}
        text = _terminated(draft.properties_text) + properties.encode(added)
    else:
        stored = properties.decode(draft.properties_text)
        for name in _TIMER_PROPERTIES:
            stored.pop(name, None)
        stored[properties.DELAY_LEVEL] = props[properties.DELAY_LEVEL] = str(level)
        stored[properties.REAL_TOPIC] = draft.topic
        stored[properties.REAL_QUEUE_ID] = str(draft.queue_id)
        text = properties.encode(stored)
    return msgspec.structs.replace(
        draft,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties_text=text,
    )


def _terminated(text: str) -> str:
    """A text of properties to which others can be appended."""
    separator = properties.PROPERTY_SEPARATOR
    return text if not text or text[-1] == separator else text + separator


# -- delivering ------------------------------------------------------------------------------------


def due_time_ms(written_ms: int, now_ms: int, delay_ms: int) -> int:
    """When a message is due whose entry contains `written_ms`.

    If that is later than its level allows, the clock was set back or the level was shortened; then
    the message is due now, as in RocketMQ.
    """
    return now_ms if written_ms > now_ms + delay_ms else written_ms


def real_queue(props: dict[str, str]) -> tuple[str, int]:
    """The real topic and queue of a delayed message. Raises RecordError."""
    topic, text = props.get(properties.REAL_TOPIC), props.get(properties.REAL_QUEUE_ID, "")
    if not topic or topic == HALF_TOPIC or not (text.isascii() and text.isdecimal()):
        raise RecordError(f"REAL_TOPIC is {topic!r} and REAL_QID is {text!r}")
    return topic, int(text)


def due(fields: RecordFields) -> tuple[Draft, dict[str, str]]:
    """The message to deliver of a record that is due, and its properties.

    Raises RecordError.
    """
    props = dict(fields[2])
    topic, queue_id = real_queue(props)
    for name in _DELAY_PROPERTIES:
        props.pop(name, None)
    copied = delivered_copies.mark(fields[LOG_OFFSET])
    return redraft(fields, topic, queue_id, props, prepared_log_offset=copied), props


class DelayLevels:
    """The delay levels of a broker, and the progress of each."""

    def __init__(
        self,
        store: MessageStore,
        levels_ms: tuple[int, ...],
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._store = store
        self._levels_ms = levels_ms
        self._crash_point, self._ensure_topic, self._delivered = hooks
        self.offsets: dict[int, int] = {}
        """By level: the queue offset of the next message to deliver."""
        self.safe_offsets: dict[int, int] = {}
        """The same, up to the deliveries that are on disk."""
        self._counted_to = 0
        """Log offset before which every copy is counted in `safe_offsets`; 0 if unknown."""
        self._others: dict[str, object] = {}
        self.data_version = DataVersion()
        self._slice_count = 0
        self._skipped_count = 0

    def redirect(self, draft: Draft, props: dict[str, str]) -> Draft | None:
        """A `Redirect`."""
        instead = delayed(draft, props, len(self._levels_ms))
        if instead is not None:
            self._crash_point("delay: before the message waits")
        return instead

    # -- delivering --------------------------------------------------------------------------------

    def run_slice(self, now_ms: int, slice_s: float = SLICE_S) -> int | None:
        """Deliver due messages for about so long; returns when the next slice is needed."""
        ends_s = perf_counter() + slice_s
        # Levels that were removed from the settings may still have messages.
        queues = [*self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items()]
        next_slice_ms: int | None = None
        # Each slice begins with another level, so that a busy level does not starve the others.
        self._slice_count += 1
        first = self._slice_count % len(queues) if queues else 0
        for queue_id, queue in (*queues[first:], *queues[:first]):
            next_ms = self._deliver(queue_id + 1, queue, now_ms, ends_s)
            if next_ms is None:
                continue
            if next_ms <= now_ms:
                return next_ms
            next_slice_ms = next_ms if next_slice_ms is None else min(next_slice_ms, next_ms)
        return next_slice_ms

    def _deliver(self, level: int, queue: ConsumeQueue, now_ms: int, ends_s: float) -> int | None:
        """Deliver what is due of one level; returns when the next message is due, None if none."""
        is_known = level <= len(self._levels_ms)
        delay_ms = self._levels_ms[level - 1] if is_known else _ANY_DELAY_MS
        at = self._position(level, queue)
        while at < queue.next_offset:
            before = at
            for entry in queue.entries(at, _ENTRIES_PER_READ):
                is_blank = entry[1] == BLANK_SIZE
                due_ms = now_ms if is_blank else due_time_ms(entry[2], now_ms, delay_ms)
                if due_ms > now_ms:
                    return due_ms
                if not is_blank:
                    self._release(level, at, entry)
                at += 1
                self.offsets[level] = at
                if perf_counter() > ends_s:
                    return now_ms
            if at == before:  # The file of these entries expired meanwhile.
                at = self._position(level, queue)
                if at == before:
                    return now_ms + 1000
        return None

    def _position(self, level: int, queue: ConsumeQueue) -> int:
        """The next queue offset of a level, within what its queue still has."""
        at = self.offsets.get(level, 0)
        low, high = queue.min_offset(self._store.first_log_offset), queue.next_offset
        if low <= at <= high:
            return at
        if level in self.offsets or low > 0:
            log.warning(
                "delay level %d: is at %d, but its queue has %d to %d; continuing within it",
                level, at, low, high,
            )  # fmt: skip
        self.offsets[level] = min(max(at, low), high)
        return self.offsets[level]

    def _release(self, level: int, queue_offset: int, entry: Entry) -> None:
        fields = self._store.log.decode(entry[0], read_body=True)
        try:
            if fields is None or fields[0] != SCHEDULE_TOPIC:
                raise RecordError("the log has no valid record at the offset of its queue entry")  # noqa: TRY301 - one log line for both
            draft, props = due(fields)
            self._ensure_topic(draft.topic, draft.queue_id)
            self._crash_point("delay: before a due message is stored")
            appended = self._store.append(draft, props)
        except RecordError as e:
            self._skipped_count += 1
            if self._skipped_count <= _SKIPPED_LOGGED_MAX:
                log.warning(
                    "delay level %d: message %d cannot be delivered: %s", level, queue_offset, e
                )
            return
        self._crash_point("delay: a due message is stored")
        self._delivered(draft.topic, draft.queue_id, appended.size_bytes)

    def upcoming(self, until_ms: int, count: int) -> list[QueueRange]:
        """Up to `count` messages per level that are due by then and may not be cached."""
        ranges: list[QueueRange] = []
        for queue_id, queue in self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items():
            first = self.offsets.get(queue_id + 1, 0)
            stop = first
            for entry in queue.entries(first, count):
                if entry[2] > until_ms or not may_be_cold(self._store, entry[0]):
                    break
                stop += 1
            if stop > first:
                ranges.append(QueueRange(SCHEDULE_TOPIC, queue_id, range(first, stop)))
        return ranges

    def catch_up(self) -> int:
        """Advance over messages delivered after the last save, from the log; returns how many."""
        log_ = self._store.log
        queues = self._store.queues.by_topic.get(SCHEDULE_TOPIC, {})
        heads = [self._first_pending(queue_id, queue) for queue_id, queue in queues.items()]
        # Messages that were not due when the last one was stored were not delivered.
        due = [head for head in heads if head is not None and head[2] <= log_.last_store_time_ms]
        if not due:
            return 0
        first, first_due_ms = min(head[0] for head in due), min(head[2] for head in due)
        start = max(first, delivered_copies.search_from(log_, first_due_ms), self._counted_to)
        count = 0
        for log_offset in delivered_copies.copied_from(log_, start):
            fields = log_.decode(log_offset, check_crc=False) if log_offset >= first else None
            if fields is None or fields[TOPIC] != SCHEDULE_TOPIC:
                continue
            level, following = fields[QUEUE_ID] + 1, fields[QUEUE_OFFSET] + 1
            before = self.offsets.get(level, 0)
            if following > before:
                self.offsets[level] = following
                count += following - before
        return count

    def _first_pending(self, queue_id: int, queue: ConsumeQueue) -> Entry | None:
        """The queue entry of the first message of a level that is not delivered."""
        for at in range(self._position(queue_id + 1, queue), queue.next_offset):
            entry = queue.entry(at)
            if entry is not None and entry[1] != BLANK_SIZE:
                return entry
        return None

    # -- statistics --------------------------------------------------------------------------------

    def positions(self) -> dict[int, tuple[int, int]]:
        """Next queue offset and end of the queue, of each level that ever had a message."""
        queues = self._store.queues.by_topic.get(SCHEDULE_TOPIC, {})
        levels = {queue_id + 1 for queue_id in queues} | self.offsets.keys()
        return {
            level: (
                self.offsets.get(level, 0),
                self._store.with_unconfirmed.max_offset(SCHEDULE_TOPIC, level - 1),
            )
            for level in sorted(levels)
        }

    # -- on disk -----------------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """Whether a save would change the file."""
        return self.offsets != self.safe_offsets

    def flushed(self, offsets: dict[int, int], now_ms: int, log_offset: int = 0) -> None:
        """Every delivery before these offsets is on disk, so they may be saved.

        They were read when the log ended at `log_offset`.
        """
        self._counted_to = log_offset
        if offsets != self.safe_offsets:
            self.data_version = next_version(self.data_version, now_ms)
            self.safe_offsets = offsets

    def as_file(self) -> dict[str, object]:
        """The content of `delayOffset.json`, with unknown keys of other versions."""
        counted = {_COUNTED_TO: self._counted_to} if self._counted_to else {}
        return {
            **self._others,
            **counted,
            "dataVersion": encode_body(self.data_version),
            "offsetTable": {str(level): at for level, at in sorted(self.safe_offsets.items())},
        }

    def log_truncated(self, log_offset: int) -> None:
        """The log was cut there: copies behind it do not exist, which the progress may count."""
        self.offsets = dict(self.safe_offsets)
        if not self._counted_to or self._counted_to > log_offset:
            # The log has the copies of all messages that it has, so nothing else is needed.
            self.offsets, self._counted_to = {}, 0
        self.catch_up()
        self._counted_to = log_offset
        self.limit()

    def limit(self) -> None:
        """Claim nothing that the log lacks: a level cannot be further than its queue."""
        end_of = self._store.with_unconfirmed.max_offset
        self.offsets = {
            level: min(at, end_of(SCHEDULE_TOPIC, level - 1)) for level, at in self.offsets.items()
        }
        if self.offsets != self.safe_offsets:
            version = self.data_version
            self.data_version = next_version(version, version.timestamp)
            self.safe_offsets = dict(self.offsets)

    def load(self, content: dict[str, object]) -> None:
        """Load the content of a file. Raises BodyError; then nothing has changed."""
        what = "offsets of the delay levels"
        table = convert_table(content.get("offsetTable", {}), dict[int, int], what)
        version = convert_table(content.get("dataVersion") or {}, DataVersion, what)
        counted_to = convert_table(content.get(_COUNTED_TO) or 0, int, what)
        self.offsets, self.safe_offsets = table, dict(table)
        self.data_version, self._counted_to = version, counted_to
        self._others = unknown_keys(content, "offsetTable", "dataVersion", _COUNTED_TO)
