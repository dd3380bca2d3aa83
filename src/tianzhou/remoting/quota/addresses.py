"""Patterns of addresses, for white lists and quota files.

*                        every address
10.1.2.3   ::1           one address
10.1.2.3,10.1.2.4        several
10.1.2.{3,4}             the same
10.1.2.*   10.1.*.*      any value of a part
10.1.2.0-127             a range of a part; parts of IPv6 are hexadecimal
10.1.0.0/16              a network (Tianzhou's)
"""

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from tianzhou.errors import ConfigError

Address = IPv4Address | IPv6Address
Matches = Callable[[Address], bool]

_EVERYTHING = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_BRACES = re.compile(r"(.*)\{([^{}]*)\}")
_V4_PARTS, _V4_MAX = 4, 255
_V6_PARTS, _V6_MAX = 8, 0xFFFF


def parse_host(host: str) -> Address | None:
    """The address of a peer, None if invalid; IPv4-mapped IPv6 becomes IPv4."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_pattern(text: str | None) -> Matches:
    """The predicate of a pattern; a blank one matches nothing. Raises ConfigError."""
    if text is None or not text.strip():
        return lambda address: False
    text = text.strip()
    if text in _EVERYTHING:
        return lambda address: True
    alternatives = [_parse_alternative(piece) for piece in _alternatives(text)]
    return lambda address: any(matches(address) for matches in alternatives)


def _alternatives(text: str) -> list[str]:
    braces = _BRACES.fullmatch(text)
    if braces is not None:
        head, inner = braces.groups()
        return [head + piece.strip() for piece in inner.split(",")]
    return [piece.strip() for piece in text.split(",")]


def _parse_alternative(text: str) -> Matches:
    try:
        if "/" in text:
            network = ip_network(text, strict=False)
            return lambda address: address.version == network.version and address in network
        if "*" not in text and "-" not in text:
            wanted = ip_address(text)
            return lambda address: address == wanted
        return _ranges(text)
    except ValueError as e:
        raise ConfigError(
            f"{text!r} is no address: write 10.1.2.3, 10.1.2.*, 10.1.2.0-127, 10.1.2.{{3,4}} or "
            f"10.1.0.0/16"
        ) from e


def _ranges(text: str) -> Matches:
    is_v6 = ":" in text
    count, largest, base = (_V6_PARTS, _V6_MAX, 16) if is_v6 else (_V4_PARTS, _V4_MAX, 10)
    texts = _expand(text) if is_v6 else text.split(".")
    if len(texts) != count:
        raise ValueError(f"{len(texts)} parts instead of {count}")
    bounds = [_bounds(part.strip(), largest, base) for part in texts]

    def matches(address: Address) -> bool:
        if isinstance(address, IPv6Address) is not is_v6:
            return False
        separator = ":" if is_v6 else "."
        parts = (int(part, base) for part in address.exploded.split(separator))
        return all(low <= part <= high for part, (low, high) in zip(parts, bounds, strict=True))

    return matches


def _expand(text: str) -> list[str]:
    """The parts of an IPv6 pattern, "::" written out."""
    head, gap, tail = text.partition("::")
    if not gap:
        return text.split(":")
    left, right = (side.split(":") if side else [] for side in (head, tail))
    return [*left, *["0"] * (_V6_PARTS - len(left) - len(right)), *right]


def _bounds(part: str, largest: int, base: int) -> tuple[int, int]:
    if part == "*":
        return 0, largest
    low_text, dash, high_text = part.partition("-")
    low = int(low_text, base)
    high = int(high_text, base) if dash else low
    if not 0 <= low <= high <= largest:
        raise ValueError(f"{part} is out of range")
    return low, high
