"""What a replica says of its log, and how it is configured."""

from dataclasses import dataclass
from enum import StrEnum

from tianzhou.ha.epochs import Epochs


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The log of a replica at one moment."""

    end: int = 0
    """Behind the last whole record."""
    flushed: int = 0
    """What is on disk."""
    epochs: Epochs = ()
    first: int = 0
    """Where the log begins: the oldest file that it still has."""

    @property
    def is_empty(self) -> bool:
        """Without a single record."""
        return self.end == self.first

    @property
    def last_epoch(self) -> int:
        """Number of the newest entry."""
        return self.epochs[-1].number if self.epochs else 0


class UncleanRecovery(StrEnum):
    """What happens when every in-sync replica may have lost messages (haUncleanRecovery)."""

    WAIT = "wait"
    """For the operator."""
    AUTO = "auto"
    """When all are back, the longest log is elected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator configured."""

    min_in_sync: int = 2
    """minInSyncReplicas."""
    copies: int = 2
    """inSyncReplicas: copies that SEND_OK promises; at least 2."""
    lease_ms: int = 3000
    """haLeaseSeconds."""
    priority: int = 1
    """brokerElectionPriority: the smaller one is elected, 0 never."""
    is_sync_flush: bool = False
    """A record counts when it is on disk."""
    unclean_recovery: UncleanRecovery = UncleanRecovery.WAIT
