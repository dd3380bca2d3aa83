"""Worlds that differ in the names of their replicas only are explored once.

Each world is replaced by the one in which the replicas are sorted by what they are doing. That need
not find every pair of equal worlds to be right: any renaming of the replicas is as good.
"""

import dataclasses
from collections.abc import Hashable

from msgspec.structs import replace

from tests.support.role_model.interned import CURRENT, Interned, view_of
from tests.support.role_model.world import World
from tianzhou.ha.authority.values import GroupState, Known, Proposal, Unchanged, View, Wish
from tianzhou.ha.roles.role import Role, Session

Names = tuple[int, int, int]
"""The new names of replicas 1, 2 and 3."""


class Renaming:
    """Renames the values of one search."""

    def __init__(self, interned: Interned) -> None:
        """Of these numbers."""
        self._interned = interned
        self._roles: dict[tuple[int, Names], int] = {}
        self._states: dict[tuple[int, Names], int] = {}
        self._proposals: dict[tuple[int, Names], int] = {}
        self._shapes: dict[int, Hashable] = {}

    def canonical(self, world: World) -> World:
        """The world that stands for all that differ in names."""
        state = self._interned.state(world.state)
        sent_by = [each.by for each in world.sent]
        shapes = sorted(
            (
                self._shape(world.roles[each - 1]), each == state.master, each in state.in_sync,
                world.stores[each - 1], world.incarnations[each - 1], each in sent_by,
                sum(world.reports[each - 1]), world.agreed[each - 1],
                world.leading[each - 1], each,
            )
            for each in (1, 2, 3)
        )  # fmt: skip
        order = [int(shape[-1]) for shape in shapes]
        if order == [1, 2, 3]:
            return world
        return self._renamed(world, order)

    def _shape(self, number: int) -> Hashable:
        shape = self._shapes.get(number)
        if shape is None:
            shape = self._shapes[number] = repr(_shape_of(self._interned.role(number)))
        return shape

    def _renamed(self, world: World, order: list[int]) -> World:
        new = [0, 0, 0]
        for position, old in enumerate(order, 1):
            new[old - 1] = position
        names: Names = (new[0], new[1], new[2])
        old_index = [each - 1 for each in order]
        sent = tuple(
            sorted(
                each._replace(by=names[each.by - 1], proposal=self._proposal(each.proposal, names))
                for each in world.sent
            )
        )
        return world._replace(
            state=self._state(world.state, names),
            incarnations=tuple(world.incarnations[each] for each in old_index),
            wish=_wish(world.wish, names),
            roles=tuple(self._role(world.roles[each], names) for each in old_index),
            stores=tuple(world.stores[each] for each in old_index),
            sent=sent,
            reports=tuple(
                tuple(world.reports[each][other] for other in old_index) for each in old_index
            ),
            agreed=tuple(world.agreed[each] for each in old_index),
            leading=tuple(world.leading[each] for each in old_index),
        )

    def _role(self, number: int, names: Names) -> int:
        found = self._roles.get((number, names))
        if found is None:
            role = renamed_role(self._interned.role(number), names)
            found = self._roles[number, names] = self._interned.number_of_role(role)
        return found

    def _state(self, number: int, names: Names) -> int:
        found = self._states.get((number, names))
        if found is None:
            state = renamed_state(self._interned.state(number), names)
            found = self._states[number, names] = self._interned.number_of_state(state)
        return found

    def _proposal(self, number: int, names: Names) -> int:
        found = self._proposals.get((number, names))
        if found is None:
            proposal = renamed_proposal(self._interned.proposal(number), names)
            found = self._interned.number_of_proposal(proposal)
            self._proposals[number, names] = found
        return found


def _shape_of(role: Role) -> tuple[Hashable, ...]:
    """What a role is doing, without names."""
    session, view, pending = role.session, role.view, role.pending
    led = None
    if session is not None:
        counted = session.counted
        led = (
            session.epoch, session.start, counted.confirm, len(counted.in_force),
            len(counted.proposed), sorted(counted.acknowledged.values()), session.handover is None,
        )  # fmt: skip
    state = view.state if view else None
    return (
        role.mode.value, role.confirm, role.followed_session, role.followed == 0, role.is_stale,
        role.facts.followed_epoch, role.facts.unclean, view.revision if view else 0,
        state.epoch if state else 0, len(state.in_sync) if state else 0,
        pending.purpose.value if pending else "", pending.progress.value if pending else "",
        led is not None, led,
    )  # fmt: skip


def _name(old: int, names: Names) -> int:
    return names[old - 1] if old else 0


def _set(members: frozenset[int], names: Names) -> frozenset[int]:
    return frozenset(names[each - 1] for each in members)


def _wish(wish: Known[Wish] | None, names: Names) -> Known[Wish] | None:
    if wish is None:
        return None
    value = wish.value
    if value.force is not None:
        value = replace(value, force=names[value.force - 1])
    if value.switch_to is not None:
        value = replace(value, switch_to=names[value.switch_to - 1])
    return Known(value, wish.revision)


def renamed_state(state: GroupState, names: Names) -> GroupState:
    """With other names; `lost` keeps its order."""
    return replace(
        state,
        master=None if state.master is None else names[state.master - 1],
        in_sync=tuple(sorted(names[each - 1] for each in state.in_sync)),
        lost=tuple(names[each - 1] for each in state.lost),
    )


def renamed_proposal(proposal: Proposal, names: Names) -> Proposal:
    """With other names."""
    unchanged: list[Unchanged] = []
    for (kind, which), revision in proposal.unchanged:
        if kind == "wish" or which is None:
            unchanged.append(Unchanged(("wish", None), revision))
        else:
            unchanged.append(Unchanged((kind, names[which - 1]), revision))
    state = renamed_state(proposal.state, names)
    return replace(proposal, state=state, unchanged=tuple(unchanged))


def _view(view: View, names: Names) -> View:
    incarnations = [0, 0, 0]
    for each, known in view.replicas.items():
        incarnations[names[each - 1] - 1] = known.revision
    assert view.state is not None
    state, wish = renamed_state(view.state, names), _wish(view.wish, names)
    shown = view_of(state, tuple(incarnations), wish, alive=True)
    if view.revision == CURRENT:
        return shown
    return replace(shown, revision=view.revision, read_revision=view.read_revision)


def renamed_role(role: Role, names: Names) -> Role:
    """With other names."""
    new = role.copy()
    new.id = _name(role.id, names)
    new.facts = replace(
        role.facts,
        id=_name(role.facts.id, names),
        master=_name(role.facts.master, names),
        master_addr=f"h{_name(role.facts.master, names)}" if role.facts.master else "",
    )
    new.followed = _name(role.followed, names)
    new.followed_addr = f"h{new.followed}" if new.followed else ""
    if role.view is not None:
        new.view = _view(role.view, names)
    if role.pending is not None:
        proposal = renamed_proposal(role.pending.proposal, names)
        new.pending = dataclasses.replace(role.pending, proposal=proposal)
    if new.session is not None:
        _rename_session(new.session, names)
    return new


def _rename_session(session: Session, names: Names) -> None:
    counted = session.counted
    counted.own_id = names[counted.own_id - 1]
    counted.in_force = _set(counted.in_force, names)
    counted.proposed = _set(counted.proposed, names)
    ends = counted.acknowledged.items()
    counted.acknowledged = {names[each - 1]: end for each, end in ends}
    counted.set_local(())
    session.slaves = {names[each - 1]: slave for each, slave in session.slaves.items()}
    if session.handover is not None:
        to = names[session.handover.to - 1]
        session.handover = dataclasses.replace(session.handover, to=to)
