"""Dead letters: what they were, how often they were tried, and why they died."""

import msgspec

from tianzhou.console.messages.content import MessageRow, row_of
from tianzhou.console.text import Text
from tianzhou.message import StoredMessage
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.protocol import properties

NO_RETRIES = Text("given up by the consumer")
RETRIES_USED_UP = Text("retries used up")


class Letter(MessageRow, frozen=True, kw_only=True):
    """A dead letter in a list."""

    origin_topic: str
    origin_id: str
    """The id that it had in its topic."""
    tries: int
    """How often it was delivered."""
    reason: Text | None
    """None: the number of retries of the group is not known."""


def topic_of(group: str) -> str:
    """The topic of the dead letters of a group."""
    return DLQ_TOPIC_PREFIX + group


def letter_of(message: StoredMessage, broker: str, retry_max: int | None) -> Letter:
    """A dead letter as a row of a list."""
    own = message.properties
    tries = message.reconsume_count
    reason: Text | None = None
    if retry_max is not None:
        reason = RETRIES_USED_UP if tries > retry_max else NO_RETRIES
    return Letter(
        **msgspec.structs.asdict(row_of(message, broker)),
        origin_topic=origin_of(message),
        origin_id=own.get(properties.DLQ_ORIGIN_MESSAGE_ID, "")
        or own.get(properties.ORIGIN_MESSAGE_ID, ""),
        tries=tries, reason=reason,
    )  # fmt: skip


def origin_of(message: StoredMessage) -> str:
    """The topic that the message was sent to."""
    own = message.properties
    return own.get(properties.RETRY_TOPIC) or own.get(properties.DLQ_ORIGIN_TOPIC) or ""
