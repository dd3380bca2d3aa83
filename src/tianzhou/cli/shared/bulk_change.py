"""Shared by commands that change topics or groups on several brokers: options, apply, copy."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tianzhou.admin.copy_settings import CopyPlan
from tianzhou.admin.fanout import BrokerRef, Gathered, gather
from tianzhou.cli.shared.command import Session
from tianzhou.cli.shared.common_options import masters, pairs_of
from tianzhou.cli.shared.output import plural
from tianzhou.errors import BodyError, ConfigError, TargetError
from tianzhou.protocol import bodies

S = TypeVar("S")

From = Annotated[str, typer.Option("--from", metavar="BROKER", help="Source broker.")]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="BROKER",
        help="Target broker; may be repeated. Default: all others of its cluster.",
    ),
]
OrCreate = Annotated[bool, typer.Option("--or-create", help="Create it on brokers without it.")]
FromDefaults = Annotated[
    bool,
    typer.Option(
        "--from-defaults", help="Reset options that are not given to defaults; attributes stay."
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="KEY=VALUE", help="An attribute (5.x); may be repeated."),
]
RemovedAttributes = Annotated[
    list[str] | None,
    typer.Option("--remove-attribute", metavar="KEY", help="Remove an attribute; may be repeated."),
]
SettingsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file with a JSON list.", show_default=False)
]


def attribute_changes(
    wanted: Iterable[str] | None, removed: Iterable[str] | None
) -> dict[str, str] | None:
    """Attribute changes by signed name; None if there are none. Raises ConfigError."""
    changes = {f"+{name}": value for name, value in pairs_of(wanted or ()).items()}
    changes |= {f"-{name}": "" for name in removed or ()}
    return changes or None


def refuse_removals(removed: Iterable[str] | None, kind: str) -> None:
    """Raises ConfigError if attributes of a new topic or group are to be removed."""
    if removed:
        raise ConfigError(f"--remove-attribute: a new {kind} has no attributes yet")


def read_settings(file: Path, kind: type[list[S]]) -> list[S]:
    """Read a JSON list of settings. Raises ConfigError."""
    try:
        text = file.read_bytes()
    except OSError as e:
        raise ConfigError(f"{file}: {e.strerror}") from e
    try:
        found = bodies.decode(kind, text)
    except BodyError as e:
        raise ConfigError(f"{file}: {e}") from e
    if not found:
        raise ConfigError(f"{file}: the list is empty")
    return found


def report_done(session: Session, what: str, done: Gathered[None]) -> None:
    """Print on which brokers a change succeeded, and warn about the others."""
    session.warn_all(done.warnings)
    session.print(f"{what} on {', '.join(at.name for at in done.responses)}")


def refuse_if_exists(noun: str, name: str, brokers: Iterable[BrokerRef]) -> None:
    """Raises TargetError if the topic or group exists on some of the brokers."""
    names = [at.name for at in brokers]
    if names:
        raise TargetError(
            f"{noun} {name} already exists on {', '.join(names)}; "
            f"change it with `tianzhou {noun} update {name}`"
        )


def report_changed(
    session: Session, what: str, done: Iterable[BrokerRef], was_there: Callable[[BrokerRef], bool]
) -> None:
    """Print on which brokers something was created and on which it was changed."""
    brokers = list(done)
    for word, is_change in (("created", False), ("changed", True)):
        names = [at.name for at in brokers if was_there(at) is is_change]
        if names:
            session.print(f"{what}: {word} on {', '.join(names)}")


async def apply_settings(
    session: Session,
    noun: str,
    names: Sequence[str],
    brokers: Sequence[BrokerRef],
    put: Callable[[BrokerRef], Awaitable[None]],
) -> Collection[BrokerRef]:
    """Create or change several topics or groups after confirmation; returns the brokers changed."""
    named = plural(len(names), noun)
    on = ", ".join(at.name for at in brokers)
    if not session.confirm(f"create or change {named} on {on}: {', '.join(names)}"):
        return ()
    done = await gather(brokers, put)
    report_done(session, f"{named} created or changed", done)
    return done.responses


async def copy_settings(
    session: Session,
    noun: str,
    source: str,
    targets: Sequence[str] | None,
    make_plan: Callable[[BrokerRef, BrokerRef], Awaitable[CopyPlan]],
) -> dict[BrokerRef, list[str]]:
    """Create on other brokers what they lack of one; returns the names created on each.

    Everything is planned before the confirmation. Raises ConfigError, TargetError.
    """
    (origin,) = await masters(session, broker=source)
    goals = await _goals(session, origin, targets)
    planned = await gather(goals, lambda at: make_plan(origin, at))
    session.warn_all(planned.warnings)
    plans: dict[BrokerRef, CopyPlan] = {}
    for goal, plan in planned.responses.items():
        if plan.missing:
            plans[goal] = plan
        else:
            session.print(f"{goal.name} already has all of these {noun}s")
    if not plans:
        return {}
    what = "; ".join(
        f"{plural(len(plan.missing), noun)} on {goal.name}: {', '.join(plan.missing)}"
        for goal, plan in plans.items()
    )
    if not session.confirm(f"create {what}"):
        return {}
    failed = 0
    for goal, plan in plans.items():
        done = await plan.run()
        for name, why in done.failures.items():
            session.warn(f"{goal.name}: {name}: {why}")
        failed += len(done.failures)
        session.print(
            f"{plural(done.count, noun)} created on {goal.name}, {plan.there} already there"
        )
    if failed or planned.failures:
        broken = plural(len(planned.failures), "broker") + " did not respond"
        raise TargetError(f"{plural(failed, noun)} could not be created" if failed else broken)
    return {goal: list(plan.missing) for goal, plan in plans.items()}


async def _goals(
    session: Session, origin: BrokerRef, targets: Sequence[str] | None
) -> list[BrokerRef]:
    """The named brokers, each once; by default all others of the origin's cluster."""
    if not targets:
        brokers = await masters(session, origin.cluster)
        goals = [at for at in brokers if at != origin]
        if not goals:
            raise TargetError(f"{origin.name} is the only broker of cluster {origin.cluster}")
        return goals
    found = {at: None for name in targets for at in await masters(session, broker=name)}
    if origin in found:
        raise ConfigError("--from and --to are the same broker")
    return list(found)
