r"""Message properties: their text form, their well-known names, and the hash of tags.

    text := { name \x01 value \x02 }

5.x ends every property with its separator, 4.9 omits the last one; readers accept both. Reading
is as tolerant as RocketMQ's: what has no \x01, an empty name or an empty value is skipped, a
repeated name takes the last value. An empty value is therefore lost.
"""

from collections.abc import Mapping
from functools import lru_cache

from tianzhou.errors import FieldError
from tianzhou.message import Message

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
KEY_SEPARATOR = " "

# -- well-known names ------------------------------------------------------------------------------

KEYS = "KEYS"
TAGS = "TAGS"
WAIT_STORED = "WAIT"
DELAY_LEVEL = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_SWITCH = "TRACE_ON"
UNIQUE_KEY = "UNIQ_KEY"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
CLUSTER = "CLUSTER"
MESSAGE_TYPE = "MSG_TYPE"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT = "REDIRECT"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT = "TRACE_CONTEXT"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
CRC32 = "__CRC32#"
"""CRC of the whole record, its last property if 5.x is configured so (appendPropCRC)."""
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
"""Properties with this prefix are added for a reader and never stored."""
TRANSIENT_TOPIC_CONFIG = TRANSIENT_PREFIX + "TOPIC_SYS_FLAG"
TRANSIENT_GROUP_CONFIG = TRANSIENT_PREFIX + "GROUP_SYS_FLAG"

RESERVED = frozenset((
    TRACE_SWITCH, MSG_REGION, KEYS, TAGS, WAIT_STORED, DELAY_LEVEL, RETRY_TOPIC, REAL_TOPIC,
    REAL_QUEUE_ID, TRANSACTION_PREPARED, PRODUCER_GROUP, MIN_OFFSET, MAX_OFFSET, BUYER_ID,
    ORIGIN_MESSAGE_ID, TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG, RECONSUME_TIME, UNIQUE_KEY,
    MAX_RECONSUME_TIMES, CONSUME_START_TIME, POP_CK, POP_CK_OFFSET, FIRST_POP_TIME,
    TRANSACTION_PREPARED_QUEUE_OFFSET, DUP_INFO, EXTEND_UNIQ_INFO, INSTANCE_ID, CORRELATION_ID,
    REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MESSAGE_TYPE,
    INNER_MULTI_QUEUE_OFFSET, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS, TIMER_DEL_UNIQKEY, TIMER_DELAY_LEVEL,
    BORN_HOST, BORN_TIMESTAMP, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, CRC32,
))  # fmt: skip
"""Names that RocketMQ forbids to programs (those of 5.x, a superset of 4.9's)."""

STAMPED = frozenset((MSG_REGION, TRACE_SWITCH, CLUSTER))
"""Properties that the broker sets; one that a producer sends keeps its position, not its value."""

TIMER_REQUESTS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""By which a producer asks for a time of delivery; a delay level beats them."""

BROKER_ONLY = frozenset((
    # where and when a message was popped
    POP_CK, POP_CK_OFFSET, FIRST_POP_TIME,
    # where a waiting message belongs, and how it has waited
    REAL_TOPIC, REAL_QUEUE_ID, TIMER_OUT_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES,
    TIMER_DELAY_LEVEL,
    # what the check of a half notes
    TRANSACTION_CHECK_TIMES, TRANSACTION_PREPARED_QUEUE_OFFSET,
    # what the store adds: inner batches, queues within queues, checksums
    INNER_NUM, INNER_BASE, INNER_MULTI_QUEUE_OFFSET, CRC32,
    # where a dead letter comes from, when a reply was pushed, what is added for a reader
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, PUSH_REPLY_TIME, TRANSIENT_TOPIC_CONFIG,
    TRANSIENT_GROUP_CONFIG,
))  # fmt: skip
"""Names that only a broker sets. Clients send them when they forward a message that they received;
a broker that believed them would act on the state of another message, or of another broker.

Not among them, since clients send them for good reasons: DELAY_LEVEL, TIMER_REQUESTS and
TIMER_DEL_UNIQKEY; TRANSACTION_PREPARED; ORIGIN_MESSAGE_ID, RECONSUME_TIME and MAX_RECONSUME_TIMES
of a message that is sent again; BORN_HOST and BORN_TIMESTAMP of a proxy; INNER_MULTI_DISPATCH.
"""


def strip_broker_only(found: dict[str, str], *, to_retry: bool) -> None:
    """Remove what a client may not say of a message; `to_retry` if it goes to a retry topic.

    RETRY_TOPIC is for clients that send a message to a retry topic themselves. A message that has
    waited already (TIMER_OUT_MS) does not wait again, as in RocketMQ. TIMER_DEL_UNIQKEY makes a
    timed message the recall of another one and says nothing about other messages.
    """
    if TIMER_OUT_MS in found:
        for name in TIMER_REQUESTS:
            found.pop(name, None)
    for name in BROKER_ONLY.intersection(found):
        del found[name]
    if not to_retry:
        found.pop(RETRY_TOPIC, None)
    if not any(name in found for name in TIMER_REQUESTS):
        found.pop(TIMER_DEL_UNIQKEY, None)


# -- text form -------------------------------------------------------------------------------------


def encode(properties: Mapping[str, str], *, closed: bool = True) -> str:
    r"""The text form, in the order of the map.

    `closed` ends the last property too, as 5.x writes it; 4.9 does not. Raises FieldError for a
    name or value that would come back as something else.
    """
    parts = [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()]
    text = PROPERTY_SEPARATOR.join(parts)
    # A clean map gives one \x01 per property and one \x02 less; only a surplus is examined.
    separator_count = text.count(NAME_VALUE_SEPARATOR) + text.count(PROPERTY_SEPARATOR)
    if separator_count > 2 * len(parts) - 1 and parts:
        _check_separators(properties)
    return text + PROPERTY_SEPARATOR if closed and text else text


def stamps(cluster: str, region: str, *, trace_on: bool) -> dict[str, str]:
    """What a broker adds to every message that is sent alone.

    4.9 names the cluster only; consumers of 5.x do not trace what names no region.
    """
    return {MSG_REGION: region, TRACE_SWITCH: "true" if trace_on else "false", CLUSTER: cluster}


def encode_stored(text: str, found: Mapping[str, str], added: Mapping[str, str]) -> str:
    """The text that a broker stores, given what was sent, the properties in it, and its stamps.

    It has no WAIT, which concerned the sending only. Raises FieldError.
    """
    if text.count(PROPERTY_SEPARATOR) == len(found) and STAMPED.isdisjoint(found):
        # Each part of the text is a property of its own, so what stays can stay as it is.
        if not found:
            return _encode_once(tuple(added.items()))
        if text[-1] == PROPERTY_SEPARATOR:
            wait = found.get(WAIT_STORED)
            if wait is not None:
                text = _without(text, f"{WAIT_STORED}{NAME_VALUE_SEPARATOR}{wait}")
            return text + _encode_once(tuple(added.items()))
    stored = {name: value for name, value in found.items() if name != WAIT_STORED}
    stored.update(added)
    return encode(stored)


def _without(text: str, part: str) -> str:
    """The text of several properties without one of them."""
    first, _, rest = f"{PROPERTY_SEPARATOR}{text}".partition(
        f"{PROPERTY_SEPARATOR}{part}{PROPERTY_SEPARATOR}"
    )
    return f"{first[1:]}{PROPERTY_SEPARATOR}{rest}" if first else rest


@lru_cache(maxsize=4)
def _encode_once(items: tuple[tuple[str, str], ...]) -> str:
    return encode(dict(items))


def decode(text: str) -> dict[str, str]:
    """The properties in a text; never raises."""
    properties: dict[str, str] = {}
    for part in text.split(PROPERTY_SEPARATOR):
        name, _, value = part.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def of_message(message: Message) -> dict[str, str]:
    """All properties of a message to send: its own, and those that carry tags, keys and delay."""
    properties = dict(message.properties)
    if message.tags:
        properties[TAGS] = message.tags
    if message.keys:
        properties[KEYS] = KEY_SEPARATOR.join(message.keys)
    properties[WAIT_STORED] = "true" if message.wait_stored else "false"
    if message.delay_level:
        properties[DELAY_LEVEL] = str(message.delay_level)
    return properties


def _check_separators(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        # A value may hold \x01: the first one after a name is what separates.
        if NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name + value:
            raise FieldError(f"property {name!r} holds \\x01 or \\x02, which separate properties")


# -- tags ------------------------------------------------------------------------------------------


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, wrapped to 32 bits, signed."""
    number = 0
    if text.isascii():
        for unit in text.encode():
            number = 31 * number + unit & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            number = 31 * number + (units[at] << 8 | units[at + 1]) & 0xFFFFFFFF
    return number - 0x1_0000_0000 if number & 0x8000_0000 else number


def tags_code(tags: str | None) -> int:
    """The tags code of a queue entry; 0 without tags.

    Delayed messages have their delivery time there instead, see `derived.tags_code`.
    """
    return java_hash(tags) if tags else 0
