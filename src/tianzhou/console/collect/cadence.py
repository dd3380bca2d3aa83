"""When the next round begins: the interval follows what a round costs. No I/O, no clock."""

from dataclasses import dataclass

INTERVAL_MS = 60_000
INTERVAL_MAX_MS = 300_000
_SHARE_MAX = 2
"""A round may take the interval divided by this."""
_SHARE_EASY = 8
"""A round that takes less of the interval than this makes it shorter again."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """The interval of the rounds, and why it is longer than wanted."""

    wanted_ms: int = INTERVAL_MS
    interval_ms: int = INTERVAL_MS
    reason: str = ""

    def after(self, round_ms: int, request_count: int) -> "Cadence":
        """The cadence after a round."""
        longest_ms = max(INTERVAL_MAX_MS, self.wanted_ms)
        if round_ms * _SHARE_MAX > self.interval_ms:
            interval_ms = min(self.interval_ms * 2, longest_ms)
        elif round_ms * _SHARE_EASY < self.interval_ms:
            interval_ms = max(self.interval_ms // 2, self.wanted_ms)
        else:
            interval_ms = self.interval_ms
        if interval_ms == self.wanted_ms:
            return Cadence(self.wanted_ms, interval_ms)
        if interval_ms > self.interval_ms or not self.reason:
            reason = (
                f"a round with {request_count:,} requests took {round_ms / 1000:.1f} s, so there "
                f"is one every {interval_ms / 1000:g} s instead of {self.wanted_ms / 1000:g} s"
            )
        else:
            reason = self.reason
        return Cadence(self.wanted_ms, interval_ms, reason)


def next_round_ms(now_ms: int, interval_ms: int, midnight_ms: int) -> int:
    """Milliseconds until the next round: a round begins when a day does."""
    until_midnight_ms = midnight_ms - now_ms
    if 0 < until_midnight_ms < interval_ms:
        return until_midnight_ms
    return interval_ms
