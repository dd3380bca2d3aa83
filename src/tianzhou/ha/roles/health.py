"""Whether a process is well enough to be master: the self-check (R13).

A process whose event loop or disk hangs must lose its lease and its connections by itself: no other
process can see that it cannot store.
"""

from typing import Final

LOOP_GAP_MS_MAX: Final = 1000
FSYNC_MS_MAX: Final = 5000
_FREEZE_PARTS: Final = 3


def may_keep_alive(loop_gap_ms: int, fsync_pending_ms: int) -> bool:
    """Whether the lease is renewed and heartbeats are sent.

    `loop_gap_ms` is the time since the event loop ran last, `fsync_pending_ms` the age of the
    oldest fsync that has not returned.
    """
    return loop_gap_ms <= LOOP_GAP_MS_MAX and fsync_pending_ms <= FSYNC_MS_MAX


def is_freeze(gap_ms: int, lease_ms: int) -> bool:
    """Whether the lease is checked before requests that waited are served (event Frozen)."""
    return gap_ms * _FREEZE_PARTS > lease_ms
