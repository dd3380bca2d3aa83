"""A replica that may have lost acknowledged messages leaves the in-sync set first (R10).

It proposes itself out until the authority confirmed that, or shows that it is no member; also if it
is the last one. Only then does it forget the reason, and follow as a learner. When no replica is in
sync any more, `lost` names the replicas of which the longest log is elected: by the operator, or by
themselves with haUncleanRecovery=auto when all of them are back.
"""

from msgspec.structs import replace

from tianzhou.ha import replica_facts
from tianzhou.ha.authority.values import Alive, GroupState, Known, Proposal, Unchanged
from tianzhou.ha.replica_facts import ReplicaFacts
from tianzhou.ha.roles.actions import Action
from tianzhou.ha.roles.facts import LogFacts, UncleanRecovery
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Purpose, Role, note, propose, save


def review(role: Role, out: list[Action]) -> None:
    """Takes the next step of leaving, if this replica is unclean."""
    state = role.state
    if not role.facts.unclean or role.pending or role.is_stale or role.untrusted:
        return
    if state is None or role.view is None or not role.incarnation:
        return
    if role.id in state.in_sync:
        text = f"replica {role.id} left: {role.facts.unclean}"
        note(role, Reason(Code.LEFT_UNCLEAN, text), out, is_alarm=True)
        proposal = Proposal(state=without(state, role.id, text), revision=role.view.revision)
        propose(role, Purpose.LEAVE, proposal, out)
    else:
        become_learner(role, out)


def with_loss(facts: ReplicaFacts, log: LogFacts) -> ReplicaFacts:
    """Unclean if the log ends before what was on this disk and confirmed, whatever the reason."""
    if facts.unclean or log.end >= facts.confirm:
        return facts
    text = f"the log ends at {log.end}, messages up to {facts.confirm} were confirmed here"
    return replace(facts, unclean=text)


def without(state: GroupState, replica_id: int, cause: str) -> GroupState:
    """The state after a member has left because it may have lost messages.

    If it is the master, there is none: it must not start its epoch again with another log.
    """
    is_master = state.master == replica_id
    return replace(
        state,
        in_sync=tuple(each for each in state.in_sync if each != replica_id),
        lost=(*(each for each in state.lost if each != replica_id), replica_id),
        master=None if is_master else state.master,
        master_incarnation=0 if is_master else state.master_incarnation,
        cause=cause,
    )


def become_learner(role: Role, out: list[Action]) -> None:
    """The replica is no member: what it saw confirmed no longer binds it beyond its log."""
    assert role.start is not None
    facts = replica_facts.of_learner(role.facts, role.start, role.log.end)
    role.confirm = min(role.confirm, facts.confirm)
    save(role, facts, out)


# -- no replica is in sync -------------------------------------------------------------------------


def recovery_problem(role: Role) -> Reason | None:
    """Why this replica is not elected though no replica is in sync; None if it should be."""
    view, state = role.view, role.state
    assert view is not None
    assert state is not None
    lost = ", ".join(str(each) for each in state.lost)
    if role.settings.unclean_recovery is UncleanRecovery.WAIT:
        text = (
            f"no replica is in sync: replicas {lost} may have lost messages; force an election of "
            "the one with the longest log, or set haUncleanRecovery=auto"
        )
        return Reason(Code.UNCLEAN, text)
    absent = [each for each in state.lost if each != role.id and each not in view.alive]
    if absent:
        return Reason(Code.UNCLEAN, f"no replica is in sync, and not all of {lost} are alive yet")
    if role.id not in state.lost:
        return Reason(Code.NOT_IN_SYNC, f"one of the replicas {lost} has to be elected")
    best = max(state.lost, key=lambda each: _length(role, each, view.alive.get(each)))
    if best != role.id:
        return Reason(Code.WAITS_ITS_TURN, f"replica {best} has the longest log")
    return None


def _length(role: Role, replica_id: int, known: Known[Alive] | None) -> tuple[int, int, int]:
    if replica_id == role.id or known is None:
        return role.log.last_epoch, role.log.end, -replica_id
    return known.value.epoch, known.value.end, -replica_id


def recovery_compares(role: Role) -> tuple[Unchanged, ...]:
    """That the replicas with which the own log was compared have said nothing new."""
    view, state = role.view, role.state
    assert view is not None
    assert state is not None
    others = (each for each in state.lost if each != role.id)
    return tuple(Unchanged(("alive", each), view.alive[each].revision) for each in others)
