"""The role of a replica: `step` takes an event and returns what to do.

    STARTING -> SLAVE <-> CANDIDATE -> PROMOTING -> MASTER -> SLAVE        any -> STOPPED

An event only records what is known now; `_decide` then takes every decision that follows from it,
in a fixed order. The rules are in the modules by subject:

    trust        whether the authority's state belongs to this store      R14
    unclean      leaving the in-sync set after an unclean stop            R10
    election     standing, proposing, beginning a session                 R5, R6, R15
    following    which master, consistent point, truncation               R9
    membership   shrinking, expanding, settling a proposal                R2, R3, R4
    counted_set  who must acknowledge, and the confirm offset             R1
    service      what clients may do                                      R3, R7, R13
    switching    planned switches, the end of the process, failed disks   R6, R13
    operators    commands, forced elections, the first master             R0, R6
    resync       a replica that starts again from the master's log        R4, R9
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tianzhou.ha.authority.values import GroupState, Proposal, Result, View
from tianzhou.ha.roles import (
    election,
    events,
    following,
    membership,
    operators,
    resync,
    service,
    switching,
    trust,
    unclean,
)
from tianzhou.ha.roles.actions import Action, Read, Reply
from tianzhou.ha.roles.facts import Settings
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Pending, Progress, Purpose, Role, note, read_again, save


def new_role(settings: Settings) -> Role:
    """The state of a process that has just begun."""
    return Role(settings)


def step(role: Role, event: events.Event, now_ms: int) -> list[Action]:
    """Changes the role by an event, and returns what to do."""
    out: list[Action] = []
    HANDLERS[type(event)](role, event, now_ms, out)
    if type(event) is not events.MasterHeard:
        _decide(role, now_ms, out)
    return out


def _decide(role: Role, now_ms: int, out: list[Action]) -> None:
    if role.mode is Mode.STARTING:
        return
    operators.review_force(role, now_ms, out)
    if role.mode is Mode.MASTER:
        switching.review(role, now_ms, out)
        membership.review(role, now_ms, out)
    elif role.mode is Mode.SLAVE:
        unclean.review(role, out)
        operators.review_founding(role, now_ms, out)
        is_founded = role.view is None or role.state is not None
        if role.mode is Mode.SLAVE and (is_founded or role.untrusted):
            election.review(role, now_ms, out)
    if role.mode is Mode.SLAVE:
        following.review(role, now_ms, out)
    resync.review(role, out)
    service.refresh(role, now_ms, out)


# -- the process -----------------------------------------------------------------------------------


def _started(role: Role, event: events.Started, now_ms: int, out: list[Action]) -> None:
    role.mode, role.facts, role.start, role.log = Mode.SLAVE, event.facts, event.start, event.log
    role.id, role.confirm, role.new_group = event.facts.id, event.facts.confirm, event.new_group
    role.saved_ms = now_ms
    save(role, unclean.with_loss(role.facts, role.log), out)
    if event.facts.retired:
        text = f"replica {role.id} was retired; remove its store to let the broker join again"
        following.stop(role, Reason(Code.RETIRED, text), out)


def _joined(role: Role, event: events.Joined, now_ms: int, out: list[Action]) -> None:
    role.id, role.incarnation = event.id, event.incarnation
    if role.followed:
        following.leave_master(role, out)  # the next hello has the incarnation
    store_id = role.facts.store_id or (role.start.store_id if role.start else "")
    save(role, replace(role.facts, id=event.id, store_id=store_id), out)
    read_again(role, None, out)


def _identity_in_use(
    role: Role, event: events.IdentityInUse, now_ms: int, out: list[Action]
) -> None:
    text = (
        f"another process has the identity of replica {role.id}: {event.detail}; if the store is a "
        "copy, remove brokerIdentity and replicaFacts there and start with an empty store"
    )
    reason = Reason(Code.IDENTITY_IN_USE, text)
    if role.session is not None:
        switching.replaced(role, reason, out)
    following.stop(role, reason, out)


def _tick(role: Role, event: events.Tick, now_ms: int, out: list[Action]) -> None:
    role.log = event.log
    if role.session is not None:
        role.session.counted.own_end(event.log.end, event.log.flushed)


def _frozen(role: Role, event: events.Frozen, now_ms: int, out: list[Action]) -> None:
    service.frozen(role, now_ms)


def _disk_failed(role: Role, event: events.DiskFailed, now_ms: int, out: list[Action]) -> None:
    is_fsync = event.is_fsync
    resync.failed(role, event.detail, out)
    switching.disk_failed(role, event.detail, is_fsync=is_fsync, now_ms=now_ms, out=out)


def _stop_asked(role: Role, event: events.StopAsked, now_ms: int, out: list[Action]) -> None:
    switching.stop_asked(role, now_ms, out)


def _asked(role: Role, event: events.Asked, now_ms: int, out: list[Action]) -> None:
    operators.asked(role, event, now_ms, out)


# -- the authority ---------------------------------------------------------------------------------


def _lease_renewed(role: Role, event: events.LeaseRenewed, now_ms: int, out: list[Action]) -> None:
    service.renewed(role, event.sent_ms)


def _viewed(role: Role, event: events.Viewed, now_ms: int, out: list[Action]) -> None:
    view, before = event.view, role.view
    is_same_cluster = before is not None and before.cluster_id == view.cluster_id
    if before is not None and is_same_cluster and view.read_revision < before.read_revision:
        return
    role.view = view
    role.is_stale = role.is_stale and view.read_revision < role.fresh_revision
    save(role, trust.informed(role.facts, view), out)
    problem = trust.problem_with(view, role.facts, role.log)
    if problem is not None and problem != role.untrusted:
        note(role, problem, out, is_alarm=True)
    role.untrusted = problem
    if problem is None:
        save(role, trust.accepted(role.facts, view, role.id), out)
        _view_trusted(role, view, now_ms, out)


def _view_trusted(role: Role, view: View, now_ms: int, out: list[Action]) -> None:
    state, session = view.state, role.session
    if state is not None and _is_retired(role, view):
        text = f"replica {role.id} was retired by an operator"
        save(role, replace(role.facts, retired=True), out)
        following.stop(role, Reason(Code.RETIRED, text), out)
    elif session is not None and state is not None:
        if _leads(role, state, session.epoch):
            pending = role.pending
            membership.viewed(role, out)
            if role.pending is None and pending is not None:
                _reply_settled(pending, state, out)
        else:
            text = f"epoch {state.epoch} has master {state.master}: {state.cause}"
            switching.replaced(role, Reason(Code.HIGHER_EPOCH, text), out)
    else:
        election.viewed(role, out)


def _reply_settled(pending: Pending, state: GroupState, out: list[Action]) -> None:
    """A view that arrives before the result settles a proposal, and its result is void then."""
    if pending.ticket is not None and pending.progress is Progress.SENT:
        is_ok = state == pending.proposal.state
        reason = operators.reply_of(Result.OK if is_ok else Result.CHANGED)
        out.append(Reply(pending.ticket, is_ok, reason))


def _is_retired(role: Role, view: View) -> bool:
    is_known = role.incarnation != 0 and view.read_revision >= role.incarnation
    return is_known and role.session is None and role.id not in view.replicas


def _leads(role: Role, state: GroupState, epoch: int) -> bool:
    named = (state.epoch, state.master, state.master_incarnation)
    return named == (epoch, role.id, role.incarnation)


def _answered(role: Role, event: events.Answered, now_ms: int, out: list[Action]) -> None:
    if not is_awaited(role, event):
        return
    pending, result = role.pending, event.outcome.result
    assert pending is not None
    if result is Result.OK:
        _adopt(role, pending.proposal, event.outcome.revision)
    if pending.ticket is not None:
        is_ok = result is Result.OK
        out.append(Reply(pending.ticket, is_ok, operators.reply_of(result)))
    if pending.purpose is Purpose.ELECTION:
        election.answered(role, event.outcome, out)
    elif role.session is not None:
        membership.answered(role, event.outcome, out)
    else:
        role.pending = None
        if result is not Result.OK:
            read_again(role, event.outcome, out)


def is_awaited(role: Role, event: events.Answered) -> bool:
    """Whether an answer is to the present proposal.

    An OK to an earlier one is void: since then this replica may have followed another master (R6).
    """
    return role.pending is not None and role.pending.number == event.number


def _adopt(role: Role, proposal: Proposal, revision: int) -> None:
    """The own proposal took effect: its state is known without a read."""
    view = role.view
    if view is not None and view.revision < revision:
        deletes_wish = ("wish", None) in proposal.deletes
        role.view = replace(
            view,
            state=proposal.state,
            revision=revision,
            read_revision=max(view.read_revision, revision),
            wish=None if deletes_wish else view.wish,
        )


# -- as a slave ------------------------------------------------------------------------------------


def _offered(role: Role, event: events.MasterOffered, now_ms: int, out: list[Action]) -> None:
    following.offered(role, event, now_ms, out)


def _heard(role: Role, event: events.MasterHeard, now_ms: int, out: list[Action]) -> None:
    following.heard(role, event, now_ms, out)


def _lost(role: Role, event: events.MasterDisconnected, now_ms: int, out: list[Action]) -> None:
    following.disconnected(role)


def _refused(role: Role, event: events.MasterRefuses, now_ms: int, out: list[Action]) -> None:
    state = role.state
    if state is not None and role.last_session == state.epoch and not role.followed_session:
        role.refused_by = state.epoch


def _handover_offered(
    role: Role, event: events.HandoverOffered, now_ms: int, out: list[Action]
) -> None:
    if role.mode is Mode.SLAVE and role.followed_session == event.epoch:
        role.agreed, role.agreed_ms = event.epoch, now_ms


def _emptied(role: Role, event: events.Emptied, now_ms: int, out: list[Action]) -> None:
    resync.emptied(role, event, out)


# -- as a master -----------------------------------------------------------------------------------


def _led(role: Role, event: events.Led, now_ms: int, out: list[Action]) -> None:
    election.led(role, event, now_ms, out)


def _slave_connected(
    role: Role, event: events.SlaveConnected, now_ms: int, out: list[Action]
) -> None:
    membership.connected(role, event.id, event.incarnation, now_ms)


def _slave_lost(
    role: Role, event: events.SlaveDisconnected, now_ms: int, out: list[Action]
) -> None:
    membership.disconnected(role, event.id)


def _epoch_seen(role: Role, event: events.EpochSeen, now_ms: int, out: list[Action]) -> None:
    """R8. Only what the authority has ends a session: a hello may be false."""
    role.epoch_heard = max(role.epoch_heard, event.epoch)
    session = role.session
    if session is not None and event.epoch > session.epoch:
        text = f"{event.source} names epoch {event.epoch}, this master's is {session.epoch}"
        note(role, Reason(Code.HIGHER_EPOCH, text), out)
        out.append(Read())


def _writers_stopped(
    role: Role, event: events.WritersStopped, now_ms: int, out: list[Action]
) -> None:
    role.log = event.log
    if role.session is not None:
        role.session.counted.own_end(event.log.end, event.log.flushed)
    switching.writers_stopped(role, event.log.end)


def _handover_asked(
    role: Role, event: events.HandoverAsked, now_ms: int, out: list[Action]
) -> None:
    if role.session is not None and not service.is_lease_fresh(role, now_ms):
        cause = f"replica {event.id} does not see the lease of this master"
        problem = switching.begin(role, event.id, cause, now_ms, out)
        if problem is not None:
            note(role, problem, out)


HANDLERS: dict[type, Callable[[Role, Any, int, list[Action]], None]] = {
    events.Started: _started,
    events.Joined: _joined,
    events.Viewed: _viewed,
    events.Answered: _answered,
    events.LeaseRenewed: _lease_renewed,
    events.IdentityInUse: _identity_in_use,
    events.MasterOffered: _offered,
    events.MasterHeard: _heard,
    events.MasterDisconnected: _lost,
    events.MasterRefuses: _refused,
    events.HandoverOffered: _handover_offered,
    events.Emptied: _emptied,
    events.Led: _led,
    events.SlaveConnected: _slave_connected,
    events.SlaveDisconnected: _slave_lost,
    events.EpochSeen: _epoch_seen,
    events.WritersStopped: _writers_stopped,
    events.HandoverAsked: _handover_asked,
    events.Tick: _tick,
    events.Frozen: _frozen,
    events.DiskFailed: _disk_failed,
    events.StopAsked: _stop_asked,
    events.Asked: _asked,
}
"""What each event changes; `_decide` draws the conclusions."""
