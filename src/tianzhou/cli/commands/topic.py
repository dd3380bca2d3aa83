"""`tianzhou topic`: list, show, create, update, delete and copy topics."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from tianzhou.admin.changes.topics import store_order
from tianzhou.admin.copy_settings import copy_topics
from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.admin.rates import topic_rates
from tianzhou.admin.topics import QUEUE_COUNT, extents, perm_text
from tianzhou.cli.shared.bulk_change import (
    Attributes,
    From,
    RemovedAttributes,
    SettingsFile,
    SettingsKind,
    To,
    UpdateOptions,
    attribute_changes,
    copy_settings,
    report_done,
)
from tianzhou.cli.shared.command import OptionGroup, Session, command
from tianzhou.cli.shared.common_options import (
    EVERYWHERE,
    ClusterOption,
    Pattern,
    Through,
    Topic,
    Where,
    kind_of_topic,
    masters,
    matching_names,
    parse_perm,
)
from tianzhou.cli.shared.output import Cell, CommandResult, format_time, plural, table, table_of
from tianzhou.cli.shared.parameters import option
from tianzhou.errors import ConfigError, TargetError
from tianzhou.names import ORDER_TOPIC_NAMESPACE
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.bodies.topics import TopicConfig

app = typer.Typer(name="topic", no_args_is_help=True, help="Manage topics.")


_UNIT, _UNIT_SUB = 1, 2
"""System flags of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions(OptionGroup):
    """The settings of a topic; None leaves a setting unchanged."""

    queues: Annotated[
        int | None, option("--queues", "Read and write queues per broker.", min=1, max=4096)
    ] = None
    read_queues: Annotated[
        int | None, option("--read-queues", "Read queues per broker.", min=0, max=4096)
    ] = None
    write_queues: Annotated[
        int | None, option("--write-queues", "Write queues per broker.", min=0, max=4096)
    ] = None
    perm: Annotated[str | None, option("--perm rw|r|w|none", "Permission of clients.")] = None
    ordered: Annotated[
        bool | None, option("--ordered/--not-ordered", "Whether its messages are ordered.")
    ] = None
    unit: Annotated[bool | None, option("--unit/--no-unit", "Whether it belongs to a unit.")] = None
    unit_sub: Annotated[
        bool | None, option("--unit-sub/--no-unit-sub", "Whether units subscribe to it.")
    ] = None
    attribute: Attributes = None
    remove_attribute: RemovedAttributes = None

    def of(self, before: TopicConfig) -> TopicConfig:
        """`before` with the given settings changed. Raises ConfigError."""
        read_count = self.queues if self.read_queues is None else self.read_queues
        write_count = self.queues if self.write_queues is None else self.write_queues
        return TopicConfig(
            topic_name=before.topic_name,
            read_queue_count=before.read_queue_count if read_count is None else read_count,
            write_queue_count=before.write_queue_count if write_count is None else write_count,
            perm=before.perm if self.perm is None else parse_perm(self.perm),
            filter_type=before.filter_type,
            topic_sys_flag=self._flags(before.topic_sys_flag),
            order=before.order if self.ordered is None else self.ordered,
            attributes=attribute_changes(self.attribute, self.remove_attribute),
        )

    def _flags(self, before: int) -> int:
        for bit, wanted in ((_UNIT, self.unit), (_UNIT_SUB, self.unit_sub)):
            if wanted is not None:
                before = before | bit if wanted else before & ~bit
        return before


def plain_topic(name: str) -> TopicConfig:
    """A topic with default settings."""
    return TopicConfig(topic_name=name, read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT)


TOPICS = SettingsKind(
    "topic", list[TopicConfig], lambda config: config.topic_name, plain_topic,
    lambda session: session.admin.topics,
)  # fmt: skip
_UNCHANGED, _UPDATE = TopicOptions(), UpdateOptions()


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
        bool, option("--all, -a", "Include retry, dead-letter and system topics.")
    ] = False,
    with_groups: Annotated[
        bool, option("--groups", "Include clusters and consumer groups.")
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
    data: list[dict[str, object]] = []
    for name in matching_names(names, pattern):
        kind = kind_of_topic(name, clusters, broker_names)
        if kind != "normal" and not everything:
            continue
        on = {at: configs[name] for at, configs in tables.responses.items() if name in configs}
        row: dict[str, object] = {
            "topic": name,
            "kind": kind,
            "brokers": [at.name for at in on],
            "read_queues": sum(config.read_queue_count for config in on.values()),
            "write_queues": sum(config.write_queue_count for config in on.values()),
            "perm": "/".join(sorted({perm_text(config.perm) for config in on.values()})),
        }
        if with_groups:
            row["clusters"] = sorted({at.cluster for at in on})
            row["groups"] = await _groups_of(session, name)
        data.append(row)
    hidden = len(matching_names(names, pattern)) - len(data)
    columns = "topic, kind, brokers, >read_queues, >write_queues, perm"
    shown = table_of(data, columns + ", clusters, groups" * with_groups)
    notes = [plural(len(data), "topic") + (f"; {hidden} more with --all" if hidden else "")]
    return CommandResult(data, [shown] if data else [], tables.warnings, notes=notes)


async def _groups_of(session: Session, topic: str) -> list[str]:
    try:
        return await session.admin.topics.groups(topic)
    except TargetError:
        # The topic was deleted since it was listed, or none of its brokers is registered.
        return []


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
    brokers = [
        {
            "broker": at.name, "address": at.address, "read_queues": config.read_queue_count,
            "write_queues": config.write_queue_count, "perm": perm_text(config.perm),
            "ordered": config.order, "attributes": config.attributes or {},
        }
        for at, config in configs.responses.items() if config is not None
    ]  # fmt: skip
    extent = [
        {
            "broker": queue.broker_name, "queue": queue.queue_id, "begin": each.min_offset,
            "end": each.max_offset, "messages": each.max_offset - each.min_offset,
            "updated_ms": each.last_update_timestamp,
        }
        for queue, each in queues
    ]  # fmt: skip
    data = {
        "topic": topic, "order": route.order_conf, "brokers": brokers, "queues": extent,
        "groups": groups, "messages": total,
    }  # fmt: skip
    sections = [
        table_of(
            brokers,
            "!broker, !address, >read_queues, >write_queues, perm, ordered, attributes",
            title=f"Topic {topic}",
        ),
        table_of(
            extent,
            "!broker, >queue, >begin, >end, >messages, updated_ms=last message",
            updated_ms=format_time,
        ),
    ]  # fmt: skip
    notes = [
        f"{total:,} messages in {len(queues)} queues; consumed by "
        + (", ".join(groups) if groups else "no group")
    ]
    warnings = [*configs.warnings, *stats.warnings]
    return CommandResult(data, sections, list(dict.fromkeys(warnings)), notes=notes)


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
            "addresses": {
                str(key): address
                for key, address in sorted(addresses.get(each.broker_name, {}).items())
            },
        }
        for each in sorted(route.queues, key=lambda each: each.broker_name or "")
    ]  # fmt: skip
    shown = table_of(
        data,
        "broker, cluster, >read_queues, >write_queues, perm, addresses=id: address",
        addresses=lambda found: "  ".join(f"{key}: {each}" for key, each in found.items()),
    )
    notes = [f"order: {route.order_conf}"] if route.order_conf else []
    return CommandResult(data, [shown], notes=notes)


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
        bool, option("--active", "Only topics with messages in the last day.")
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
    where: Where = EVERYWHERE,
    settings: TopicOptions = _UNCHANGED,
) -> None:
    """Create a topic on all brokers, or on those of --cluster or --broker; 8 queues on each."""
    wanted, brokers = await TOPICS.create(session, topic, settings.of, where)
    session.print(f"  {_queues_text(wanted)} on each, permission {perm_text(wanted.perm)}")
    await _store_order(session, wanted, brokers)
    await _await_routes(session, [topic], brokers)


def _queues_text(config: TopicConfig) -> str:
    return f"{config.read_queue_count} queues to read and {config.write_queue_count} to write"


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
    where: Where = EVERYWHERE,
    settings: TopicOptions = _UNCHANGED,
    options: UpdateOptions = _UPDATE,
) -> None:
    """Change a topic where it exists; options that are not given stay as they are."""
    if options == _UPDATE and settings == _UNCHANGED:
        raise ConfigError("nothing to change; pass --queues, --perm, --ordered, --attribute, ...")

    async def remove_order() -> None:
        # Before the brokers: they mark every topic as ordered that the nameserver lists.
        if settings.ordered is False:
            await session.admin.namesrv.remove(ORDER_TOPIC_NAMESPACE, topic)

    changes = await TOPICS.update(
        session, topic, settings.of, where, options, on_found=remove_order
    )
    for at, (before, config) in changes.items():
        perm = perm_text(config.perm)
        if before is None:
            session.print(f"  {at.name}: {_queues_text(config)}, permission {perm}")
            continue
        session.print(
            f"  {at.name}: read queues {before.read_queue_count} -> {config.read_queue_count}, "
            f"write queues {before.write_queue_count} -> {config.write_queue_count}, "
            f"permission {perm_text(before.perm)} -> {perm}"
        )
    if settings.ordered is not None:
        await _store_order(session, next(iter(changes.values()))[1], sorted(changes))


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
        counts = {at.name: config.write_queue_count for at in brokers}
        text = await store_order(session.admin, config.topic_name, counts)
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
async def apply(session: Session, file: SettingsFile, where: Where = EVERYWHERE) -> None:
    """Create or change all topics of a file: a JSON list of RocketMQ's topic settings.

    A broker applies all of them or, if one is invalid, none; a 4.9 broker applies them one by one.
    """
    names, brokers = await TOPICS.apply(session, file, where)
    if brokers:
        # Brokers register their topics in order: once the last is known, all are.
        await _await_routes(session, names[-1:], brokers)


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
