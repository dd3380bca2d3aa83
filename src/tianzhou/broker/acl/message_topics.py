"""The topic of a message that a request names by its log offset."""

from tianzhou.broker.acl.needs import MessageTopic
from tianzhou.errors import TianzhouError
from tianzhou.names import HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import MessageStore


def topic_at(store: MessageStore, log_offset: int) -> MessageTopic | None:
    """None if no message begins there; it need not be confirmed, as it may be a half to end."""
    try:
        record = store.with_unconfirmed.record_at(log_offset)
        if record is None:
            return None
        message = decode_record(record, check_crc=False, read_body=False)
    except TianzhouError:
        return None
    topic = message.topic
    if topic == HALF_TOPIC:
        return MessageTopic(topic, message.properties.get(properties.REAL_TOPIC, topic))
    return MessageTopic(topic, topic)
