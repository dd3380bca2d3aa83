"""What RocketMQ 5.x noted of popped messages, for a store that comes from there.

    ck      a check point: a group popped these messages, and until then nobody else gets them
    ack     one of them is done with
    bAck    several of them are

RocketMQ lets its notes wait in the timer, check points until a second before their time is up and
acknowledgements until then, and stores them in a topic of its own when they are due. There they are
read here as they come. A check point whose time is up, and whose acknowledgements must have come,
tells which messages nobody acknowledged.

Values in, values out; `pop_run.py` reads the topic and makes the messages visible again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tianzhou.broker.pop.inflight import InFlight, Key
from tianzhou.errors import BodyError
from tianzhou.names import SYSTEM_TOPIC_PREFIX
from tianzhou.protocol import fastjson

NOTES_TOPIC = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
"""The topic is called so, with the name of the cluster behind."""
NOTES_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group under which is kept how far the notes are read."""
_CHECK_POINT, _ACK, _BATCH_ACK = "ck", "ack", "bAck"
_GRACE_MS = 3000
"""An acknowledgement is delivered when the time of its check point is up, or a little later."""
_COUNT_MAX = 127
"""A check point counts its messages in a byte, and its acknowledgements in bits."""


class Popped(NamedTuple):
    """One pop of a group."""

    key: Key
    start_offset: int
    pop_time_ms: int


class CheckPoint(NamedTuple):
    """A pop, and the messages it took that are not acknowledged."""

    popped: Popped
    invisible_time_ms: int
    queue_offsets: tuple[int, ...]

    @property
    def visible_ms(self) -> int:
        return self.popped.pop_time_ms + self.invisible_time_ms

    def rows(self) -> list[InFlight]:
        """The messages as our own pops note them."""
        pop_time_ms = self.popped.pop_time_ms
        return [InFlight(each, pop_time_ms, self.invisible_time_ms) for each in self.queue_offsets]


class Acks(NamedTuple):
    """Messages of a pop that are done with."""

    popped: Popped
    queue_offsets: tuple[int, ...]


def parse_checkpoint_record(tag: str, body: bytes) -> CheckPoint | Acks | None:
    """What a message of the topic says; None if it is no note. Raises BodyError."""
    if tag not in (_CHECK_POINT, _ACK, _BATCH_ACK):
        return None
    found = fastjson.loads(body)
    if not fastjson.is_object(found):
        raise BodyError("the note is no JSON object")
    popped = Popped(
        Key(
            _text(found, "c", "consumerGroup"), _text(found, "t", "topic"),
            _number(found, "q", "queueId"),
        ),
        _number(found, "so", "startOffset"), _number(found, "pt", "popTime"),
    )  # fmt: skip
    if tag == _ACK:
        return Acks(popped, (_number(found, "ao", "ackOffset"),))
    if tag == _BATCH_ACK:
        return Acks(popped, tuple(_numbers(found, "aol", "ackOffsetList")))
    return CheckPoint(popped, _number(found, "it"), tuple(_open_offsets(found, popped)))


def _open_offsets(found: dict[str, object], popped: Popped) -> Iterable[int]:
    """The messages of a check point whose bits do not say that they are acknowledged."""
    count, bits = _number(found, "n"), _number(found, "bm")
    if not 0 <= count <= _COUNT_MAX:
        raise BodyError(f"a check point holds {count} messages")
    # Without distances the messages lie next to each other; so did the first check points.
    distances = _numbers(found, "d")[:count] or range(count)
    for at, distance in enumerate(distances):
        if not bits >> at & 1:
            yield popped.start_offset + distance


def _number(found: dict[str, object], *names: str) -> int:
    for name in names:
        value = found.get(name)
        if isinstance(value, int):
            return value
    raise BodyError(f"the note has no number {' or '.join(names)}")


def _numbers(found: dict[str, object], *names: str) -> list[int]:
    for name in names:
        value = found.get(name)
        if fastjson.is_array(value):
            return [each for each in value if isinstance(each, int)]
    return []


def _text(found: dict[str, object], *names: str) -> str:
    for name in names:
        value = found.get(name)
        if isinstance(value, str) and value:
            return value
    raise BodyError(f"the note has no text {' or '.join(names)}")


class Notes:
    """The check points of one queue of notes whose time is not up yet, as far as it is read."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Where to read on."""
        self._open: dict[Popped, tuple[int, CheckPoint]] = {}
        """With the queue offset of their note."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def done_offset(self) -> int:
        """The last note that need not be read again, as RocketMQ counts; -1 if there is none."""
        # Notes are read in their order, but one may come again with another time.
        first = min((at for at, _ in self._open.values()), default=self.next_offset)
        return first - 1

    def add(self, queue_offset: int, note: CheckPoint | Acks) -> None:
        """The note at a place of the queue."""
        if isinstance(note, CheckPoint):
            known = self._open.get(note.popped)
            if known is None or known[1].visible_ms <= note.visible_ms:
                self._open[note.popped] = (queue_offset, note)
            return
        known = self._open.get(note.popped)
        if known is not None:
            at, point = known
            left = tuple(each for each in point.queue_offsets if each not in note.queue_offsets)
            self._open[note.popped] = (at, point._replace(queue_offsets=left))

    def take_due(self, now_ms: int) -> list[CheckPoint]:
        """Those whose time is up, with what nobody acknowledged; they are not named again."""
        due = [
            point for _, point in self._open.values() if point.visible_ms + _GRACE_MS <= now_ms
        ]  # fmt: skip
        for point in due:
            del self._open[point.popped]
        return due
