"""Numbers, sizes and times as pages show them; an unknown one is "?"."""

import zoneinfo
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache

UNKNOWN = "?"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TENTHS_BELOW = 100
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
"""Seconds, their unit, and the smaller unit behind it."""


def figure(value: float | None) -> str:
    """1,234; tenths only of small rates."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or value.is_integer() or abs(value) >= _TENTHS_BELOW:
        return f"{round(value):,}"
    return f"{value:,.1f}"


def size(value: float | None) -> str:
    """1.5 GiB."""
    if value is None:
        return UNKNOWN
    left, unit = float(value), 0
    while abs(left) >= 1024 and unit < len(_SIZES) - 1:
        left, unit = left / 1024, unit + 1
    return f"{left:,.0f} {_SIZES[unit]}" if unit == 0 else f"{left:,.1f} {_SIZES[unit]}"


def percent(ratio: float | None) -> str:
    """42 %; tenths below ten, where they tell a little from nothing."""
    if ratio is None:
        return UNKNOWN
    if 0 < ratio < 0.0995:
        return "< 0.1 %" if ratio < 0.0005 else f"{ratio * 100:.1f} %"
    return f"{ratio * 100:.0f} %"


def duration(ms: float | None) -> str:
    """850 ms, 12 s, 3 min 20 s, 5 h 12 min, 3 d, 3 d 4 h."""
    if ms is None:
        return UNKNOWN
    if abs(ms) < 1000:
        return f"{ms:.0f} ms"
    seconds = int(abs(ms) // 1000)
    sign = "-" if ms < 0 else ""
    for length, unit, below, smaller in _UNITS:
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            more = f" {rest // below} {smaller}" if rest // below else ""
            return f"{sign}{whole} {unit}{more}"
    return f"{sign}{seconds} s"


def moment(ms: int | None, zone: str) -> str:
    """2026-11-19 20:15:07 in a time zone."""
    return UNKNOWN if ms is None else f"{_at(ms, zone):%Y-%m-%d %H:%M:%S}"


def iso(ms: int, zone: str) -> str:
    """As moment, for programs."""
    return _at(ms, zone).isoformat(timespec="milliseconds")


def _at(ms: int, zone: str) -> datetime:
    # Far values come from data of brokers.
    bounded = min(max(ms, -62_000_000_000_000), 253_000_000_000_000)
    return datetime.fromtimestamp(bounded / 1000, UTC).astimezone(zone_of(zone))


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """A time zone; UTC if there is none of this name."""
    try:
        return zoneinfo.ZoneInfo(name) if name else UTC
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def is_zone(name: str) -> bool:
    """Whether a time zone with this name exists."""
    return name in _zones()


@cache
def _zones() -> frozenset[str]:
    # Reads hundreds of files.
    return frozenset(zoneinfo.available_timezones())
