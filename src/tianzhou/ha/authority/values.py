"""The state of a replication group as its authority keeps it, and the interface to the authority.

The keys of a group, under one prefix:

    state          GroupState: who is the master, who is in sync. Every change compares its revision
    replicas/ID    Replica: put at every start of a process. Its revision is the *incarnation* of
                   the replica: a process that starts with an empty disk has another one
    alive/ID       Alive: under a lease of some seconds, so it is absent when the process hangs
    wish           Wish of an operator, under a lease of half a minute; the transaction that fulfils
                   it deletes it

A *revision* is a number that the authority gives to a change; it only grows. Everything here is a
value: no I/O, no clock.
"""

from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

HISTORY_MAX: Final = 50
"""Switches that a state keeps."""
REPLICAS_MAX: Final = 64
"""Replicas of one group; ids are 1 to this number."""
LEASE_MS_DEFAULT: Final = 3000
WISH_LEASE_MS: Final = 30_000

T = TypeVar("T")


class Switch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change of the master, for operators."""

    epoch: int
    master: int
    cause: str
    time_ms: int = msgspec.field(name="time")
    """Wall clock of the new master when it proposed itself."""
    duration_ms: int = 0
    """From the last sign of the old master that the new one received to its proposal."""


class GroupState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who is the master of a group, and which replicas have all that was acknowledged."""

    group: str
    """Random id of the group: stores with another one have another history."""
    epoch: int
    master: int | None
    master_incarnation: int = 0
    """Of the process that was elected; another incarnation of the master is not the master."""
    in_sync: tuple[int, ...]
    """Ascending. Each has every acknowledged message of this epoch and of all before it."""
    lost: tuple[int, ...] = ()
    """Members that left because they may have lost messages (unclean stop), oldest first."""
    min_in_sync: int = msgspec.field(name="minInSync", default=2)
    paused: bool = False
    """No elections; set and cleared by operators."""
    cause: str = ""
    """Of the last change, for operators."""
    time_ms: int = msgspec.field(name="time", default=0)
    """Wall clock of the last change."""
    history: tuple[Switch, ...] = ()
    """The last switches, newest last, at most HISTORY_MAX."""


class Replica(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A member of the group as it started."""

    addr: str
    """host:port of its listen port."""
    ha: str
    """host:port of its HA port."""
    store_id: str
    boot_id: str
    """Of its host's kernel: another one after a power cut."""
    empty: bool
    """Its store had no record when it started."""
    priority: int = 1
    """The smaller one is elected; 0 is never elected and not counted in minInSync."""
    version: str = ""
    group: str = ""
    """The group of its store at the start; empty if it had none."""
    seen_epoch: int = 0
    """Of the newest state of that group that it had seen then (R14)."""
    seen_revision: int = 0
    """The revision of that state."""


class Alive(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a live replica says of itself; as old as the last put, so of its log nothing is decided
    by it but the order of candidates.
    """

    incarnation: int
    epoch: int
    """Of the newest entry of its log."""
    end: int
    confirm: int
    seen_epoch: int = 0
    """Of the newest state of the group that it has seen (R14)."""
    seen_revision: int = 0
    """The revision of that state."""


class Wish(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What an operator wants; void in another epoch than it names."""

    epoch: int
    by: str = ""
    switch_to: int | None = None
    """A planned switch, carried out by the master."""
    force: int | None = None
    """A forced election, carried out by that replica."""
    accept_loss: bool = False
    """Without it no election is forced."""


class Known(NamedTuple, Generic[T]):
    """The value of a key with the revision of its last change."""

    value: T
    revision: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All keys of a group at one revision."""

    cluster_id: str
    """Of the authority: another one means that it was set up anew."""
    read_revision: int
    """Of the authority at the time of the read."""
    revision: int
    """Of `state`; 0: there is none."""
    state: GroupState | None
    replicas: Mapping[int, Known[Replica]]
    alive: Mapping[int, Known[Alive]]
    wish: Known[Wish] | None = None

    def incarnation_of(self, replica_id: int) -> int:
        """0: there is no such replica."""
        known = self.replicas.get(replica_id)
        return known.revision if known else 0


Key = tuple[Literal["replicas", "alive"], int] | tuple[Literal["wish"], None]


class Unchanged(NamedTuple):
    """A compare of a proposal: a key and the revision that it must have, 0 if it must be absent."""

    key: Key
    revision: int


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction: a new state if nothing has changed meanwhile."""

    state: GroupState
    revision: int
    """Of the state that it replaces; 0: there must be none."""
    unchanged: tuple[Unchanged, ...] = ()
    deletes: tuple[Key, ...] = ()


class Result(StrEnum):
    """How a proposal ended."""

    OK = "ok"
    """It took effect."""
    CHANGED = "changed"
    """A compare failed: it has no effect, now and later."""
    UNKNOWN = "unknown"
    """No answer: it may still take effect at any time while its compares hold."""


class Outcome(NamedTuple):
    """The answer to a proposal."""

    result: Result
    revision: int = 0
    """OK: of the new state. CHANGED: of the authority when it refused (etcd: header.revision), so
    that a view that is older than the refusal can be recognized.
    """


class Joined(NamedTuple):
    """The identity of this process in the group."""

    id: int
    incarnation: int


class Authority(Protocol):
    """Keeps the state of one group. All methods raise `errors.AuthorityError` when it is out of
    reach, except `propose`, which answers UNKNOWN.
    """

    async def join(self, replica: Replica, known_id: int | None) -> Joined:
        """Puts `replicas/ID`, so that this process has an incarnation of its own.

        A replica without id takes the first free one. Raises AuthorityError if the id is in use by
        a live process with another store.
        """
        ...

    async def keep_alive(self, alive: Alive) -> int:
        """Puts `alive/ID` if it is absent or under the own lease, and renews the lease.

        Returns the time (ms of the monotonic clock) at which the successful renewal was sent: the
        lease lasts at least until then plus its duration. Raises AuthorityError, also if another
        process holds the key.
        """
        ...

    async def read(self) -> View:
        """All keys, linearizably: not older than anything that was answered before."""
        ...

    async def propose(self, proposal: Proposal) -> Outcome:
        """Carries out one transaction."""
        ...

    def watch(self, from_revision: int) -> AsyncIterator[View]:
        """Views after each change behind a revision; ends with AuthorityError, then read again."""
        ...

    async def wish(self, wish: Wish) -> None:
        """Puts the wish of an operator under a lease of WISH_LEASE_MS."""
        ...

    async def close(self) -> None:
        """Revokes the lease, so that others notice at once, and closes the connections."""
        ...
