"""Changes of topics: create, settings (queues are removed in two steps), delete."""

import msgspec

from tianzhou.admin.changes.topics import (
    QUEUES_MAX,
    check_new_topic,
    check_own_topic,
    delete_topic,
    drain,
    put_topic,
    reserved_names,
    topic_on_masters,
    topic_use,
)
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.topics import perm_text
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
from tianzhou.console.views.operations.topics import KINDS
from tianzhou.console.web import figures
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.names import PERM_READ, PERM_WRITE
from tianzhou.protocol.bodies.topics import TopicConfig

PERMISSIONS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}
MESSAGE_TYPE = "message.type"


class CreateTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A new topic."""

    topic: str
    queues: int = 8
    """On each broker; of a globally ordered topic there is one."""
    kind: str = "normal"
    """normal, ordered (by key), ordered-global, delayed or transactional."""
    permission: str = "rw"
    on: str = ""
    """Name of a broker or RocketMQ cluster; empty: every master."""


class UpdateTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Other settings of a topic; what is not given stays."""

    write_queues: int | None = None
    read_queues: int | None = None
    permission: str | None = None
    is_ordered: bool | None = None
    on: str = ""


# -- create ----------------------------------------------------------------------------------------


async def create(ask: Ask, given: CreateTopic) -> Prepared:
    """Create a topic on the masters."""
    admin, name = ask.cluster.admin, given.topic.strip()
    if given.kind not in KINDS:
        raise Invalid(Text("A kind is one of: {kinds}.", kinds=", ".join(KINDS)), "kind")
    is_global = given.kind == "ordered-global"
    queues = 1 if is_global else given.queues
    _check_queues(queues, "queues")
    reserved = await reserved_names(admin)
    with as_invalid("topic"):
        check_new_topic(name, reserved)
    state = await topic_on_masters(admin, name)
    there = [at.label for at, each in answers(state).items() if each is not None]
    if there:
        raise Conflict(
            Text(
                "There is a topic {topic} already, on {brokers}.",
                topic=name,
                brokers=", ".join(there),
            )
        )
    brokers = chosen(state.responses, given.on)
    if is_global:
        brokers = brokers[:1]
    kind = KINDS[given.kind]
    config = TopicConfig(
        topic_name=name,
        read_queue_count=queues,
        write_queue_count=queues,
        perm=_permission(given.permission),
        order=given.kind in ("ordered", "ordered-global"),
        attributes={MESSAGE_TYPE: kind} if kind else None,
    )
    rows = [PlanRow(subject=at.label, what=Text("Topic"), after=shown(config)) for at in brokers]
    plan = Plan(
        title=Text("Create the topic {topic}", topic=name),
        rows=tuple(rows),
        warnings=tuple(silent_warnings(state.failures)),
        button=Text("Create topic"),
    )

    async def execute() -> Done:
        async with alone(ask, f"topic {name}"):
            now = await topic_on_masters(admin, name)
            check_unchanged([], [at for at, each in now.responses.items() if each is not None])
            done = await put_topic(admin, dict.fromkeys(brokers, config))
            await admin.topics.await_route(name, done.brokers.responses)
            return done_on(
                plan.title,
                name,
                done.brokers,
                nameservers=done.nameservers,
                location=place_of(ask, name),
                before=None,
                after=config,
                notice=Text("Topic {topic} was created.", topic=name),
            )

    return Prepared(plan, execute)


# -- change ----------------------------------------------------------------------------------------


async def update(ask: Ask, given: UpdateTopic) -> Prepared:
    """Change queues, permission or order of a topic where it exists.

    Fewer queues take two steps: first fewer to write, and when every group has consumed the others,
    fewer to read.
    """
    admin, name = ask.cluster.admin, ask.path["topic"]
    with as_invalid():
        check_own_topic(name, await reserved_names(admin))
    state = await topic_on_masters(admin, name)
    existing = {at: each for at, each in state.responses.items() if each is not None}
    if not existing:
        raise not_there(Text("topic"), name, state.failures)
    goal = chosen(existing, given.on)
    changes = {at: _changed(existing[at], given) for at in goal}
    rows = [row for at in goal for row in _rows(at, existing[at], changes[at])]
    removed = {
        at: range(changes[at].read_queue_count, existing[at].read_queue_count) for at in goal
    }
    warnings, is_dangerous = silent_warnings(state.failures), False
    if any(removed.values()):
        use = await topic_use(admin, name, goal)
        left = await drain(admin, name, removed, [each.group for each in use.groups])
        if not left.is_done:
            is_dangerous = True
            warnings.append(
                Text(
                    "The queues to be removed are not drained: {n} message would not be consumed. "
                    "Wait until the page shows 0.|The queues to be removed are not drained: {n} "
                    "messages would not be consumed. Wait until the page shows 0.",
                    n=left.left_count,
                )
                if left.left_count
                else Text("It is not known whether the queues to be removed are drained.")
            )
    elif any(changes[at].write_queue_count < existing[at].write_queue_count for at in goal):
        warnings.append(
            Text(
                "This is step 1 of 2: consumers still read the other queues. Remove those when "
                "they are drained; the page of the topic shows how far they are."
            )
        )
    if any(not each.perm & PERM_WRITE for each in changes.values()):
        warnings.append(Text("Producers cannot send to {topic} any more.", topic=name))
    if any(not each.perm & PERM_READ for each in changes.values()):
        warnings.append(Text("Consumers cannot read {topic} any more.", topic=name))
    plan = Plan(
        title=Text("Change the topic {topic}", topic=name),
        rows=tuple(rows),
        warnings=tuple(warnings),
        is_dangerous=is_dangerous,
        confirm=name if is_dangerous else "",
        button=Text("Change topic"),
        mark=_mark("update", existing, changes, str(is_dangerous)),
    )

    async def execute() -> Done:
        async with alone(ask, f"topic {name}"):
            now = await topic_on_masters(admin, name)
            check_unchanged(existing, _there(now.responses, existing))
            wanted = {at: each for at, each in changes.items() if each != existing[at]}
            others = [at for at in existing if at not in wanted]
            done = await put_topic(admin, wanted or changes, ordered_on=others)
            return done_on(
                plan.title,
                name,
                done.brokers,
                nameservers=done.nameservers,
                location=place_of(ask, name),
                before={at.label: each for at, each in existing.items()},
                after={at.label: changes[at] for at in done.brokers.responses},
                notice=Text("Topic {topic} was changed.", topic=name),
            )

    return Prepared(plan, execute)


def _changed(before: TopicConfig, given: UpdateTopic) -> TopicConfig:
    write, read = before.write_queue_count, before.read_queue_count
    if given.write_queues is not None:
        _check_queues(given.write_queues, "write_queues")
        write = given.write_queues
        if given.read_queues is None:
            read = max(read, write)
    if given.read_queues is not None:
        _check_queues(given.read_queues, "read_queues")
        read = given.read_queues
        if read < before.write_queue_count:
            raise Invalid(
                Text(
                    "Queues are removed in two steps: first set the queues to write to {read}, "
                    "and when the others are drained the queues to read.",
                    read=read,
                ),
                "read_queues",
            )
        if read < write:
            raise Invalid(
                Text(
                    "Producers would write to queues that no consumer reads: {read} to read, "
                    "{write} to write.",
                    read=read,
                    write=write,
                ),
                "read_queues",
            )
    return msgspec.structs.replace(
        before,
        read_queue_count=read,
        write_queue_count=write,
        perm=before.perm if given.permission is None else _permission(given.permission),
        order=before.order if given.is_ordered is None else given.is_ordered,
    )


def _rows(at: BrokerRef, before: TopicConfig, after: TopicConfig) -> list[PlanRow]:
    values = (
        (Text("Queues to write"), before.write_queue_count, after.write_queue_count),
        (Text("Queues to read"), before.read_queue_count, after.read_queue_count),
        (Text("Permission"), perm_text(before.perm), perm_text(after.perm)),
        (Text("Ordered"), str(before.order).lower(), str(after.order).lower()),
    )
    return [
        PlanRow(subject=at.label, what=what, before=str(old), after=str(new))
        for what, old, new in values
        if old != new
    ]


# -- delete ----------------------------------------------------------------------------------------


async def remove(ask: Ask, given: Nothing) -> Prepared:
    """Delete a topic with its messages on all masters; its name must be typed."""
    admin, name = ask.cluster.admin, ask.path["topic"]
    with as_invalid():
        check_own_topic(name, await reserved_names(admin))
    state = await topic_on_masters(admin, name)
    existing = {at: each for at, each in state.responses.items() if each is not None}
    if not existing:
        raise not_there(Text("topic"), name, state.failures)
    use = await topic_use(admin, name, existing)
    rows = [
        PlanRow(subject=at.label, what=Text("Topic"), before=shown(each))
        for at, each in sorted(existing.items(), key=lambda pair: pair[0])
    ]
    warnings = silent_warnings(state.failures)
    warnings += [Text("{why}", why=each) for each in use.warnings]
    if use.stored_count is None:
        warnings.append(Text("How many messages it holds is not known."))
    elif use.stored_count:
        warnings.append(
            Text(
                "{n} message is lost; the last one was stored at {time}.|{n} messages are lost; "
                "the last one was stored at {time}.",
                n=use.stored_count,
                time=figures.moment(use.last_message_ms, ask.zone),
            )
        )
    for each in use.groups:
        warnings.append(
            Text(
                "Group {group} consumes it: {members} members on line, {lag} messages not "
                "consumed.",
                group=each.group,
                members=figures.figure(each.members),
                lag=figures.figure(each.lag_count),
            )
        )
    plan = Plan(
        title=Text("Delete the topic {topic}", topic=name),
        rows=tuple(rows),
        warnings=tuple(warnings),
        confirm=name,
        is_dangerous=True,
        button=Text("Delete topic"),
        mark=_mark(
            "delete",
            existing,
            {},
            *(each.group for each in use.groups),
            *(each.group for each in use.online),
        ),
    )

    async def execute() -> Done:
        async with alone(ask, f"topic {name}"):
            now = await topic_on_masters(admin, name)
            check_unchanged(existing, _there(now.responses, existing))
            done = await delete_topic(admin, name, existing)
            return done_on(
                plan.title,
                name,
                done.brokers,
                nameservers=done.nameservers,
                location=list_of(ask),
                before={
                    "brokers": {at.label: each for at, each in existing.items()},
                    "messages": use.stored_count,
                    "groups": [each.group for each in use.groups],
                },
                after=None,
                notice=Text("Topic {topic} was deleted.", topic=name),
            )

    return Prepared(plan, execute)


# -- shared ----------------------------------------------------------------------------------------


def shown(config: TopicConfig) -> str:
    """The settings of a topic in one line, the same in every language."""
    kind = (config.attributes or {}).get(MESSAGE_TYPE, "")
    ordered = "ordered" if config.order else ""
    queues = f"{config.read_queue_count} / {config.write_queue_count}"
    return ", ".join(each for each in (queues, perm_text(config.perm), kind, ordered) if each)


def place_of(ask: Ask, topic: str) -> str:
    """The address below the root of the page with the forms of a topic."""
    return below_root(ask, ask.url("/c/{}/topics/{}/change", ask.cluster.name, topic))


def list_of(ask: Ask) -> str:
    """The address below the root of the list of topics."""
    return below_root(ask, ask.url("/c/{}/topics", ask.cluster.name))


def _check_queues(count: int, field: str) -> None:
    if not 1 <= count <= QUEUES_MAX:
        raise Invalid(Text("A topic has 1 to {most} queues on a broker.", most=QUEUES_MAX), field)


def _permission(text: str) -> int:
    if text not in PERMISSIONS:
        raise Invalid(
            Text("A permission is one of: {names}.", names=", ".join(PERMISSIONS)), "permission"
        )
    return PERMISSIONS[text]


def _there(
    now: dict[BrokerRef, TopicConfig | None], planned: dict[BrokerRef, TopicConfig]
) -> dict[BrokerRef, TopicConfig]:
    """What the brokers of a plan have now; those that stopped answering fail by themselves."""
    current = {at: each for at, each in now.items() if each is not None}
    return current | {at: each for at, each in planned.items() if at not in now}


def _mark(
    verb: str,
    before: dict[BrokerRef, TopicConfig],
    after: dict[BrokerRef, TopicConfig],
    *more: str,
) -> str:
    tables = [
        sorted((at.label, shown(each)) for at, each in table.items()) for table in (before, after)
    ]
    return repr((verb, tables, more))
