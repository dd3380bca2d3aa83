"""The topic of a message that a request names by its place in the log."""

from tianzhou.errors import TianzhouError
from tianzhou.names import HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.record import decode_record
from tianzhou.store.message_store import MessageStore


def topic_at(store: MessageStore, log_offset: int) -> str | None:
    """None if no message begins there; for the half of a transaction its real topic."""
    try:
        record = store.record_at(log_offset)
        if record is None:
            return None
        message = decode_record(record)
    except TianzhouError:
        return None  # whatever is there, it is not handed out
    if message.topic == HALF_TOPIC:
        return message.properties.get(properties.REAL_TOPIC, message.topic)
    return message.topic
