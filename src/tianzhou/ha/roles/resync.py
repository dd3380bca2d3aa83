"""A replica that starts again from the master's log, because an operator asks for it.

For a replica that stopped because it would have to cut confirmed messages, after a forced election,
or whose log ends before the master's oldest file. It must be no member of the in-sync set, and
nothing that is under way may take it in: so it first gets a new incarnation, which a proposal that
names the old one cannot follow (R4), and looks again. Then its log is removed, with what lies
behind the consistent point saved, and only after that forgotten what it saw confirmed: a crash in
between leaves an empty store that contradicts no master.

    asked: StopFollowing, Rejoin -> Joined -> Viewed: StartEmpty -> Emptied: Save, follow again
"""

from msgspec.structs import replace

from tianzhou.ha.authority.values import GroupState, View
from tianzhou.ha.roles.actions import Action, Rejoin, Reply, StartEmpty
from tianzhou.ha.roles.events import Emptied
from tianzhou.ha.roles.following import leave_master
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Resync, Role, note, save

_ALLOWED = frozenset({Code.BELOW_CONFIRMED, Code.RESYNC})
"""Reasons to stop that a resync overcomes."""


def begin(role: Role, state: GroupState, ticket: int, by: str, out: list[Action]) -> Reason | None:
    """Begins it; returns why that is not possible."""
    problem = _problem(role, state)
    if problem is not None:
        return problem
    reason = Reason(Code.RESYNC, f"replica {role.id} starts again from the master's log: {by}")
    if role.followed:
        leave_master(role, out)
    role.mode, role.stopped = Mode.STOPPED, reason
    role.resync = Resync(ticket, by, role.incarnation)
    note(role, reason, out, is_alarm=True)
    out.append(Rejoin())
    return None


def _problem(role: Role, state: GroupState) -> Reason | None:
    stopped = role.stopped
    if role.resync is not None:
        return Reason(Code.REFUSED, f"a resync of replica {role.id} is under way")
    if role.mode not in (Mode.SLAVE, Mode.STOPPED):
        return Reason(Code.REFUSED, f"replica {role.id} is not a slave: {role.mode.value}")
    if stopped is not None and stopped.code not in _ALLOWED:
        return Reason(Code.REFUSED, f"a resync does not help: {stopped.text}")
    if role.untrusted is not None:
        return Reason(Code.REFUSED, f"a resync does not help: {role.untrusted.text}")
    if role.followed_session:
        text = f"replica {role.id} follows its master: there is nothing to repair"
        return Reason(Code.REFUSED, text)
    assert role.view is not None
    return _danger(role, role.view, state)


def _danger(role: Role, view: View, state: GroupState) -> Reason | None:
    """Why its log may be needed."""
    if role.id in state.in_sync:
        text = (
            f"replica {role.id} is in sync, so its log may be needed: the master takes it out when "
            "it does not follow, unless fewer than minInSyncReplicas would be left"
        )
        return Reason(Code.REFUSED, text)
    alive = view.alive.get(state.master) if state.master is not None else None
    if alive is None or alive.value.incarnation != state.master_incarnation:
        return Reason(Code.REFUSED, "there is no living master whose log could be copied")
    return None


def review(role: Role, out: list[Action]) -> None:
    """Removes the log when the new incarnation is known and the replica still is no member."""
    resync, view, state = role.resync, role.view, role.state
    if resync is None or resync.is_removing or view is None or state is None:
        return
    is_joined = role.incarnation > resync.joined_after
    if not is_joined or role.is_stale or view.read_revision < role.incarnation:
        return
    danger = role.untrusted or _danger(role, view, state)
    if danger is not None:
        _give_up(role, resync, danger, out)
        return
    role.resync = Resync(resync.ticket, resync.by, resync.joined_after, is_removing=True)
    known = min(role.confirm, role.log.end)
    out.append(StartEmpty(known if role.diverged is None else role.diverged))


def _give_up(role: Role, resync: Resync, reason: Reason, out: list[Action]) -> None:
    """Nothing was removed: it follows again, or stops again for the same reason."""
    role.mode, role.stopped, role.resync = Mode.SLAVE, None, None
    note(role, reason, out, is_alarm=True)
    out.append(Reply(resync.ticket, is_ok=False, reason=reason))


def failed(role: Role, detail: str, out: list[Action]) -> None:
    """The disk failed: actions of the resync may have been dropped, so the operator has to act."""
    resync = role.resync
    if resync is None:
        return
    role.resync = None
    role.stopped = Reason(Code.RESYNC, f"the resync of replica {role.id} failed: {detail}")
    out.append(Reply(resync.ticket, is_ok=False, reason=role.stopped))


def emptied(role: Role, event: Emptied, out: list[Action]) -> None:
    """The store is empty: what was seen confirmed binds it no more."""
    resync = role.resync
    if resync is None:
        return
    role.log, role.confirm, role.diverged = event.log, 0, None
    save(role, replace(role.facts, confirm=0, unclean=""), out)
    role.mode, role.stopped, role.resync = Mode.SLAVE, None, None
    where = f"what only it had is in {event.saved_in}" if event.saved_in else "nothing was saved"
    reason = Reason(Code.DONE, f"the log of replica {role.id} was removed; {where}")
    note(role, reason, out)
    out.append(Reply(resync.ticket, is_ok=True, reason=reason))
