"""Messages since the broker exists, now and at the last two midnights, without system topics.

They are saved in `config/statistics.json`.
"""

from datetime import datetime, timedelta

import msgspec


class DayStart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Totals at the beginning of a day."""

    put: int = 0
    got: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The content of `config/statistics.json`."""

    put: int = 0
    got: int = 0
    day: int = 0
    """The ordinal of the local day of `today`; 0 if there was none."""
    today: DayStart = DayStart()
    yesterday: DayStart = DayStart()

    def on(self, day: int) -> "Totals":
        """The totals on a day; a new day begins with the current values."""
        if day <= self.day:
            return self
        now = DayStart(put=self.put, got=self.got)
        if self.day == 0:
            now = self.today
        yesterday = self.today if day == self.day + 1 or self.day == 0 else now
        return msgspec.structs.replace(self, day=day, today=now, yesterday=yesterday)


def day_of(now_ms: int) -> int:
    """The ordinal of the local day."""
    return _local(now_ms).toordinal()


def next_midnight_ms(now_ms: int) -> int:
    """When the next local day begins."""
    tomorrow = _local(now_ms).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((tomorrow + timedelta(days=1)).timestamp() * 1000)


def _local(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - a day is local by meaning
