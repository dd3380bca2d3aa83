"""Delay levels: a message waits in the queue of its level and is then stored where it belongs.

    sent with DELAY=3  ->  SCHEDULE_TOPIC_XXXX, queue 2, REAL_TOPIC and REAL_QID remember its place
    due                ->  the real topic and queue, without DELAY

All messages of a level wait equally long, so each queue is in the order of delivery and a level
needs one number: how far it is. The numbers are kept in `delayOffset.json`, as RocketMQ keeps them,
and only what the disk has of the deliveries is saved there. What was delivered after that is found
in the log at the next start (`store/delivered_copies.py`): after `kill -9` no message is delivered
twice, and after a power cut only those whose copies the disk lost. The entry of a waiting message
says when it is due.
"""

import logging
from collections.abc import Callable
from time import perf_counter

import msgspec

from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.background.yielding import SLICE_S
from tianzhou.broker.storing.disk_prefetch import QueueRange, may_be_cold
from tianzhou.broker.storing.redraft import redraft
from tianzhou.broker.tables.saver import encode_body
from tianzhou.errors import BodyError, RecordError, RequestError
from tianzhou.names import HALF_TOPIC, SCHEDULE_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.store import delivered_copies
from tianzhou.store.commit_log import LOG_OFFSET, QUEUE_ID, QUEUE_OFFSET, TOPIC
from tianzhou.store.consume_queue import BLANK_SIZE, ConsumeQueue, Entry
from tianzhou.store.message_store import Draft, MessageStore

log = logging.getLogger(__name__)

EnsureTopic = Callable[[str, int], None]
"""Told of the topic and queue of each message before it is delivered there."""
Delivered = Callable[[str, int, int], None]
"""Told of the topic, the queue and the size of each message that is delivered."""

_ENTRIES_A_LOOK = 64
_ANY_DELAY_MS = 2**62
"""Of a level that is not in the settings any more: what its entries say is taken as it is."""
_SKIPPED_LOGGED_MAX = 100
_COUNTED_TO = "countedToLogOffset"
"""A key that RocketMQ does not know and leaves out when it writes the file."""
_ASKED = (properties.DELAY_LEVEL, *properties.TIMER_REQUESTS)
_BEATEN = (*properties.TIMER_REQUESTS, properties.TIMER_DEL_UNIQKEY)
"""What a delay level makes meaningless."""
_ADDED = frozenset((*_BEATEN, properties.REAL_TOPIC, properties.REAL_QUEUE_ID))


# -- storing ---------------------------------------------------------------------------------------


def may_wait(draft: Draft) -> bool:
    """Half messages and rolled back ones are not delivered at all, so they are not delayed."""
    state = sysflag.transaction_state(draft.sys_flag)
    return state in (sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_COMMIT)


def level_of(found: dict[str, str]) -> int:
    """The delay level of a message; 0 if it has none. Raises RequestError."""
    text = found.get(properties.DELAY_LEVEL)
    if text is None:
        return 0
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, f"the delay level (DELAY) is {text[:80]!r}, not a number"
        )
    return int(text)


def delayed(draft: Draft, found: dict[str, str], level_count: int) -> Draft | None:
    """The draft under the topic where it waits; None if it has no delay level.

    A level beyond the highest becomes that one, in `found` as well.
    """
    level = level_of(found)
    if level <= 0 or draft.topic == SCHEDULE_TOPIC or not may_wait(draft):
        return None
    if not level_count:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "this broker has no delay levels (messageDelayLevel)"
        )
    level = min(level, level_count)
    if found.get(properties.DELAY_LEVEL) == str(level) and _ADDED.isdisjoint(found):
        # Nothing in the text changes, so what comes to it can be put behind.
        place = {properties.REAL_TOPIC: draft.topic, properties.REAL_QUEUE_ID: str(draft.queue_id)}
        text = _closed(draft.properties_text) + properties.encode(place)
    else:
        stored = properties.decode(draft.properties_text)
        for name in _BEATEN:
            stored.pop(name, None)
        stored[properties.DELAY_LEVEL] = found[properties.DELAY_LEVEL] = str(level)
        stored[properties.REAL_TOPIC] = draft.topic
        stored[properties.REAL_QUEUE_ID] = str(draft.queue_id)
        text = properties.encode(stored)
    return msgspec.structs.replace(
        draft,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties_text=text,
    )


def _closed(text: str) -> str:
    """A text of properties to which others can be added."""
    separator = properties.PROPERTY_SEPARATOR
    return text if not text or text[-1] == separator else text + separator


# -- delivering ------------------------------------------------------------------------------------


def ignore_topic(_: str, __: int) -> None:
    """Topics are not kept."""


def ignore_delivery(_: str, __: int, ___: int) -> None:
    """Deliveries are not counted."""


def due_time_ms(written_ms: int, now_ms: int, delay_ms: int) -> int:
    """When a message is due whose entry says `written_ms`.

    If that is further away than its level allows, the clock was set back or the level made shorter;
    then it is due now, as in RocketMQ.
    """
    return now_ms if written_ms > now_ms + delay_ms else written_ms


def real_queue(found: dict[str, str]) -> tuple[str, int]:
    """Topic and queue that a waiting message is for. Raises RecordError."""
    topic, text = found.get(properties.REAL_TOPIC), found.get(properties.REAL_QUEUE_ID, "")
    if not topic or topic == HALF_TOPIC or not (text.isascii() and text.isdecimal()):
        raise RecordError(f"no real topic and queue, but {topic!r} and {text!r}")
    return topic, int(text)


def due(fields: RecordFields) -> tuple[Draft, dict[str, str]]:
    """The message of a record whose delay is over, for its real topic, and its properties.

    Raises RecordError.
    """
    found = dict(fields[2])
    topic, queue_id = real_queue(found)
    for name in _ASKED:
        found.pop(name, None)
    copied = delivered_copies.mark(fields[LOG_OFFSET])
    return redraft(fields, topic, queue_id, found, prepared_log_offset=copied), found


class DelayLevels:
    """The levels of a broker, and how far each is."""

    def __init__(
        self,
        store: MessageStore,
        levels_ms: tuple[int, ...],
        step: CrashPoint = no_crash_point,
        ensure_topic: EnsureTopic = ignore_topic,
        slice_s: Callable[[], float] = lambda: SLICE_S,
        delivered: Delivered = ignore_delivery,
    ) -> None:
        """`slice_s` tells how long the next turn may take."""
        self._store = store
        self._delivered = delivered
        self._slice_s = slice_s
        self._levels_ms = levels_ms
        self._step = step
        self._ensure_topic = ensure_topic
        self.offsets: dict[int, int] = {}
        """By level: the queue offset of the next message to deliver."""
        self.safe_offsets: dict[int, int] = {}
        """The same, as far as the disk has what was delivered."""
        self._counted_to: int | None = None
        """Log offset before which every copy is counted in `safe_offsets`; None if not known."""
        self._others: dict[str, object] = {}
        self._data_version = DataVersion()
        self._turn_count = 0
        self._skipped_count = 0

    def redirect(self, draft: Draft, found: dict[str, str]) -> Draft | None:
        """For the writer."""
        instead = delayed(draft, found, len(self._levels_ms))
        if instead is not None:
            self._step("delay: before the message waits")
        return instead

    # -- delivering --------------------------------------------------------------------------------

    def run_slice(self, now_ms: int) -> int | None:
        """Deliver what is due, for a moment; answers when the next turn is wanted."""
        ends_s = perf_counter() + self._slice_s()
        # Levels that the settings had once may still have messages.
        queues = [*self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items()]
        wanted: int | None = None
        # Each turn begins with another level, so that one with much to do lets the others live.
        self._turn_count += 1
        first = self._turn_count % len(queues) if queues else 0
        for queue_id, queue in (*queues[first:], *queues[:first]):
            next_ms = self._deliver(queue_id + 1, queue, now_ms, ends_s)
            if next_ms is None:
                continue
            if next_ms <= now_ms:
                return next_ms
            wanted = next_ms if wanted is None else min(wanted, next_ms)
        return wanted

    def _deliver(self, level: int, queue: ConsumeQueue, now_ms: int, ends_s: float) -> int | None:
        """What is due of one level; answers when the rest is, None if there is no rest."""
        is_known = level <= len(self._levels_ms)
        delay_ms = self._levels_ms[level - 1] if is_known else _ANY_DELAY_MS
        at = self._place(level, queue)
        while at < queue.next_offset:
            looked_at = at
            for entry in queue.entries(at, _ENTRIES_A_LOOK):
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
            if at == looked_at:  # The file of these entries expired while we looked.
                at = self._place(level, queue)
                if at == looked_at:
                    return now_ms + 1000
        return None

    def _place(self, level: int, queue: ConsumeQueue) -> int:
        """How far a level is, within what its queue still has."""
        at = self.offsets.get(level, 0)
        low, high = queue.min_offset(self._store.first_log_offset), queue.next_offset
        if low <= at <= high:
            return at
        if level in self.offsets or low > 0:
            log.warning(
                "delay level %d: at %d, but its queue holds %d to %d; going on within it",
                level, at, low, high,
            )  # fmt: skip
        self.offsets[level] = min(max(at, low), high)
        return self.offsets[level]

    def _release(self, level: int, queue_offset: int, entry: Entry) -> None:
        fields = self._store.log.decode(entry[0], read_body=True)
        try:
            if fields is None or fields[0] != SCHEDULE_TOPIC:
                raise RecordError("no sound record lies where its queue says")  # noqa: TRY301 - one log line for both
            draft, found = due(fields)
            self._ensure_topic(draft.topic, draft.queue_id)
            self._step("delay: before a due message is stored")
            appended = self._store.append(draft, found)
        except RecordError as e:
            self._skipped_count += 1
            if self._skipped_count <= _SKIPPED_LOGGED_MAX:
                log.warning(
                    "delay level %d: message %d cannot be delivered: %s", level, queue_offset, e
                )
            return
        self._step("delay: a due message is stored")
        self._delivered(draft.topic, draft.queue_id, appended.size_bytes)

    def upcoming(self, until_ms: int, count: int) -> list[QueueRange]:
        """Messages that are due by then and may not be in memory, so many of each level."""
        found: list[QueueRange] = []
        for queue_id, queue in self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items():
            first = self.offsets.get(queue_id + 1, 0)
            stop = first
            for entry in queue.entries(first, count):
                if entry[2] > until_ms or not may_be_cold(self._store, entry[0]):
                    break
                stop += 1
            if stop > first:
                found.append(QueueRange(SCHEDULE_TOPIC, queue_id, range(first, stop)))
        return found

    def catch_up(self) -> int:
        """Count what the log says was delivered after the last save; answers how many messages."""
        log_ = self._store.log
        queues = self._store.queues.by_topic.get(SCHEDULE_TOPIC, {})
        heads = [self._first_pending(queue_id, queue) for queue_id, queue in queues.items()]
        # What was not due when the last message was stored was not delivered either.
        due = [head for head in heads if head is not None and head[2] <= log_.last_store_time_ms]
        if not due:
            return 0
        first, first_due_ms = min(head[0] for head in due), min(head[2] for head in due)
        start = max(first, delivered_copies.search_from(log_, first_due_ms), self._counted_to or 0)
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
        """The entry of the first message of a level that is not known to be delivered."""
        for at in range(self._place(queue_id + 1, queue), queue.next_offset):
            entry = queue.entry(at)
            if entry is not None and entry[1] != BLANK_SIZE:
                return entry
        return None

    # -- for people --------------------------------------------------------------------------------

    def positions(self) -> dict[int, tuple[int, int]]:
        """How far each level is that ever had a message, and where its queue ends."""
        queues = self._store.queues.by_topic.get(SCHEDULE_TOPIC, {})
        levels = {queue_id + 1 for queue_id in queues} | self.offsets.keys()
        return {
            level: (self.offsets.get(level, 0), self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            for level in sorted(levels)
        }

    # -- on disk -----------------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """Whether a save would tell anything new."""
        return self.offsets != self.safe_offsets

    def flushed(self, offsets: dict[int, int], now_ms: int, log_offset: int | None = None) -> None:
        """The disk has every delivery before these offsets, so they may be saved.

        They were read when the log ended at `log_offset`.
        """
        self._counted_to = log_offset
        if offsets != self.safe_offsets:
            counter = self._data_version.counter + 1
            self._data_version = msgspec.structs.replace(
                self._data_version, timestamp=now_ms, counter=counter
            )
            self.safe_offsets = offsets

    def as_file(self) -> dict[str, object]:
        """What `delayOffset.json` holds; parts that only other versions know are kept."""
        counted = {} if self._counted_to is None else {_COUNTED_TO: self._counted_to}
        return {
            **self._others,
            **counted,
            "dataVersion": encode_body(self._data_version),
            "offsetTable": {str(level): at for level, at in sorted(self.safe_offsets.items())},
        }

    def load(self, found: dict[str, object]) -> None:
        """Take over the content of a file. Raises BodyError and changes nothing if it is wrong."""
        try:
            table = msgspec.convert(found.get("offsetTable", {}), dict[int, int], strict=False)
            version = msgspec.convert(found.get("dataVersion") or {}, DataVersion, strict=False)
            counted_to = msgspec.convert(found.get(_COUNTED_TO), int | None, strict=False)
        except msgspec.ValidationError as e:
            raise BodyError(f"the progress of the delay levels cannot be read: {e}") from e
        self.offsets, self.safe_offsets = table, dict(table)
        self._data_version = version
        self._counted_to = counted_to
        own = ("offsetTable", "dataVersion", _COUNTED_TO)
        self._others = {key: value for key, value in found.items() if key not in own}
