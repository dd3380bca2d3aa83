"""Which connections are given up when requests on them get no answer.

A request that times out says little: the broker may be slow with this one. A connection on which
not one byte came meanwhile, not even the answer to a heartbeat, has nobody at its other end. One on
which bytes came but no whole frame, for several time-outs, is of no use either: a length that was
damaged on the way makes one frame of everything that follows. A large answer on a slow line is
neither, as long as it ends.

Values in, values out; `now_s` comes in.
"""

from typing import Protocol

_SILENCE_MS = 1_000
"""Shorter time-outs prove nothing."""
_ADDRESSES_MAX = 1_024
_STUCK_TIMEOUTS = 4


class WatchedConnection(Protocol):
    """What is looked at of a connection."""

    received_bytes: int
    kept_bytes: int
    """Received, and waiting for the rest of their frame."""


class DeadConnectionDetector:
    """What is known of the connections of one hub, by address."""

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
        """Why, if it is to be given up; a request has timed out on it.

        `received_bytes` is what had been received when the request was sent.
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
