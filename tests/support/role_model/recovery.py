"""Whether a group works again when nothing fails any more (I6).

From a world, everything that is on its way arrives, every process that lives goes on, leases of
living processes last and those of dead ones end. One replica may be dead for good. Then a master
must be elected if a replica that is in sync and usable lives; and all that live must follow it.
"""

from collections.abc import Iterator
from functools import partial

from tests.support.role_model.change import Change
from tests.support.role_model.group import Group
from tests.support.role_model.interned import CURRENT
from tests.support.role_model.world import APPLIED, IDS, SENT, World
from tianzhou.ha.roles import events
from tianzhou.ha.roles.role import Mode, Role

STEPS_MAX = 300


def problem_with(group: Group, world: World) -> str:
    """Why the group does not work again, with all replicas, or with each of them dead for good."""
    problems = (problem_of(group, world, dead) for dead in (0, *IDS))
    return next((f"I6: {each}" for each in problems if each), "")


def problem_of(group: Group, world: World, dead: int = 0) -> str:
    """Why the group does not work again; empty if it does or must not."""
    living = [each for each in IDS if each != dead]
    if not any(_is_usable(group, world, each) for each in living):
        return ""
    labels: list[str] = []
    for _ in range(STEPS_MAX):
        if world.violation:
            return f"{world.violation} after {labels}"
        found = _next(group, world, living)
        if found is None:
            break
        label, world = found
        labels.append(label)
    else:
        return f"it does not come to rest: {labels[-30:]}"
    if not any(_is_usable(group, world, each) for each in living):
        return ""  # a proposal of the dead one has left it alone in the set
    missing = _missing(group, world, living)
    return f"{missing}; what happened: {labels}" if missing else ""


def _is_usable(group: Group, world: World, each: int) -> bool:
    role = group.interned.role(world.roles[each - 1])
    is_member = each in group.interned.state(world.state).in_sync
    return is_member and not role.facts.unclean and role.mode is not Mode.STOPPED


def _missing(group: Group, world: World, living: list[int]) -> str:
    state = group.interned.state(world.state)
    roles = {each: group.interned.role(world.roles[each - 1]) for each in living}
    masters = [each for each, role in roles.items() if _leads(group, world, each, role)]
    if len(masters) != 1:
        return f"masters are {masters}, the state names {state.master} for epoch {state.epoch}"
    (master,) = masters
    for each, role in roles.items():
        if each == master or role.mode is Mode.STOPPED:
            continue
        if role.followed_session != state.epoch or each not in state.in_sync:
            return f"replica {each} is not in sync with {master}, in sync are {state.in_sync}"
        if world.stores[each - 1].log != world.stores[master - 1].log:
            return f"replica {each} does not have the log of {master}"
    return ""


def _leads(group: Group, world: World, each: int, role: Role) -> bool:
    state, session = group.interned.state(world.state), role.session
    return session is not None and (session.epoch, each) == (state.epoch, state.master)


def _next(group: Group, world: World, living: list[int]) -> tuple[str, World] | None:
    for label, change in _events(group, world, living):
        after = change.frozen()
        if after != world:
            return label, after
    return None


def _events(group: Group, world: World, living: list[int]) -> Iterator[tuple[str, Change]]:
    for index, sent in enumerate(world.sent):
        if sent.status == SENT and group.is_possible(world, sent):
            made = Change(group, world)
            made.carry_out(index)
            yield f"proposal of {sent.by}", made
        elif sent.is_awaited and (sent.status == APPLIED or not group.is_possible(world, sent)):
            made = Change(group, world)
            made.answer(index)
            yield f"answer to {sent.by}", made
    for each in living:
        role = group.interned.role(world.roles[each - 1])
        yield from _own(group, world, each, role)
    for each in living:
        role = group.interned.role(world.roles[each - 1])
        if role.session is not None:
            yield from _of_master(group, world, each, role, living)
        elif role.mode is Mode.SLAVE and role.followed:
            yield from _of_slave(group, world, each, role, living)
    yield from _leases(group, world, living)


def _own(group: Group, world: World, each: int, role: Role) -> Iterator[tuple[str, Change]]:
    if world.leading[each - 1]:
        made = Change(group, world)
        made.begin_epoch(each)
        yield f"{each} begins", made
    if not role.incarnation:
        made = Change(group, world)
        made.join(each)
        yield f"{each} joins", made
    view = role.view
    numbers = () if view is None else tuple(known.revision for known in view.replicas.values())
    is_current = view is not None and (view.revision, view.wish) == (CURRENT, world.wish)
    if role.incarnation and (role.is_stale or not is_current or numbers != world.incarnations):
        made = Change(group, world)
        made.look(each, alive=True)
        yield f"{each} reads", made


def _of_master(
    group: Group, world: World, master: int, role: Role, living: list[int]
) -> Iterator[tuple[str, Change]]:
    session = role.session
    assert session is not None
    if session.handover is not None:
        made = Change(group, world)
        made.resume(master)
        yield f"{master} resumes", made
    for slave in sorted(session.slaves):
        other = group.interned.role(world.roles[slave - 1])
        is_following = other.followed == master and other.followed_session == session.epoch
        if slave not in living or not is_following:
            made = Change(group, world)
            made.step(master, ("gone", slave), partial(events.SlaveDisconnected, slave))
            yield f"{master} loses {slave}", made
            continue
        report = world.reports[master - 1][slave - 1]
        if report > session.counted.acknowledged[slave]:
            made = Change(group, world)
            made.receive_report(master, slave, report)
            yield f"{master} hears {slave}", made
        if slave not in session.counted.in_force and role.pending is None:
            made = Change(group, world)
            made.find_near(master, slave)
            yield f"{master} finds {slave} near", made
    if role.pending is None:
        made = Change(group, world)
        made.miss(master)
        yield f"{master} misses members", made


def _of_slave(
    group: Group, world: World, slave: int, role: Role, living: list[int]
) -> Iterator[tuple[str, Change]]:
    master = role.followed
    session = group.interned.role(world.roles[master - 1]).session
    is_served = master in living and session is not None
    if not role.followed_session:
        if is_served:
            made = Change(group, world)
            made.connect(slave, master)
            yield f"{slave} connects to {master}", made
        return
    is_connected = is_served and session is not None and slave in session.slaves
    if not is_connected or session is None or session.epoch != role.followed_session:
        made = Change(group, world)
        made.step(slave, "lost", events.MasterDisconnected)
        yield f"{slave} loses {master}", made
        return
    made = Change(group, world)
    if len(world.stores[slave - 1].log) < len(world.stores[master - 1].log):
        made.copy_record(slave, master)
        yield f"{slave} copies", made
    else:
        made.hear(slave, master)
        yield f"{slave} hears", made
        made = Change(group, world)
        made.flush(slave)
        yield f"{slave} flushes", made


def _leases(group: Group, world: World, living: list[int]) -> Iterator[tuple[str, Change]]:
    """When nothing else can happen: the master that does not lead has no lease."""
    state = group.interned.state(world.state)
    if state.master in living:
        role = group.interned.role(world.roles[state.master - 1])
        if _leads(group, world, state.master, role):
            return
    for each in living:
        made = Change(group, world)
        made.look(each, alive=False)
        yield f"{each} sees no lease of {state.master}", made
