"""Messages for any moment: what the properties of a timed message mean. Values in, values out.

    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS     what a producer asks for, in this order
    TIMER_OUT_MS                                          the last ms at which it must still wait
    REAL_TOPIC, REAL_QID                                  where it is for
    TIMER_DEL_UNIQKEY                                     not a message but the recall of one

A waiting message lies in queue 0 of `rmq_sys_wheel_timer`, as RocketMQ 5.x stores it, whose broker
can go on with it. RocketMQ rounds TIMER_OUT_MS down to whole seconds (timerPrecisionMs) and
delivers a second after it; we wait to the millisecond, and read what it wrote so that nothing is
early.
"""

import hashlib
from typing import NamedTuple

import msgspec

from tianzhou.broker.scheduled.delay_levels import may_wait, real_queue
from tianzhou.broker.storing.redraft import redraft
from tianzhou.broker.validation import check_properties
from tianzhou.errors import RecordError, RequestError
from tianzhou.names import TIMER_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.store.commit_log import LOG_OFFSET
from tianzhou.store.delivered_copies import mark
from tianzhou.store.message_store import Draft

_ROUNDED_MS_MAX = 1000
_INT64_MAX = 2**63 - 1
_ADDED_BYTES_MAX = 128
"""Properties grow by so much at most when the message is rolled and delivered."""


def _number(text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    number = int(text)
    return number if abs(number) <= _INT64_MAX else None


# -- storing ---------------------------------------------------------------------------------------


def is_timed(found: dict[str, str]) -> bool:
    """Whether the producer asks for a time. What has waited already says so itself."""
    asks = (
        properties.TIMER_DELIVER_MS in found
        or properties.TIMER_DELAY_MS in found
        or properties.TIMER_DELAY_SEC in found
    )
    return asks and properties.TIMER_OUT_MS not in found


def wanted_ms(found: dict[str, str], now_ms: int) -> int:
    """When a message is to be delivered. Raises RequestError for what is no time."""
    for name, start_ms, unit_ms in (
        (properties.TIMER_DELAY_SEC, now_ms, 1000),
        (properties.TIMER_DELAY_MS, now_ms, 1),
        (properties.TIMER_DELIVER_MS, 0, 1),
    ):
        text = found.get(name)
        if text is not None:
            number = _number(text)
            if number is None:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"timer message illegal: {name} is {text[:80]!r}, not a number",
                )
            return start_ms + number * unit_ms
    raise AssertionError("only timed messages are asked for their time")


def timed(
    draft: Draft, found: dict[str, str], now_ms: int, *, enabled: bool, max_delay_s: int
) -> Draft | None:
    """The draft under the topic where it waits; None if it is not timed or due already.

    Then `found` says since when and for where, as the stored message does. Raises RequestError.
    """
    if draft.topic == TIMER_TOPIC or not is_timed(found) or not may_wait(draft):
        return None
    if not enabled:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
    deliver_ms = wanted_ms(found, now_ms)
    if deliver_ms <= now_ms:
        if properties.TIMER_DEL_UNIQKEY in found:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal: a recall must come before the time of the message, "
                f"{deliver_ms}, and now it is {now_ms}",
            )
        return None
    if deliver_ms - now_ms > max_delay_s * 1000:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay "
            f"{max_delay_s * 1000}ms (timerMaxDelaySec), it is {deliver_ms - now_ms}ms",
        )
    recalled = found.get(properties.TIMER_DEL_UNIQKEY)
    if recalled is not None and not recalled.startswith(recall_key(draft.topic, "")):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal: a message of topic {draft.topic[:80]} cannot recall one of "
            f"another topic, {properties.TIMER_DEL_UNIQKEY} is {recalled[:80]!r}",
        )
    changes = {
        properties.TIMER_OUT_MS: str(deliver_ms - 1),
        properties.REAL_TOPIC: draft.topic,
        properties.REAL_QUEUE_ID: str(draft.queue_id),
    }
    text = properties.encode(properties.decode(draft.properties_text) | changes)
    check_properties(text, room_bytes=_ADDED_BYTES_MAX)
    found.update(changes)
    return msgspec.structs.replace(
        draft,
        topic=TIMER_TOPIC,
        queue_id=0,
        properties_text=text,
    )


# -- waiting ---------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """One waiting message as the index keeps it."""

    due_ms: int
    queue_offset: int
    log_offset: int
    key_hash: int
    """Of its real topic and unique key, by which it can be recalled; 0 without a unique key."""


class Recall(NamedTuple):
    """The waiting message with this key, if there is one, is not to be delivered."""

    around_ms: int
    key_hash: int


def due_ms(found: dict[str, str], store_time_ms: int) -> int:
    """When a waiting message is due. Raises RecordError.

    TIMER_OUT_MS may have been rounded down by up to a second; what was asked for tells how much.
    """
    out_ms = _number(found.get(properties.TIMER_OUT_MS, ""))
    if out_ms is None:
        raise RecordError(f"TIMER_OUT_MS is {found.get(properties.TIMER_OUT_MS)!r}, not a number")
    latest_ms = out_ms + _ROUNDED_MS_MAX
    exact_ms: int | None = None
    try:
        if properties.TIMER_ROLL_TIMES not in found:
            exact_ms = wanted_ms(found, store_time_ms)
        else:
            # It was stored anew, so delays do not count from its store time any more.
            exact_ms = _number(found.get(properties.TIMER_DELIVER_MS, ""))
    except (RequestError, AssertionError):
        exact_ms = None
    return max(out_ms + 1, latest_ms if exact_ms is None else min(exact_ms, latest_ms))


def recall_key(topic: str, unique_key: str) -> str:
    """What TIMER_DEL_UNIQKEY holds."""
    return f"{topic}+{unique_key}"


def key_hash(key: str) -> int:
    """A signed number of 64 bits for a recall key."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def waiting(fields: RecordFields, queue_offset: int) -> Waiting | Recall:
    """What a record of the timer topic is. Raises RecordError."""
    found = fields[2]
    at_ms = due_ms(found, fields[10])
    topic, _ = real_queue(found)
    recalled = found.get(properties.TIMER_DEL_UNIQKEY)
    if recalled is not None and not recalled.startswith(recall_key(topic, "")):
        raise RecordError(f"a message of topic {topic!r} recalls {recalled[:80]!r}")
    if recalled is not None:
        return Recall(at_ms, key_hash(recalled))
    unique_key = found.get(properties.UNIQUE_KEY)
    hashed = key_hash(recall_key(topic, unique_key)) if unique_key else 0
    return Waiting(at_ms, queue_offset, fields[5], hashed)


# -- delivering ------------------------------------------------------------------------------------


def due(fields: RecordFields, now_ms: int) -> Draft:
    """The message of a record whose time has come, for its real topic. Raises RecordError."""
    found = dict(fields[2])
    topic, queue_id = real_queue(found)
    del found[properties.REAL_TOPIC], found[properties.REAL_QUEUE_ID]
    found[properties.TIMER_ENQUEUE_MS] = str(fields[10])
    found[properties.TIMER_DEQUEUE_MS] = str(now_ms)
    return redraft(fields, topic, queue_id, found, prepared_log_offset=mark(fields[LOG_OFFSET]))


def rolled(fields: RecordFields, at_ms: int) -> Draft:
    """The message of a record again in the timer topic, so that the old record may expire."""
    found = dict(fields[2])
    times = _number(found.get(properties.TIMER_ROLL_TIMES, "0")) or 0
    found[properties.TIMER_ROLL_TIMES] = str(times + 1)
    found[properties.TIMER_DELIVER_MS] = str(at_ms)
    return redraft(fields, TIMER_TOPIC, 0, found, prepared_log_offset=mark(fields[LOG_OFFSET]))
