r"""One property out of a record, without decoding the rest.

The results are those of `properties.decode`, by the same rules: parts end with \x02, the first \x01
separates name and value, empty values do not count, and of a repeated name the last one does.
"""

from collections.abc import Callable
from functools import partial

from tianzhou.protocol.pure.record import MAGIC_V1, MAGIC_V2, SYS_FLAG_AT, head_bytes

# Positions in a record, see `records/record.py`.
_MAGIC_LAST_AT = 7
_MAGIC_V2_LAST = MAGIC_V2 & 0xFF
assert _MAGIC_V2_LAST != MAGIC_V1 & 0xFF

Finder = Callable[[str], str | None]
"""Gives the value of the property with this name."""


def property_finder(raw: bytes) -> Finder:
    """A finder over the raw properties of one record."""
    return partial(find_property, raw)


def find_property(raw: bytes, name: str) -> str | None:
    """The value of the property `name`, None if there is none."""
    if not name or "\x01" in name or "\x02" in name:
        return None
    opening = name.encode("utf-8", "surrogatepass") + b"\x01"
    stop = len(raw)
    while True:
        # Searching from the end finds the last one, which is the one that counts.
        found = raw.rfind(b"\x02" + opening, 0, stop)
        at = found + 1
        if found < 0 and not raw.startswith(opening):
            return None
        start = at + len(opening)
        end = raw.find(b"\x02", start)
        value = raw[start:] if end < 0 else raw[start:end]
        if value:
            return value.decode("utf-8", "replace")
        if found < 0:
            return None
        stop = found + len(opening)


def record_properties(record: memoryview) -> bytes:
    """The raw properties of one whole, sound record, which ends with them."""
    sys_flag = int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big")
    at = head_bytes(sys_flag)
    at += int.from_bytes(record[at - 4 : at], "big")
    if record[_MAGIC_LAST_AT] == _MAGIC_V2_LAST:
        at += 2 + int.from_bytes(record[at : at + 2], "big")
    else:
        at += 1 + record[at]
    return bytes(record[at + 2 :])
