"""What verbs share that change topics or groups on several brokers: copying, telling about it."""

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

From = Annotated[str, typer.Option("--from", metavar="BROKER", help="Copy of this broker.")]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="BROKER",
        help="To this broker; may be repeated. Otherwise to all others of its cluster.",
    ),
]
OrCreate = Annotated[bool, typer.Option("--or-create", help="Create it where it does not exist.")]
FromDefaults = Annotated[
    bool,
    typer.Option("--from-defaults", help="What is not named gets its default; attributes stay."),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="KEY=VALUE", help="An attribute of 5.x; may be repeated."),
]
RemovedAttributes = Annotated[
    list[str] | None,
    typer.Option("--remove-attribute", metavar="KEY", help="Take one away; may be repeated."),
]
SettingsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A JSON list.", show_default=False)
]


def attribute_changes(
    wanted: Iterable[str] | None, removed: Iterable[str] | None
) -> dict[str, str] | None:
    """Changes of attributes by their signed names, None if there are none. Raises ConfigError."""
    changes = {f"+{name}": value for name, value in pairs_of(wanted or ()).items()}
    changes |= {f"-{name}": "" for name in removed or ()}
    return changes or None


def refuse_removals(removed: Iterable[str] | None, kind: str) -> None:
    """Raises ConfigError if attributes are to be taken from something that is made now."""
    if removed:
        raise ConfigError(f"--remove-attribute: a new {kind} has no attributes yet")


def read_settings(file: Path, kind: type[list[S]]) -> list[S]:
    """The settings that a file lists. Raises ConfigError."""
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
    """Say where something was done, and warn of where it was not."""
    warn_all(session, done.warnings)
    session.print(f"{what} on {', '.join(at.name for at in done.responses)}")


def warn_all(session: Session, warnings: Iterable[str]) -> None:
    """Tell of brokers that did not answer."""
    for warning in warnings:
        session.warn(f"warning: {warning}")


def refuse_if_exists(noun: str, name: str, brokers: Iterable[BrokerRef]) -> None:
    """Raises TargetError for what exists already on some brokers."""
    names = [at.name for at in brokers]
    if names:
        raise TargetError(
            f"{noun} {name} exists on {', '.join(names)}; "
            f"`tianzhou {noun} update {name}` changes it"
        )


def report_changed(
    session: Session, what: str, done: Iterable[BrokerRef], was_there: Callable[[BrokerRef], bool]
) -> None:
    """Say where something was created and where it was changed."""
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
    """Put settings of several topics or groups on brokers, if that is agreed; where it was done."""
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
    """Create on other brokers what they lack of one; the names of what was made on each.

    All is planned before anything is asked or done. Raises ConfigError, TargetError.
    """
    (origin,) = await masters(session, broker=source)
    goals = await _goals(session, origin, targets)
    planned = await gather(goals, lambda at: make_plan(origin, at))
    warn_all(session, planned.warnings)
    plans: dict[BrokerRef, CopyPlan] = {}
    for goal, plan in planned.responses.items():
        if plan.missing:
            plans[goal] = plan
        else:
            session.print(f"{goal.name} has all of these {noun}s already")
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
        session.print(f"{plural(done.count, noun)} created on {goal.name}, {plan.there} were there")
    if failed or planned.failures:
        broken = plural(len(planned.failures), "broker") + " could not be asked"
        raise TargetError(f"{plural(failed, noun)} could not be created" if failed else broken)
    return {goal: list(plan.missing) for goal, plan in plans.items()}


async def _goals(
    session: Session, origin: BrokerRef, targets: Sequence[str] | None
) -> list[BrokerRef]:
    """The brokers that are named, each once; if none is, all others of the origin's cluster."""
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
