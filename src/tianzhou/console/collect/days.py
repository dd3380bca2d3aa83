"""Days in the time zone of a cluster. No clock."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tianzhou.errors import ConfigError

MIDNIGHTS_MAX = 8
"""Days before this many midnights are counted as one."""


def zone_of(name: str) -> tzinfo:
    """The time zone with this name, such as Asia/Shanghai. Raises ConfigError."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        raise ConfigError(
            f"there is no time zone {name!r}; pass a name of the IANA database, such as UTC or "
            "Asia/Shanghai (package tzdata)"
        ) from e


@dataclass(frozen=True, slots=True)
class Days:
    """The days at one moment."""

    today: str
    yesterday: str
    tomorrow: str
    today_ms: int
    """When today began."""
    yesterday_ms: int
    tomorrow_ms: int


def days_at(now_ms: int, zone: tzinfo) -> Days:
    """The days at a moment."""
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    yesterday, tomorrow = today - timedelta(days=1), today + timedelta(days=1)
    return Days(
        today.isoformat(),
        yesterday.isoformat(),
        tomorrow.isoformat(),
        begin_ms(today, zone),
        begin_ms(yesterday, zone),
        begin_ms(tomorrow, zone),
    )


def begin_ms(day: date, zone: tzinfo) -> int:
    """When a day begins: its first moment, also where the clock is changed at midnight."""
    begin = datetime(day.year, day.month, day.day, tzinfo=zone)
    return round(begin.timestamp() * 1000)


def midnights(from_ms: int, to_ms: int, zone: tzinfo) -> list[tuple[str, int]]:
    """The midnights after `from_ms`, up to `to_ms`, each with the day that ended.

    At most the last `MIDNIGHTS_MAX`.
    """
    found: list[tuple[str, int]] = []
    day = datetime.fromtimestamp(to_ms / 1000, zone).date()
    while (at_ms := begin_ms(day, zone)) > from_ms and len(found) < MIDNIGHTS_MAX:
        day -= timedelta(days=1)
        found.append((day.isoformat(), at_ms))
    return found[::-1]
