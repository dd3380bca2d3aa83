"""What happens in a model: how many records, epochs and faults, and which of the rare events."""

from dataclasses import dataclass, field

from tianzhou.ha.roles.facts import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a search."""

    records: int = 1
    epochs: int = 2
    """The largest epoch; the group begins in epoch 1 with replica 1 as master."""
    in_sync: tuple[int, ...] = (1, 2, 3)
    """At the beginning."""
    restarts: int = 0
    """kill -9 and start."""
    offline_restarts: int = 0
    """Restarts while the authority is out of reach."""
    power_cuts: int = 0
    wipes: int = 0
    forces: int = 0
    """Wishes of an operator for a forced election."""
    switches: int = 0
    """Wishes of an operator for a planned switch."""
    resyncs: int = 0
    """Requests of an operator that a replica starts again from the master's log."""
    lost: int = 0
    """Answers of the authority that are lost; such a proposal may arrive late, one at a time."""
    shrinks: bool = True
    tables: bool = False
    """Tables are handed out (R11)."""
    late_answers: bool = False
    """An OK may arrive after its replica has moved on."""
    keeps_facts: bool = False
    """A replaced disk has the store only: the facts say that it is another one."""
    reads: bool = True
    """What was readable counts, not only what was acknowledged."""
    slow_leads: bool = False
    """Time passes while a replica is being promoted; it may end while it connects."""
    unsynced: bool = False
    """Records are flushed by an event of its own."""
    settings: Settings = field(default_factory=Settings)
