"""What a store derives from a log record: its queue entry and the keys by which it is indexed.

One rule for the writer, for recovery and for the compiled kernel, which has it once more. Nothing
of this is kept anywhere else, so every queue and the whole index can be made again from the log.
"""

from collections.abc import Mapping
from functools import lru_cache
from operator import mul

from tianzhou.limits import TOPIC_NAME_BYTES_MAX
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import properties, sysflag

Properties = Mapping[str, str]

_CACHED_KEY_LENGTH_MAX = 256
_TAIL_LENGTH = 8
_TAIL_POWERS = tuple(31**exponent for exponent in range(_TAIL_LENGTH - 1, -1, -1))
_TAIL_SHIFT: int = 31**_TAIL_LENGTH
_SHOWN = (sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_COMMIT)


def has_queue_entry(sys_flag: int) -> bool:
    """Prepared and rolled back messages are not consumed, so no queue shows them."""
    return sys_flag & sysflag.TRANSACTION_MASK in _SHOWN


def tags_code(
    topic: str, found: Properties, store_time_ms: int, delay_levels_ms: tuple[int, ...]
) -> int:
    """The tags code of a queue entry: the hash of the tags, or a delayed message's due time."""
    level = found.get(properties.DELAY_LEVEL)
    if topic == SCHEDULE_TOPIC and level and level.isascii() and level.isdecimal():
        # There are fewer levels, and Python refuses to parse thousands of digits.
        number = min(int(level) if len(level) < 10 else 10**9, len(delay_levels_ms))
        if number > 0:
            return store_time_ms + delay_levels_ms[number - 1]
    return _tags_hash(found.get(properties.TAGS))


_tags_hash = lru_cache(maxsize=4096)(properties.tags_code)


def index_keys(found: Properties, sys_flag: int) -> list[str]:
    """The keys of a message in the index, its unique key first."""
    if sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK:
        return []
    unique, keys = found.get(properties.UNIQUE_KEY), found.get(properties.KEYS)
    filed = [unique] if unique else []
    if keys:
        filed += filter(None, keys.split(properties.KEY_SEPARATOR))
    return filed


def is_topic_name(topic: str) -> bool:
    """Whether a topic can be the name of a directory; names in records are not trusted."""
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    # Three bytes for each character at most, of UTF-16 surrogates, too.
    return len(topic) * 3 <= TOPIC_NAME_BYTES_MAX or name_bytes(topic) <= TOPIC_NAME_BYTES_MAX


def name_bytes(topic: str) -> int:
    """How long the name of a topic is in a directory."""
    return len(topic.encode("utf-8", "surrogatepass"))


# -- the hash of keys ------------------------------------------------------------------------------


def key_hash(topic: str, key: str) -> int:
    """The hash under which a key of a topic is filed."""
    if key.isascii() and _TAIL_LENGTH <= len(key) <= _CACHED_KEY_LENGTH_MAX:
        # Keys that clients make differ in their last characters only; the rest is remembered. The
        # same polynomial as Java's loop, but summed outside of Python's.
        tail: int = sum(map(mul, key[-_TAIL_LENGTH:].encode(), _TAIL_POWERS))
        number: int = _head_hash(topic, key[:-_TAIL_LENGTH]) + tail & 0xFFFFFFFF
    elif key.isascii() and len(key) < _TAIL_LENGTH:
        powers = _TAIL_POWERS[_TAIL_LENGTH - len(key) :]
        number = _head_hash(topic, "") // _TAIL_SHIFT * 31 ** len(key)
        number = number + sum(map(mul, key.encode(), powers)) & 0xFFFFFFFF
    else:
        number = properties.java_hash(f"{topic}#{key}") & 0xFFFFFFFF
    if number < 0x8000_0000:
        return number
    # The smallest int of Java has no positive counterpart; RocketMQ uses 0.
    return 0 if number == 0x8000_0000 else 0x1_0000_0000 - number


@lru_cache(maxsize=4096)
def _head_hash(topic: str, head: str) -> int:
    """What the beginning of a key adds to the hash, whatever its last characters are."""
    return (properties.java_hash(f"{topic}#{head}") & 0xFFFFFFFF) * _TAIL_SHIFT
