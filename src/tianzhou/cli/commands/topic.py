"""`tianzhou topic`: list, show, create, update, delete and copy topics."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import RenderableType

from tianzhou.admin.copy_settings import copy_topics
from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.admin.rates import topic_rates
from tianzhou.admin.topics import extents, perm_text
from tianzhou.cli.commands.topic_options import TopicOptions, plain_topic
from tianzhou.cli.shared.bulk_change import (
    From,
    FromDefaults,
    OrCreate,
    SettingsFile,
    To,
    apply_settings,
    copy_settings,
    read_settings,
    refuse_if_exists,
    refuse_removals,
    report_changed,
    report_done,
)
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import (
    BrokerOption,
    ClusterOption,
    Pattern,
    Through,
    Topic,
    kind_of_topic,
    masters,
    matching_names,
)
from tianzhou.cli.shared.output import Cell, CommandResult, format_time, plural, table
from tianzhou.errors import ConfigError, TargetError
from tianzhou.names import ORDER_TOPIC_NAMESPACE
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.bodies.topics import TopicConfig

app = typer.Typer(name="topic", no_args_is_help=True, help="Manage topics.")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A line of `topic list`."""

    topic: str
    kind: str
    brokers: list[str]
    read_queues: int
    write_queues: int
    perm: str
    clusters: list[str] | None = None
    groups: list[str] | None = None
    """Groups that consume it, with --groups."""


@command(
    app, "list", reads=True,
    examples=[
        "tianzhou topic list", "tianzhou topic list 'order*' --json", "tianzhou topic list --all",
        "tianzhou topic list --groups",
    ],
)  # fmt: skip
async def list_topics(
    session: Session,
    pattern: Pattern = None,
    cluster: ClusterOption = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include retry, dead-letter and system topics.")
    ] = False,
    with_groups: Annotated[
        bool, typer.Option("--groups", help="Include clusters and consumer groups.")
    ] = False,
) -> CommandResult:
    """List the topics: brokers, queues, permission."""
    admin = session.admin
    brokers = await admin.clusters.brokers(cluster=cluster, masters=True)
    names, tables = await asyncio.gather(
        admin.topics.names_of_cluster(cluster) if cluster else admin.topics.names(),
        gather(brokers, admin.topics.all_configs),
    )
    clusters, broker_names = {at.cluster for at in brokers}, {at.name for at in brokers}
    rows: list[TopicRow] = []
    for name in matching_names(names, pattern):
        kind = kind_of_topic(name, clusters, broker_names)
        if kind != "normal" and not everything:
            continue
        on = {at: configs[name] for at, configs in tables.responses.items() if name in configs}
        perms = sorted({perm_text(config.perm) for config in on.values()})
        rows.append(
            TopicRow(
                topic=name,
                kind=kind,
                brokers=[at.name for at in on],
                read_queues=sum(config.read_queue_count for config in on.values()),
                write_queues=sum(config.write_queue_count for config in on.values()),
                perm="/".join(perms),
                clusters=sorted({at.cluster for at in on}) if with_groups else None,
                groups=await _groups_of(session, name) if with_groups else None,
            )
        )
    hidden = len(matching_names(names, pattern)) - len(rows)
    shown = _topics_table(rows, with_groups=with_groups)
    notes = [plural(len(rows), "topic") + (f"; {hidden} more with --all" if hidden else "")]
    data = [
        {name: value for name, value in asdict(row).items() if value is not None} for row in rows
    ]
    return CommandResult(data, [shown] if rows else [], tables.warnings, notes=notes)


async def _groups_of(session: Session, topic: str) -> list[str]:
    try:
        return await session.admin.topics.groups(topic)
    except TargetError:
        # The topic was deleted since it was listed, or none of its brokers is registered.
        return []


def _topics_table(rows: list[TopicRow], *, with_groups: bool) -> RenderableType:
    columns = ["topic", "kind", "brokers", ">read queues", ">write queues", "perm"]
    cells: list[list[Cell]] = [
        [row.topic, row.kind, ", ".join(row.brokers), row.read_queues, row.write_queues, row.perm]
        for row in rows
    ]
    if with_groups:
        columns += ["clusters", "groups"]
        for row, line in zip(rows, cells, strict=True):
            line += [", ".join(row.clusters or ()), ", ".join(row.groups or ()) or None]
    return table(columns, cells)


@command(
    app, "show", reads=True, watches=True,
    examples=["tianzhou topic show orders", "tianzhou topic show orders --watch"],
)  # fmt: skip
async def show_topic(session: Session, topic: Topic, through: Through = None) -> CommandResult:
    """Show a topic: settings on each broker, offsets of each queue, consumer groups."""
    topics = session.admin.topics
    route = await topics.route(topic) if through is None else TopicRouteData()
    configs, stats, groups = await asyncio.gather(
        topics.configs(topic, through), topics.stats(topic, through), topics.groups(topic, through)
    )
    queues = extents(stats)
    total = sum(each.max_offset - each.min_offset for _, each in queues)
    data = {
        "topic": topic,
        "order": route.order_conf,
        "brokers": [
            {
                "broker": at.name, "address": at.address, "read_queues": config.read_queue_count,
                "write_queues": config.write_queue_count, "perm": perm_text(config.perm),
                "ordered": config.order, "attributes": config.attributes or {},
            }
            for at, config in configs.responses.items() if config is not None
        ],
        "queues": [
            {
                "broker": queue.broker_name, "queue": queue.queue_id, "begin": each.min_offset,
                "end": each.max_offset, "messages": each.max_offset - each.min_offset,
                "updated_ms": each.last_update_timestamp,
            }
            for queue, each in queues
        ],
        "groups": groups,
        "messages": total,
    }  # fmt: skip
    brokers = table(
        ["!broker", "!address", ">read queues", ">write queues", "perm", "ordered", "attributes"],
        (
            (
                at.name, at.address, config.read_queue_count, config.write_queue_count,
                perm_text(config.perm), config.order,
                " ".join(f"{k}={v}" for k, v in (config.attributes or {}).items()) or None,
            )
            for at, config in configs.responses.items() if config is not None
        ),
        title=f"Topic {topic}",
    )  # fmt: skip
    extent = table(
        ["!broker", ">queue", ">begin", ">end", ">messages", "last message"],
        (
            (
                queue.broker_name, queue.queue_id, each.min_offset, each.max_offset,
                each.max_offset - each.min_offset, format_time(each.last_update_timestamp),
            )
            for queue, each in queues
        ),
    )  # fmt: skip
    notes = [
        f"{total:,} messages in {len(queues)} queues; consumed by "
        + (", ".join(groups) if groups else "no group")
    ]
    warnings = [*configs.warnings, *stats.warnings]
    return CommandResult(data, [brokers, extent], list(dict.fromkeys(warnings)), notes=notes)


@command(app, "route", reads=True, examples=["tianzhou topic route orders"])
async def show_route(session: Session, topic: Topic) -> CommandResult:
    """Show the route of a topic, as the nameserver sends it to clients."""
    route = await session.admin.topics.route(topic)
    addresses = {data.broker_name: data.addresses or {} for data in route.brokers}
    clusters = {data.broker_name: data.cluster for data in route.brokers}
    data = [
        {
            "broker": each.broker_name, "cluster": clusters.get(each.broker_name),
            "read_queues": each.read_queue_count, "write_queues": each.write_queue_count,
            "perm": perm_text(each.perm),
            "addresses": {str(k): v for k, v in addresses.get(each.broker_name, {}).items()},
        }
        for each in route.queues
    ]  # fmt: skip
    rows = (
        (
            each.broker_name, clusters.get(each.broker_name), each.read_queue_count,
            each.write_queue_count, perm_text(each.perm),
            "  ".join(f"{k}: {v}" for k, v in sorted(addresses.get(each.broker_name, {}).items())),
        )
        for each in sorted(route.queues, key=lambda each: each.broker_name or "")
    )  # fmt: skip
    columns = ["broker", "cluster", ">read queues", ">write queues", "perm", "id: address"]
    notes = [f"order: {route.order_conf}"] if route.order_conf else []
    return CommandResult(data, [table(columns, rows)], notes=notes)


@command(
    app, "stats", reads=True, watches=True,
    examples=[
        "tianzhou topic stats", "tianzhou topic stats 'order*' --watch --every 5",
        "tianzhou topic stats --active",
    ],
)  # fmt: skip
async def show_stats(
    session: Session,
    pattern: Pattern = None,
    active: Annotated[
        bool, typer.Option("--active", help="Only topics with messages in the last day.")
    ] = False,
) -> CommandResult:
    """Show the messages into and out of each topic, and the lag, by group.

    Rates are of the last minute, totals of the last day.
    """
    admin = session.admin
    brokers = await masters(session)
    broker_names, clusters = {at.name for at in brokers}, {at.cluster for at in brokers}
    names = [
        name
        for name in matching_names(await admin.topics.names(), pattern)
        if pattern or kind_of_topic(name, clusters, broker_names) == "normal"
    ]
    data = [await topic_rates(admin, brokers, name) for name in names]
    if active:
        data = [each.only_active() for each in data if each.is_active]
    rows: list[list[Cell]] = []
    for each in data:
        first: list[Cell] = [each.topic, each.in_tps, each.in_day]
        for group in each.groups:
            rows.append([*first, group.group, group.lag, group.out_tps, group.out_day])
            first = ["", "", ""]
        if not each.groups:
            rows.append([*first, None, None, None, None])
    columns = ["topic", ">in/s", ">in, last day", "group", ">lag", ">out/s", ">out, last day"]
    return CommandResult(data, [table(columns, rows)])


# -- changing --------------------------------------------------------------------------------------


@command(
    app, "create",
    examples=[
        "tianzhou topic create orders",
        "tianzhou topic create orders --queues 16 --cluster DefaultCluster",
        "tianzhou topic create orders --attribute message.type=FIFO    # 5.x",
    ],
)  # fmt: skip
async def create_topic(
    session: Session,
    topic: Topic,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    settings: TopicOptions = TopicOptions(),  # noqa: B008 - frozen
) -> None:
    """Create a topic on all brokers, or on those of --cluster or --broker; 8 queues on each."""
    refuse_removals(settings.remove_attribute, "topic")
    brokers = await masters(session, cluster, broker)
    wanted = settings.of(plain_topic(topic))
    tables = await gather(brokers, session.admin.topics.all_configs)
    refuse_if_exists(
        "topic", topic, (at for at in tables.responses if topic in tables.responses[at])
    )
    done = await gather(brokers, lambda at: session.admin.topics.put(at, wanted))
    report_done(session, f"topic {topic}: created", done)
    session.print(
        f"  {wanted.read_queue_count} queues to read and {wanted.write_queue_count} to write on "
        f"each, permission {perm_text(wanted.perm)}"
    )
    await _store_order(session, wanted, brokers)
    await _await_routes(session, [topic], done.responses)


@command(
    app, "update",
    examples=[
        "tianzhou topic update orders --queues 16",
        "tianzhou topic update orders --write-queues 4    # shrink: first the write queues,",
        "tianzhou topic update orders --read-queues 4     # then, when drained, the read queues",
        "tianzhou topic update orders --perm r --broker broker-a",
    ],
)  # fmt: skip
async def update_topic(
    session: Session,
    topic: Topic,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    settings: TopicOptions = TopicOptions(),  # noqa: B008 - frozen
    or_create: OrCreate = False,
    from_defaults: FromDefaults = False,
) -> None:
    """Change a topic where it exists; options that are not given stay as they are."""
    if not (or_create or from_defaults) and settings == TopicOptions():
        raise ConfigError("nothing to change; pass --queues, --perm, --ordered, --attribute, ...")
    admin = session.admin
    chosen = await masters(session, cluster, broker)
    found = await gather(chosen, lambda at: admin.topics.config(at, topic))
    there = {
        at: config or plain_topic(topic)
        for at, config in found.responses.items()
        if config is not None or or_create
    }
    if not there:
        raise TargetError(
            f"there is no topic {topic!r}; create it with `tianzhou topic create {topic}`"
        )
    after = {
        at: settings.of(plain_topic(topic) if from_defaults else config)
        for at, config in there.items()
    }
    if settings.ordered is False:
        # Before the brokers: they mark every topic as ordered that the nameserver lists.
        await session.admin.namesrv.remove(ORDER_TOPIC_NAMESPACE, topic)
    done = await gather(there, lambda at: admin.topics.put(at, after[at]))
    session.warn_all((*found.warnings, *done.warnings))
    report_changed(
        session, f"topic {topic}", done.responses, lambda at: found.responses[at] is not None
    )
    for at, config in after.items():
        before = there[at]
        if found.responses[at] is None:
            session.print(
                f"  {at.name}: {config.read_queue_count} queues to read and "
                f"{config.write_queue_count} to write, permission {perm_text(config.perm)}"
            )
            continue
        session.print(
            f"  {at.name}: read queues {before.read_queue_count} -> {config.read_queue_count}, "
            f"write queues {before.write_queue_count} -> {config.write_queue_count}, permission "
            f"{perm_text(before.perm)} -> {perm_text(config.perm)}"
        )
    if settings.ordered is not None:
        await _store_order(session, next(iter(after.values())), sorted(there))


async def _await_routes(
    session: Session, topics: Iterable[str], brokers: Iterable[BrokerRef]
) -> None:
    """Wait until the nameserver knows the topics, so that the next command finds them."""
    on = list(brokers)
    for topic in topics:
        late = await session.admin.topics.await_route(topic, on)
        if late:
            session.warn(
                f"warning: the nameserver has no route of {topic} on {', '.join(sorted(late))} "
                "yet; brokers register at least every 30 s"
            )


async def _store_order(session: Session, config: TopicConfig, brokers: list[BrokerRef]) -> None:
    """Store the queues of an ordered topic in the nameserver, so that consumers agree on them."""
    if config.order and config.topic_name:
        text = ";".join(f"{at.name}:{config.write_queue_count}" for at in brokers)
        await session.admin.namesrv.put(ORDER_TOPIC_NAMESPACE, config.topic_name, text)
        session.print(f"  order configuration in the nameserver: {text}")


@command(
    app, "delete", destroys=True,
    examples=["tianzhou topic delete orders --dry-run", "tianzhou topic delete orders --yes"],
)  # fmt: skip
async def delete_topic(session: Session, topic: Topic, cluster: ClusterOption = None) -> None:
    """Delete a topic and its messages on all its brokers, and its routes."""
    admin = session.admin
    on = {at.name for at in await admin.topics.brokers(topic)}
    brokers = [at for at in await masters(session, cluster) if at.name in on]
    if not brokers:
        raise TargetError(f"topic {topic} is not in cluster {cluster}")
    groups = await admin.topics.groups(topic)
    used = f" (consumed by {', '.join(groups)})" if groups else ""
    names = ", ".join(at.name for at in brokers)
    if not session.confirm(f"delete topic {topic} and all its messages on {names}{used}"):
        return
    done = await admin.topics.delete(topic, brokers)
    report_done(session, f"topic {topic}: deleted", done)


@command(
    app, "apply", destroys=True,
    examples=[
        "tianzhou topic apply topics.json --dry-run",
        "tianzhou topic apply topics.json --cluster DefaultCluster --yes",
    ],
)  # fmt: skip
async def apply(
    session: Session,
    file: SettingsFile,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> None:
    """Create or change all topics of a file: a JSON list of RocketMQ's topic settings.

    A broker applies all of them or, if one is invalid, none; a 4.9 broker applies them one by one.
    """
    configs = read_settings(file, list[TopicConfig])
    names = sorted(config.topic_name or "" for config in configs)
    if not all(names):
        raise ConfigError(f"{file}: each topic needs a topicName")
    brokers = await masters(session, cluster, broker)
    put_all = session.admin.topics.put_all
    done = await apply_settings(session, "topic", names, brokers, lambda at: put_all(at, configs))
    if done:
        # Brokers register their topics in order: once the last is known, all are.
        await _await_routes(session, names[-1:], done)


@command(
    app, "copy", destroys=True,
    examples=[
        "tianzhou topic copy --from broker-a --to broker-c --dry-run",
        "tianzhou topic copy 'order*' --from broker-a --to broker-c --to broker-d --yes",
        "tianzhou topic copy --from broker-a --yes     # to all other brokers",
    ],
)  # fmt: skip
async def copy(session: Session, source: From, targets: To = None, pattern: Pattern = None) -> None:
    """Copy the settings of topics, not their messages, from one broker to others."""

    def is_wanted(name: str) -> bool:
        return bool(matching_names([name], pattern))

    made = await copy_settings(
        session, "topic", source, targets,
        lambda origin, goal: copy_topics(session.admin, origin, goal, is_wanted),
    )  # fmt: skip
    # Brokers register their topics in order: once the last is known, all are.
    for goal, names in made.items():
        await _await_routes(session, names[-1:], [goal])
