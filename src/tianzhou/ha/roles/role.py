"""What one replica knows of itself and its group: the state of `machine.step`.

Plain data without behaviour, so that it can be copied and compared by model checking. All times
are `now_ms` of an event; a time in the past is as good as any other, so that a test can make each
time limit pass by itself.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tianzhou.ha.authority.values import GroupState, Outcome, Proposal, View
from tianzhou.ha.replica_facts import ReplicaFacts, Start
from tianzhou.ha.roles.actions import Action, Note, Propose, Read, Save, Serve
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.facts import LogFacts, Settings
from tianzhou.ha.roles.reasons import Reason

NEVER: Final = -(2**60)
"""A time before all others."""
REASONS_MAX: Final = 20
"""Decisions that a replica remembers for operators."""


class Mode(StrEnum):
    """What a replica is doing."""

    STARTING = "starting"
    SLAVE = "slave"
    """It follows, or looks for a master to follow, or waits to stand for election."""
    CANDIDATE = "candidate"
    """It proposed itself."""
    PROMOTING = "promoting"
    """It was elected, and Lead is being executed."""
    MASTER = "master"
    STOPPED = "stopped"
    """Until an operator acts."""


class Purpose(StrEnum):
    """What a proposal is for."""

    ELECTION = "election"
    SHRINK = "shrink"
    EXPAND = "expand"
    LEAVE = "leave"
    OPERATOR = "operator"


class Progress(StrEnum):
    """What is known of a proposal."""

    SENT = "sent"
    UNKNOWN = "unknown"
    """It may take effect as long as the revision is unchanged (R2)."""
    REFUSED = "refused"
    """It will not take effect, but a copy of it may have: a read is under way."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal whose result is not known."""

    number: int
    purpose: Purpose
    proposal: Proposal
    ticket: int | None = None
    """Of the operator who asked for it."""
    is_forced: bool = False
    progress: Progress = Progress.SENT


@dataclass(slots=True)
class Slave:
    """A connected slave, as its master sees it. See `membership.sample`."""

    incarnation: int
    target: int
    """An end of the own log that it has to acknowledge next."""
    target_ms: int
    """Since when the own log has that end."""
    near_ms: int
    """Since when it has acknowledged everything within a second."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A planned switch on the side of the master."""

    to: int
    cause: str
    due_ms: int
    """When the master resumes."""
    ticket: int | None = None
    end: int | None = None
    """Of the log, after the writers stopped."""
    is_agreed: bool = False


@dataclass(slots=True)
class Session:
    """One mastership, named by its epoch."""

    epoch: int
    start: int
    """Where its records begin."""
    began_ms: int
    counted: CountedSet
    slaves: dict[int, Slave] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    """Slaves whose connection ended in this session."""
    handover: Handover | None = None
    suspended_ms: int | None = None
    frozen_ms: int = NEVER
    """The end of the last freeze of the event loop after which the lease was not renewed yet."""

    def copy(self) -> "Session":
        """An independent one with the same content."""
        slaves = {slave_id: replace(each) for slave_id, each in self.slaves.items()}
        return replace(self, counted=self.counted.copy(), slaves=slaves)


@dataclass(frozen=True, slots=True)
class Resync:
    """A resync that is under way; see `resync`."""

    ticket: int
    by: str
    joined_after: int
    """The incarnation before it began."""
    is_removing: bool = False


@dataclass(slots=True)
class Role:
    """All of it."""

    settings: Settings
    mode: Mode = Mode.STARTING
    id: int = 0
    incarnation: int = 0
    facts: ReplicaFacts = field(default_factory=ReplicaFacts)
    """As they are on disk, or will be after the Save that is under way."""
    start: Start | None = None
    new_group: str = ""
    """Random id of a group that this replica founds."""
    log: LogFacts = field(default_factory=LogFacts)
    clock_offset_ms: int = 0
    """Wall clock minus `now_ms`; set by the caller, shown to operators, never compared."""

    # the authority
    view: View | None = None
    untrusted: Reason | None = None
    """Why the authority's state is not followed (R14)."""
    is_stale: bool = False
    """A newer state may exist than `view` shows: nothing is proposed before a read..."""
    fresh_revision: int = 0
    """...that is at least as new as this revision of the authority."""
    number: int = 0
    pending: Pending | None = None
    lease_ms: int = NEVER
    """When the last successful renewal was sent."""

    # as a slave
    followed: int = 0
    """The master of the last Follow, 0: none."""
    followed_addr: str = ""
    followed_session: int = 0
    """Epoch of the open HA connection, 0: none."""
    last_session: int = 0
    """Epoch of the last HA connection, also if it has ended."""
    heard_ms: int = NEVER
    """When the master was heard on it."""
    follow_ms: int = NEVER
    """Not before this time another Follow is sent."""
    confirm: int = 0
    """The confirm offset that it knows: readers see what lies below."""
    refused_by: int = 0
    """The epoch whose master's host refused connections."""
    agreed: int = 0
    """The epoch whose master agreed to hand over."""
    agreed_ms: int = NEVER
    asked_ms: int | None = None
    """When it asked its master to hand over, or the wait for that began."""
    saved_ms: int = NEVER
    """When `confirm` was saved last."""

    # elections
    epoch_heard: int = 0
    """The largest epoch that hellos or nameservers named."""
    cause_ms: int | None = None
    """Since when there is a reason to elect."""
    standing: Reason | None = None
    """Why it does not stand for election, or why it does."""
    wish_done: int = 0
    """Revision of the last wish for a planned switch that was taken up."""

    # as a master
    session: Session | None = None
    serve: Serve | None = None
    """As last sent."""
    is_unsaved: bool = False
    """A Save may not have been executed: the next one is sent in any case."""
    resync: Resync | None = None
    """A resync that is under way."""
    diverged: int | None = None
    """Where its log and the master's differ, if it stopped for that."""
    is_ending: bool = False
    """The process is to end."""
    stopped: Reason | None = None
    reasons: tuple[Reason, ...] = ()
    """The last decisions, newest last."""

    def copy(self) -> "Role":
        """An independent one with the same content."""
        return replace(self, session=self.session.copy() if self.session else None)

    @property
    def state(self) -> GroupState | None:
        """Of the last view."""
        return self.view.state if self.view else None


def propose(
    role: Role,
    purpose: Purpose,
    proposal: Proposal,
    out: list[Action],
    *,
    ticket: int | None = None,
    is_forced: bool = False,
) -> None:
    """Sends a proposal, of which there is at most one."""
    role.number += 1
    role.pending = Pending(role.number, purpose, proposal, ticket, is_forced)
    out.append(Propose(role.number, proposal))


def read_again(role: Role, outcome: Outcome | None, out: list[Action]) -> None:
    """The view is out of date: nothing is proposed before a newer one came."""
    role.is_stale = True
    known = role.view.read_revision if role.view else 0
    role.fresh_revision = max(known, outcome.revision if outcome else 0)
    out.append(Read())


def save(role: Role, facts: ReplicaFacts, out: list[Action]) -> None:
    """Keeps facts durably."""
    if facts != role.facts or role.is_unsaved:
        role.facts, role.is_unsaved = facts, False
        out.append(Save(facts))


def note(role: Role, reason: Reason, out: list[Action], *, is_alarm: bool = False) -> None:
    """A decision that operators may want to see."""
    role.reasons = (*role.reasons[1 - REASONS_MAX :], reason)
    out.append(Note(reason, is_alarm))
