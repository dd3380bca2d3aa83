"""Derives queue entries and index items from records; the rules are in `protocol/derived.py`."""

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
