"""Recall handles, by which a producer recalls a timed message before its delivery.

    base64 of "v1 topic broker time id"

RocketMQ 5.x returns one with the response to a timed send. It can also be made from the properties
of the message.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import NamedTuple

from tianzhou.errors import FieldError
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol import properties

_VERSION = "v1"
_PART_COUNT = 5
_DIGITS_MAX = 18


class RecallHandle(NamedTuple):
    """Which message, and where it waits."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str


def encode_handle(handle: RecallHandle) -> str:
    parts = (_VERSION, handle.topic, handle.broker_name, str(handle.deliver_ms), handle.unique_key)
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Raises FieldError for what no broker gave out."""
    try:
        padded = text + "=" * (-len(text) % 4)
        parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < _PART_COUNT or parts[0] != _VERSION or not _is_time(parts[3]):
        raise FieldError(f"{text[:64]!r} is no recall handle")
    return RecallHandle(parts[1], parts[2], int(parts[3]), parts[4])


def _is_time(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX


def handle_of(found: Mapping[str, str], broker_name: str) -> str | None:
    """The handle of a message that waits with these properties; None if it cannot be recalled."""
    out = found.get(properties.TIMER_OUT_MS, "")
    topic, key = found.get(properties.REAL_TOPIC), found.get(properties.UNIQUE_KEY)
    if not _is_time(out) or not topic or not key or topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    return encode_handle(RecallHandle(topic, broker_name, int(out) + 1, key))
