"""Timed messages: the properties of a message with a delivery time. Values in, values out.

    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS     set by the producer, in this precedence
    TIMER_OUT_MS                                          the last ms at which it is still pending
    REAL_TOPIC, REAL_QID                                  the real topic and queue
    TIMER_DEL_UNIQKEY                                     not a message but the recall of one

A pending message is stored in queue 0 of `rmq_sys_wheel_timer`, as by RocketMQ 5.x, which can
deliver it, too. RocketMQ rounds TIMER_OUT_MS down to whole seconds (timerPrecisionMs) and delivers
a second after it; we deliver to the millisecond, and never deliver messages of RocketMQ early.
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
"""By how much the properties can grow when the message is rolled and delivered."""


def _number(text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    number = int(text)
    return number if abs(number) <= _INT64_MAX else None


# -- storing ---------------------------------------------------------------------------------------


def is_timed(props: dict[str, str]) -> bool:
    """Whether the producer set a delivery time, and the message was not held before."""
    has_time = (
        properties.TIMER_DELIVER_MS in props
        or properties.TIMER_DELAY_MS in props
        or properties.TIMER_DELAY_SEC in props
    )
    return has_time and properties.TIMER_OUT_MS not in props


def delivery_time_ms(props: dict[str, str], now_ms: int) -> int:
    """The delivery time of a message. Raises RequestError for an invalid one."""
    for name, start_ms, unit_ms in (
        (properties.TIMER_DELAY_SEC, now_ms, 1000),
        (properties.TIMER_DELAY_MS, now_ms, 1),
        (properties.TIMER_DELIVER_MS, 0, 1),
    ):
        text = props.get(name)
        if text is not None:
            number = _number(text)
            if number is None:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"timer message illegal: {name} is {text[:80]!r}, not a number",
                )
            return start_ms + number * unit_ms
    raise AssertionError("only timed messages have a delivery time")


def timed(
    draft: Draft, props: dict[str, str], now_ms: int, *, enabled: bool, max_delay_s: int
) -> Draft | None:
    """The draft for the timer topic; None if it is not timed or already due.

    The properties that the draft gets are set in `props`, too. Raises RequestError.
    """
    if draft.topic == TIMER_TOPIC or not is_timed(props) or not may_wait(draft):
        return None
    if not enabled:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
    deliver_ms = delivery_time_ms(props, now_ms)
    if deliver_ms <= now_ms:
        if properties.TIMER_DEL_UNIQKEY in props:
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
    recalled = props.get(properties.TIMER_DEL_UNIQKEY)
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
    check_properties(text, added_bytes=_ADDED_BYTES_MAX)
    props.update(changes)
    return msgspec.structs.replace(
        draft,
        topic=TIMER_TOPIC,
        queue_id=0,
        properties_text=text,
    )


# -- pending ---------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """One pending message, as in the index."""

    due_ms: int
    queue_offset: int
    log_offset: int
    key_hash: int
    """Of the real topic and unique key, for recalls; 0 without a unique key."""


class Recall(NamedTuple):
    """Removes the pending message with this key, if there is one."""

    around_ms: int
    key_hash: int


def due_ms(props: dict[str, str], store_time_ms: int) -> int:
    """When a pending message is due. Raises RecordError.

    TIMER_OUT_MS may be rounded down by up to a second; the producer's properties have the exact
    time.
    """
    out_ms = _number(props.get(properties.TIMER_OUT_MS, ""))
    if out_ms is None:
        raise RecordError(f"TIMER_OUT_MS is {props.get(properties.TIMER_OUT_MS)!r}, not a number")
    latest_ms = out_ms + _ROUNDED_MS_MAX
    exact_ms: int | None = None
    try:
        if properties.TIMER_ROLL_TIMES not in props:
            exact_ms = delivery_time_ms(props, store_time_ms)
        else:
            # It was stored again, so delays no longer count from its store time.
            exact_ms = _number(props.get(properties.TIMER_DELIVER_MS, ""))
    except (RequestError, AssertionError):
        exact_ms = None
    return max(out_ms + 1, latest_ms if exact_ms is None else min(exact_ms, latest_ms))


def recall_key(topic: str, unique_key: str) -> str:
    """The value of TIMER_DEL_UNIQKEY."""
    return f"{topic}+{unique_key}"


def key_hash(key: str) -> int:
    """A signed 64-bit hash of a recall key."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def waiting(fields: RecordFields, queue_offset: int) -> Waiting | Recall:
    """Decode a record of the timer topic. Raises RecordError."""
    props = fields[2]
    at_ms = due_ms(props, fields[10])
    topic, _ = real_queue(props)
    recalled = props.get(properties.TIMER_DEL_UNIQKEY)
    if recalled is not None and not recalled.startswith(recall_key(topic, "")):
        raise RecordError(f"a message of topic {topic!r} recalls {recalled[:80]!r}")
    if recalled is not None:
        return Recall(at_ms, key_hash(recalled))
    unique_key = props.get(properties.UNIQUE_KEY)
    hashed = key_hash(recall_key(topic, unique_key)) if unique_key else 0
    return Waiting(at_ms, queue_offset, fields[5], hashed)


# -- delivering ------------------------------------------------------------------------------------


def due(fields: RecordFields, now_ms: int) -> Draft:
    """The message to deliver of a record that is due. Raises RecordError."""
    props = dict(fields[2])
    topic, queue_id = real_queue(props)
    del props[properties.REAL_TOPIC], props[properties.REAL_QUEUE_ID]
    props[properties.TIMER_ENQUEUE_MS] = str(fields[10])
    props[properties.TIMER_DEQUEUE_MS] = str(now_ms)
    return redraft(fields, topic, queue_id, props, prepared_log_offset=mark(fields[LOG_OFFSET]))


def rolled(fields: RecordFields, at_ms: int) -> Draft:
    """The message of a record for the timer topic again, so that the old record may expire."""
    props = dict(fields[2])
    times = _number(props.get(properties.TIMER_ROLL_TIMES, "0")) or 0
    props[properties.TIMER_ROLL_TIMES] = str(times + 1)
    props[properties.TIMER_DELIVER_MS] = str(at_ms)
    return redraft(fields, TIMER_TOPIC, 0, props, prepared_log_offset=mark(fields[LOG_OFFSET]))
