"""Half messages and their ends as values, and what happens to a half that stays open.

    send     -> half    RMQ_SYS_TRANS_HALF_TOPIC, queue 0; real topic and queue in its properties
    commit   -> the message itself, under its real topic; then an end of the half
    rollback -> an end of the half
    check    -> a producer of the group is asked; the half is stored again with its check count
                one higher, and the old one ended, so that the first open offset always advances
    give up  -> a copy in TRANS_CHECK_MAX_TIME_TOPIC, and an end of the half

An end is a message in RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, with tag "d" and the queue offsets of
one or more halves as text, separated by commas. RocketMQ 5.x writes and reads several, 4.9 one.

This module decides and builds drafts; `halves` stores them, `check_loop` runs the checks.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto

import msgspec
from msgspec.structs import astuple

from tianzhou.broker import validation
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.storing.redraft import redraft
from tianzhou.errors import RequestError
from tianzhou.message import Host, StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.message_store import Draft

GROUP = "CID_RMQ_SYS_TRANS"
"""Consumer group whose offsets are the progress of the checks, as in RocketMQ."""
QUEUE_ID = 0
END_TAG = "d"
_SEPARATOR = ","
_CHECK_PROPERTIES_SPACE = " " * 64
"""Reserved for the properties that checks add to a half."""
_DELAYS = (
    properties.DELAY_LEVEL, properties.TIMER_DELAY_MS, properties.TIMER_DELAY_SEC,
    properties.TIMER_DELIVER_MS,
)  # fmt: skip
_HALF_ONLY = (
    properties.REAL_TOPIC,
    properties.REAL_QUEUE_ID,
    properties.TRANSACTION_PREPARED,
)
_DIGITS_MAX = 18
_HOUR_MS = 3_600_000
_ALL_ENDED = b"\xff" * 512
_TRIM_BYTES = 4096


# -- halves ----------------------------------------------------------------------------------------


def is_half(draft: Draft, props: dict[str, str]) -> bool:
    """Whether a message must wait for the commit of its transaction."""
    if props.get(properties.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    # Consumers before 4.6.1 send a committed message back for retry with this property set.
    return not (draft.reconsume_count > 0 and _is_delayed(props))


def as_half(draft: Draft, props: dict[str, str]) -> Draft:
    """The half to store instead of a transactional message. Raises RequestError."""
    if _is_delayed(props):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "a transactional message cannot be delayed: its transaction decides when it is due",
        )
    if not props.get(properties.PRODUCER_GROUP):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a transactional message must name its producer group in {properties.PRODUCER_GROUP}",
        )
    named = properties.decode(draft.properties_text)
    if unique := named.get(properties.UNIQUE_KEY):
        named[properties.TRANSACTION_ID] = unique
    named[properties.REAL_TOPIC] = draft.topic
    named[properties.REAL_QUEUE_ID] = str(draft.queue_id)
    text = properties.encode(named)
    validation.check_properties(text + _CHECK_PROPERTIES_SPACE)
    return msgspec.structs.replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=QUEUE_ID,
        properties_text=text,
        sys_flag=sysflag.with_transaction_state(draft.sys_flag, sysflag.TRANSACTION_NONE),
    )


def _is_delayed(props: dict[str, str]) -> bool:
    return any(props.get(name, "0") not in ("", "0") for name in _DELAYS)


def real_queue(half: StoredMessage) -> tuple[str, int] | None:
    """The real topic and queue of a half; None if its properties lack them."""
    topic = half.properties.get(properties.REAL_TOPIC)
    queue_id = _number(half.properties.get(properties.REAL_QUEUE_ID, ""))
    return (topic, queue_id) if topic and queue_id is not None else None


def committed(half: StoredMessage, topic: str, queue_id: int, store_host: Host) -> Draft:
    """The message to deliver to consumers."""
    named = {name: value for name, value in half.properties.items() if name not in _HALF_ONLY}
    draft = redraft(
        astuple(half), topic, queue_id, named,
        store_host=store_host, prepared_log_offset=half.log_offset,
    )  # fmt: skip
    state = sysflag.with_transaction_state(draft.sys_flag, sysflag.TRANSACTION_COMMIT)
    return msgspec.structs.replace(draft, sys_flag=state)


def renewed(half: StoredMessage, check_count: int, store_host: Host) -> Draft:
    """The half to store again, with this check count."""
    named = half.properties | {properties.TRANSACTION_CHECK_TIMES: str(check_count)}
    return redraft(astuple(half), HALF_TOPIC, QUEUE_ID, named, store_host=store_host)


def given_up(half: StoredMessage, store_host: Host) -> Draft:
    """The copy in TRANS_CHECK_MAX_TIME_TOPIC of a half that did not end in time."""
    named = half.properties
    return redraft(astuple(half), CHECK_MAX_TOPIC, QUEUE_ID, named, store_host=store_host)


# -- ends ------------------------------------------------------------------------------------------


def end_drafts(
    queue_offsets: Iterable[int], size_max_bytes: int, now_ms: int, store_host: Host
) -> Iterator[tuple[Draft, int]]:
    """As few messages as their size allows that end these halves, each with how many it ends."""
    text, count = "", 0
    for queue_offset in queue_offsets:
        if count and len(text) >= size_max_bytes:
            yield _end_draft(text, now_ms, store_host), count
            text, count = "", 0
        text = f"{text}{_SEPARATOR}{queue_offset}" if count else str(queue_offset)
        count += 1
    if count:
        yield _end_draft(text, now_ms, store_host), count


def _end_draft(text: str, now_ms: int, store_host: Host) -> Draft:
    return Draft(
        topic=HALF_OP_TOPIC,
        queue_id=QUEUE_ID,
        body=text.encode(),
        properties_text=properties.encode({properties.TAGS: END_TAG}),
        born_time_ms=now_ms,
        born_host=store_host,
        store_host=store_host,
    )


def ended_by(end: StoredMessage) -> list[int]:
    """The queue offsets of the halves that a message ends; malformed ones are left out."""
    if end.tags != END_TAG:
        return []
    numbers = map(_number, end.body.decode("ascii", "replace").split(_SEPARATOR))
    return [number for number in numbers if number is not None]


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None


# -- checks of open halves -------------------------------------------------------------------------


class Verdict(Enum):
    """What to do with an open half."""

    WAIT = auto()
    CHECK = auto()
    GIVE_UP = auto()


def judge(half: StoredMessage, age_ms: int, config: BrokerConfig) -> Verdict:
    """Decide by the age of a half since its born time, which the producer sets.

    A born time in the future comes from a wrong clock; the half is checked at once, as in RocketMQ,
    because it might wait for ever.
    """
    reserved_ms = config.file_reserved_time * _HOUR_MS
    if check_count(half) >= config.transaction_check_max or age_ms > reserved_ms:
        return Verdict.GIVE_UP
    own_ms = immunity_ms(half)
    if own_ms is not None:
        return Verdict.WAIT if age_ms <= own_ms else Verdict.CHECK
    return Verdict.WAIT if 0 <= age_ms <= config.transaction_time_out else Verdict.CHECK


def check_count(half: StoredMessage) -> int:
    """How often producers were asked about a half."""
    return _number(half.properties.get(properties.TRANSACTION_CHECK_TIMES, "")) or 0


def immunity_ms(half: StoredMessage) -> int | None:
    """For how long after its born time a half must not be checked, if its properties say."""
    seconds = _number(half.properties.get(properties.CHECK_IMMUNITY_SECONDS, ""))
    return None if seconds is None else seconds * 1000


# -- which halves are open -------------------------------------------------------------------------


class EndedHalves:
    """Which halves have ended: a bit map that begins at the first open one.

    A million halves take 125 kB.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        """All halves before this queue offset have ended."""
        self._origin = first
        self._bits = bytearray()

    def __contains__(self, queue_offset: int) -> bool:
        if queue_offset < self.first:
            return True
        index, bit = divmod(queue_offset - self._origin, 8)
        return index < len(self._bits) and bool(self._bits[index] >> bit & 1)

    def add(self, queue_offset: int) -> bool:
        """False if it had ended already."""
        if queue_offset in self:
            return False
        index, bit = divmod(queue_offset - self._origin, 8)
        if index >= len(self._bits):
            self._bits.extend(bytes(index + 1 - len(self._bits)))
        self._bits[index] |= 1 << bit
        return True

    def open_count(self, stop: int) -> int:
        """How many before `stop` are open."""
        ended = int.from_bytes(self._bits, "little") >> (self.first - self._origin)
        return max(stop - self.first - ended.bit_count(), 0)

    def next_open(self, queue_offset: int, stop: int) -> int:
        """The first open one from a queue offset on, `stop` if there is none before that."""
        at, bits = max(queue_offset, self.first), self._bits
        while at < stop:
            index, bit = divmod(at - self._origin, 8)
            if index >= len(bits):
                return at
            if bit == 0 and bits.startswith(_ALL_ENDED, index):
                at += 8 * len(_ALL_ENDED)
            elif bit == 0 and bits[index] == 0xFF:
                at += 8
            elif bits[index] >> bit & 1:
                at += 1
            else:
                return at
        return stop

    def advance(self, stop: int) -> int:
        """Move `first` over ended halves, up to `stop`, and drop their bits; returns `first`."""
        self.first = max(self.next_open(self.first, stop), self.first)
        done_bytes = min((self.first - self._origin) // 8, len(self._bits))
        if done_bytes == len(self._bits):
            self._origin, self._bits = self.first, bytearray()
        elif done_bytes >= _TRIM_BYTES:
            del self._bits[:done_bytes]
            self._origin += 8 * done_bytes
        return self.first

    def drop_before(self, queue_offset: int) -> None:
        """The store has deleted what lies before."""
        self.first = max(self.first, queue_offset)
