"""Checks of names, permissions and sizes. Each check raises RequestError or returns nothing.

Codes and texts follow RocketMQ where clients or users rely on them; every remark says what is wrong
and what is allowed.
"""

import re

from tianzhou.errors import RequestError
from tianzhou.limits import PROPERTIES_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_TOPIC_PREFIX,
    UNSENDABLE_TOPICS,
    is_system_topic,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.derived import is_topic_name, name_bytes

TOPIC_LENGTH_MAX = 127
GROUP_LENGTH_MAX = 255
"""4.9 allows 255 characters; 5.x allows 120 for new groups and accepts old ones."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def describe_permission(permission: int) -> str:
    """A permission in RocketMQ's notation: RW-, R--, -W-."""
    read = "R" if permission & PERM_READ else "-"
    write = "W" if permission & PERM_WRITE else "-"
    return f"{read}{write}{'X' if permission & 1 else '-'}"


# -- names -----------------------------------------------------------------------------------------


def check_topic_name(topic: str) -> None:
    """Check the name of a topic."""
    belongs_to_group = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    _check_name("topic", topic, TOPIC_NAME_BYTES_MAX if belongs_to_group else TOPIC_LENGTH_MAX)


def check_group_name(group: str) -> None:
    """Check the name of a consumer group."""
    _check_name("consumer group", group, GROUP_LENGTH_MAX)


def _check_name(what: str, name: str, length_max: int) -> None:
    problem = ""
    if not name.strip():
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the {what} is blank")
    if not _LEGAL.fullmatch(name):
        problem = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    elif len(name) > length_max:
        problem = f"has {len(name)} characters, at most {length_max} are allowed"
    if problem:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the {what} {shorten(name)} {problem}")


def check_new_group(group: str) -> None:
    """Check the name of a new group, and the names of its retry and dead-letter topics."""
    check_group_name(group)
    check_derived_topic(RETRY_TOPIC_PREFIX + group)
    check_derived_topic(DLQ_TOPIC_PREFIX + group)


def check_derived_topic(topic: str) -> None:
    """Check the length of a topic name that is derived from a group."""
    if not is_topic_name(topic):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the topic {shorten(topic)} that belongs to the group has {name_bytes(topic)} bytes, "
            f"at most {TOPIC_NAME_BYTES_MAX} are allowed: choose a shorter group or topic",
        )


def check_sendable(topic: str) -> None:
    """Refuse topics that clients must not send to."""
    if topic in UNSENDABLE_TOPICS:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"the topic {topic} is the broker's own, sending is forbidden",
        )


def check_changeable(topic: str) -> None:
    """Refuse topics that administrators must not create, change or delete."""
    if is_system_topic(topic):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the topic {topic} is a system topic and cannot be changed"
        )


# -- messages --------------------------------------------------------------------------------------


def check_body_size(size_bytes: int, size_max_bytes: int) -> None:
    if size_bytes > size_max_bytes:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message body has {size_bytes} bytes, maxMessageSize allows {size_max_bytes}",
        )


def check_properties(text: str, *, added_bytes: int = 0) -> None:
    """Check that the properties, with `added_bytes` more, fit their two-byte length field."""
    # Only a text that may not fit is encoded to measure it: three bytes per character at most.
    if len(text) * 3 + added_bytes > PROPERTIES_BYTES_MAX:
        size_bytes = len(text.encode("utf-8", "surrogatepass")) + added_bytes
        if size_bytes > PROPERTIES_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message properties have {size_bytes} bytes, "
                f"at most {PROPERTIES_BYTES_MAX} are allowed",
            )


def shorten(text: str) -> str:
    """A name for a remark, cut to 80 characters."""
    return text if len(text) <= 80 else f"{text[:80]}..."
