"""Receipt handles of pop consumption, and the lists that come with popped messages (5.x).

    handle            startOffset popTime invisibleTime reviveQid topicMark brokerName queueId
                      queueOffset logOffset; the last two are those of the message
    startOffsetInfo   topicMark queueId startOffset;...
    msgOffsetInfo     topicMark queueId offset,offset,...;...
    orderCountInfo    topicMark qo<queueId>%<offset> times;...;topicMark queueId timesOfAll;...

Fields are separated by single spaces. Topic marks: 0 is the topic itself, 1 is
%RETRY%group_topic, 2 is %RETRY%group+topic. Messages of an ordered pop have revive queue 999.

Handles of the first 5.x clients end before the queue offset, those of others before the log offset,
which Apache's proxy appends. Further fields are ignored, as RocketMQ ignores them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tianzhou.errors import FieldError
from tianzhou.names import RETRY_TOPIC_PREFIX

ORDERED_REVIVE_QUEUE = 999
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"

_SEPARATOR = " "
_FIELDS_MIN = 7
_QUEUE_OFFSET, _LOG_OFFSET = 7, 8
_LENGTH_MAX = 1024
_START_FIELDS = 3
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Receipt:
    """The fields of a handle."""

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    topic_mark: str
    broker_name: str
    queue_id: int
    queue_offset: int | None = None
    log_offset: int | None = None
    """Nothing here depends on it."""

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE

    def __str__(self) -> str:
        fields = [
            self.start_offset, self.pop_time_ms, self.invisible_time_ms, self.revive_queue_id,
            self.topic_mark, self.broker_name, self.queue_id,
        ]  # fmt: skip
        if self.queue_offset is not None:
            fields.append(self.queue_offset)
            if self.log_offset is not None:
                fields.append(self.log_offset)
        return _SEPARATOR.join(map(str, fields))


def without_message(receipt: Receipt) -> Receipt:
    """The part that all messages of one pop from one queue share."""
    return replace(receipt, queue_offset=None, log_offset=None)


def parse_receipt(text: str) -> Receipt:
    """Raises FieldError for anything that is no handle."""
    fields = text.split(_SEPARATOR) if len(text) <= _LENGTH_MAX else []
    if len(fields) < _FIELDS_MIN:
        raise FieldError(
            f"extraInfo {text[:200]!r} is no receipt handle: that has {_FIELDS_MIN} fields or more "
            f"and at most {_LENGTH_MAX} characters"
        )
    numbers = [_number(text, fields[at]) for at in (0, 1, 2, 3, 6)]
    if fields[4] not in (NORMAL, RETRY_V1, RETRY_V2):
        raise FieldError(f"extraInfo {text[:200]!r} is no receipt handle: {fields[4]!r}")
    return Receipt(
        start_offset=numbers[0],
        pop_time_ms=numbers[1],
        invisible_time_ms=numbers[2],
        revive_queue_id=numbers[3],
        topic_mark=fields[4],
        broker_name=fields[5],
        queue_id=numbers[4],
        queue_offset=_number_at(text, fields, _QUEUE_OFFSET),
        log_offset=_number_at(text, fields, _LOG_OFFSET),
    )


def _number_at(text: str, fields: list[str], at: int) -> int | None:
    return _number(text, fields[at]) if at < len(fields) else None


def _number(text: str, field: str) -> int:
    digits = field.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or abs(value := int(field)) > _INT64_MAX:
        raise FieldError(f"{text[:200]!r} is no receipt handle, nor made for one: {field[:80]!r}")
    return value


# -- topics ----------------------------------------------------------------------------------------


def retry_topic(group: str, topic: str, *, v2: bool) -> str:
    """Where popped messages of a topic go that came back."""
    return f"{RETRY_TOPIC_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def mark_of(topic: str) -> str:
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, mark: str) -> str:
    """The topic that a mark means."""
    return topic if mark == NORMAL else retry_topic(group, topic, v2=mark == RETRY_V2)


def origin_topic(group: str, topic: str) -> str:
    """The topic that a message was sent to, given its own or its retry topic's name."""
    for separator in ("+", "_"):
        prefix = f"{RETRY_TOPIC_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


# -- what comes with messages ----------------------------------------------------------------------


def parse_start_offsets(info: str) -> dict[tuple[str, int], int]:
    """Where the batches of a pop begin, by mark and queue id. Raises FieldError."""
    found: dict[tuple[str, int], int] = {}
    for each in info.split(";") if info else ():
        fields = each.split(_SEPARATOR)
        if len(fields) != _START_FIELDS:
            raise FieldError(f"startOffsetInfo {info[:200]!r} cannot be read: {each[:80]!r}")
        found[fields[0], _number(info, fields[1])] = _number(info, fields[2])
    return found


def start_offset_info(topic: str, queue_id: int, start_offset: int) -> str:
    return f"{mark_of(topic)} {queue_id} {start_offset}"


def message_offset_info(topic: str, queue_id: int, queue_offsets: Iterable[int]) -> str:
    return f"{mark_of(topic)} {queue_id} {','.join(map(str, queue_offsets))}"


def order_count_info(
    topic: str, queue_id: int, queue_offsets: Iterable[int], counts: dict[int, int]
) -> list[str]:
    """How often each message was delivered before, and the least of that for clients before 5.1."""
    mark = mark_of(topic)
    known = [
        f"{mark} qo{queue_id}%{queue_offset} {count}" for queue_offset, count in counts.items()
    ]
    least = min((counts.get(queue_offset, 0) for queue_offset in queue_offsets), default=0)
    return [*known, f"{mark} {queue_id} {least}"]
