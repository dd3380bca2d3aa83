"""Days in the zone of a cluster, also where the clock is changed."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.console.collect.days import MIDNIGHTS_MAX, days_at, midnights, zone_of
from tianzhou.errors import ConfigError

HOUR_MS = 3_600_000


def ms(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone_of(zone)).timestamp() * 1000)


def test_a_day_begins_at_midnight_in_the_zone() -> None:
    found = days_at(ms("2026-03-01T20:00"), zone_of("Asia/Shanghai"))
    assert (found.yesterday, found.today, found.tomorrow) == (
        "2026-03-01", "2026-03-02", "2026-03-03",
    )  # fmt: skip
    assert found.today_ms == ms("2026-03-01T16:00")
    assert found.tomorrow_ms - found.today_ms == 24 * HOUR_MS


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_may_have_23_or_25_hours(day: str, hours: int) -> None:
    found = days_at(ms(f"{day}T12:00", "Europe/Berlin"), zone_of("Europe/Berlin"))
    assert found.tomorrow_ms - found.today_ms == hours * HOUR_MS


@given(st.integers(0, 2**41), st.sampled_from(["UTC", "Asia/Shanghai", "America/Sao_Paulo"]))
def test_every_moment_is_in_its_day(now_ms: int, name: str) -> None:
    found = days_at(now_ms, zone_of(name))
    assert found.yesterday_ms < found.today_ms <= now_ms < found.tomorrow_ms
    assert days_at(found.today_ms, zone_of(name)).today == found.today
    assert days_at(found.today_ms - 1, zone_of(name)).today == found.yesterday


def test_the_midnights_between_two_moments() -> None:
    zone = zone_of("UTC")
    begin, end = ms("2026-03-01T23:59"), ms("2026-03-03T00:00")
    assert midnights(begin, end, zone) == [
        ("2026-03-01", ms("2026-03-02T00:00")),
        ("2026-03-02", ms("2026-03-03T00:00")),
    ]
    assert midnights(end, end + HOUR_MS, zone) == []
    assert midnights(end, begin, zone) == []
    assert len(midnights(0, end, zone)) == MIDNIGHTS_MAX


def test_an_unknown_zone_is_an_error() -> None:
    assert zone_of("utc") is UTC
    for name in ("Mars/Olympus", "../etc/passwd", ""):
        with pytest.raises(ConfigError, match="there is no time zone"):
            zone_of(name)
