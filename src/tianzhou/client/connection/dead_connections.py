"""Detects dead connections after request time-outs.

A time-out alone proves little: the broker may be slow with one request. A connection on which not
one byte arrived meanwhile, not even the response to a heartbeat, is dead. One on which bytes but no
complete frame arrived for several time-outs is useless, too: a damaged length makes one frame of
everything that follows. A large response on a slow network is neither, as long as it completes.

Sans-IO: `now_s` is an argument.
"""

from typing import Protocol

_SILENCE_MS = 1_000
"""Shorter time-outs prove nothing."""
_ADDRESSES_MAX = 1_024
_STUCK_TIMEOUTS = 4


class WatchedConnection(Protocol):
    """The attributes of a connection that are checked."""

    received_bytes: int
    kept_bytes: int
    """Received bytes of an incomplete frame."""


class DeadConnectionDetector:
    """Decides which connections of a hub to close."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[str, tuple[WatchedConnection, int, float]] = {}

    def reason_to_give_up(
        self,
        address: str,
        line: WatchedConnection,
        received_bytes: int,
        timeout_ms: int,
        now_s: float,
    ) -> str | None:
        """The reason to close a connection on which a request timed out, None to keep it.

        `received_bytes` is the counter of the connection when the request was sent.
        """
        if timeout_ms < _SILENCE_MS:
            return None
        if line.received_bytes == received_bytes:
            return f"no byte came within {timeout_ms} ms"
        whole_bytes = line.received_bytes - line.kept_bytes
        known = self._since.get(address)
        if known is None or known[0] is not line or known[1] != whole_bytes:
            if len(self._since) >= _ADDRESSES_MAX:
                self._since.clear()
            self._since[address] = (line, whole_bytes, now_s)
            return None
        if now_s - known[2] < (_STUCK_TIMEOUTS - 1) * timeout_ms / 1000:
            return None
        return f"no whole frame came within {_STUCK_TIMEOUTS * timeout_ms} ms"
