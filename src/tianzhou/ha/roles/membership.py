"""Who is in sync: the master takes members out (R3) and in (R4), and keeps up what it counts (R2).

A member leaves the set when its connection ended, when it is missing two seconds after the session
began, or when it did not acknowledge for two seconds what was sent; but the set never becomes
smaller than minInSyncReplicas. A slave that is less than a second behind for a second is counted
first and then proposed, under the incarnation that it said hello with.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from tianzhou.ha.authority.values import GroupState, Outcome, Proposal, Result, Unchanged, View
from tianzhou.ha.roles.actions import Action, Disconnect
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import (
    Pending,
    Progress,
    Purpose,
    Role,
    Session,
    Slave,
    note,
    propose,
    read_again,
)

MISSING_MS: Final = 2000
STALLED_MS: Final = 2000
NEAR_MS: Final = 1000
"""A slave that is less far behind may be taken in, after as long."""


# -- connections -----------------------------------------------------------------------------------


def drop_retired(role: Role, session: Session, out: list[Action]) -> None:
    """Closes the connections of slaves that an operator has removed from the group.

    An authority that was wiped or restored lacks them all, which says nothing (R14).
    """
    view = None if role.untrusted else role.view
    for slave_id, slave in list(session.slaves.items()):
        is_known = view is not None and 0 < slave.incarnation <= view.read_revision
        if is_known and view is not None and slave_id not in view.replicas:
            disconnected(role, slave_id)
            reason = Reason(Code.RETIRED, f"replica {slave_id} was retired by an operator")
            note(role, reason, out)
            out.append(Disconnect(slave_id, reason))


def connected(role: Role, slave_id: int, incarnation: int, now_ms: int) -> None:
    """A slave's connection to this session begins; an earlier one counts no more."""
    session = role.session
    if session is None:
        return
    session.slaves[slave_id] = Slave(incarnation, role.log.end, now_ms, now_ms)
    session.gone -= {slave_id}
    session.counted.connected(slave_id)


def disconnected(role: Role, slave_id: int) -> None:
    """A slave's connection ended."""
    session = role.session
    if session is None or session.slaves.pop(slave_id, None) is None:
        return
    session.gone |= {slave_id}
    session.counted.disconnected(slave_id)


def sample(role: Role, session: Session, now_ms: int) -> None:
    """Follows how far behind the slaves are: each has a target, an end that the log had some time
    ago. When it acknowledges that, the present end is the next target.
    """
    acknowledged = session.counted.acknowledged
    for slave_id, slave in session.slaves.items():
        if now_ms - slave.target_ms > NEAR_MS:
            slave.near_ms = now_ms
        if acknowledged.get(slave_id, 0) >= slave.target:
            slave.target, slave.target_ms = role.log.end, now_ms


def is_current(session: Session, slave_id: int, now_ms: int) -> bool:
    """Whether a slave is connected and acknowledges."""
    slave = session.slaves.get(slave_id)
    if slave is None:
        return False
    is_reached = session.counted.acknowledged.get(slave_id, 0) >= slave.target
    return is_reached or now_ms - slave.target_ms <= STALLED_MS


# -- the set ---------------------------------------------------------------------------------------


def counted_for_min(view: View | None, members: Iterable[int]) -> int:
    """How many of these count for minInSyncReplicas: not those that are never elected (R15)."""
    known = [view.replicas.get(each) if view else None for each in members]
    return sum(each is None or each.value.priority > 0 for each in known)


def review(role: Role, now_ms: int, out: list[Action]) -> None:
    """Counts slaves that are near, and proposes the next change of the set."""
    session = role.session
    if session is None:
        return
    drop_retired(role, session, out)
    sample(role, session, now_ms)
    near = _near(role, session, now_ms)
    if near != session.counted.local:
        session.counted.set_local(near)
    if role.pending or role.untrusted or role.is_stale or session.handover:
        return
    state = role.state
    assert state is not None, "a session begins with a state"
    _shrink(role, session, state, now_ms, out)
    if role.pending is None:
        _expand(role, session, state, out)


def _shrink(
    role: Role, session: Session, state: GroupState, now_ms: int, out: list[Action]
) -> None:
    keep, reason = state.in_sync, None
    for member in state.in_sync:
        why = _why_out(role, session, member, now_ms)
        smaller = tuple(each for each in keep if each != member)
        if why and may_shrink(role, keep, smaller):
            keep, reason = smaller, why
    if reason is not None:
        _propose_set(role, Purpose.SHRINK, state, keep, reason, out)


def may_shrink(role: Role, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether the set may become that small (R3)."""
    enough = counted_for_min(role.view, after)
    is_same = enough == counted_for_min(role.view, before)
    return is_same or enough >= role.settings.min_in_sync


def _why_out(role: Role, session: Session, member: int, now_ms: int) -> Reason | None:
    if member == role.id or is_current(session, member, now_ms):
        return None
    if member in session.slaves:
        text = f"replica {member} did not acknowledge for {STALLED_MS} ms what was sent to it"
        return Reason(Code.MEMBER_STALLED, text)
    if member in session.gone:
        return Reason(Code.MEMBER_DISCONNECTED, f"the connection of replica {member} ended")
    if now_ms - session.began_ms < MISSING_MS:
        return None
    text = f"replica {member} did not connect within {MISSING_MS} ms"
    return Reason(Code.MEMBER_MISSING, text)


def _near(role: Role, session: Session, now_ms: int) -> frozenset[int]:
    return frozenset(
        slave_id
        for slave_id, slave in session.slaves.items()
        if slave_id not in session.counted.in_force
        and now_ms - slave.near_ms >= NEAR_MS
        and is_same_process(role, slave_id, slave.incarnation)
    )


def is_same_process(role: Role, slave_id: int, incarnation: int) -> bool:
    """Whether a connection is of the process that the authority knows."""
    return (
        incarnation != 0
        and role.view is not None
        and (role.view.incarnation_of(slave_id) == incarnation)
    )


def _expand(role: Role, session: Session, state: GroupState, out: list[Action]) -> None:
    for slave_id in sorted(session.counted.local):
        if has_all(session, slave_id):
            members = tuple(sorted({*state.in_sync, slave_id}))
            text = f"replica {slave_id} has every confirmed message"
            reason = Reason(Code.MEMBER_CAUGHT_UP, text)
            compares = incarnation_compares(slave_id, session.slaves[slave_id].incarnation)
            _propose_set(role, Purpose.EXPAND, state, members, reason, out, compares)
            return


def has_all(session: Session, slave_id: int) -> bool:
    """Whether a slave has what is confirmed, and what earlier masters may have confirmed (R4)."""
    acknowledged = session.counted.acknowledged[slave_id]
    return acknowledged >= session.counted.confirm and acknowledged >= session.start


def incarnation_compares(slave_id: int, incarnation: int) -> tuple[Unchanged, ...]:
    """That a replica was not restarted since its hello: its disk may be another one (R4)."""
    return (Unchanged(("replicas", slave_id), incarnation),)


def _propose_set(
    role: Role,
    purpose: Purpose,
    state: GroupState,
    members: tuple[int, ...],
    reason: Reason,
    out: list[Action],
    compares: tuple[Unchanged, ...] = (),
) -> None:
    assert role.view is not None
    assert role.session is not None
    new = replace(
        state,
        in_sync=members,
        lost=tuple(each for each in state.lost if each not in members),
        min_in_sync=role.settings.min_in_sync,
        cause=reason.text,
    )
    proposal = Proposal(state=new, revision=role.view.revision, unchanged=compares)
    if purpose is Purpose.EXPAND:
        role.session.counted.set_proposed(members)
    note(role, reason, out)
    propose(role, purpose, proposal, out)


# -- results ---------------------------------------------------------------------------------------


def answered(role: Role, outcome: Outcome, out: list[Action]) -> None:
    """The result of the master's proposal. After OK, `role.view` has the new state already.

    CHANGED settles nothing by itself: of two copies of a proposal one may have taken effect, and
    the other one was refused for that. The read that follows shows it.
    """
    assert role.pending is not None
    if outcome.result is Result.OK:
        settle(role)
        return
    is_refused = outcome.result is Result.CHANGED
    progress = Progress.REFUSED if is_refused else Progress.UNKNOWN
    role.pending = dataclasses.replace(role.pending, progress=progress)
    read_again(role, outcome, out)


def viewed(role: Role, out: list[Action]) -> None:
    """The master saw the state of its own epoch."""
    pending, view = role.pending, role.view
    assert view is not None
    if pending is None or is_settled(role, pending, view):
        settle(role)
    elif pending.progress is Progress.UNKNOWN:
        # It may still arrive, so it is sent again: the first of the two to arrive decides (R2).
        role.pending = None
        propose(role, pending.purpose, pending.proposal, out, ticket=pending.ticket)


def is_settled(role: Role, pending: Pending, view: View) -> bool:
    """Whether a view shows that a proposal took effect or never will (R2)."""
    is_refused = pending.progress is Progress.REFUSED and not role.is_stale
    return view.revision > pending.proposal.revision or is_refused


def settle(role: Role) -> None:
    """No proposal is open: the in-sync set of the view is in force."""
    role.pending = None
    session, state = role.session, role.state
    if session is not None and state is not None:
        session.counted.set_in_force(state.in_sync)
        session.counted.set_proposed(())
