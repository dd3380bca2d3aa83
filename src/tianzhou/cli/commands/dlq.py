"""`tianzhou dlq`: dead letters, the messages whose retries a group used up."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group as Below
from rich.progress import Progress

from tianzhou.admin.messages import QueueRef
from tianzhou.admin.redelivery import dead_letters, resendable_dead_letter
from tianzhou.admin.topics import extents
from tianzhou.cli.commands.message_output import message_data, message_line
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import Group
from tianzhou.cli.shared.output import CommandResult, format_time, highlight, plural, table_of
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.cli.shared.times import parse_time
from tianzhou.errors import ConfigError, TargetError, TianzhouError
from tianzhou.message import StoredMessage
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol.records.message_id import id_of

app = typer.Typer(name="dlq", no_args_is_help=True, help="List, resend and export dead letters.")

Since = Annotated[str | None, option("--since TIME", "Only those stored since this time.")]
Ids = Annotated[list[str] | None, option("--id ID", "Only this message; may be repeated.")]


@command(
    app, "list", reads=True,
    examples=["tianzhou dlq list", "tianzhou dlq list billing --since 1d"],
)  # fmt: skip
async def list_dead(
    session: Session,
    group: Annotated[
        str | None, argument("[GROUP]", "List the dead letters of this group.")
    ] = None,
    since: Since = None,
    limit: Annotated[int, option("--limit", "Maximum number.", min=1)] = 64,
) -> CommandResult:
    """List the groups that have dead letters, or the dead letters of one group."""
    if group is None:
        return await _list_groups(session)
    found = [each async for each in _dead_letters(session, group, since, limit=limit)]
    lines = [message_line(message, at.broker.name) for at, message in found]
    data = [message_data(message, at.broker.name) for at, message in found]
    notes = [plural(len(found), "dead letter")]
    return CommandResult(data, [Below(*lines)] if lines else [], notes=notes)


async def _list_groups(session: Session) -> CommandResult:
    topics = session.admin.topics
    await session.admin.clusters.brokers()  # raises TargetError if no broker is registered
    names = [name for name in await topics.names() if name.startswith(DLQ_TOPIC_PREFIX)]
    data: list[dict[str, object]] = []
    warnings: list[str] = []
    for name in names:
        stats = await topics.stats(name)
        warnings += stats.warnings
        queues = [each for _, each in extents(stats)]
        count = sum(each.max_offset - each.min_offset for each in queues)
        last_ms = max((each.last_update_timestamp for each in queues), default=0)
        if count:
            group = name.removeprefix(DLQ_TOPIC_PREFIX)
            data.append({"group": group, "count": count, "last_ms": last_ms})
    columns = "group, >count=dead letters, last_ms=last"
    shown = table_of(data, columns, count=highlight, last_ms=format_time)
    notes = [f"{plural(len(data), 'group')} with dead letters"]
    return CommandResult(data, [shown] if data else [], warnings, notes=notes)


def _dead_letters(
    session: Session,
    group: str,
    since: str | None,
    ids: list[str] | None = None,
    limit: int | None = None,
) -> AsyncGenerator[tuple[QueueRef, StoredMessage]]:
    begin_ms = parse_time(since, session.now_ms) if since else 0
    return dead_letters(session.admin, group, begin_ms=begin_ms, ids=ids or (), limit=limit)


@command(
    app, "resend", reads=True, destroys=True,
    examples=[
        "tianzhou dlq resend billing --dry-run",
        "tianzhou dlq resend billing --since 1h --yes",
        "tianzhou dlq resend billing --id AC14000100002A139A5C0D1F7E5A0001 --yes",
        "tianzhou dlq resend billing --to-topic orders --yes      # to every group of the topic",
    ],
)  # fmt: skip
async def resend(
    session: Session,
    group: Group,
    since: Since = None,
    ids: Ids = None,
    to_topic: Annotated[
        str | None, option("--to-topic TOPIC", "Resend to this topic, not only to the group.")
    ] = None,
) -> CommandResult | None:
    """Send dead letters to their group again. The dead-letter queue keeps them."""
    found = [each async for each in _dead_letters(session, group, since, ids)]
    if ids and len(found) < len(ids):
        raise TargetError(f"only {len(found)} of {len(ids)} ids are dead letters of {group}")
    if not found:
        return CommandResult([], notes=["no dead letters to resend"])
    goal = to_topic or RETRY_TOPIC_PREFIX + group
    if not session.confirm(f"send {plural(len(found), 'dead letter')} to {goal}"):
        return None
    queues = await session.admin.messages.write_queues(goal)
    done: list[dict[str, str]] = []
    failures: list[str] = []
    with Progress(console=session.err, transient=True, disable=not session.err.is_terminal) as bar:
        task = bar.add_task("sending", total=len(found))
        for number, (_, message) in enumerate(found):
            copy = resendable_dead_letter(message, goal, to_group=to_topic is None)
            try:
                sent = await session.admin.messages.send(copy, queue=queues[number % len(queues)])
                done.append({"id": id_of(message), "sent_as": sent.message_id})
            except TianzhouError as e:
                failures.append(f"{id_of(message)}: {e}")
            bar.advance(task)
    notes = [f"{plural(len(done), 'message')} sent to {goal}"]
    return CommandResult(done, warnings=failures, exit_code=1 if failures else 0, notes=notes)


@command(
    app, "export", reads=True,
    examples=["tianzhou dlq export billing --to dead.jsonl", "tianzhou dlq export billing --to -"],
)  # fmt: skip
async def export(
    session: Session,
    group: Group,
    to: Annotated[str, option("--to FILE", "Target file; - for standard output.")],
    since: Since = None,
) -> CommandResult | None:
    """Export the dead letters of a group as JSON lines."""
    letters = _dead_letters(session, group, since)
    found = [message_data(message, at.broker.name) async for at, message in letters]
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in found)
    if to == "-":
        session.out.file.write(lines)
        return None
    _write(Path(to), lines)
    notes = [f"{plural(len(found), 'dead letter')} written to {to}"]
    return CommandResult({"count": len(found), "file": to}, notes=notes)


def _write(path: Path, text: str) -> None:
    """Write a file; blocking is fine in a command. Raises ConfigError."""
    try:
        path.write_text(text)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}") from e
