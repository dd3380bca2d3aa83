"""Back-off of failed connections, by address.

The pause doubles with every failure, up to a limit, and resets some time after its end. Sans-IO:
times are seconds of a monotonic clock.
"""

from dataclasses import dataclass

from tianzhou.errors import ConnectError

_FORGET_PAUSES = 10
_ADDRESSES_MAX = 1_024


@dataclass(slots=True)
class _Pause:
    pause_ms: int
    until_s: float
    reason: str


class DialBackoff:
    """Failed connections and their pauses, by address."""

    __slots__ = ("_max_ms", "_min_ms", "_pauses")

    def __init__(self, min_ms: int, max_ms: int) -> None:
        self._min_ms = min_ms
        self._max_ms = max(min_ms, max_ms)
        self._pauses: dict[str, _Pause] = {}

    def check(self, address: str, now_s: float) -> None:
        """Raises ConnectError during the pause of an address."""
        pause = self._pauses.get(address) if self._pauses else None
        if pause is not None and now_s < pause.until_s:
            raise ConnectError(f"{pause.reason} (the next attempt: after {pause.pause_ms} ms)")

    def remaining_s(self, address: str, now_s: float) -> float:
        """The rest of the pause of an address."""
        pause = self._pauses.get(address)
        return max(pause.until_s - now_s, 0.0) if pause is not None else 0.0

    def failed(self, address: str, now_s: float, error: ConnectError) -> None:
        """A connection failed; all callers that shared the attempt may report it."""
        pause = self._pauses.get(address)
        if pause is not None and now_s < pause.until_s:
            return
        pause_ms = self._min_ms
        if pause is not None and now_s - pause.until_s < self._max_ms * _FORGET_PAUSES / 1000:
            pause_ms = min(pause.pause_ms * 2, self._max_ms)
        self._pauses.pop(address, None)
        self._pauses[address] = _Pause(pause_ms, now_s + pause_ms / 1000, str(error))
        if len(self._pauses) > _ADDRESSES_MAX:
            del self._pauses[next(iter(self._pauses))]
