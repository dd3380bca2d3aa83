"""What a store derives from a log record: its queue entry and the keys it is filed under.

One rule for the writer, for recovery and for the compiled kernel, which has it once more. Nothing
of this is kept anywhere else, so every queue and the whole index can be made again from the log.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from operator import mul

from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import properties, sysflag

Properties = Mapping[str, str]

_CACHED_KEY_LENGTH_MAX = 256
_TAIL_LENGTH = 8
_SHOWN = (sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_COMMIT)


def has_queue_entry(sys_flag: int) -> bool:
    """Prepared and rolled back messages are not consumed, so no queue shows them."""
    return sys_flag & sysflag.TRANSACTION_MASK in _SHOWN


def tags_code(
    topic: str, found: Properties, store_time_ms: int, delay_levels_ms: tuple[int, ...]
) -> int:
    """What the queue entry keeps for filters: the tags' hash, or when a delayed message is due."""
    level = found.get(properties.DELAY_LEVEL)
    if topic == SCHEDULE_TOPIC and level and level.isascii() and level.isdecimal():
        # Nobody has so many levels, and Python refuses to read numbers of thousands of digits.
        number = min(int(level) if len(level) < 10 else 10**9, len(delay_levels_ms))
        if number > 0:
            return store_time_ms + delay_levels_ms[number - 1]
    return _tags_hash(found.get(properties.TAGS))


_tags_hash = lru_cache(maxsize=4096)(properties.tags_code)


def index_keys(found: Properties, sys_flag: int) -> list[str]:
    """The keys under which a message is filed, its unique key first."""
    if sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK:
        return []
    unique, keys = found.get(properties.UNIQUE_KEY), found.get(properties.KEYS)
    filed = [unique] if unique else []
    if keys:
        filed += filter(None, keys.split(properties.KEY_SEPARATOR))
    return filed


def is_topic_name(topic: str) -> bool:
    """Whether a topic can be a directory; what a record says is not trusted with paths."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


# -- the hash of keys ------------------------------------------------------------------------------


def key_hash(topic: str, key: str) -> int:
    """The hash under which a key of a topic is filed."""
    if key.isascii() and len(key) <= _CACHED_KEY_LENGTH_MAX:
        # Keys that clients make differ in their last characters only; the rest is remembered.
        head = _head_hash(topic, key[:-_TAIL_LENGTH])
        number = _hash_on(head, key[-_TAIL_LENGTH:]) & 0xFFFFFFFF
    else:
        number = properties.java_hash(f"{topic}#{key}") & 0xFFFFFFFF
    if number & 0x8000_0000:
        number = 0x1_0000_0000 - number
    # The smallest int of Java has no positive twin; RocketMQ files it under 0.
    return 0 if number == 0x8000_0000 else number


@lru_cache(maxsize=4096)
def _head_hash(topic: str, head: str) -> int:
    return _hash_on(properties.java_hash(topic + "#"), head)


def _hash_on(number: int, text: str) -> int:
    """Java's hash of a text in ASCII that follows another one, not wrapped yet.

    The same polynomial as Java's loop, but summed outside of Python's.
    """
    shift, powers = _powers(len(text))
    added: int = sum(map(mul, text.encode(), powers))
    return number * shift + added


@cache
def _powers(count: int) -> tuple[int, tuple[int, ...]]:
    """31^count, and 31^(count-1) down to 31^0, wrapped to 32 bits."""
    powers = tuple(pow(31, exponent, 2**32) for exponent in range(count, -1, -1))
    return powers[0], powers[1:]
