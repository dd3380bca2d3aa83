"""`tianzhou offset`: show and move the committed offsets of consumer groups."""

from dataclasses import replace
from typing import Annotated

import typer

from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.admin.group_detail import merge_progress, queue_progress
from tianzhou.admin.offsets import EARLIEST_MS, LATEST_MS, Goal, Move
from tianzhou.cli.commands.group_output import progress_data
from tianzhou.cli.shared.command import Session, command, print_json
from tianzhou.cli.shared.common_options import (
    BrokerOption,
    Group,
    Through,
    Topic,
    TopicOption,
    masters,
)
from tianzhou.cli.shared.output import CommandResult, format_time, highlight, plural, table_of
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.cli.shared.times import parse_time
from tianzhou.errors import ConfigError, TargetError

app = typer.Typer(name="offset", no_args_is_help=True, help="Show and move consumer offsets.")


@command(
    app, "show", reads=True, watches=True,
    examples=["tianzhou offset show billing", "tianzhou offset show billing --topic orders -w"],
)  # fmt: skip
async def show_offsets(session: Session, group: Group, topic: TopicOption = None) -> CommandResult:
    """Show the committed offset and lag of a group in each queue."""
    gathered = await session.admin.groups.progress(group, topic)
    rows = queue_progress(merge_progress(gathered.responses.values()))
    if not rows:
        raise TargetError(f"group {group!r} has no committed offsets; see `tianzhou group list`")
    data = [progress_data(row) for row in rows]
    shown = table_of(
        data,
        "topic, !broker, >queue, >end, >committed, >lag, last_time_ms=last consumed",
        lag=highlight,
        last_time_ms=format_time,
    )
    lag = sum(row.lag_count for row in rows)
    notes = [f"{plural(lag, 'message')} to consume in {plural(len(rows), 'queue')}"]
    return CommandResult(data, [shown], gathered.warnings, notes=notes)


@command(
    app, "reset", reads=True, destroys=True,
    examples=[
        "tianzhou offset reset billing orders --to earliest --dry-run",
        "tianzhou offset reset billing orders --to latest --yes",
        "tianzhou offset reset billing orders --to '2026-01-31 08:00' --yes",
        "tianzhou offset reset billing orders --to 30m --yes               # 30 minutes ago",
        "tianzhou offset reset billing orders --to-offset 1200 --queue 3 --broker broker-a --yes",
    ],
)  # fmt: skip
async def reset(
    session: Session,
    group: Group,
    topic: Topic,
    to: Annotated[
        str | None,
        option("--to earliest|latest|TIME", "A time is '2026-01-31 08:00' or 30m (ago)."),
    ] = None,
    to_offset: Annotated[
        int | None, option("--to-offset", "A queue offset; needs --queue and --broker.", min=0)
    ] = None,
    queue: Annotated[int | None, option("--queue", "Only this queue.", min=0)] = None,
    broker: BrokerOption = None,
    only_back: Annotated[
        bool, option("--only-back", "Only move backwards, so that no message is skipped.")
    ] = False,
    for_cpp: Annotated[
        bool, option("--cpp", "The consumers are C++ clients, on Apache brokers.")
    ] = False,
    through: Through = None,
) -> None:
    """Reset the offsets of a group to a time, the oldest or newest message, or a queue offset.

    Consumers may be online: brokers notify them. A group without offsets starts a young topic at
    its first message, whatever its clients request; reset it to the latest before its first start
    to begin at the end.
    """
    goal = replace(read_goal(session, to, to_offset, queue, broker), for_cpp=for_cpp)
    await move(session, group, topic, goal, broker, force=not only_back, through=through)


def read_goal(
    session: Session, to: str | None, to_offset: int | None, queue: int | None, broker: str | None
) -> Goal:
    """The target of a reset. Raises ConfigError."""
    if (to is None) == (to_offset is None):
        raise ConfigError("pass one of: --to earliest, --to latest, --to TIME, --to-offset N")
    if to_offset is not None:
        if queue is None or broker is None:
            raise ConfigError("--to-offset applies to one queue: add --queue and --broker")
        return Goal(queue_id=queue, queue_offset=to_offset)
    assert to is not None
    times = {"earliest": EARLIEST_MS, "latest": LATEST_MS}
    time_ms = times[to] if to in times else parse_time(to, session.now_ms)
    return Goal(time_ms=time_ms, queue_id=queue)


async def move(
    session: Session,
    group: str,
    topic: str,
    goal: Goal,
    broker: str | None,
    *,
    force: bool = True,
    through: str | None = None,
) -> None:
    """Print the plan, ask for confirmation, move the offsets, print the result."""
    offsets = session.admin.offsets
    on = {at.name for at in await session.admin.topics.brokers(topic, through)}
    brokers = [at for at in await masters(session, broker=broker) if at.name in on]
    if not brokers:
        raise TargetError(f"topic {topic} is not on broker {broker}")
    planned = await gather(brokers, lambda at: offsets.plan(at, group, topic, goal))
    session.warn_all(planned.warnings)
    moves = [each for few in planned.responses.values() for each in few]
    if not session.options.as_json:
        columns = "topic, !broker, >queue, >before=from, >after=to, >change"
        session.out.print(table_of(map(_row, moves), columns, change=_signed))
    count = plural(len(moves), "queue")
    if not session.confirm(f"move {group} in {count} of {topic}"):
        if session.options.as_json:
            print_json([_row(each) for each in moves])
        return

    async def run(at: BrokerRef) -> list[Move]:
        return await offsets.move(at, group, topic, goal, force=force)

    done = await gather(planned.responses, run)
    finished = [each for few in done.responses.values() for each in few]
    session.warn_all(done.warnings)
    if session.options.as_json:
        print_json([_row(each) for each in finished])
        return
    pushed = any(each.pushed for each in finished)
    online = "; online consumers were notified" if pushed else "; no consumer is online"
    session.print(f"group {group}: moved in {plural(len(finished), 'queue')}{online}")


def _signed(change: int | None) -> str | None:
    return None if change is None else f"{change:+,}"


def _row(each: Move) -> dict[str, object]:
    queue = each.queue
    return {
        "topic": queue.topic or "", "broker": queue.broker_name or "", "queue": queue.queue_id,
        "before": each.before, "after": each.after,
        "change": None if each.before is None else each.after - each.before,
    }  # fmt: skip


@command(
    app, "skip", reads=True, destroys=True,
    examples=["tianzhou offset skip billing orders --dry-run"],
)  # fmt: skip
async def skip(
    session: Session,
    group: Group,
    topic: Topic,
    broker: BrokerOption = None,
    through: Through = None,
) -> None:
    """Skip the backlog of a group: continue with the next message that is sent."""
    await move(session, group, topic, Goal(time_ms=LATEST_MS), broker, through=through)


@command(
    app, "clone", destroys=True,
    examples=["tianzhou offset clone billing billing2 orders --dry-run"],
)  # fmt: skip
async def clone(
    session: Session,
    source: Annotated[str, argument("FROM", "The group to copy from.")],
    target: Annotated[str, argument("TO", "The group to move.")],
    topic: Topic,
    online_too: Annotated[
        bool, option("--online-too", "Also while consumers of TO are online.")
    ] = False,
) -> None:
    """Copy the offsets of one group to another."""
    admin = session.admin
    brokers = await admin.topics.brokers(topic)
    online = await gather(brokers, lambda at: admin.groups.connection(at, target))
    if any(clients is not None and clients.connections for clients in online.responses.values()):
        if not online_too:
            raise TargetError(
                f"consumers of {target} are online and would overwrite the offsets; "
                "stop them, or pass --online-too"
            )
        session.warn(f"warning: consumers of {target} are online and may overwrite the offsets")
    names = ", ".join(at.name for at in brokers)
    if not session.confirm(f"move {target} to the offsets of {source} in {topic} on {names}"):
        return
    done = await gather(brokers, lambda at: admin.offsets.clone(at, source, target, topic))
    session.warn_all(done.warnings)
    names = ", ".join(at.name for at in done.responses)
    session.print(f"group {target}: now at the offsets of {source} in {topic}, on {names}")
