"""What operators ask for: pause, resume, retire, init, forced elections; and the first master (R0).

Each is one transaction on the state of the group, sent by the replica that was asked; a forced
election is a wish that the named replica carries out.
"""

from msgspec.structs import replace

from tianzhou.ha.authority.values import GroupState, Key, Proposal, Result, Unchanged, Wish
from tianzhou.ha.roles import election, resync, switching
from tianzhou.ha.roles.actions import Action, PutWish, Reply
from tianzhou.ha.roles.events import Asked, Elect, Init, Pause, Resume, Resync, Retire, Switch
from tianzhou.ha.roles.membership import may_shrink
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Purpose, Role, note, propose, save
from tianzhou.ha.roles.service import has_lease

_FINAL = frozenset({Code.RETIRED, Code.IDENTITY_IN_USE, Code.DONE, Code.DISK_FAILED})
"""Reasons to stop that a forced election does not overcome."""


def asked(role: Role, event: Asked, now_ms: int, out: list[Action]) -> None:
    """Carries out a request, or answers why not."""
    problem = _problem(role) or _begin(role, event, now_ms, out)
    if problem is not None:
        out.append(Reply(event.ticket, is_ok=False, reason=problem))


def _problem(role: Role) -> Reason | None:
    if role.view is None or not role.incarnation:
        return _refused("the authority was not reached since the start of this replica")
    if role.pending or role.is_stale:
        return _refused("another change is under way; repeat the command")
    return None


def _refused(text: str) -> Reason:
    return Reason(Code.REFUSED, text)


def _begin(role: Role, event: Asked, now_ms: int, out: list[Action]) -> Reason | None:
    command, state = event.command, role.state
    if isinstance(command, Init):
        return _init(role, event, command.group, now_ms, out)
    if state is None:
        return _refused("the group does not exist yet: `tianzhou broker init`")
    match command:
        case Switch():
            return _switch(role, state, event, command.to, now_ms, out)
        case Elect():
            return _elect(role, state, event, command, out)
        case Retire():
            return _retire(role, state, event, command.id, out)
        case Resync():
            return resync.begin(role, state, event.ticket, f"asked by {event.by}", out)
        case Pause() | Resume():
            return _pause(role, state, event, is_paused=isinstance(command, Pause), out=out)


def _switch(
    role: Role, state: GroupState, event: Asked, to: int | None, now_ms: int, out: list[Action]
) -> Reason | None:
    if role.session is not None:
        return switching.begin(role, to, f"asked by {event.by}", now_ms, out, event.ticket)
    if to is None or to not in state.in_sync or to == state.master:
        return _refused(f"name a replica that is in sync and not the master: {list(state.in_sync)}")
    out.append(PutWish(event.ticket, Wish(epoch=state.epoch, by=event.by, switch_to=to)))
    return None


def _elect(
    role: Role, state: GroupState, event: Asked, command: Elect, out: list[Action]
) -> Reason | None:
    if not command.accept_loss:
        return _refused("a forced election loses what the replica lacks: pass --accept-loss")
    if role.view is None or command.id not in role.view.replicas:
        return _refused(f"there is no replica {command.id} in this group")
    wish = Wish(epoch=state.epoch, by=event.by, force=command.id, accept_loss=True)
    out.append(PutWish(event.ticket, wish))
    return None


def _retire(
    role: Role, state: GroupState, event: Asked, retired: int, out: list[Action]
) -> Reason | None:
    assert role.view is not None
    if retired not in role.view.replicas:
        return _refused(f"there is no replica {retired} in this group")
    if retired == state.master:
        return _refused(f"replica {retired} is the master: switch to another one first")
    members = tuple(each for each in state.in_sync if each != retired)
    if members != state.in_sync and not may_shrink(role, state.in_sync, members):
        return _refused(f"without it less than minInSync={state.min_in_sync} would be in sync")
    lost = tuple(each for each in state.lost if each != retired)
    text = f"replica {retired} was retired by {event.by}"
    new = replace(state, in_sync=members, lost=lost, cause=text)
    _propose(role, new, event, out, deletes=(("replicas", retired),))
    return None


def _pause(
    role: Role, state: GroupState, event: Asked, *, is_paused: bool, out: list[Action]
) -> Reason | None:
    text = f"{'paused' if is_paused else 'resumed'} by {event.by}"
    _propose(role, replace(state, paused=is_paused, cause=text), event, out)
    return None


def _propose(
    role: Role, new: GroupState, event: Asked, out: list[Action], deletes: tuple[Key, ...] = ()
) -> None:
    assert role.view is not None
    proposal = Proposal(state=new, revision=role.view.revision, deletes=deletes)
    note(role, Reason(Code.DONE, new.cause), out)
    propose(role, Purpose.OPERATOR, proposal, out, ticket=event.ticket)


def reply_of(result: Result) -> Reason:
    """What an operator reads about the result of a transaction."""
    if result is Result.OK:
        return Reason(Code.DONE, "done")
    if result is Result.CHANGED:
        return Reason(Code.FAILED, "the group has changed meanwhile: look at it, then repeat")
    text = "the authority did not answer: the change may still take effect; look at the group"
    return Reason(Code.FAILED, text)


# -- forced elections ------------------------------------------------------------------------------


def review_force(role: Role, now_ms: int, out: list[Action]) -> None:
    """Carries out the wish of an operator that this replica becomes master, once."""
    view, state = role.view, role.state
    if view is None or view.wish is None or state is None or not role.incarnation:
        return
    wish = view.wish.value
    if wish.force != role.id or not wish.accept_loss or not is_in_force(wish, state):
        return
    if role.mode not in (Mode.SLAVE, Mode.STOPPED) or role.pending or role.is_stale:
        return
    is_final = role.stopped is not None and role.stopped.code in _FINAL
    if is_final or (state.group != role.facts.group and not role.log.is_empty):
        return
    cause = Reason(Code.FORCED, f"forced by {wish.by}, accepting loss")
    new = election.with_switch(role, state, cause, now_ms)
    note(role, cause, out, is_alarm=True)
    election.send(
        role,
        Proposal(
            state=replace(new, in_sync=(role.id,), lost=()),
            revision=view.revision,
            unchanged=(Unchanged(("wish", None), view.wish.revision),),
            deletes=wish_deletes(),
        ),
        out,
        is_forced=True,
    )


def is_in_force(wish: Wish, state: GroupState) -> bool:
    """A wish is void in another epoch than it names: since then others were elected."""
    return wish.epoch == state.epoch


def wish_deletes() -> tuple[Key, ...]:
    """What a forced election deletes: the wish must not be carried out twice."""
    return (("wish", None),)


# -- the first master (R0) -------------------------------------------------------------------------


def review_founding(role: Role, now_ms: int, out: list[Action]) -> None:
    """Founds the group, if there is none and no store of it has a message."""
    view = role.view
    if view is None or view.state is not None or role.untrusted or not role.incarnation:
        return
    if role.pending or role.is_stale or role.is_ending or role.settings.priority == 0:
        return
    if not has_lease(role, now_ms):
        role.standing = Reason(Code.NO_LEASE, "the lease of this replica is not renewed")
        return
    filled = [each for each, known in view.replicas.items() if not known.value.empty]
    if filled or not role.log.is_empty:
        text = f"replicas {filled} have messages but no group: `tianzhou broker init`"
        role.standing = Reason(Code.STATE_MISSING, text)
        return
    _found(role, role.new_group, None, now_ms, out)


def _init(role: Role, event: Asked, group: str, now_ms: int, out: list[Action]) -> Reason | None:
    if role.state is not None:
        return _refused(f"the group exists, with epoch {role.state.epoch}")
    if role.mode is not Mode.SLAVE or role.facts.unclean:
        return _refused(f"replica {role.id} cannot be master: {role.facts.unclean or role.mode}")
    _found(role, role.facts.group or group, event.ticket, now_ms, out)
    return None


def _found(role: Role, group: str, ticket: int | None, now_ms: int, out: list[Action]) -> None:
    assert role.view is not None
    cause = Reason(Code.FIRST, f"replica {role.id} founded the group")
    empty = GroupState(group=group, epoch=0, master=None, in_sync=(role.id,))
    new = election.with_switch(role, empty, cause, now_ms)
    # Saved before: a founder that forgot its group would take its own store for a new one.
    save(role, replace(role.facts, group=group, cluster_id=role.view.cluster_id), out)
    role.standing = cause
    note(role, cause, out)
    election.send(role, Proposal(state=new, revision=0), out, ticket=ticket)
