"""Which replicas must acknowledge a record before it counts, and how far they have (R1, R2, R4).

The *counted set* of a master's session is the union of

- the in-sync set in force, as the authority confirmed it,
- the in-sync set that is proposed and not answered yet: it may be in force already,
- slaves that are about to be taken in, so that the confirm offset does not run ahead of them.

The *confirm offset* is the smallest acknowledged end of the counted set, the master's own included;
it never falls. What lies below it is in the log of every later master, so that readers may see it
and senders may get SEND_OK. A slave acknowledges on its present connection to this session only.

This is the hot path: `acknowledge` and `own_end` are called for every batch of messages.
"""

from collections.abc import Iterable


class CountedSet:
    """The acknowledgements of one session."""

    __slots__ = (
        "_counted",
        "_own",
        "acknowledged",
        "confirm",
        "copies",
        "in_force",
        "is_sync_flush",
        "local",
        "own_id",
        "proposed",
    )

    def __init__(
        self,
        own_id: int,
        in_force: Iterable[int],
        *,
        confirm: int,
        copies: int,
        is_sync_flush: bool,
    ) -> None:
        """A session begins: no slave is connected; `confirm` is what this replica knew before."""
        self.own_id = own_id
        self.copies = copies
        """Replicas that must have a record for SEND_OK."""
        self.is_sync_flush = is_sync_flush
        self.confirm = confirm
        self.acknowledged: dict[int, int] = {}
        """Of connected slaves, counted or not; 0 before their first report."""
        self.in_force: frozenset[int] = frozenset(in_force)
        self.proposed: frozenset[int] = frozenset()
        self.local: frozenset[int] = frozenset()
        self._own = 0
        self._counted: frozenset[int] = frozenset()
        self._recount()

    def copy(self) -> "CountedSet":
        """An independent one with the same content."""
        other = CountedSet.__new__(CountedSet)
        for name in CountedSet.__slots__:
            setattr(other, name, getattr(self, name))
        other.acknowledged = dict(self.acknowledged)
        return other

    @property
    def counted(self) -> frozenset[int]:
        """Slaves that must acknowledge."""
        return self._counted

    @property
    def has_copies(self) -> bool:
        """Whether what is confirmed may be answered with SEND_OK; else SLAVE_NOT_AVAILABLE."""
        return len(self.in_force) >= self.copies

    def is_promised(self, end: int) -> bool:
        """Whether SEND_OK may be sent for a record of this session that ends there."""
        return end <= self.confirm and self.has_copies

    # -- what changes often ------------------------------------------------------------------------

    def own_end(self, end: int, flushed: int) -> bool:
        """The own log has grown or was flushed. Returns whether the confirm offset has grown."""
        before = self._own
        self._own = flushed if self.is_sync_flush else end
        return before <= self.confirm and self._advance()

    def acknowledge(self, slave_id: int, end: int) -> bool:
        """A connected slave reported its end. Returns whether the confirm offset has grown.

        Neither falls; a slave that is not connected is ignored.
        """
        before = self.acknowledged.get(slave_id)
        if before is None or end <= before:
            return False
        self.acknowledged[slave_id] = end
        return before <= self.confirm and slave_id in self._counted and self._advance()

    def _advance(self) -> bool:
        least = self._own
        acknowledged = self.acknowledged
        for slave_id in self._counted:
            end = acknowledged.get(slave_id, 0)
            if end < least:
                least = end
        if least <= self.confirm:
            return False
        self.confirm = least
        return True

    # -- what changes seldom -----------------------------------------------------------------------

    def connected(self, slave_id: int) -> None:
        """A connection begins: what an earlier one acknowledged is forgotten."""
        self.acknowledged[slave_id] = 0

    def disconnected(self, slave_id: int) -> None:
        """The connection ended; while the slave is counted, nothing more is confirmed."""
        self.acknowledged.pop(slave_id, None)

    def set_in_force(self, members: Iterable[int]) -> bool:
        """The authority confirmed this set. Returns whether the confirm offset has grown."""
        self.in_force = frozenset(members)
        return self._recount()

    def set_proposed(self, members: Iterable[int]) -> bool:
        """This set is proposed (before it is sent); empty: no proposal is unsettled."""
        self.proposed = frozenset(members)
        return self._recount()

    def set_local(self, members: Iterable[int]) -> bool:
        """These slaves are about to be taken in."""
        self.local = frozenset(members)
        return self._recount()

    def _recount(self) -> bool:
        self._counted = (self.in_force | self.proposed | self.local) - {self.own_id}
        return self._advance()
