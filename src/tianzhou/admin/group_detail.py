"""Overview of a consumer group: members, their subscriptions, progress, subscription conflicts.

A broker knows the members connected to it; each member reports, through a broker, its subscriptions
and the queues it holds. Members of a group must have the same subscriptions: a broker keeps one per
group, so members that differ receive each other's messages and drop them.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.admin.groups import Groups
from tianzhou.errors import TargetError, TianzhouError
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
)
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import ConsumeOffsets, ConsumeStats
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.version import version_name

NOT_SUBSCRIBED = "not subscribed"


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """Progress of a member in a queue that it holds; newer than what the broker knows."""

    done_offset: int
    """The offset that it will commit next."""
    consumed_ms: int
    """When it last consumed a message of this queue, by its own clock."""
    in_order: bool = False

    def moved_since(self, before: "HeldQueue") -> bool:
        """Whether a message was consumed since.

        Orderly consumption retries a failing message forever: only the offset shows progress.
        Otherwise one slow message may hold the offset while those after it are consumed.
        """
        if self.done_offset != before.done_offset:
            return True
        return not self.in_order and self.consumed_ms != before.consumed_ms


@dataclass(frozen=True, slots=True)
class Member:
    """One client of a group."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]
    """Names of the brokers it is connected to."""
    subscriptions: Mapping[str, str] | None
    """Filter by topic, as the member reports; None if it did not respond."""
    queues: Mapping[MessageQueue, HeldQueue] = field(default_factory=dict[MessageQueue, HeldQueue])
    """The queues that it holds."""
    consume_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    """By topic: mean time to consume a message."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a group in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    end_offset: int
    committed_offset: int
    last_time_ms: int
    """When the last consumed message was stored, 0 if unknown."""
    client_id: str | None
    """The member that holds the queue."""

    @property
    def lag_count(self) -> int:
        return max(self.end_offset - self.committed_offset, 0)


@dataclass(frozen=True, slots=True)
class SubscriptionConflict:
    """A topic to which members of a group have different subscriptions."""

    topic: str
    sides: Mapping[str, tuple[str, ...]]
    """Client ids by filter."""

    def describe(self) -> str:
        sides = (f"{' and '.join(clients)}: {what}" for what, clients in self.sides.items())
        return f"{self.topic}: " + "; ".join(sides)


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group as reported by its brokers and members."""

    group: str
    configs: Mapping[str, SubscriptionGroupConfig]
    """By broker name."""
    members: tuple[Member, ...]
    subscriptions: Mapping[str, str]
    """Filter by topic; several filters if members differ."""
    queues: tuple[QueueProgress, ...]
    conflicts: tuple[SubscriptionConflict, ...]
    consume_tps: float
    consume_type: str | None
    message_model: str | None
    consume_from: str | None
    warnings: tuple[str, ...] = field(default=())

    @property
    def lag_count(self) -> int:
        return sum(queue.lag_count for queue in self.queues)


async def load_overview(
    admin: Admin,
    group: str,
    topic: str | None = None,
    *,
    brokers: Sequence[BrokerRef] | None = None,
) -> GroupOverview:
    """Query all masters, or only some, and all members of a group.

    Raises TargetError if no broker has the group.
    """
    groups = admin.groups
    if brokers is None:
        brokers = await admin.clusters.brokers(masters=True)
    settings, connections, progress = await asyncio.gather(
        gather(brokers, groups.all_configs),
        gather(brokers, lambda at: groups.connection(at, group)),
        gather(brokers, lambda at: groups.progress_on(at, group, topic)),
    )
    configs = {at.name: table[group] for at, table in settings.responses.items() if group in table}
    online = {at: view for at, view in connections.responses.items() if view is not None}
    offsets = merge_progress(progress.responses.values())
    if not configs and not online and not offsets:
        raise TargetError(f"there is no consumer group {group!r} on any broker")
    infos, silent = await _ask_members(groups, group, online)
    members = members_of(online, infos)
    first = next(iter(online.values()), None)
    warnings = [*settings.warnings, *connections.warnings, *progress.warnings, *silent]
    return GroupOverview(
        group=group,
        configs=configs,
        members=members,
        subscriptions=subscriptions_of(members, online.values()),
        queues=queue_progress(offsets, members),
        conflicts=conflicts(members)
        or reported_conflicts(online.values())
        or broker_conflicts(online),
        consume_tps=sum(each.consume_tps for each in progress.responses.values()),
        consume_type=first.consume_type if first else None,
        message_model=first.message_model if first else None,
        consume_from=first.consume_from_where if first else None,
        warnings=tuple(dict.fromkeys(warnings)),
    )


async def _ask_members(
    groups: Groups, group: str, online: Mapping[BrokerRef, ConsumerConnection]
) -> tuple[dict[str, ConsumerRunningInfo], list[str]]:
    """The running info of each member, and a warning for each that did not respond."""
    through = brokers_of_members(online)

    async def ask(client_id: str, at: BrokerRef) -> ConsumerRunningInfo | TianzhouError:
        try:
            return await groups.running_info(at, group, client_id)
        except TianzhouError as e:
            return e

    answers = await asyncio.gather(*(ask(name, at) for name, at in through.items()))
    responses = dict(zip(through, answers, strict=True))
    infos = {
        name: each for name, each in responses.items() if isinstance(each, ConsumerRunningInfo)
    }
    silent = [
        f"member {name} does not report its subscriptions: {each}"
        for name, each in responses.items()
        if isinstance(each, TianzhouError)
    ]
    return infos, silent


def brokers_of_members(online: Mapping[BrokerRef, ConsumerConnection]) -> dict[str, BrokerRef]:
    """The first broker that each member is connected to, by client id: it forwards questions."""
    return {
        connection.client_id: at
        for at, view in reversed(list(online.items()))
        for connection in view.connections
        if connection.client_id
    }


def duplicate_client_ids(online: Mapping[BrokerRef, ConsumerConnection]) -> dict[str, list[str]]:
    """Client ids that several processes use, with their addresses.

    A client has one connection to a broker, and the same host at all of them. Members with one id
    get the same queues, and others none (containers with the same host name or address).
    """
    found: dict[str, set[str]] = {}
    hosts: dict[str, set[str]] = {}
    for view in online.values():
        here: dict[str, set[str]] = {}
        for connection in view.connections:
            address = connection.client_addr or ""
            here.setdefault(connection.client_id or "", set()).add(address)
            hosts.setdefault(connection.client_id or "", set()).add(address.rpartition(":")[0])
        for client_id, addresses in here.items():
            if len(addresses) > 1:
                found.setdefault(client_id, set()).update(addresses)
    for client_id, names in hosts.items():
        if len(names) > 1:
            found.setdefault(client_id, set()).update(names)
    return {client_id: sorted(addresses) for client_id, addresses in sorted(found.items())}


def members_of(
    online: Mapping[BrokerRef, ConsumerConnection], infos: Mapping[str, ConsumerRunningInfo]
) -> tuple[Member, ...]:
    """The members that brokers know, with what each reported, by client id."""
    found: dict[str, tuple[Connection, list[str]]] = {}
    for at, view in online.items():
        for connection in view.connections:
            _, names = found.setdefault(connection.client_id or "", (connection, []))
            names.append(at.name)
    return tuple(
        _member(client_id, connection, names, infos.get(client_id))
        for client_id, (connection, names) in sorted(found.items())
    )


def _member(
    client_id: str, connection: Connection, brokers: Iterable[str], info: ConsumerRunningInfo | None
) -> Member:
    member = Member(
        client_id=client_id,
        address=connection.client_addr or "",
        language=connection.language or "",
        version=version_name(connection.version),
        brokers=tuple(brokers),
        subscriptions=None,
    )
    if info is None:
        return member
    # A pop consumer has no offset; it pops more when messages are acknowledged.
    held = {
        queue: HeldQueue(each.wait_ack_count, each.last_pop_timestamp)
        for queue, each in (info.pop_queues or {}).items()
    } | {
        queue: HeldQueue(each.commit_offset, each.last_consume_timestamp, in_order=each.locked)
        for queue, each in info.queues.items()
    }
    return replace(
        member,
        subscriptions=filters_of(info.subscriptions),
        queues=held,
        consume_ms={topic: each.consume_ms for topic, each in info.statuses.items()},
    )


# -- evaluating the responses ---------------------------------------------------------------------


def filter_text(subscription: SubscriptionData) -> str:
    """A filter as text: the expression, with its type unless it is by tags."""
    text = subscription.expression or "*"
    kind = subscription.expression_type or "TAG"
    if kind != "TAG":
        return f"{kind} {text}"
    # "a || b" and "b||a" select the same messages.
    return " || ".join(sorted(tag.strip() for tag in text.split("||") if tag.strip())) or "*"


def filters_of(subscriptions: Iterable[SubscriptionData]) -> dict[str, str]:
    """Filters by topic, without the retry topic of every member."""
    return {
        each.topic: filter_text(each)
        for each in sorted(subscriptions, key=lambda each: each.topic or "")
        if each.topic and not each.topic.startswith(RETRY_TOPIC_PREFIX)
    }


def subscriptions_of(
    members: Iterable[Member], connections: Iterable[ConsumerConnection]
) -> dict[str, str]:
    """Filters by topic, as members report them, or else brokers.

    If members differ, all their filters are listed: a broker keeps the one received last.
    """
    views = [each.subscriptions for each in members if each.subscriptions is not None]
    views = views or [filters_of(view.subscriptions.values()) for view in connections]
    merged: dict[str, set[str]] = {}
    for view in views:
        for topic, text in view.items():
            merged.setdefault(topic, set()).add(text)
    return {topic: " or ".join(sorted(texts)) for topic, texts in sorted(merged.items())}


def conflicts(members: Iterable[Member]) -> tuple[SubscriptionConflict, ...]:
    """Conflicts between members that reported their subscriptions."""
    return _compare(
        {each.client_id: each.subscriptions for each in members if each.subscriptions is not None}
    )


def reported_conflicts(
    connections: Iterable[ConsumerConnection],
) -> tuple[SubscriptionConflict, ...]:
    """Conflicts that Tianzhou brokers detected in heartbeats; Apache's do not report them."""
    sides: dict[str, dict[str, list[str]]] = {}
    for view in connections:
        for each in view.differences or ():
            by_filter = sides.setdefault(each.topic or "", {})
            for client_id, what in (
                (each.client_id, each.subscribes),
                (each.other_client_id, each.other_subscribes),
            ):
                names = by_filter.setdefault(what or NOT_SUBSCRIBED, [])
                if client_id and client_id not in names:
                    names.append(client_id)
    return tuple(_conflict(topic, by_filter) for topic, by_filter in sorted(sides.items()))


def broker_conflicts(
    online: Mapping[BrokerRef, ConsumerConnection],
) -> tuple[SubscriptionConflict, ...]:
    """Conflicts between the subscriptions that different brokers have of the group."""
    return _compare(
        {
            f"broker {at.name}": filters_of(view.subscriptions.values())
            for at, view in online.items()
        }
    )


def _compare(known: Mapping[str, Mapping[str, str]]) -> tuple[SubscriptionConflict, ...]:
    found: list[SubscriptionConflict] = []
    for topic in sorted({topic for filters in known.values() for topic in filters}):
        sides: dict[str, list[str]] = {}
        for name, filters in known.items():
            sides.setdefault(filters.get(topic, NOT_SUBSCRIBED), []).append(name)
        if len(sides) > 1:
            found.append(_conflict(topic, sides))
    return tuple(found)


def _conflict(topic: str, sides: Mapping[str, Iterable[str]]) -> SubscriptionConflict:
    return SubscriptionConflict(
        topic, {what: tuple(names) for what, names in sorted(sides.items())}
    )


def merge_progress(stats: Iterable[ConsumeStats]) -> dict[MessageQueue, ConsumeOffsets]:
    """All queues of a group; each is reported by one broker."""
    return {queue: offsets for each in stats for queue, offsets in each.offsets.items()}


def total_lag(stats: Iterable[ConsumeStats]) -> int:
    """Messages that a group has not consumed yet."""
    offsets = merge_progress(stats).values()
    return sum(max(each.broker_offset - each.consumer_offset, 0) for each in offsets)


def queue_progress(
    offsets: Mapping[MessageQueue, ConsumeOffsets], members: Iterable[Member] = ()
) -> tuple[QueueProgress, ...]:
    """Progress by queue, with the member that holds it."""
    holders = {queue: member.client_id for member in members for queue in member.queues}
    rows = (
        QueueProgress(
            topic=queue.topic or "",
            broker_name=queue.broker_name or "",
            queue_id=queue.queue_id,
            end_offset=each.broker_offset,
            committed_offset=each.consumer_offset,
            last_time_ms=each.last_timestamp,
            client_id=holders.get(queue),
        )
        for queue, each in offsets.items()
    )
    return tuple(sorted(rows, key=lambda row: (row.topic, row.broker_name, row.queue_id)))


# -- one line per group ----------------------------------------------------------------------------


def model_name(text: str | None) -> str | None:
    """A message model in lower case, as commands print it."""
    return {"CLUSTERING": "clustering", "BROADCASTING": "broadcasting"}.get(text or "", text)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The main figures of a group."""

    group: str
    members: int
    model: str | None
    topics: list[str]
    lag: int
    consume_tps: float
    brokers: list[str]


async def summarize(
    groups: Groups,
    name: str,
    brokers: Sequence[BrokerRef],
    warnings: list[str],
    progress: Sequence[ConsumeStats] | None = None,
) -> GroupSummary:
    """The main figures of a group on these brokers; appends a warning per failed request.

    `progress` is that of the group, if it was read with that of all groups.
    """
    online = await gather(brokers, lambda at: groups.connection(at, name))
    warnings += online.warnings
    if progress is None:
        read = await gather(brokers, lambda at: groups.progress_on(at, name))
        warnings += read.warnings
        progress = list(read.responses.values())
    connected = [each for each in online.responses.values() if each is not None]
    offsets = merge_progress(progress)
    topics = {queue.topic or "" for queue in offsets}
    return GroupSummary(
        group=name,
        members=len({client.client_id for each in connected for client in each.connections}),
        model=model_name(connected[0].message_model) if connected else None,
        topics=sorted(topic for topic in topics if not topic.startswith(RETRY_TOPIC_PREFIX)),
        lag=total_lag(progress),
        consume_tps=sum(each.consume_tps for each in progress),
        brokers=[at.name for at in brokers],
    )
