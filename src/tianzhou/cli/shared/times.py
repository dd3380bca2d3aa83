"""Parsing times and durations given on the command line."""

import re
from datetime import datetime, timedelta

from tianzhou.errors import ConfigError

_AGO = re.compile(r"-?\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)(?:\s+ago)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORMS = (
    "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d#%H:%M:%S:%f", "%H:%M:%S", "%H:%M",
)  # fmt: skip
FORMATS = "write '2026-01-31 23:59:59', '23:59', '10m' (ago), 'now', or milliseconds since 1970"


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970; a time without a zone is local. Raises ConfigError."""
    text = text.strip()
    if text.lower() in ("now", "currenttimemillis"):
        return now_ms
    if text.isdecimal() and len(text) >= 10:
        return int(text)
    if ago := _AGO.fullmatch(text):
        return now_ms - parse_span(ago[0])
    for form in _FORMS:
        try:
            found = datetime.strptime(text, form)  # noqa: DTZ007 - local time, made aware below
        except ValueError:
            continue
        if form.startswith("%H"):
            today = datetime.fromtimestamp(now_ms / 1000).astimezone()
            found = found.replace(year=today.year, month=today.month, day=today.day)
        return round(found.astimezone().timestamp() * 1000)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as e:
        raise ConfigError(f"{text!r} is not a time; {FORMATS}") from e


def parse_span(text: str) -> int:
    """Milliseconds of "10m", "1.5h", "2d ago". Raises ConfigError."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a duration; write 30s, 10m, 2h or 1d")
    amount, unit = found.groups()
    return round(timedelta(milliseconds=float(amount) * _UNIT_MS[unit]).total_seconds() * 1000)
