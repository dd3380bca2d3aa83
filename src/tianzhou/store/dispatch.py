"""From a log record to its queue entry and index items; the rules lie in `protocol/derived.py`."""

from tianzhou.protocol.derived import (
    Properties,
    has_queue_entry,
    index_keys,
    is_topic_name,
    key_hash,
    name_bytes,
    tags_code,
)

__all__ = [
    "Properties", "has_queue_entry", "index_keys", "is_topic_name", "key_hash", "name_bytes",
    "tags_code",
]  # fmt: skip
