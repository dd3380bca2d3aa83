"""From a log record to its queue entry and index items: one rule for writer and recovery.

Nothing here is kept anywhere else, so every queue and the whole index can be made again from the
log.
"""

from collections.abc import Mapping
from functools import lru_cache

from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import properties, sysflag

Properties = Mapping[str, str]


def has_queue_entry(sys_flag: int) -> bool:
    """Prepared and rolled back messages are not consumed, so no queue shows them."""
    state = sysflag.transaction_state(sys_flag)
    return state in (sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_COMMIT)


def tags_code(
    topic: str, found: Properties, store_time_ms: int, delay_levels_ms: tuple[int, ...]
) -> int:
    """What the queue entry keeps for filters: the tags' hash, or when a delayed message is due."""
    level = found.get(properties.DELAY_LEVEL)
    if topic == SCHEDULE_TOPIC and level and level.isascii() and level.isdecimal():
        number = min(int(level), len(delay_levels_ms))
        if number > 0:
            return store_time_ms + delay_levels_ms[number - 1]
    return _tags_hash(found.get(properties.TAGS))


_tags_hash = lru_cache(maxsize=4096)(properties.tags_code)


def index_keys(found: Properties, sys_flag: int) -> list[str]:
    """The keys under which a message is filed, its unique key first."""
    if sysflag.transaction_state(sys_flag) == sysflag.TRANSACTION_ROLLBACK:
        return []
    keys = [key for key in found.get(properties.KEYS, "").split(properties.KEY_SEPARATOR) if key]
    unique = found.get(properties.UNIQUE_KEY)
    return [unique, *keys] if unique else keys


def is_topic_name(topic: str) -> bool:
    """Whether a topic can be a directory; what a record says is not trusted with paths."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic
