"""Numbers as Java reads them from text, and as it compares them.

Python's `int` and `float` take underscores, blanks and other spellings that Java refuses, and Java
orders NaN and the two zeros, which Python does not.
"""

import re

_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?", re.ASCII
)
_NAMED = re.compile(r"([+-]?)(NaN|Infinity)")
_DIGIT_LIMIT = 1000
_BMP_LAST = "\uffff"


class Long(int):
    """An integer that is a Java `Long`; a plain `int` stands for an `Integer`."""

    __slots__ = ()


def parse_int(text: str) -> int:
    """`Integer.valueOf`. Raises ValueError."""
    return _parse_integer(text, 31)


def parse_long(text: str) -> Long:
    """`Long.valueOf`. Raises ValueError."""
    return Long(_parse_integer(text, 63))


def _parse_integer(text: str, bits: int) -> int:
    # Java reads UTF-16 units, so digits outside the basic plane are none; Python refuses to read
    # thousands of digits, and no number that fits needs them.
    if not _INTEGER.fullmatch(text) or len(text) > _DIGIT_LIMIT or max(text) > _BMP_LAST:
        raise ValueError(f"{text[:40]!r} is no integer")
    number = int(text)
    if not -(1 << bits) <= number < 1 << bits:
        raise ValueError(f"{text[:40]!r} does not fit {bits + 1} bits")
    return number


def parse_double(text: str) -> float:
    """`Double.valueOf`, which takes blanks, a type letter and hexadecimal. Raises ValueError."""
    trimmed = text.strip("".join(map(chr, range(0x21))))
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if found := _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return float("-inf" if trimmed[0] == "-" else "inf")
    if found := _NAMED.fullmatch(trimmed):
        return float(found[1] + {"NaN": "nan", "Infinity": "inf"}[found[2]])
    raise ValueError(f"{text[:40]!r} is no number")


def compare_doubles(left: float, right: float) -> int:
    """`Double.compare`: NaN is above everything and equal to itself, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return _sign_rank(left) - _sign_rank(right) if left == 0 else 0
    # Only NaN is left, which alone differs from itself.
    return (left != left) - (right != right)


def _sign_rank(zero: float) -> int:
    return 0 if str(zero)[0] == "-" else 1
