"""Parsing of times and durations."""

from datetime import datetime

import pytest

from tianzhou.cli.shared.times import parse_span, parse_time
from tianzhou.errors import ConfigError

NOW = datetime(2026, 1, 31, 12, 0, 0).astimezone()
NOW_MS = round(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "behind_ms"),
    [
        ("now", 0),
        ("10m", 600_000),
        ("-10m", 600_000),
        ("1.5h ago", 5_400_000),
        ("30s", 30_000),
        ("2d", 172_800_000),
        ("2026-01-31 11:00:00", 3_600_000),
        ("2026-01-31 11:00", 3_600_000),
        ("2026-01-31#11:00:00:000", 3_600_000),
        ("2026-01-31T11:00:00", 3_600_000),
        ("11:00", 3_600_000),
        ("2026-01-31", 43_200_000),
    ],
)
def test_formats_of_times(text: str, behind_ms: int) -> None:
    assert parse_time(text, NOW_MS) == NOW_MS - behind_ms


def test_milliseconds_and_zones() -> None:
    assert parse_time("1700000000123", NOW_MS) == 1_700_000_000_123
    assert parse_time("1970-01-01T00:00:01+00:00", NOW_MS) == 1000


@pytest.mark.parametrize("text", ["", "soon", "12", "2026-13-01", "10 parsecs"])
def test_invalid_times(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time(text, NOW_MS)


def test_invalid_durations() -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_span("x")
