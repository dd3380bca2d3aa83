"""`tianzhou group`: consumer groups, their members, their lag, and their settings."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from tianzhou.admin.copying import copy_groups
from tianzhou.admin.fanout import BrokerAt, gather
from tianzhou.admin.portrait import GroupPortrait, QueueProgress, merge_progress, portray
from tianzhou.cli.changing import (
    Attributes,
    From,
    OrCreate,
    To,
    copy_settings,
    refuse_if_there,
    tell_changed,
    tell_done,
    warn_all,
)
from tianzhou.cli.choosing import (
    BrokerOption,
    ClusterOption,
    Group,
    Pattern,
    Topic,
    is_system_group,
    like,
    masters,
    pairs_of,
)
from tianzhou.cli.group_members import running_data, running_tables
from tianzhou.cli.session import Bundle, Session, verb
from tianzhou.cli.show import Shown, alarming, facts, moment, several, span, table
from tianzhou.errors import ConfigError, RequestError, TargetError
from tianzhou.protocol.bodies.clients import ConsumerConnection
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.queues import SetMessageRequestModeBody

app = typer.Typer(name="group", no_args_is_help=True, help="Look after consumer groups.")

TopicOption = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(Bundle):
    """The settings of a group; None leaves one as it is."""

    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether the group may consume.")
    ] = None
    broadcast: Annotated[
        bool | None, typer.Option("--broadcast/--no-broadcast", help="Whether it may broadcast.")
    ] = None
    from_min: Annotated[
        bool | None,
        typer.Option("--from-min/--not-from-min", help="Whether a new one starts at the oldest."),
    ] = None
    orderly: Annotated[
        bool | None, typer.Option("--orderly/--not-orderly", help="Consumed in order (5.x).")
    ] = None
    retries: Annotated[
        int | None, typer.Option("--retries", min=-1, help="How often a message is tried again.")
    ] = None
    retry_queues: Annotated[
        int | None, typer.Option("--retry-queues", min=0, help="Queues of its retry topic.")
    ] = None
    broker_id: Annotated[
        int | None,
        typer.Option("--broker-id", min=0, help="Id of the broker to read from; 0 master."),
    ] = None
    when_slow: Annotated[
        int | None,
        typer.Option("--broker-id-when-slow", min=0, help="Id to read from when far behind."),
    ] = None
    notify: Annotated[
        bool | None,
        typer.Option(
            "--notify/--no-notify", help="Whether members are told of each other's coming."
        ),
    ] = None
    attribute: Attributes = None

    def of(self, before: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """A group with what is given changed, and the rest as it was. Raises ConfigError."""
        given = {
            "consume_enable": self.consume,
            "consume_broadcast_enable": self.broadcast,
            "consume_from_min_enable": self.from_min,
            "consume_orderly": self.orderly,
            "retry_max_times": self.retries,
            "retry_queue_count": self.retry_queues,
            "broker_id": self.broker_id,
            "which_broker_when_consume_slowly": self.when_slow,
            "notify_consumer_ids_changed_enable": self.notify,
            # A broker of 5.x reads "+name" as one to add or change.
            "attributes": {f"+{name}": value for name, value in pairs_of(self.attribute).items()}
            if self.attribute
            else None,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(before, **wanted)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A line of `group list`."""

    group: str
    members: int
    model: str | None
    topics: list[str]
    lag: int
    consume_tps: float
    brokers: list[str]


@verb(
    app, "list", reads=True, watches=True,
    examples=["tianzhou group list", "tianzhou group list 'order*' --watch"],
)  # fmt: skip
async def list_groups(
    session: Session,
    pattern: Pattern = None,
    cluster: ClusterOption = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also the system's own.")] = False,
) -> Shown:
    """List the groups: members online, what they consume, how far they lag behind."""
    groups = session.admin.groups
    brokers = await masters(session, cluster)
    tables = await gather(brokers, groups.all_configs)
    known = like({name for table in tables.found.values() for name in table}, pattern)
    names = [name for name in known if everything or not is_system_group(name)]
    rows: list[GroupRow] = []
    warnings = list(tables.warnings)
    for name in names:
        on = [at for at, table in tables.found.items() if name in table]
        rows.append(await _group_row(session, name, on, warnings))
    shown = table(
        ["group", ">members", "model", "topics", ">lag", ">consumed/s", "brokers"],
        (
            (
                row.group, row.members, row.model, ", ".join(row.topics) or None,
                alarming(row.lag), row.consume_tps, ", ".join(row.brokers),
            )
            for row in rows
        ),
    )  # fmt: skip
    hidden = len(known) - len(rows)
    notes = [several(len(rows), "group") + (f"; {hidden} more with --all" if hidden else "")]
    unique = list(dict.fromkeys(warnings))
    return Shown(rows, [shown] if rows else [], unique, notes=notes)


async def _group_row(
    session: Session, name: str, brokers: list[BrokerAt], warnings: list[str]
) -> GroupRow:
    groups = session.admin.groups
    online = await gather(brokers, lambda at: groups.connection(at, name))
    progress = await gather(brokers, lambda at: groups.progress_on(at, name))
    warnings += [*online.warnings, *progress.warnings]
    told: list[ConsumerConnection] = [each for each in online.found.values() if each is not None]
    clients = {connection.client_id for each in told for connection in each.connections}
    offsets = merge_progress(progress.found.values())
    return GroupRow(
        group=name,
        members=len(clients),
        model=_model(told[0].message_model) if told else None,
        topics=sorted({queue.topic or "" for queue in offsets if not _is_retry(queue.topic)}),
        lag=sum(max(each.broker_offset - each.consumer_offset, 0) for each in offsets.values()),
        consume_tps=sum(each.consume_tps for each in progress.found.values()),
        brokers=[at.name for at in brokers],
    )


def _is_retry(topic: str | None) -> bool:
    return (topic or "").startswith("%RETRY%")


def _model(text: str | None) -> str | None:
    return {"CLUSTERING": "clustering", "BROADCASTING": "broadcasting"}.get(text or "", text)


# -- show ------------------------------------------------------------------------------------------


@verb(
    app, "show", reads=True, watches=True,
    examples=[
        "tianzhou group show billing",
        "tianzhou group show billing --topic orders --watch",
        "tianzhou group show billing --json | jq .lag",
    ],
)  # fmt: skip
async def show_group(session: Session, group: Group, topic: TopicOption = None) -> Shown:
    """Show a group: its members, what they subscribe to, and the lag of each queue.

    Members that subscribe differently lose messages; they are named, both sides.
    """
    portrait = await portray(session.admin.groups, session.admin.clusters, group, topic)
    contradictions = [
        f"members subscribe differently to {each.describe()}" for each in portrait.contradictions
    ]
    warnings = [*portrait.warnings, *contradictions]
    parts = [_head(portrait)]
    if portrait.members:
        parts.append(_members_table(portrait))
    if portrait.queues:
        parts.append(_lag_table(portrait.queues, session.now_ms))
    notes = [] if portrait.members else ["nobody is online"]
    return Shown(portrait_data(portrait), parts, warnings, notes=notes)


def portrait_data(portrait: GroupPortrait) -> dict[str, object]:
    """A group for programs."""
    return {
        "group": portrait.group,
        "lag": portrait.lag_count,
        "consume_tps": portrait.consume_tps,
        "model": _model(portrait.message_model),
        "consume_type": portrait.consume_type,
        "consume_from": portrait.consume_from,
        "subscriptions": dict(portrait.subscriptions),
        "members": [
            {
                "client_id": member.client_id, "address": member.address,
                "language": member.language, "version": member.version,
                "brokers": list(member.brokers),
                "subscriptions": None if member.subscriptions is None
                else dict(member.subscriptions),
                "queues": len(member.queues),
            }
            for member in portrait.members
        ],
        "contradictions": [
            {"topic": each.topic, "sides": {what: list(who) for what, who in each.sides.items()}}
            for each in portrait.contradictions
        ],
        "queues": [
            {
                "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id,
                "end": queue.end_offset, "committed": queue.committed_offset,
                "lag": queue.lag_count, "last_time_ms": queue.last_time_ms,
                "client_id": queue.client_id,
            }
            for queue in portrait.queues
        ],
        "settings": {
            name: {
                "consume": config.consume_enable, "broadcast": config.consume_broadcast_enable,
                "from_min": config.consume_from_min_enable, "retries": config.retry_max_times,
                "retry_queues": config.retry_queue_count, "broker_id": config.broker_id,
                "broker_id_when_slow": config.which_broker_when_consume_slowly,
                "orderly": config.consume_orderly,
                "notify": config.notify_consumer_ids_changed_enable,
                "attributes": config.attributes or {},
            }
            for name, config in portrait.configs.items()
        },
    }  # fmt: skip


def _head(portrait: GroupPortrait) -> RenderableType:
    settings = {
        f"up to {config.retry_max_times} retries"
        + ("" if config.consume_enable else ", may not consume")
        for config in portrait.configs.values()
    }
    subscriptions = (f"{topic} [{text}]" for topic, text in portrait.subscriptions.items())
    model = _model(portrait.message_model)
    return facts(
        [
            ("lag", alarming(portrait.lag_count)),
            ("consumed", f"{portrait.consume_tps:,.1f}/s"),
            ("members", len(portrait.members)),
            ("model", f"{model}, {portrait.consume_from}" if model else None),
            ("subscriptions", ", ".join(subscriptions) or None),
            ("settings", "; ".join(sorted(settings)) or "none: created by its first consumer"),
            ("brokers", ", ".join(portrait.configs) or None),
        ],
        title=f"Group {portrait.group}",
    )


def _members_table(portrait: GroupPortrait) -> RenderableType:
    disputed = {each.topic for each in portrait.contradictions}

    def filters(subscriptions: dict[str, str] | None) -> Text | None:
        if subscriptions is None:
            return None
        lines = Text()
        for topic, text in subscriptions.items():
            style = "bold red" if topic in disputed else ""
            lines.append(("\n" if lines else "") + f"{topic} [{text}]", style=style)
        return lines

    return table(
        ["client id", "address", "language", "version", ">queues", "subscribes to"],
        (
            (
                member.client_id, member.address, member.language.lower(), member.version,
                len(member.queues),
                filters(None if member.subscriptions is None else dict(member.subscriptions)),
            )
            for member in portrait.members
        ),
    )  # fmt: skip


def _lag_table(queues: tuple[QueueProgress, ...], now_ms: int) -> RenderableType:
    return table(
        ["topic", "!broker", ">queue", ">end", ">committed", ">lag", ">behind", "held by"],
        (
            (
                queue.topic, queue.broker_name, queue.queue_id, queue.end_offset,
                queue.committed_offset, alarming(queue.lag_count), _behind(queue, now_ms),
                queue.client_id,
            )
            for queue in queues
        ),
    )  # fmt: skip


def _behind(queue: QueueProgress, now_ms: int) -> str | None:
    """How long ago the last consumed message was stored, where others wait behind it."""
    if not queue.lag_count or queue.last_time_ms <= 0:
        return None
    return span(max(now_ms - queue.last_time_ms, 0))


@verb(
    app, "members", reads=True,
    examples=["tianzhou group members billing", "tianzhou group members billing --stacks"],
)  # fmt: skip
async def show_members(
    session: Session,
    group: Group,
    client_id: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="Only this member.")
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also the stacks of its threads.")
    ] = False,
) -> Shown:
    """Ask each member what it does: queues with what waits in them, rates, settings."""
    groups = session.admin.groups
    online = await gather(await masters(session), lambda at: groups.connection(at, group))
    through = {
        connection.client_id: at
        for at, told in online.found.items()
        if told is not None
        for connection in told.connections
        if connection.client_id and client_id in (None, connection.client_id)
    }
    if not through:
        who = f"{client_id} of {group}" if client_id else f"nobody of {group}"
        raise TargetError(f"{who} is not online" if client_id else f"{who} is online")
    parts: list[RenderableType] = []
    data: list[object] = []
    warnings = list(online.warnings)
    for name, at in sorted(through.items()):
        try:
            info = await groups.running_info(at, group, name, stacks=stacks)
        except RequestError as e:
            warnings.append(f"{name}: {e}")
            continue
        data.append(running_data(name, info))
        parts += running_tables(name, info)
        if info.jstack:
            parts.append(Text(info.jstack))
    return Shown(data, parts, warnings)


@verb(app, "producers", reads=True, examples=["tianzhou group producers"])
async def show_producers(
    session: Session, pattern: Pattern = None, broker: BrokerOption = None
) -> Shown:
    """List the producers that are connected, by their group."""
    groups = session.admin.groups
    told = await gather(await masters(session, broker=broker), groups.producers)
    rows = [
        (name, producer.client_id, producer.remote_ip, producer.language, at.name,
         producer.last_update_timestamp)
        for at, each in told.found.items()
        for name, producers in sorted((each.data or {}).items())
        if name in like([name], pattern)
        for producer in producers
    ]  # fmt: skip
    keys = ("group", "client_id", "address", "language", "broker", "last_seen_ms")
    data = [dict(zip(keys, row, strict=True)) for row in rows]
    shown = table(
        ["group", "client id", "address", "language", "broker", "last seen"],
        ((*row[:5], moment(row[5])) for row in rows),
    )
    return Shown(
        data, [shown] if rows else [], told.warnings, notes=[several(len(rows), "producer")]
    )


@verb(
    app, "allocate", reads=True,
    examples=[
        "tianzhou group allocate orders 10.0.0.1 10.0.0.2 10.0.0.3",
        "tianzhou group allocate orders a b --strategy circle",
    ],
)  # fmt: skip
async def allocate(
    session: Session,
    topic: Topic,
    members: Annotated[
        list[str],
        typer.Argument(metavar="MEMBER...", help="Client ids, or stand-ins such as addresses."),
    ],
    strategy: Annotated[
        str, typer.Option("--strategy", help="How members divide: average, circle or hash.")
    ] = "average",
) -> Shown:
    """Show which queues of a topic each member of a group would get, if these were its members.

    Members sort queues and ids and compute their shares themselves; this computes the same.
    """
    from tianzhou.client import rebalance  # Only this verb needs it.
    from tianzhou.client.queues import Queue, java_order

    strategies = {
        "average": rebalance.averagely,
        "circle": rebalance.averagely_by_circle,
        "hash": rebalance.consistent_hash(),
    }
    if strategy not in strategies:
        raise ConfigError(f"--strategy {strategy!r} is none of: {', '.join(strategies)}")
    names = [name.strip() for name in members if name.strip()]
    if not names or len(set(names)) != len(names):
        raise ConfigError("members must be named, each once")
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
        ["member", ">queues", "which"],
        (
            (name, len(mine), ", ".join(f"{q.broker_name}/{q.queue_id}" for q in mine) or None)
            for name, mine in own.items()
        ),
    )
    return Shown(data, [shown], notes=[several(len(queues), "queue")])


# -- changing --------------------------------------------------------------------------------------


@verb(
    app, "create",
    examples=["tianzhou group create billing", "tianzhou group create billing --retries 3"],
)  # fmt: skip
async def create_group(
    session: Session,
    group: Group,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    settings: GroupOptions = GroupOptions(),  # noqa: B008 - frozen
) -> None:
    """Create a group on all brokers, or on those that are named."""
    brokers = await masters(session, cluster, broker)
    tables = await gather(brokers, session.admin.groups.all_configs)
    refuse_if_there("group", group, (at for at in tables.found if group in tables.found[at]))
    config = settings.of(SubscriptionGroupConfig(group_name=group))
    done = await gather(brokers, lambda at: session.admin.groups.put(at, config))
    tell_done(session, f"group {group}: created", done)


@verb(
    app, "update",
    examples=[
        "tianzhou group update billing --retries 3",
        "tianzhou group update billing --no-consume    stop it everywhere, for now",
    ],
)  # fmt: skip
async def update_group(
    session: Session,
    group: Group,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    settings: GroupOptions = GroupOptions(),  # noqa: B008 - frozen
    or_create: OrCreate = False,
) -> None:
    """Change a group where it exists; what is not named stays as it is."""
    if not or_create and settings == GroupOptions():
        raise ConfigError("nothing to change; say --consume, --retries, --broadcast, ...")
    groups = session.admin.groups
    tables = await gather(await masters(session, cluster, broker), groups.all_configs)
    plain = SubscriptionGroupConfig(group_name=group)
    there = {
        at: configs.get(group, plain)
        for at, configs in tables.found.items()
        if group in configs or or_create
    }
    if not there:
        raise TargetError(f"there is no group {group!r}; `tianzhou group create {group}` makes it")
    done = await gather(there, lambda at: groups.put(at, settings.of(there[at])))
    warn_all(session, (*tables.warnings, *done.warnings))
    tell_changed(session, f"group {group}", done.found, lambda at: group in tables.found[at])


@verb(
    app, "delete", destroys=True,
    examples=["tianzhou group delete billing --dry-run", "tianzhou group delete billing --yes"],
)  # fmt: skip
async def delete_group(
    session: Session,
    group: Group,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep how far it has consumed.")
    ] = False,
) -> None:
    """Delete a group, its retry topic and its dead letters."""
    groups = session.admin.groups
    tables = await gather(await masters(session, cluster, broker), groups.all_configs)
    there = [at for at, configs in tables.found.items() if group in configs]
    if not there:
        raise TargetError(f"there is no group {group!r}; `tianzhou group list` shows them")
    online = await gather(there, lambda at: groups.connection(at, group))
    members = {
        connection.client_id
        for told in online.found.values()
        if told is not None
        for connection in told.connections
    }
    who = f" although {len(members)} members are online" if members else ""
    names = ", ".join(at.name for at in there)
    if not session.agreed(f"delete group {group} and its dead letters on {names}{who}"):
        return
    done = await groups.delete(group, there, offsets_too=not keep_offsets)
    tell_done(session, f"group {group}: deleted", done)


@verb(
    app, "copy", destroys=True,
    examples=["tianzhou group copy --from broker-a --to broker-c --dry-run"],
)  # fmt: skip
async def copy(session: Session, source: From, target: To, pattern: Pattern = None) -> None:
    """Copy the settings of groups, not their offsets, from one broker to a new one."""

    def is_wanted(name: str) -> bool:
        return bool(like([name], pattern)) and not is_system_group(name)

    await copy_settings(
        session, "group", source, target,
        lambda origin, goal: copy_groups(session.admin, origin, goal, is_wanted),
    )  # fmt: skip


class Mode(StrEnum):
    """How consumers get messages."""

    PULL = "PULL"
    POP = "POP"


@verb(
    app, "mode", reads=True,
    examples=[
        "tianzhou group mode billing",
        "tianzhou group mode billing orders POP",
        "tianzhou group mode billing orders POP --share 2    two neighbours share each queue",
        "tianzhou group mode billing orders PULL --broker broker-a",
    ],
)  # fmt: skip
async def mode(
    session: Session,
    group: Group,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="A topic it consumes.")
    ] = None,
    wanted: Annotated[
        Mode | None,
        typer.Argument(metavar="[MODE]", case_sensitive=False, help="PULL or POP, to set it."),
    ] = None,
    share: Annotated[
        int,
        typer.Option(
            "--share", min=-1, help="With POP: how many others share a queue; 0 or less: all."
        ),
    ] = 0,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> Shown | None:
    """Show or set whether a group pulls or pops a topic (5.x), for clients that let brokers decide.

    Such clients ask the broker for their queues; all others pull, whatever is set here.
    """
    groups, brokers = session.admin.groups, await masters(session, cluster, broker)
    if wanted is not None and topic is not None:
        body = SetMessageRequestModeBody(
            topic=topic, consumer_group=group, mode=wanted.value, pop_share_queue_count=share
        )
        done = await gather(brokers, lambda at: groups.set_mode(at, body))
        tell_done(session, f"group {group}: topic {topic} is for {wanted.value}", done)
        return None
    told = await gather(brokers, groups.modes)
    rows = [
        (name, at.name, each[group].mode, each[group].pop_share_queue_count)
        for at, table in told.found.items()
        for name, each in sorted(table.items())
        if group in each and topic in (None, name)
    ]
    keys = ("topic", "broker", "mode", "share")
    data = [dict(zip(keys, row, strict=True)) for row in rows]
    notes = (
        [] if rows else [f"nothing is set for {group}; brokers' defaultMessageRequestMode counts"]
    )
    shown = [table(["topic", "!broker", "mode", ">share"], rows)] if rows else []
    return Shown(data, shown, told.warnings, notes=notes)
