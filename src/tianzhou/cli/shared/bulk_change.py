"""Shared by the commands that change topics or groups on several brokers: options, apply, copy."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic

from tianzhou.admin.copy_settings import CopyPlan
from tianzhou.admin.fanout import BrokerRef, Gathered, gather
from tianzhou.admin.topic_group_configs import C, SettingsRequests
from tianzhou.cli.shared.command import OptionGroup, Session
from tianzhou.cli.shared.common_options import Where, masters, pairs_of
from tianzhou.cli.shared.output import plural
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import BodyError, ConfigError, TargetError
from tianzhou.protocol import bodies

From = Annotated[str, option("--from BROKER", "Source broker.")]
To = Annotated[
    list[str] | None,
    option("--to BROKER", "Target broker; may be repeated. Default: all others of its cluster."),
]
OrCreate = Annotated[bool, option("--or-create", "Create it on brokers without it.")]
FromDefaults = Annotated[
    bool,
    option("--from-defaults", "Reset options that are not given to defaults; attributes stay."),
]
Attributes = Annotated[
    list[str] | None, option("--attribute KEY=VALUE", "An attribute (5.x); may be repeated.")
]
RemovedAttributes = Annotated[
    list[str] | None, option("--remove-attribute KEY", "Remove an attribute; may be repeated.")
]
SettingsFile = Annotated[Path, argument("FILE", "A file with a JSON list.", show_default=False)]


def attribute_changes(
    wanted: Iterable[str] | None, removed: Iterable[str] | None
) -> dict[str, str] | None:
    """Attribute changes by signed name; None if there are none. Raises ConfigError."""
    changes = {f"+{name}": value for name, value in pairs_of(wanted or ()).items()}
    changes |= {f"-{name}": "" for name in removed or ()}
    return changes or None


def report_done(session: Session, what: str, done: Gathered[None]) -> None:
    """Print on which brokers a change succeeded, and warn about the others."""
    session.warn_all(done.warnings)
    session.print(f"{what} on {', '.join(at.name for at in done.responses)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions(OptionGroup):
    """How an update treats brokers without the topic or group, and options that are not given."""

    or_create: OrCreate = False
    from_defaults: FromDefaults = False


@dataclass(frozen=True, slots=True)
class SettingsKind(Generic[C]):
    """Topics or groups, for the commands that change either."""

    noun: str
    settings: type[list[C]]
    name_of: Callable[[C], str | None]
    plain: Callable[[str], C]
    """Default settings by name."""
    requests: Callable[[Session], SettingsRequests[C]]

    async def create(
        self, session: Session, name: str, change: Callable[[C], C], where: Where
    ) -> tuple[C, list[BrokerRef]]:
        """Create one; returns its settings and the brokers. Raises ConfigError, TargetError."""
        wanted, requests = change(self.plain(name)), self.requests(session)
        if any(key.startswith("-") for key in wanted.attributes or ()):
            raise ConfigError(f"--remove-attribute: a new {self.noun} has no attributes yet")
        brokers = await where.masters(session)
        tables = await gather(brokers, requests.all_configs)
        existing = [at.name for at, table in tables.responses.items() if name in table]
        if existing:
            raise TargetError(
                f"{self.noun} {name} already exists on {', '.join(existing)}; "
                f"change it with `tianzhou {self.noun} update {name}`"
            )
        done = await gather(brokers, lambda at: requests.put(at, wanted))
        report_done(session, f"{self.noun} {name}: created", done)
        return wanted, list(done.responses)

    async def update(
        self,
        session: Session,
        name: str,
        change: Callable[[C], C],
        where: Where,
        options: UpdateOptions,
        *,
        on_found: Callable[[], Awaitable[None]] | None = None,
    ) -> dict[BrokerRef, tuple[C | None, C]]:
        """Change one where it exists; returns its settings before and after.

        `on_found` runs before the first change. Raises TargetError if no broker has it.
        """
        requests = self.requests(session)
        brokers = await where.masters(session)
        found: Gathered[C | None] = await gather(brokers, lambda at: requests.config(at, name))
        changes = {
            at: (old, change(self.plain(name) if old is None or options.from_defaults else old))
            for at, old in found.responses.items()
            if old is not None or options.or_create
        }
        if not changes:
            raise TargetError(
                f"there is no {self.noun} {name!r}; "
                f"create it with `tianzhou {self.noun} create {name}`"
            )
        if on_found is not None:
            await on_found()
        done: Gathered[None] = await gather(changes, lambda at: requests.put(at, changes[at][1]))
        session.warn_all((*found.warnings, *done.warnings))
        for verb, is_new in (("created", True), ("changed", False)):
            names = [at.name for at in done.responses if (changes[at][0] is None) is is_new]
            if names:
                session.print(f"{self.noun} {name}: {verb} on {', '.join(names)}")
        return changes

    async def apply(
        self, session: Session, file: Path, where: Where
    ) -> tuple[list[str], Collection[BrokerRef]]:
        """Create or change all of a JSON list after confirmation; returns names and brokers.

        Raises ConfigError.
        """
        configs = self._read(file)
        names = sorted(self.name_of(config) or "" for config in configs)
        if not all(names):
            raise ConfigError(f"{file}: each {self.noun} needs a {self.noun}Name")
        brokers, requests = await where.masters(session), self.requests(session)
        named, on = plural(len(names), self.noun), ", ".join(at.name for at in brokers)
        if not session.confirm(f"create or change {named} on {on}: {', '.join(names)}"):
            return names, ()
        done = await gather(brokers, lambda at: requests.put_all(at, configs))
        report_done(session, f"{named} created or changed", done)
        return names, done.responses

    def _read(self, file: Path) -> list[C]:
        try:
            configs = bodies.decode(self.settings, file.read_bytes())
        except OSError as e:
            raise ConfigError(f"{file}: {e.strerror}") from e
        except BodyError as e:
            raise ConfigError(f"{file}: {e}") from e
        if not configs:
            raise ConfigError(f"{file}: the list is empty")
        return configs


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
        failures = await plan.run()
        for name, why in failures.items():
            session.warn(f"{goal.name}: {name}: {why}")
        failed += len(failures)
        created = plural(len(plan.missing) - len(failures), noun)
        session.print(f"{created} created on {goal.name}, {plan.there} already there")
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
