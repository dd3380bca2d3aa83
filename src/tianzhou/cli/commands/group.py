"""`tianzhou group`: consumer groups, their members, their lag, and their settings."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tianzhou.admin.copy_settings import copy_groups
from tianzhou.admin.fanout import gather
from tianzhou.admin.group_detail import GroupSummary, load_overview, summarize
from tianzhou.admin.rates import by_group, progress_by_group
from tianzhou.cli.commands.group_options import GroupOptions
from tianzhou.cli.commands.group_output import (
    head,
    lag_table,
    members_table,
    overview_data,
    running_info,
)
from tianzhou.cli.shared.bulk_change import (
    From,
    SettingsFile,
    SettingsKind,
    To,
    UpdateOptions,
    copy_settings,
    report_done,
)
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import (
    EVERYWHERE,
    BrokerOption,
    ClusterOption,
    Group,
    Pattern,
    Through,
    Topic,
    TopicOption,
    Where,
    masters,
    matching_names,
)
from tianzhou.cli.shared.output import (
    CommandResult,
    format_time,
    highlight,
    plural,
    table,
    table_of,
)
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import ConfigError, RequestError, TargetError
from tianzhou.names import is_internal_group
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.queues import SetMessageRequestModeBody
from tianzhou.protocol.bodies.stats import ConsumeStats

app = typer.Typer(name="group", no_args_is_help=True, help="Manage consumer groups.")

_SINGLY_MAX = 16
"""The progress of more groups is read with that of all groups of a broker, in one request."""

GROUPS = SettingsKind(
    "group", list[SubscriptionGroupConfig], lambda config: config.group_name,
    lambda name: SubscriptionGroupConfig(group_name=name), lambda session: session.admin.groups,
)  # fmt: skip
_UNCHANGED, _UPDATE = GroupOptions(), UpdateOptions()


@command(
    app, "list", reads=True, watches=True,
    examples=["tianzhou group list", "tianzhou group list 'order*' --watch"],
)  # fmt: skip
async def list_groups(
    session: Session,
    pattern: Pattern = None,
    cluster: ClusterOption = None,
    everything: Annotated[bool, option("--all, -a", "Include system groups.")] = False,
) -> CommandResult:
    """List the groups: members online, topics, lag, consume rate."""
    groups = session.admin.groups
    brokers = await masters(session, cluster)
    tables = await gather(brokers, groups.all_configs)
    known = matching_names({name for table in tables.responses.values() for name in table}, pattern)
    names = [name for name in known if everything or not is_internal_group(name)]
    rows: list[GroupSummary] = []
    warnings = list(tables.warnings)
    progress: dict[str, list[ConsumeStats]] | None = None
    if len(names) > _SINGLY_MAX:
        read = await gather(
            tables.responses, lambda at: progress_by_group(session.admin.brokers, groups, at)
        )
        warnings += read.warnings
        progress = by_group(read.responses.values())
    for name in names:
        on = [at for at, table in tables.responses.items() if name in table]
        own = progress.get(name, []) if progress is not None else None
        rows.append(await summarize(groups, name, on, warnings, own))
    shown = table_of(
        rows,
        "group, >members, model, topics, >lag, >consume_tps=consumed/s, brokers",
        lag=highlight,
    )
    hidden = len(known) - len(rows)
    notes = [plural(len(rows), "group") + (f"; {hidden} more with --all" if hidden else "")]
    unique = list(dict.fromkeys(warnings))
    return CommandResult(rows, [shown] if rows else [], unique, notes=notes)


# -- show ------------------------------------------------------------------------------------------


@command(
    app, "show", reads=True, watches=True,
    examples=[
        "tianzhou group show billing",
        "tianzhou group show billing --topic orders --watch",
        "tianzhou group show billing --json | jq .lag",
    ],
)  # fmt: skip
async def show_group(
    session: Session,
    group: Group,
    topic: TopicOption = None,
    where: Where = EVERYWHERE,
    through: Through = None,
) -> CommandResult:
    """Show a group: its members, their subscriptions, and the lag of each queue.

    Members with different subscriptions lose messages; a warning names them.
    """
    admin = session.admin
    brokers = await where.masters(session)
    if through is not None:
        on = {at.name for at in await admin.topics.brokers(topic or "", through)}
        brokers = [at for at in brokers if at.name in on]
    overview = await load_overview(admin, group, topic, brokers=brokers)
    conflicts = [
        f"members have different subscriptions to {each.describe()}" for each in overview.conflicts
    ]
    warnings = [*overview.warnings, *conflicts]
    sections = [head(overview)]
    if overview.members:
        sections.append(members_table(overview))
    if overview.queues:
        sections.append(lag_table(overview.queues, session.now_ms))
    notes = [] if overview.members else ["no member is online"]
    return CommandResult(overview_data(overview), sections, warnings, notes=notes)


@command(
    app, "members", reads=True,
    examples=["tianzhou group members billing", "tianzhou group members billing --stacks"],
)  # fmt: skip
async def show_members(
    session: Session,
    group: Group,
    client_id: Annotated[str | None, option("--client ID", "Only this member.")] = None,
    stacks: Annotated[bool, option("--stacks", "Include the stacks of its threads.")] = False,
    broker: BrokerOption = None,
) -> CommandResult:
    """Show the state of each member: its queues with cached messages, rates, settings."""
    groups = session.admin.groups
    brokers = await masters(session, broker=broker)
    online = await gather(brokers, lambda at: groups.connection(at, group))
    through = {
        connection.client_id: at
        for at, clients in online.responses.items()
        if clients is not None
        for connection in clients.connections
        if connection.client_id and client_id in (None, connection.client_id)
    }
    if not through:
        member = f"member {client_id}" if client_id else "no member"
        raise TargetError(f"{member} of {group} is {'not ' if client_id else ''}online")
    sections: list[RenderableType] = []
    data: list[object] = []
    warnings = list(online.warnings)
    for name, at in sorted(through.items()):
        try:
            info = await groups.running_info(at, group, name, stacks=stacks)
        except RequestError as e:
            warnings.append(f"{name}: {e}")
            continue
        running, tables = running_info(name, info)
        data.append(running)
        sections += tables
        if info.jstack:
            sections.append(Text(info.jstack))
    return CommandResult(data, sections, warnings)


@command(
    app, "producers", reads=True,
    examples=["tianzhou group producers", "tianzhou group producers shop --topic orders"],
)  # fmt: skip
async def show_producers(
    session: Session,
    pattern: Pattern = None,
    broker: BrokerOption = None,
    topic: Annotated[
        str | None, option("--topic, -t TOPIC", "Only on the brokers of this topic.")
    ] = None,
) -> CommandResult:
    """List the connected producers by group."""
    groups = session.admin.groups
    brokers = await masters(session, broker=broker)
    if topic is not None:
        on = {at.name for at in await session.admin.topics.brokers(topic)}
        brokers = [at for at in brokers if at.name in on]
    gathered = await gather(brokers, groups.producers)
    data = [
        {
            "group": name, "client_id": producer.client_id, "address": producer.remote_ip,
            "language": producer.language, "broker": at.name,
            "last_seen_ms": producer.last_update_timestamp,
        }
        for at, each in gathered.responses.items()
        for name, producers in sorted((each.data or {}).items())
        if name in matching_names([name], pattern)
        for producer in producers
    ]  # fmt: skip
    shown = table_of(
        data,
        "group, client_id, address, language, broker, last_seen_ms=last seen",
        last_seen_ms=format_time,
    )
    notes = [plural(len(data), "producer")]
    return CommandResult(data, [shown] if data else [], gathered.warnings, notes=notes)


@command(
    app, "allocate", reads=True,
    examples=[
        "tianzhou group allocate orders 10.0.0.1 10.0.0.2 10.0.0.3",
        "tianzhou group allocate orders a b --strategy circle",
    ],
)  # fmt: skip
async def allocate(
    session: Session,
    topic: Topic,
    members: Annotated[list[str], argument("MEMBER...", "Client ids, or any distinct names.")],
    strategy: Annotated[
        str, option("--strategy", "Allocation strategy: average, circle or hash.")
    ] = "average",
) -> CommandResult:
    """Show which queues of a topic each of these members would get.

    This computes the same allocation as the clients do when they rebalance.
    """
    from tianzhou.client.group import rebalance  # Only this command needs it.
    from tianzhou.client.queues import Queue, java_order

    strategies = {
        "average": rebalance.averagely,
        "circle": rebalance.averagely_by_circle,
        "hash": rebalance.consistent_hash(),
    }
    if strategy not in strategies:
        raise ConfigError(f"--strategy {strategy!r} is not one of: {', '.join(strategies)}")
    names = [name.strip() for name in members if name.strip()]
    if not names or len(set(names)) != len(names):
        raise ConfigError("pass at least one member, each only once")
    found = await session.admin.messages.read_queues(topic)
    queues = [Queue(topic, at.broker.name, at.queue_id) for at in found]
    if not queues:
        raise TargetError(f"topic {topic} has no queue to read")
    own = {
        name: java_order(rebalance.shares(strategies[strategy], "", name, queues, names))
        for name in names
    }
    data = {
        "result": {
            name: [
                {"topic": topic, "brokerName": each.broker_name, "queueId": each.queue_id}
                for each in mine
            ]
            for name, mine in own.items()
        }
    }
    shown = table(
        ["member", ">queues", "queue ids"],
        (
            (name, len(mine), ", ".join(f"{q.broker_name}/{q.queue_id}" for q in mine) or None)
            for name, mine in own.items()
        ),
    )
    return CommandResult(data, [shown], notes=[plural(len(queues), "queue")])


# -- changing --------------------------------------------------------------------------------------


@command(
    app, "create",
    examples=["tianzhou group create billing", "tianzhou group create billing --retries 3"],
)  # fmt: skip
async def create_group(
    session: Session,
    group: Group,
    where: Where = EVERYWHERE,
    settings: GroupOptions = _UNCHANGED,
) -> None:
    """Create a group on all brokers, or on those of --cluster or --broker."""
    await GROUPS.create(session, group, settings.of, where)


@command(
    app, "update",
    examples=[
        "tianzhou group update billing --retries 3",
        "tianzhou group update billing --no-consume    # stop consuming everywhere",
    ],
)  # fmt: skip
async def update_group(
    session: Session,
    group: Group,
    where: Where = EVERYWHERE,
    settings: GroupOptions = _UNCHANGED,
    options: UpdateOptions = _UPDATE,
) -> None:
    """Change a group where it exists; options that are not given stay as they are."""
    if options == _UPDATE and settings == _UNCHANGED:
        raise ConfigError("nothing to change; pass --consume, --retries, --broadcast, ...")
    await GROUPS.update(session, group, settings.of, where, options)


@command(
    app, "delete", destroys=True,
    examples=["tianzhou group delete billing --dry-run", "tianzhou group delete billing --yes"],
)  # fmt: skip
async def delete_group(
    session: Session,
    group: Group,
    where: Where = EVERYWHERE,
    keep_offsets: Annotated[bool, option("--keep-offsets", "Keep its committed offsets.")] = False,
) -> None:
    """Delete a group, its retry topic and its dead letters."""
    groups = session.admin.groups
    tables = await gather(await where.masters(session), groups.all_configs)
    existing = [at for at, configs in tables.responses.items() if group in configs]
    if not existing:
        raise TargetError(f"there is no group {group!r}; see `tianzhou group list`")
    online = await gather(existing, lambda at: groups.connection(at, group))
    members = {
        connection.client_id
        for clients in online.responses.values()
        if clients is not None
        for connection in clients.connections
    }
    online_text = f" ({plural(len(members), 'member')} online)" if members else ""
    names = ", ".join(at.name for at in existing)
    if not session.confirm(f"delete group {group} and its dead letters on {names}{online_text}"):
        return
    done = await groups.delete(group, existing, offsets_too=not keep_offsets)
    report_done(session, f"group {group}: deleted", done)


@command(
    app, "apply", destroys=True,
    examples=[
        "tianzhou group apply groups.json --dry-run",
        "tianzhou group apply groups.json --cluster DefaultCluster --yes",
    ],
)  # fmt: skip
async def apply(session: Session, file: SettingsFile, where: Where = EVERYWHERE) -> None:
    """Create or change all groups of a file: a JSON list of RocketMQ's group settings.

    A broker applies all of them or, if one is invalid, none; a 4.9 broker applies them one by one.
    """
    await GROUPS.apply(session, file, where)


@command(
    app, "copy", destroys=True,
    examples=[
        "tianzhou group copy --from broker-a --to broker-c --dry-run",
        "tianzhou group copy --from broker-a --yes     # to all other brokers",
    ],
)  # fmt: skip
async def copy(session: Session, source: From, targets: To = None, pattern: Pattern = None) -> None:
    """Copy the settings of groups, not their offsets, from one broker to others."""

    def is_wanted(name: str) -> bool:
        return bool(matching_names([name], pattern)) and not is_internal_group(name)

    await copy_settings(
        session, "group", source, targets,
        lambda origin, goal: copy_groups(session.admin, origin, goal, is_wanted),
    )  # fmt: skip


class Mode(StrEnum):
    """How consumers receive messages."""

    PULL = "PULL"
    POP = "POP"


@command(
    app, "mode", reads=True,
    examples=[
        "tianzhou group mode billing",
        "tianzhou group mode billing orders POP",
        "tianzhou group mode billing orders POP --share 2    # each queue is shared with 2 others",
        "tianzhou group mode billing orders PULL --broker broker-a",
    ],
)  # fmt: skip
async def mode(
    session: Session,
    group: Group,
    topic: Annotated[str | None, argument("[TOPIC]", "A topic that the group consumes.")] = None,
    wanted: Annotated[
        Mode | None, argument("[MODE]", "PULL or POP; sets the mode.", case_sensitive=False)
    ] = None,
    share: Annotated[
        int,
        option(
            "--share", "With POP: how many other members share a queue; 0 or less: all.", min=-1
        ),
    ] = 0,
    where: Where = EVERYWHERE,
) -> CommandResult | None:
    """Show or set whether a group pulls or pops a topic (5.x).

    It applies to clients whose queues the broker assigns; all others pull.
    """
    groups, brokers = session.admin.groups, await where.masters(session)
    if wanted is not None and topic is not None:
        body = SetMessageRequestModeBody(
            topic=topic, consumer_group=group, mode=wanted.value, pop_share_queue_count=share
        )
        done = await gather(brokers, lambda at: groups.set_mode(at, body))
        report_done(session, f"group {group}: topic {topic} set to {wanted.value}", done)
        return None
    gathered = await gather(brokers, groups.modes)
    data = [
        {
            "topic": name, "broker": at.name, "mode": each[group].mode,
            "share": each[group].pop_share_queue_count,
        }
        for at, modes in gathered.responses.items()
        for name, each in sorted(modes.items())
        if group in each and topic in (None, name)
    ]  # fmt: skip
    if not data:
        note = f"no mode is set for {group}; the brokers' defaultMessageRequestMode applies"
        return CommandResult(data, [], gathered.warnings, notes=[note])
    shown = table_of(data, "topic, !broker, mode, >share")
    return CommandResult(data, [shown], gathered.warnings)
