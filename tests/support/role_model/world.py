"""A group of three replicas at one moment, as a value that can be compared.

Each replica is a real role (`interned`) with an abstract store: a log of numbered records and its
epochs. The authority has one state. There are no clocks: any time limit may pass at any time, a
lease ends whenever a replica looks. Data on a connection arrives when it is sent; acknowledgements
and news of the end of a connection may be late or lost. A process that does nothing is a process
that is down, so that a restart is one event.
"""

from typing import Final, NamedTuple

from tianzhou.ha.authority.values import Known, Wish
from tianzhou.ha.epochs import Epochs
from tianzhou.ha.roles.facts import LogFacts

IDS: Final = (1, 2, 3)
SENT, APPLIED = 0, 1


class Store(NamedTuple):
    """The disk of a replica, but for its facts, which are in its role."""

    log: tuple[int, ...] = ()
    flushed: int = 0
    epochs: Epochs = ()
    table: tuple[int, int] = (0, 0)
    """Position and record up to which a table says that messages were delivered."""

    @property
    def facts(self) -> LogFacts:
        """As the machine sees them."""
        return LogFacts(len(self.log), self.flushed, self.epochs)


class Sent(NamedTuple):
    """A proposal on its way."""

    by: int
    proposal: int
    is_current: bool
    """Its revision is that of the state; if it was carried out: the state is still its own."""
    status: int
    is_awaited: bool
    """Its sender waits for the answer; else it arrives late, or its answer does."""
    is_forced: bool


class Ghosts(NamedTuple):
    """What happened so far; no replica knows it."""

    epoch_of: tuple[int, ...] = (0,)
    """Of each record."""
    seen: tuple[int, ...] = ()
    """The record that was readable at each position, 0 for none."""
    acknowledged: tuple[bool, ...] = ()
    newest: int = 0
    """The largest epoch that has begun, and the log with which it did."""
    newest_log: tuple[int, ...] = ()
    forced: int = 0
    """The epoch of the forced election."""


class Budget(NamedTuple):
    """What may still happen."""

    restarts: int
    offline_restarts: int
    power_cuts: int
    wipes: int
    forces: int
    switches: int
    lost: int
    resyncs: int = 0


class World(NamedTuple):
    """All of it, comparable."""

    state: int
    incarnations: tuple[int, ...]
    wish: Known[Wish] | None
    roles: tuple[int, ...]
    stores: tuple[Store, ...]
    sent: tuple[Sent, ...]
    reports: tuple[tuple[int, ...], ...]
    """Of each slave to each master on its present connection: on its way, or received; -1: none."""
    agreed: tuple[int, ...]
    """The epoch that each replica was offered by its master."""
    leading: tuple[int, ...]
    """The epoch for which each replica is being promoted."""
    ghosts: Ghosts
    budget: Budget
    violation: str = ""
