"""Changes of consumer groups: create, settings, pause and resume, delete."""

import msgspec

from tianzhou.admin.changes.groups import (
    RETRIES_MAX,
    check_new_group,
    check_own_group,
    group_on_masters,
    group_state,
)
from tianzhou.admin.fanout import BrokerRef, gather_any
from tianzhou.console.changes.cluster import (
    Nothing,
    alone,
    answers,
    as_invalid,
    below_root,
    check_unchanged,
    chosen,
    done_on,
    silent_warnings,
)
from tianzhou.console.text import Text
from tianzhou.console.views.operations.silent import not_there
from tianzhou.console.web import figures
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig

RETRY_QUEUES_MAX = 64


class CreateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A new consumer group."""

    group: str
    retries: int = 16
    """Before a message becomes a dead letter."""
    is_broadcast_allowed: bool = True
    is_orderly: bool = False
    on: str = ""
    """Name of a broker or RocketMQ cluster; empty: every master."""


class UpdateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Other settings of a group; what is not given stays."""

    retries: int | None = None
    retry_queues: int | None = None
    is_broadcast_allowed: bool | None = None
    is_from_min: bool | None = None
    """Whether a new group starts at the oldest message."""
    is_orderly: bool | None = None
    is_notified: bool | None = None
    """Whether members are notified when others come or go."""
    on: str = ""


class DeleteGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the committed offsets go, too."""

    keeps_offsets: bool = False


async def create(ask: Ask, given: CreateGroup) -> Prepared:
    """Create a group on the masters."""
    admin, name = ask.cluster.admin, given.group.strip()
    _check_retries(given.retries)
    with as_invalid("group"):
        check_new_group(name)
    state = await group_on_masters(admin, name)
    there = [at.label for at, each in answers(state).items() if each is not None]
    if there:
        raise Conflict(
            Text(
                "There is a group {group} already, on {brokers}.",
                group=name,
                brokers=", ".join(there),
            )
        )
    brokers = chosen(state.responses, given.on)
    config = SubscriptionGroupConfig(
        group_name=name,
        retry_max_times=given.retries,
        consume_broadcast_enable=given.is_broadcast_allowed,
        consume_orderly=given.is_orderly or None,
    )
    rows = [
        PlanRow(
            subject=at.label,
            what=Text("Consumer group"),
            after=f"retryMaxTimes={given.retries}"
            + ("" if given.is_broadcast_allowed else ", consumeBroadcastEnable=false")
            + (", consumeMessageOrderly=true" if given.is_orderly else ""),
        )
        for at in brokers
    ]
    plan = Plan(
        title=Text("Create the group {group}", group=name),
        rows=tuple(rows),
        warnings=tuple(silent_warnings(state.failures)),
        button=Text("Create group"),
    )

    async def execute() -> Done:
        async with alone(ask, f"group {name}"):
            now = await group_on_masters(admin, name)
            check_unchanged([], [at for at, each in now.responses.items() if each is not None])
            done = await gather_any(brokers, lambda at: admin.groups.put(at, config))
            return done_on(
                plan.title,
                name,
                done,
                location=place_of(ask, name),
                before=None,
                after=config,
                notice=Text("Group {group} was created.", group=name),
            )

    return Prepared(plan, execute)


async def update(ask: Ask, given: UpdateGroup) -> Prepared:
    """Change the settings of a group where it exists."""
    if given.retries is not None:
        _check_retries(given.retries)
    if given.retry_queues is not None and not 0 <= given.retry_queues <= RETRY_QUEUES_MAX:
        raise Invalid(
            Text("A retry topic has 0 to {most} queues.", most=RETRY_QUEUES_MAX), "retry_queues"
        )
    values = {
        "retry_max_times": given.retries,
        "retry_queue_count": given.retry_queues,
        "consume_broadcast_enable": given.is_broadcast_allowed,
        "consume_from_min_enable": given.is_from_min,
        "consume_orderly": given.is_orderly,
        "notify_consumer_ids_changed_enable": given.is_notified,
    }
    wanted = {key: value for key, value in values.items() if value is not None}
    name = ask.path["group"]
    title = Text("Change the group {group}", group=name)
    notice = Text("Group {group} was changed.", group=name)
    return await _changing(ask, title, notice, wanted, given.on)


async def pause(ask: Ask, given: Nothing) -> Prepared:
    """Let a group consume nothing, on all brokers; its members stay connected."""
    name = ask.path["group"]
    return await _changing(
        ask,
        Text("Pause the group {group}", group=name),
        Text("Group {group} is paused.", group=name),
        {"consume_enable": False},
        "",
        warning=Text("Its members get no messages until it is resumed; the backlog grows."),
        button=Text("Pause"),
    )


async def resume(ask: Ask, given: Nothing) -> Prepared:
    """Let a paused group consume again."""
    name = ask.path["group"]
    return await _changing(
        ask,
        Text("Resume the group {group}", group=name),
        Text("Group {group} consumes again.", group=name),
        {"consume_enable": True},
        "",
        button=Text("Resume"),
    )


async def _changing(
    ask: Ask,
    title: Text,
    notice: Text,
    values: dict[str, bool | int],
    on: str,
    *,
    warning: Text | None = None,
    button: Text | None = None,
) -> Prepared:
    """Change some fields of a group on every broker that has it."""
    admin, name = ask.cluster.admin, ask.path["group"]
    with as_invalid():
        check_own_group(name)
    state = await group_on_masters(admin, name)
    existing = {at: each for at, each in state.responses.items() if each is not None}
    if not existing:
        raise not_there(Text("group"), name, state.failures)
    goal = chosen(existing, on)
    changes = {at: msgspec.structs.replace(existing[at], **values) for at in goal}
    rows = [row for at in goal for row in _rows(at, existing[at], changes[at])]
    warnings = silent_warnings(state.failures)
    plan = Plan(
        title=title,
        rows=tuple(rows),
        warnings=(*warnings, warning) if warning is not None else tuple(warnings),
        button=button or Text("Change group"),
    )

    async def execute() -> Done:
        async with alone(ask, f"group {name}"):
            now = await group_on_masters(admin, name)
            check_unchanged(existing, _there(now.responses, existing))
            wanted = [at for at in goal if changes[at] != existing[at]] or goal
            done = await gather_any(wanted, lambda at: admin.groups.put(at, changes[at]))
            return done_on(
                plan.title,
                name,
                done,
                location=place_of(ask, name),
                before={at.label: each for at, each in existing.items()},
                after={at.label: changes[at] for at in done.responses},
                notice=notice,
            )

    return Prepared(plan, execute)


async def remove(ask: Ask, given: DeleteGroup) -> Prepared:
    """Delete a group with its retry topic and its dead letters; its name must be typed."""
    admin, name = ask.cluster.admin, ask.path["group"]
    with as_invalid():
        check_own_group(name)
    on = await group_on_masters(admin, name)
    existing = {at: each for at, each in on.responses.items() if each is not None}
    if not existing:
        raise not_there(Text("group"), name, on.failures)
    state = await group_state(admin, name, existing)
    rows = [
        PlanRow(subject=at.label, what=Text("Consumer group"), before=name)
        for at in sorted(existing)
    ]
    if not given.keeps_offsets:
        rows += [
            PlanRow(subject=topic, what=Text("Committed offsets"), before=f"- {lag:,}")
            for topic, lag in state.lag_by_topic
        ]
    warnings = silent_warnings(on.failures)
    if state.members is None:
        warnings.append(Text("Whether it has members on line is not known."))
    elif state.members:
        warnings.append(
            Text(
                "{n} member is on line: {names}|{n} members are on line: {names}",
                n=len(state.members),
                names=_some(state.members),
            )
        )
    lag = sum(count for _, count in state.lag_by_topic) + state.retry_count
    if lag:
        warnings.append(
            Text("{n} message is not consumed yet.|{n} messages are not consumed yet.", n=lag)
        )
    if state.dead_letter_count is None:
        warnings.append(Text("How many dead letters are lost is not known."))
    elif state.dead_letter_count:
        warnings.append(
            Text("{n} dead letter is lost.|{n} dead letters are lost.", n=state.dead_letter_count)
        )
    plan = Plan(
        title=Text("Delete the group {group}", group=name),
        rows=tuple(rows),
        warnings=tuple(warnings),
        confirm=name,
        is_dangerous=True,
        button=Text("Delete group"),
        # Backlogs move all the time; members and dead letters are what a person decides by.
        mark=repr(
            (
                sorted(at.label for at in existing),
                state.members,
                state.dead_letter_count,
                given.keeps_offsets,
            )
        ),
    )

    async def execute() -> Done:
        async with alone(ask, f"group {name}"):
            now = await group_on_masters(admin, name)
            check_unchanged(existing, _there(now.responses, existing))
            done = await gather_any(
                existing,
                lambda at: admin.groups.delete_on(at, name, offsets_too=not given.keeps_offsets),
            )
            return done_on(
                plan.title,
                name,
                done,
                location=below_root(ask, ask.url("/c/{}/groups", ask.cluster.name)),
                before={
                    "brokers": {at.label: each for at, each in existing.items()},
                    "lag": dict(state.lag_by_topic),
                    "dead_letters": state.dead_letter_count,
                    "members": state.members,
                },
                after={"kept_offsets": given.keeps_offsets} if given.keeps_offsets else None,
                notice=Text("Group {group} was deleted.", group=name),
            )

    return Prepared(plan, execute)


# -- shared ----------------------------------------------------------------------------------------


def place_of(ask: Ask, group: str) -> str:
    """The address below the root of the page with the forms of a group."""
    return below_root(ask, ask.url("/c/{}/groups/{}/change", ask.cluster.name, group))


def _rows(
    at: BrokerRef, before: SubscriptionGroupConfig, after: SubscriptionGroupConfig
) -> list[PlanRow]:
    values = (
        (Text("Consumption"), before.consume_enable, after.consume_enable),
        (Text("Retries before a dead letter"), before.retry_max_times, after.retry_max_times),
        (Text("Queues of the retry topic"), before.retry_queue_count, after.retry_queue_count),
        (
            Text("Broadcasting allowed"),
            before.consume_broadcast_enable,
            after.consume_broadcast_enable,
        ),
        (
            Text("Starts at the oldest message"),
            before.consume_from_min_enable,
            after.consume_from_min_enable,
        ),
        (Text("Orderly"), bool(before.consume_orderly), bool(after.consume_orderly)),
        (
            Text("Members are notified of each other"),
            before.notify_consumer_ids_changed_enable,
            after.notify_consumer_ids_changed_enable,
        ),
    )
    return [
        PlanRow(subject=at.label, what=what, before=_value(old), after=_value(new))
        for what, old, new in values
        if old != new
    ]


def _value(value: bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else figures.figure(value)


def _some(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:5])
    return f"{listed} ..." if len(names) > 5 else listed


def _check_retries(count: int) -> None:
    if not -1 <= count <= RETRIES_MAX:
        raise Invalid(
            Text("A message is retried {least} to {most} times.", least=-1, most=RETRIES_MAX),
            "retries",
        )


def _there(
    now: dict[BrokerRef, SubscriptionGroupConfig | None],
    planned: dict[BrokerRef, SubscriptionGroupConfig],
) -> dict[BrokerRef, SubscriptionGroupConfig]:
    """What the brokers of a plan have now; those that stopped answering fail by themselves."""
    current = {at: each for at, each in now.items() if each is not None}
    return current | {at: each for at, each in planned.items() if at not in now}
