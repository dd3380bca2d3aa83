"""The replicas that a send waits for under automatic failover: the counted set of one session.

Rule R1 of `docs/failover.md`: SEND_OK for what lies below the confirm offset while the set in force
has max(2, inSyncReplicas) members. A smaller set confirms, too, so readers see the message, but it
promises nothing: the send is answered with SLAVE_NOT_AVAILABLE.
"""

from collections.abc import Callable
from typing import Final, Protocol

_COPIES_MIN: Final = 2


class CountedSet(Protocol):
    """The set that must acknowledge, of the present session of this master."""

    @property
    def confirm(self) -> int:
        """The least log offset that all of them have acknowledged; never falls."""
        ...

    @property
    def in_force(self) -> int:
        """How many members the in-sync set of the authority has, this master among them."""
        ...


class InSync:
    """`durability.Replicas` by a counted set."""

    def __init__(self, counted: CountedSet, in_sync_replicas: Callable[[], int]) -> None:
        """`in_sync_replicas` is the setting of that name, which changes while the broker runs."""
        self._counted = counted
        self._in_sync_replicas = in_sync_replicas
        self._promised = 0

    @property
    def is_enough(self) -> bool:
        """Whether the set in force is large enough for SEND_OK."""
        return self._counted.in_force >= max(self._in_sync_replicas(), _COPIES_MIN)

    @property
    def replicated_log_offset(self) -> int:
        """Sends below this log offset are answered with SEND_OK; stays while the set is small."""
        if self.is_enough and self._counted.confirm > self._promised:
            self._promised = self._counted.confirm
        return self._promised

    def are_in_reach(self, end_log_offset: int) -> bool:
        """Whether the set in force is large enough; slow members leave the set (rule R3)."""
        return self.is_enough
