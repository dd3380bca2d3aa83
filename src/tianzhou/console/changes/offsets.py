"""Changes of committed offsets: reset, skip, clone; each shows every queue before and after.

Messages arrive while a plan is read, so that the end of a queue moves: a plan stays valid as long
as it is for the same queues. What was really set, queue by queue, is in the audit log.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from tianzhou.admin.changes.groups import check_new_group, check_own_group, group_on_masters
from tianzhou.admin.fanout import BrokerRef, Gathered, gather_any
from tianzhou.admin.offsets import EARLIEST_MS, LATEST_MS, Goal, Move
from tianzhou.console.changes.cluster import (
    alone,
    answers,
    as_invalid,
    below_root,
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
from tianzhou.errors import TargetError

TARGETS = ("earliest", "latest", "time", "offset")
OFFSET_MAX = 2**62


class ResetOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is to continue."""

    topic: str
    to: str
    """earliest, latest, time or offset."""
    time: str = ""
    """With `to=time`: 2026-01-31T08:00 in the zone of the person, or ms since 1970."""
    broker: str = ""
    queue: int | None = None
    """Only this queue; with `to=offset` it and the broker are needed."""
    offset: int | None = None
    is_only_back: bool = False
    """Only move backwards, so that no message is skipped."""


class SkipBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """The topic whose backlog is skipped."""

    topic: str
    broker: str = ""


class CloneOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The group whose offsets are copied to this one."""

    topic: str
    from_group: str
    is_online_allowed: bool = False
    """Also while members are on line, which may overwrite the offsets."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of the audit log."""

    broker: str
    queue: int
    before: int | None
    after: int


async def reset(ask: Ask, given: ResetOffsets) -> Prepared:
    """Move the offsets of a group on a topic."""
    goal = _goal(ask, given)
    title = Text(
        "Reset the offsets of {group} on {topic}", group=ask.path["group"], topic=given.topic
    )
    return await _moving(ask, title, given.topic, goal, given.broker, force=not given.is_only_back)


async def skip(ask: Ask, given: SkipBacklog) -> Prepared:
    """Continue with the next message that is sent: the backlog is not consumed."""
    title = Text(
        "Skip the backlog of {group} on {topic}", group=ask.path["group"], topic=given.topic
    )
    return await _moving(ask, title, given.topic, Goal(time_ms=LATEST_MS), given.broker)


async def _moving(
    ask: Ask, title: Text, topic: str, goal: Goal, broker: str, *, force: bool = True
) -> Prepared:
    admin, group = ask.cluster.admin, ask.path["group"]
    with as_invalid():
        check_own_group(group)
    await check_group(ask, group)
    brokers = chosen(await _brokers_of(ask, topic), broker)
    planned: Gathered[list[Move]] = await gather_any(
        brokers, lambda at: _planned(ask, at, group, topic, goal, force=force)
    )
    with as_invalid("offset"):
        moves = [each for few in answers(planned).values() for each in few]
    online = await _members(ask, planned.responses, group)
    skipped = sum(
        max(each.after - (each.before or 0), 0) for each in moves if each.before is not None
    )
    repeated = sum(max(each.before - each.after, 0) for each in moves if each.before is not None)
    warnings = silent_warnings(planned.failures)
    if skipped:
        warnings.append(Text("{n} message is skipped.|{n} messages are skipped.", n=skipped))
    if repeated:
        warnings.append(
            Text("{n} message is consumed again.|{n} messages are consumed again.", n=repeated)
        )
    warnings.append(_online_text(online))
    plan = Plan(
        title=title,
        rows=tuple(_row(topic, each) for each in moves),
        warnings=tuple(warnings),
        is_dangerous=skipped > 0,
        button=Text("Move the offsets"),
        mark=_mark(group, topic, moves, goal, force, online is None or online > 0),
    )

    async def run(at: BrokerRef) -> list[Move]:
        return await admin.offsets.move(at, group, topic, goal, force=force)

    async def execute() -> Done:
        async with alone(ask, f"offsets {group}"):
            done = await gather_any(planned.responses, run)
            return _done(ask, plan, group, topic, moves, done)

    return Prepared(plan, execute)


async def _planned(
    ask: Ask, at: BrokerRef, group: str, topic: str, goal: Goal, *, force: bool
) -> list[Move]:
    moves = await ask.cluster.admin.offsets.plan(at, group, topic, goal)
    if force:
        return moves
    return [
        each
        if each.before is None or each.after < each.before
        else Move(each.queue, each.before, each.before)
        for each in moves
    ]


async def clone(ask: Ask, given: CloneOffsets) -> Prepared:
    """Set the offsets of a group to those of another one."""
    admin, group, source = ask.cluster.admin, ask.path["group"], given.from_group.strip()
    with as_invalid("from_group"):
        check_own_group(group)
        check_new_group(source)
    if source == group:
        raise Invalid(Text("Both groups are the same."), "from_group")
    await check_group(ask, group)
    brokers = await _brokers_of(ask, given.topic)
    planned = await gather_any(
        brokers, lambda at: admin.offsets.plan_clone(at, source, group, given.topic)
    )
    moves = [each for few in answers(planned).values() for each in few]
    if not moves:
        raise Invalid(
            Text("Group {group} has no offsets on {topic}.", group=source, topic=given.topic),
            "from_group",
        )
    online = await _members(ask, planned.responses, group)
    if (online is None or online > 0) and not given.is_online_allowed:
        raise Conflict(
            Text(
                "Group {group} has members on line, or perhaps: they would overwrite the offsets. "
                "Stop them first, or allow it.",
                group=group,
            )
        )
    warnings = [*silent_warnings(planned.failures), _online_text(online)]
    title = Text(
        "Set {group} to the offsets of {source} on {topic}",
        group=group,
        source=source,
        topic=given.topic,
    )
    plan = Plan(
        title=title,
        rows=tuple(_row(given.topic, each) for each in moves),
        warnings=tuple(warnings),
        button=Text("Copy the offsets"),
        mark=_mark(group, given.topic, moves, source, online is None or online > 0),
    )

    async def run(at: BrokerRef) -> list[Move]:
        moved = await admin.offsets.plan_clone(at, source, group, given.topic)
        await admin.offsets.clone(at, source, group, given.topic)
        return moved

    async def execute() -> Done:
        async with alone(ask, f"offsets {group}"):
            done = await gather_any(planned.responses, run)
            return _done(ask, plan, group, given.topic, moves, done)

    return Prepared(plan, execute)


# -- shared ----------------------------------------------------------------------------------------


def _goal(ask: Ask, given: ResetOffsets) -> Goal:
    if given.to not in TARGETS:
        raise Invalid(Text("A target is one of: {names}.", names=", ".join(TARGETS)), "to")
    if given.queue is not None and given.queue < 0:
        raise Invalid(Text("There is no queue {queue}.", queue=given.queue), "queue")
    if given.to == "offset":
        if given.offset is None or given.queue is None or not given.broker:
            raise Invalid(
                Text("An offset is that of one queue: choose the broker, the queue, the offset."),
                "offset",
            )
        if not 0 <= given.offset <= OFFSET_MAX:
            raise Invalid(Text("An offset is 0 or more."), "offset")
        return Goal(queue_id=given.queue, queue_offset=given.offset)
    times = {"earliest": EARLIEST_MS, "latest": LATEST_MS}
    time_ms = times[given.to] if given.to in times else time_of(given.time, ask.zone)
    return Goal(time_ms=time_ms, queue_id=given.queue)


def time_of(text: str, zone: str) -> int:
    """ms since 1970 of a local time, or of a text of digits. Raises Invalid."""
    plain = text.strip()
    if plain.isascii() and plain.isdigit() and 9 < len(plain) < 15:
        return int(plain)
    try:
        at = datetime.fromisoformat(plain)
    except ValueError as e:
        raise Invalid(
            Text("This is not a time: {text}. Write 2026-01-31 08:00.", text=plain[:80]), "time"
        ) from e
    if at.tzinfo is None:
        at = at.replace(tzinfo=figures.zone_of(zone))
    ms = int(at.astimezone(UTC).timestamp() * 1000)
    if ms <= 0:
        raise Invalid(Text("A time after 1970 is needed."), "time")
    return ms


async def check_group(ask: Ask, group: str) -> None:
    """Raises NotFound if no broker has the group."""
    state = await group_on_masters(ask.cluster.admin, group)
    if not any(state.responses.values()):
        raise not_there(Text("group"), group, state.failures)


async def _brokers_of(ask: Ask, topic: str) -> list[BrokerRef]:
    """The masters that have a topic. Raises NotFound."""
    try:
        return [at for at in await ask.cluster.admin.topics.brokers(topic) if at.is_master]
    except TargetError as e:
        raise not_there(Text("topic"), topic, {}) from e


async def _members(ask: Ask, brokers: Iterable[BrokerRef], group: str) -> int | None:
    """Members on line; None: unknown."""
    views = await gather_any(brokers, lambda at: ask.cluster.admin.groups.connection(at, group))
    members = {
        connection.client_id
        for view in views.responses.values()
        if view is not None
        for connection in view.connections
    }
    return None if views.failures and not members else len(members)


def _online_text(count: int | None) -> Text:
    if count is None:
        return Text("Whether the group has members on line is not known.")
    if count == 0:
        return Text("No member is on line: the next one that starts continues there.")
    return Text(
        "{n} member is on line and continues there.|{n} members are on line and continue there.",
        n=count,
    )


def _row(topic: str, move: Move) -> PlanRow:
    queue = move.queue
    return PlanRow(
        subject=f"{queue.broker_name} / {queue.queue_id}",
        what=Text("Offset on {topic}", topic=topic),
        before=None if move.before is None else f"{move.before:,}",
        after=f"{move.after:,}",
    )


def _mark(group: str, topic: str, moves: Iterable[Move], *more: object) -> str:
    queues = [(each.queue.broker_name, each.queue.queue_id) for each in moves]
    return repr((group, topic, queues, more))


def _done(
    ask: Ask, plan: Plan, group: str, topic: str, planned: list[Move], done: Gathered[list[Move]]
) -> Done:
    moved = [_moved(each) for few in done.responses.values() for each in few]
    location = below_root(
        ask, ask.url("/c/{}/groups/{}/offsets", ask.cluster.name, group, topic=topic)
    )
    return done_on(
        plan.title,
        f"{group} {topic}",
        done,
        location=location,
        before=[_moved(each) for each in planned],
        after=moved,
        notice=Text(
            "The offsets of {group} were set in {n} queue.|The offsets of {group} were set in {n} "
            "queues.",
            group=group,
            n=len(moved),
        ),
    )


def _moved(move: Move) -> Moved:
    queue = move.queue
    return Moved(
        broker=queue.broker_name or "", queue=queue.queue_id, before=move.before, after=move.after
    )
