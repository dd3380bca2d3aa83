"""Fields of requests in their usual form, for the pure feed.

Whoever writes a number or a truth value in another way is read by `protocol/headers/`.
"""

from collections.abc import Mapping

FLAG_RESPONSE, FLAG_ONEWAY = 1, 2
NUMBER_DIGITS_MAX = 18
TRUTHS = {"true": True, "false": False}

_TRUTH_NAMES = frozenset(("nsd", "oway", "lo"))
"""What 5.x may add to any request, and is true or false."""
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def integer(text: str, low: int = _INT32_MIN, high: int = _INT32_MAX) -> int | None:
    """A whole number in its only usual form."""
    if len(text) > NUMBER_DIGITS_MAX:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if low <= number <= high and str(number) == text else None


def long_integer(text: str) -> int | None:
    """The same for numbers of 64 bits."""
    return integer(text, -(10**NUMBER_DIGITS_MAX), 10**NUMBER_DIGITS_MAX)


def has_usual_truths(fields: Mapping[str, str]) -> bool:
    """Whether what 5.x may add to any request is written as usual, if it is there."""
    return _TRUTH_NAMES.isdisjoint(fields) or all(
        fields[name] in TRUTHS for name in _TRUTH_NAMES.intersection(fields)
    )
