"""Roles, states and proposals as small numbers, and the steps of the machine from one to the next.

A role in a world is the number of a role that was seen before, so that the same step of the same
role runs once. The clock stands still at 0: a time limit passes by an event of its own, which sets
the time it counts from to the past.

Revisions are compared only. A world needs three of them: CURRENT, that of the present state, OLD,
any earlier one, and BETWEEN, that of an answer which is later than the view of its receiver but no
longer current.
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from msgspec.structs import replace

from tianzhou.ha.authority.values import Alive, GroupState, Known, Proposal, Replica, View, Wish
from tianzhou.ha.roles import machine
from tianzhou.ha.roles.actions import Action, Note
from tianzhou.ha.roles.events import Event
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.role import NEVER, Role, Session, Slave

OLD, BETWEEN, CURRENT = 50, 75, 100
NOW = 0
T = TypeVar("T")


class Numbers:
    """Values and their numbers."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable, value: object) -> int:
        """The number of a value with this key."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number


class Interned:
    """All roles that a search has met."""

    def __init__(self, *, has_offline_restarts: bool) -> None:
        """Which master was followed last matters to a restart without authority only."""
        self._has_offline_restarts = has_offline_restarts
        self._roles = Numbers()
        self._states = Numbers()
        self._proposals = Numbers()
        self._steps: dict[Hashable, tuple[int, tuple[Action, ...]]] = {}
        self._stale: dict[int, int] = {}

    # -- values ------------------------------------------------------------------------------------

    def role(self, number: int) -> Role:
        """Not to be changed."""
        found: Role = self._roles.values[number]
        return found

    def state(self, number: int) -> GroupState:
        """The state with a number."""
        found: GroupState = self._states.values[number]
        return found

    def proposal(self, number: int) -> Proposal:
        """The proposal with a number."""
        found: Proposal = self._proposals.values[number]
        return found

    def number_of_role(self, role: Role) -> int:
        """Without all that makes no difference."""
        if not self._has_offline_restarts:
            role.facts = replace(role.facts, master=0, master_addr="")
        normalize(role)
        return self._roles.of(key_of(role), role)

    def number_of_state(self, state: GroupState) -> int:
        """Without texts and times."""
        plain = replace(state, cause="", time_ms=0, history=())
        return self._states.of(plain, plain)

    def number_of_proposal(self, proposal: Proposal) -> int:
        """That of a proposal whose state has no texts and times."""
        plain = replace(proposal.state, cause="", time_ms=0, history=())
        proposal = replace(proposal, state=plain)
        return self._proposals.of(proposal, proposal)

    # -- steps -------------------------------------------------------------------------------------

    def step(
        self,
        number: int,
        log: LogFacts,
        key: Hashable,
        event: Callable[[], Event],
        prepare: Callable[[Role], object] | None = None,
    ) -> tuple[int, tuple[Action, ...]]:
        """The role after an event, whose key is `key`. `prepare` changes the role before it."""
        whole = (number, log, key)
        found = self._steps.get(whole)
        if found is None:
            role = self.role(number).copy()
            role.log = log
            if role.session is not None:
                role.session.counted.own_end(log.end, log.flushed)
            if prepare is not None:
                prepare(role)
            actions = machine.step(role, event(), NOW)
            kept = tuple(each for each in actions if not isinstance(each, Note))
            found = self._steps[whole] = self.number_of_role(role), kept
        return found

    def outdated(self, number: int) -> int:
        """The role when the state of the group has changed without its knowledge."""
        found = self._stale.get(number)
        if found is None:
            role = self.role(number).copy()
            if role.view is not None and role.view.revision == CURRENT:
                role.view = replace(role.view, revision=OLD, read_revision=OLD)
            if role.pending is not None:
                older = replace(role.pending.proposal, revision=OLD)
                role.pending = dataclasses.replace(role.pending, proposal=older)
            found = self._stale[number] = self.number_of_role(role)
        return found


def view_of(
    state: GroupState, incarnations: tuple[int, ...], wish: Known[Wish] | None, *, alive: bool
) -> View:
    """What the authority shows now; with `alive` every lease lasts."""
    replicas = {
        each: Known(
            Replica(addr=f"h{each}", ha=f"h{each}", store_id="", boot_id="", empty=False), number
        )
        for each, number in enumerate(incarnations, 1)
    }
    master, leases = state.master, dict[int, Known[Alive]]()
    if alive and master is not None:
        lease = Alive(incarnation=state.master_incarnation, epoch=0, end=0, confirm=0)
        leases[master] = Known(lease, 1)
    return View(
        cluster_id="c",
        read_revision=CURRENT,
        revision=CURRENT,
        state=state,
        replicas=replicas,
        alive=leases,
        wish=wish,
    )


def normalize(role: Role) -> None:
    """Sets all that has no influence on later steps, or is passed with them, to one value."""
    role.log, role.reasons, role.standing, role.cause_ms = LogFacts(), (), None, None
    role.follow_ms = role.heard_ms = role.agreed_ms = NOW
    role.lease_ms = role.saved_ms = NOW
    role.asked_ms, role.fresh_revision, role.follow_ms = None, 0, NEVER
    role.last_session = role.refused_by = 0
    role.diverged = None
    role.facts = replace(role.facts, state_revision=0)
    role.number = 0 if role.pending is None else 1
    if role.pending is not None:
        plain = replace(role.pending.proposal.state, cause="", time_ms=0, history=())
        proposal = replace(role.pending.proposal, state=plain)
        role.pending = dataclasses.replace(role.pending, number=1, proposal=proposal)
    if role.view is not None:
        _normalize_view(role, role.view)
    if role.session is None:
        role.serve = None
    else:
        role.confirm = role.session.counted.confirm
        _normalize_session(role.session)


def _normalize_view(role: Role, view: View) -> None:
    revision = CURRENT if view.revision == CURRENT else OLD
    state = view.state
    assert state is not None
    state = replace(state, cause="", time_ms=0, history=())
    incarnations = tuple(known.revision for _, known in sorted(view.replicas.items()))
    if revision == OLD and _only_follows(role, state):
        state = replace(state, in_sync=(), lost=())
    shown = view_of(state, incarnations, view.wish, alive=True)
    role.view = replace(shown, revision=revision, read_revision=revision)


def _only_follows(role: Role, state: GroupState) -> bool:
    """An old state says to a clean slave which master it follows; its proposals are refused."""
    is_slave = role.session is None and not role.facts.unclean
    return is_slave and state.master not in (None, role.id)


def _normalize_session(session: Session) -> None:
    session.began_ms, session.suspended_ms, session.gone = NOW, None, frozenset()
    for slave_id, each in session.slaves.items():
        session.slaves[slave_id] = Slave(each.incarnation, 0, NOW, NOW)
    session.counted.local = frozenset()
    session.counted.set_local(())


def key_of(role: Role) -> Hashable:
    """What determines all later steps of a role."""
    view, session, serve = role.view, role.session, role.serve
    shown = None
    if view is not None:
        revisions = tuple(known.revision for _, known in sorted(view.replicas.items()))
        shown = (view.revision, view.state, revisions, view.wish)
    led = None
    if session is not None:
        counted = session.counted
        led = (
            session.epoch, session.start, session.gone, session.handover, counted.in_force,
            counted.proposed, counted.confirm, tuple(sorted(counted.acknowledged.items())),
            tuple((each, slave.incarnation) for each, slave in sorted(session.slaves.items())),
        )  # fmt: skip
    return (
        role.mode, role.id, role.incarnation, role.facts, shown, role.is_stale, role.pending,
        role.followed, role.followed_session, role.last_session, role.confirm, role.refused_by,
        role.agreed, role.epoch_heard, role.wish_done, role.stopped,
        role.resync,
        serve.refusal is None if serve else None, led,
    )  # fmt: skip
