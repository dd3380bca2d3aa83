"""Explores a model: all interleavings breadth first, or random walks.

The steps to a violation are those of the canonical worlds, so that names of replicas may change
from one step to the next.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.support.role_model.group import Group, beginning
from tests.support.role_model.renaming import Renaming
from tests.support.role_model.world import World

_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    worlds: int
    depth: int
    is_complete: bool
    """Every reachable world was seen."""
    violation: str = ""
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For the report of a failed test."""
        listed = "".join(f"\n  {number}. {step}" for number, step in enumerate(self.steps, 1))
        extent = "all" if self.is_complete else "not all"
        return f"{self.worlds} worlds ({extent}), depth {self.depth}: {self.violation}{listed}"


Judge = Callable[[World], str]
"""Says what is wrong with a world beyond its own violation; empty for nothing."""


def explore(
    group: Group,
    *,
    worlds_max: int,
    start: World | None = None,
    judge: Judge = lambda world: "",
    judged: int = 1,
) -> Found:
    """Breadth first, so that a violation is found with the fewest steps.

    Every `judged`-th world is given to `judge`.
    """
    renaming = Renaming(group.interned)
    first = renaming.canonical(start or beginning(group))
    parents: dict[int, tuple[int, str]] = {hash(first): (_ROOT, "")}
    level, depth = [first], 0
    while level:
        after: list[World] = []
        for world in level:
            before = hash(world)
            for label, stepped in group.steps(world):
                next_world = renaming.canonical(stepped)
                number = hash(next_world)
                if number in parents:
                    continue
                parents[number] = (before, label)
                wrong = next_world.violation
                if not wrong and len(parents) % judged == 0:
                    wrong = judge(next_world)
                if wrong:
                    steps = _steps_to(parents, number)
                    return Found(len(parents), depth + 1, False, wrong, steps)
                after.append(next_world)
            if len(parents) > worlds_max:
                return Found(len(parents), depth, False)
        level, depth = after, depth + 1
    return Found(len(parents), depth, True)


def _steps_to(parents: dict[int, tuple[int, str]], number: int) -> tuple[str, ...]:
    steps: list[str] = []
    while True:
        number, label = parents[number]
        if not label:
            return tuple(reversed(steps))
        steps.append(label)


def walk(
    group: Group, *, seed: int, walks: int, length: int, judge: Judge = lambda world: ""
) -> Found:
    """Random steps, many times from the beginning; the last world of each is given to `judge`."""
    dice, first, count = random.Random(seed), beginning(group), 0
    for _ in range(walks):
        world, steps = first, list[str]()
        for _ in range(length):
            possible = list(group.steps(world))
            if not possible:
                break
            weights = [weight_of(label) for label, _ in possible]
            ((label, world),) = dice.choices(possible, weights)
            steps.append(label)
            count += 1
            if world.violation:
                return Found(count, len(steps), False, world.violation, tuple(steps))
        wrong = judge(world)
        if wrong:
            return Found(count, len(steps), False, wrong, tuple(steps))
    return Found(count, length, False)


_SETBACKS = (
    "notices",
    "misses",
    "sees that",
    "gets no",
    "restarts",
    "loses",
    "operator",
    "resumes",
)


def weight_of(label: str) -> int:
    """Work is more likely than setbacks, so that something is confirmed between elections."""
    return 1 if any(each in label for each in _SETBACKS) else 8


def follow(group: Group, script: tuple[str, ...], *, may_end: bool = False) -> World:
    """The world after these steps. Raises AssertionError with what was possible instead; with
    `may_end` it is the world before the first step that is not possible.
    """
    world = beginning(group)
    for number, wanted in enumerate(script, 1):
        possible = dict(group.steps(world))
        if wanted not in possible and may_end:
            break
        assert wanted in possible, f"step {number}: {wanted!r} is not possible: {list(possible)}"
        world = possible[wanted]
    return world
