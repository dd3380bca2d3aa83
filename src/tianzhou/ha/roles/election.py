"""Standing for election: when, in which order, and what becomes of the answer (R5, R6, R15).

A replica stands if it is in sync and clean, and its master is gone: no lease, another process than
the elected one, or a host that refuses connections after the HA connection ended. It closes its
connection to any master first, so that it acknowledges nothing to it any more; then it proposes
itself. It is master only by the OK to its own proposal.
"""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tianzhou.ha.authority.values import (
    HISTORY_MAX,
    GroupState,
    Key,
    Outcome,
    Proposal,
    Result,
    Switch,
    Unchanged,
    View,
)
from tianzhou.ha.replica_facts import ReplicaFacts, of_learner
from tianzhou.ha.roles import damping, following, unclean
from tianzhou.ha.roles.actions import Action, AskHandover, Lead, StepDown
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.events import Led
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Purpose, Role, Session, note, propose, read_again
from tianzhou.ha.roles.service import has_lease

TURN_MS: Final = 150
"""Between candidates, in the order of their logs."""
HEALTHY_MS: Final = 2000
"""A connection on which nothing was heard for longer does not keep a slave from standing."""
ASK_MS: Final = 10_000
"""How long a slave waits that hears its master, whose lease is gone."""
AGREED_MS: Final = 1000
"""How long an agreement of the master holds."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a replica stands."""

    reason: Reason
    compares: tuple[Unchanged, ...] = ()
    has_turn: bool = True
    """It waits for its turn among the candidates."""
    keeps_old_master: bool = False


def review(role: Role, now_ms: int, out: list[Action]) -> None:
    """Stands for election if there is a reason, nothing against it, and it is the own turn."""
    problem = problem_with(role, now_ms)
    cause = None if problem else _cause(role, now_ms, out)
    if cause is None:
        role.cause_ms, role.standing = None, problem or role.standing
        return
    if role.cause_ms is None:
        role.cause_ms = now_ms
    wait = _wait(role, cause, role.cause_ms, now_ms, out)
    if wait is None:
        role.standing = cause.reason
        _stand(role, cause, now_ms, out)
    else:
        role.standing = wait


# -- whether ---------------------------------------------------------------------------------------


def problem_with(role: Role, now_ms: int) -> Reason | None:
    """What keeps this replica from standing, whatever became of the master."""
    state = role.state
    if role.view is None or not role.incarnation:
        return Reason(Code.NO_VIEW, "the authority was not reached since the start")
    if role.untrusted:
        return role.untrusted
    if role.facts.unclean:
        return Reason(Code.UNCLEAN, f"the store may lack messages: {role.facts.unclean}")
    if role.is_stale or role.pending:
        return Reason(Code.PENDING, "the answer of the authority is awaited")
    if role.settings.priority == 0:
        return Reason(Code.PRIORITY_ZERO, "brokerElectionPriority is 0")
    if role.is_ending:
        return Reason(Code.STOPPED, "the process is ending")
    if not has_lease(role, now_ms):
        return Reason(Code.NO_LEASE, "the lease of this replica is not renewed")
    assert state is not None
    if state.in_sync and role.id not in state.in_sync:
        members = ", ".join(str(each) for each in state.in_sync)
        return Reason(Code.NOT_IN_SYNC, f"in sync are {members}")
    is_order = state.master in (None, role.id) or is_agreed(role, state, now_ms)
    if state.paused and not is_order:
        return Reason(Code.PAUSED, "elections are paused: `tianzhou broker resume`")
    return None


def _cause(role: Role, now_ms: int, out: list[Action]) -> Cause | None:
    view, state = role.view, role.state
    assert view is not None
    assert state is not None
    if not state.in_sync:
        role.standing = unclean.recovery_problem(role)
        if role.standing:
            return None
        reason = Reason(Code.UNCLEAN_RECOVERY, "no replica is in sync, and this log is the longest")
        return Cause(reason, unclean.recovery_compares(role), has_turn=False)
    if state.master is None:
        return Cause(Reason(Code.NO_MASTER, "the master has left"))
    if state.master == role.id:
        text = "this replica is named master, by an election of an earlier process or answer"
        return Cause(Reason(Code.NAMED_MASTER, text), has_turn=False)
    if is_agreed(role, state, now_ms):
        reason = Reason(Code.PLANNED, f"replica {state.master} hands over")
        return Cause(reason, has_turn=False, keeps_old_master=True)
    return _cause_of_loss(role, view, state, state.master, now_ms, out)


def is_agreed(role: Role, state: GroupState, now_ms: int) -> bool:
    """Whether the master hands over to this replica."""
    return role.agreed == state.epoch and now_ms - role.agreed_ms < AGREED_MS


def _cause_of_loss(
    role: Role, view: View, state: GroupState, master: int, now_ms: int, out: list[Action]
) -> Cause | None:
    if role.refused_by == state.epoch and not role.followed_session:
        text = f"the HA connection to replica {master} ended, and its host refuses new ones"
        return Cause(Reason(Code.MASTER_REFUSES, text))
    alive = view.alive.get(master)
    if alive is not None and alive.value.incarnation == state.master_incarnation:
        role.asked_ms = None
        role.standing = Reason(Code.MASTER_ALIVE, f"replica {master} is alive")
        return None
    if role.followed_session and now_ms - role.heard_ms < HEALTHY_MS:
        role.standing = Reason(Code.MASTER_CONNECTED, f"replica {master} is heard, without lease")
        _ask_handover(role, now_ms, out)
        return None
    if alive is None:
        reason = Reason(Code.MASTER_LEASE_ENDED, f"the lease of replica {master} has ended")
        return Cause(reason, (Unchanged(("alive", master), 0),))
    text = f"replica {master} was restarted since its election"
    compares = (Unchanged(("alive", master), alive.revision),)
    return Cause(Reason(Code.MASTER_RESTARTED, text), compares)


def _ask_handover(role: Role, now_ms: int, out: list[Action]) -> None:
    if role.asked_ms is None:
        role.asked_ms = now_ms
    elif now_ms - role.asked_ms >= ASK_MS:
        role.asked_ms = now_ms
        out.append(AskHandover())


# -- when ------------------------------------------------------------------------------------------


def _wait(role: Role, cause: Cause, since_ms: int, now_ms: int, out: list[Action]) -> Reason | None:
    """Why it is not the own turn yet; safety needs no turn."""
    state = role.state
    assert state is not None
    if cause.keeps_old_master:
        return None
    wall_ms = now_ms + role.clock_offset_ms
    slowed = damping.wait_ms(state, wall_ms)
    before = better_candidates(role) if cause.has_turn else []
    if now_ms - since_ms < slowed:
        count = damping.recent_count(state, wall_ms)
        text = f"{count} elections in the last ten minutes: the next one waits {slowed} ms"
        reason = Reason(Code.DAMPED, text)
        if role.standing is None or role.standing.code is not Code.DAMPED:
            note(role, reason, out, is_alarm=True)
        return reason
    if now_ms - since_ms < slowed + TURN_MS * len(before):
        names = ", ".join(str(each) for each in before)
        return Reason(Code.WAITS_ITS_TURN, f"the logs of replicas {names} are not shorter")
    return None


def better_candidates(role: Role) -> list[int]:
    """The members that should be elected before this one."""
    view, state = role.view, role.state
    assert view is not None
    assert state is not None
    own = (-role.log.last_epoch, -role.log.end, role.settings.priority, role.id)
    found: list[int] = []
    for member in state.in_sync:
        alive, replica = view.alive.get(member), view.replicas.get(member)
        if member in (role.id, state.master) or alive is None or replica is None:
            continue
        priority = replica.value.priority
        if priority and (-alive.value.epoch, -alive.value.end, priority, member) < own:
            found.append(member)
    return found


# -- proposing -------------------------------------------------------------------------------------


def next_epoch(role: Role) -> int:
    """Larger than every epoch that this replica has heard of (R5)."""
    state = role.state
    return 1 + max(
        state.epoch if state else 0,
        role.log.last_epoch,
        role.facts.followed_epoch,
        role.facts.highest_epoch,
        role.epoch_heard,
    )


def with_switch(role: Role, state: GroupState, cause: Reason, now_ms: int) -> GroupState:
    """A state with this replica as the master of a new epoch, the switch being in its history."""
    wall_ms = now_ms + role.clock_offset_ms
    epoch = next_epoch(role)
    switch = Switch(
        epoch=epoch,
        master=role.id,
        cause=cause.code.value,
        time_ms=wall_ms,
        duration_ms=_silence_ms(role, state, now_ms),
    )
    return replace(
        state,
        epoch=epoch,
        master=role.id,
        master_incarnation=role.incarnation,
        min_in_sync=role.settings.min_in_sync,
        cause=cause.text,
        time_ms=wall_ms,
        history=(*state.history[1 - HISTORY_MAX :], switch),
    )


def _silence_ms(role: Role, state: GroupState, now_ms: int) -> int:
    """How long nothing was heard of the old master; of one never heard, since when it is missed."""
    if role.last_session and role.last_session == state.epoch:
        return now_ms - role.heard_ms
    return 0 if role.cause_ms is None else now_ms - role.cause_ms


def in_sync_after(state: GroupState, own_id: int, *, keeps_old_master: bool) -> tuple[int, ...]:
    """The members after an election: without the old master, unless it hands over."""
    leaves = () if keeps_old_master or state.master in (None, own_id) else (state.master,)
    return tuple(sorted({*state.in_sync, own_id}.difference(leaves)))


def _stand(role: Role, cause: Cause, now_ms: int, out: list[Action]) -> None:
    view, state = role.view, role.state
    assert view is not None
    assert state is not None
    members = in_sync_after(state, role.id, keeps_old_master=cause.keeps_old_master)
    new = replace(with_switch(role, state, cause.reason, now_ms), in_sync=members, lost=())
    compares = cause.compares
    deletes: tuple[Key, ...] = ()
    wish = view.wish
    if wish and wish.value.switch_to == role.id and wish.value.epoch == state.epoch:
        compares = (*compares, Unchanged(("wish", None), wish.revision))
        deletes = (("wish", None),)
    proposal = Proposal(state=new, revision=view.revision, unchanged=compares, deletes=deletes)
    note(role, cause.reason, out)
    send(role, proposal, out)


def send(
    role: Role,
    proposal: Proposal,
    out: list[Action],
    *,
    ticket: int | None = None,
    is_forced: bool = False,
) -> None:
    """Proposes this replica as master; before that it stops to report to any other (R6 a)."""
    role.mode, role.stopped = Mode.CANDIDATE, None
    close_before_proposing(role, out)
    propose(role, Purpose.ELECTION, proposal, out, ticket=ticket, is_forced=is_forced)


def close_before_proposing(role: Role, out: list[Action]) -> None:
    """Ends the connection as a slave, whatever master it is to."""
    following.leave_master(role, out)


# -- the answer ------------------------------------------------------------------------------------


def answered(role: Role, outcome: Outcome, out: list[Action]) -> None:
    """The result of the own proposal. After OK, `role.view` has the new state already."""
    pending = role.pending
    assert pending is not None
    role.pending = None
    if outcome.result is not Result.OK:
        role.mode = Mode.SLAVE
        read_again(role, outcome, out)
        return
    state = pending.proposal.state
    facts = replace(
        role.facts,
        group=state.group,
        followed_epoch=max(role.facts.followed_epoch, state.epoch),
        highest_epoch=max(role.facts.highest_epoch, state.epoch),
        state_revision=outcome.revision,
    )
    if pending.is_forced:
        facts = _accepted_by_force(role, facts)
    role.mode, role.facts = Mode.PROMOTING, facts
    out.append(Lead(state.epoch, facts))


def _accepted_by_force(role: Role, facts: ReplicaFacts) -> ReplicaFacts:
    assert role.view is not None
    assert role.start is not None
    role.untrusted = None
    role.confirm = min(role.confirm, role.log.end)
    facts = of_learner(facts, role.start, role.log.end)
    return replace(facts, cluster_id=role.view.cluster_id)


def viewed(role: Role, out: list[Action]) -> None:
    """A candidate, or one that is being promoted, saw a state."""
    state, pending = role.state, role.pending
    if role.mode is not Mode.CANDIDATE or pending is None or state is None:
        return
    proposed = pending.proposal.state
    is_own = (state.epoch, state.master, state.master_incarnation) == (
        proposed.epoch, proposed.master, proposed.master_incarnation
    )  # fmt: skip
    if state.epoch >= proposed.epoch and not is_own:
        role.mode, role.pending = Mode.SLAVE, None


def led(role: Role, event: Led, now_ms: int, out: list[Action]) -> None:
    """The epoch is on disk: the session begins, unless a higher epoch was seen meanwhile."""
    state = role.state
    if role.mode is not Mode.PROMOTING or state is None:
        return
    role.log = event.log
    if max(state.epoch, role.epoch_heard) > event.epoch:
        step_down(role, Reason(Code.HIGHER_EPOCH, "another master was elected meanwhile"), out)
        read_again(role, None, out)
        return
    role.mode, role.cause_ms, role.agreed = Mode.MASTER, None, 0
    role.standing = Reason(Code.IS_MASTER, "this replica is the master")
    role.session = Session(event.epoch, event.log.end, now_ms, counted_set(role))
    role.session.counted.own_end(event.log.end, event.log.flushed)


def counted_set(role: Role) -> CountedSet:
    """That of a session that begins: with the confirm offset that this replica knew (R1)."""
    assert role.state is not None
    return CountedSet(
        role.id,
        role.state.in_sync,
        confirm=min(role.confirm, role.log.end),
        copies=role.settings.copies,
        is_sync_flush=role.settings.is_sync_flush,
    )


def step_down(role: Role, reason: Reason, out: list[Action]) -> None:
    """Ends the session: acknowledgements and proposals of it are void (R8)."""
    if role.session is not None:
        role.confirm = max(role.confirm, role.session.counted.confirm)
    role.session, role.pending, role.mode = None, None, Mode.SLAVE
    note(role, reason, out)
    out.append(StepDown(reason))
