"""All interleavings of a group of three replicas: the invariants of failover hold (ADR 9).

Every single rule is switched off once; then the same search finds the loss that it prevents.
"""

import dataclasses

import pytest
from tests.support.role_model.bounds import Bounds
from tests.support.role_model.group import Group
from tests.support.role_model.mutations import (
    MUTATIONS,
    PAIR,
    Mutation,
    SwitchOff,
    wish_holds_for_ever,
    wish_is_kept,
    wish_stays,
)
from tests.support.role_model.recovery import problem_with
from tests.support.role_model.search import Found, explore, follow, walk
from tests.support.role_model.world import World

from tianzhou.ha.roles.facts import Settings

ALONE = Settings(min_in_sync=1)
FLUSHED = Settings(is_sync_flush=True)


# -- all interleavings -----------------------------------------------------------------------------

WHOLE = {
    "set changes": Bounds(),
    "lost answer": Bounds(lost=1, shrinks=False),
    "tables": Bounds(tables=True, shrinks=False),
    "late answers": Bounds(late_answers=True, shrinks=False),
}
WHOLE_FULL = {
    "two in sync": Bounds(in_sync=PAIR),
    "two records": Bounds(records=2, shrinks=False),
    "three epochs": Bounds(epochs=3, shrinks=False),
    "restart": Bounds(restarts=1, shrinks=False),
    "planned switch": Bounds(switches=1, shrinks=False),
    "wiped disk": Bounds(wipes=1, shrinks=False),
    "resync": Bounds(resyncs=1, in_sync=PAIR, shrinks=False),
}
PART_FULL = {
    "lost answer and set changes": Bounds(lost=1, in_sync=PAIR),
    "restart without authority": Bounds(offline_restarts=1, epochs=3, shrinks=False),
    "power cut, asynchronous flush": Bounds(power_cuts=1, unsynced=True),
    "power cut, synchronous flush": Bounds(power_cuts=1, unsynced=True, settings=FLUSHED),
    "forced election": Bounds(forces=1, epochs=3, shrinks=False),
    "minimum of one": Bounds(in_sync=PAIR, settings=ALONE),
}
"""Too many worlds for all of them: those with the fewest steps are seen."""
WORLDS_MAX = 600_000
PART = 150_000


@pytest.mark.parametrize("bounds", WHOLE.values(), ids=WHOLE)
def test_no_interleaving_violates_an_invariant(bounds: Bounds) -> None:
    found = explore(Group(bounds), worlds_max=WORLDS_MAX)
    assert not found.violation, found
    assert found.is_complete, found


@pytest.mark.full
@pytest.mark.parametrize("bounds", WHOLE_FULL.values(), ids=WHOLE_FULL)
def test_no_interleaving_of_more_events_violates_an_invariant(bounds: Bounds) -> None:
    test_no_interleaving_violates_an_invariant(bounds)


@pytest.mark.full
@pytest.mark.parametrize("bounds", PART_FULL.values(), ids=PART_FULL)
def test_no_short_interleaving_of_rare_events_violates_an_invariant(bounds: Bounds) -> None:
    found = explore(Group(bounds), worlds_max=PART)
    assert not found.violation, found


def test_the_group_works_again_after_every_interleaving() -> None:
    group = Group(Bounds(shrinks=False))
    found = explore(
        group, worlds_max=WORLDS_MAX, judge=lambda world: problem_with(group, world), judged=20
    )
    assert not found.violation, found
    assert found.is_complete


# -- random ones -----------------------------------------------------------------------------------

MUCH = {
    "everything": Bounds(
        records=4, epochs=6, restarts=3, offline_restarts=1, power_cuts=1, wipes=1, switches=2,
        lost=4, tables=True, slow_leads=True, late_answers=True, unsynced=True,
    ),
    "two in sync": Bounds(records=4, epochs=6, restarts=4, lost=6, in_sync=PAIR, switches=2),
    "minimum of one": Bounds(
        records=4, epochs=6, restarts=3, lost=4, wipes=1, in_sync=PAIR, settings=ALONE
    ),
    "synchronous flush": Bounds(
        records=4, epochs=6, restarts=2, power_cuts=3, unsynced=True, lost=4, settings=FLUSHED
    ),
}  # fmt: skip


def walked(bounds: Bounds, *, walks: int, seed: int) -> Found:
    group = Group(bounds)
    ends: list[World] = []

    def judge(world: World) -> str:
        ends.append(world)
        return problem_with(group, world)

    found = walk(group, seed=seed, walks=walks, length=80, judge=judge)
    assert any(world.ghosts.newest > 3 for world in ends)
    assert any(sum(world.ghosts.acknowledged) > 2 for world in ends)
    return found


@pytest.mark.parametrize("bounds", MUCH.values(), ids=MUCH)
def test_random_walks_violate_no_invariant_and_the_group_works_again(bounds: Bounds) -> None:
    found = walked(bounds, walks=40, seed=1)
    assert not found.violation, found


@pytest.mark.full
@pytest.mark.parametrize("bounds", MUCH.values(), ids=MUCH)
def test_many_random_walks_violate_no_invariant(bounds: Bounds) -> None:
    for seed in range(2, 4):
        found = walked(bounds, walks=120, seed=seed)
        assert not found.violation, f"seed {seed}: {found}"


@pytest.mark.parametrize("walks", [50, pytest.param(200, marks=pytest.mark.full)])
def test_random_walks_with_a_forced_election_lose_nothing_else(walks: int) -> None:
    bounds = Bounds(records=4, epochs=6, restarts=3, wipes=1, forces=1, lost=4, resyncs=2)
    found = walk(Group(bounds), seed=walks, walks=walks, length=80)
    assert not found.violation, found


# -- without a rule --------------------------------------------------------------------------------


def search(mutation: Mutation, *, is_off: bool, worlds_max: int) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        group = Group(mutation.bounds)
        if is_off:
            mutation.off(patch, group)
        start = follow(group, mutation.script, may_end=not is_off)
        return explore(group, worlds_max=worlds_max, start=start)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_without_a_rule_the_search_finds_the_loss(mutation: Mutation) -> None:
    found = search(mutation, is_off=True, worlds_max=mutation.worlds)
    assert found.violation.startswith(mutation.finds), found
    with_the_rule = search(mutation, is_off=False, worlds_max=found.worlds)
    assert not with_the_rule.violation, with_the_rule
    assert with_the_rule.is_complete or with_the_rule.worlds >= found.worlds


@pytest.mark.parametrize("guard_off", [wish_is_kept, wish_holds_for_ever])
def test_either_guard_of_a_wish_is_enough(guard_off: SwitchOff) -> None:
    (mutation,) = [each for each in MUTATIONS if each.off is wish_stays]
    found = search(dataclasses.replace(mutation, off=guard_off), is_off=True, worlds_max=3000)
    assert not found.violation, found
