"""From what is known about a cluster to a snapshot. Pure functions over `ClusterState`.

Figures of topics and groups are sums over the masters that answered. A master that did not answer,
and that has the topic or may have it, is named in `missing`; a sum of 0 with a missing broker says
nothing and is None.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tianzhou.admin.group_detail import (
    duplicate_client_ids,
    filters_of,
    model_name,
    reported_conflicts,
)
from tianzhou.console.collect import broker_figures
from tianzhou.console.collect.counting import NO_OFFSET, Offsets, SeriesKey
from tianzhou.console.collect.days import Days
from tianzhou.console.collect.snapshot import (
    DEAD_LETTER,
    NORMAL,
    RETRY,
    SYSTEM,
    Broker,
    Contradiction,
    Group,
    GroupTopic,
    Member,
    Nameserver,
    ProducerGroup,
    Snapshot,
    Topic,
    TopicQueues,
    Totals,
)
from tianzhou.console.collect.state import BrokerState, ClusterState, Progress
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    INTERNAL_TOPIC_PREFIXES,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    is_internal_group,
)
from tianzhou.protocol.bodies.clients import Connection, ProducerInfo
from tianzhou.protocol.version import version_name

_MESSAGE_TYPE = "message.type"


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What a snapshot says about its round."""

    cluster: str
    version: int
    as_of_ms: int
    steady_ms: int
    days: Days
    zone: str = "UTC"
    interval_ms: int = 60_000
    interval_wanted_ms: int = 60_000
    interval_reason: str = ""
    collector: str = ""
    problem: str = ""
    request_count: int = 0
    nameservers: tuple[Nameserver, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def compute(state: ClusterState, facts: RoundFacts) -> Snapshot:
    """The snapshot of a cluster after a round."""
    system = _own_topics(state)
    masters = state.masters()
    groups = _groups(state, masters, facts)
    readers: dict[str, list[str]] = {}
    for group in groups:
        for each in group.topics:
            readers.setdefault(each.topic, []).append(group.name)
        for topic, _ in group.subscriptions:
            if topic not in {each.topic for each in group.topics}:
                readers.setdefault(topic, []).append(group.name)
    topics = _topics(state, masters, facts, system, readers)
    brokers = tuple(
        broker_figures.broker_of(each)
        for _, each in sorted(state.brokers.items(), key=lambda pair: pair[0])
    )
    return Snapshot(
        cluster=facts.cluster,
        version=facts.version,
        as_of_ms=facts.as_of_ms,
        interval_ms=facts.interval_ms,
        interval_wanted_ms=facts.interval_wanted_ms,
        interval_reason=facts.interval_reason,
        collector=facts.collector,
        problem=facts.problem,
        request_count=facts.request_count,
        warnings=(*facts.warnings, *_warnings(state)),
        zone=facts.zone,
        day=facts.days.today,
        totals=totals(brokers, topics, groups),
        nameservers=facts.nameservers,
        brokers=brokers,
        topics=topics,
        groups=groups,
        producers=_producers(masters),
    )


def at_least(values: Iterable[int | float | None], *, is_partial: bool) -> int | float | None:
    """The sum of the known values; None if there are none, or if 0 is only a lower bound."""
    known = [each for each in values if each is not None]
    if not known or (is_partial and not any(known)):
        return None
    return sum(known)


def count_at_least(values: Iterable[int | None], *, is_partial: bool) -> int | None:
    """The same for whole numbers."""
    found = at_least(values, is_partial=is_partial)
    return None if found is None else int(found)


# -- topics ----------------------------------------------------------------------------------------


def kind_of(topic: str, system: frozenset[str] = frozenset()) -> str:
    """NORMAL, RETRY, DEAD_LETTER or SYSTEM; `system` are topics of the cluster and its brokers."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return RETRY
    if topic.startswith(DLQ_TOPIC_PREFIX):
        return DEAD_LETTER
    is_system = (
        topic in SYSTEM_TOPICS
        or topic in system
        or topic.startswith(INTERNAL_TOPIC_PREFIXES)
        or topic.endswith(REPLY_TOPIC_SUFFIX)
    )
    return SYSTEM if is_system else NORMAL


def _own_topics(state: ClusterState) -> frozenset[str]:
    """The topics that brokers create with their own name and that of their cluster."""
    names = {each.at.name for each in state.brokers.values()}
    return frozenset(names | {each.at.cluster for each in state.brokers.values()})


def _topics(
    state: ClusterState,
    masters: list[BrokerState],
    facts: RoundFacts,
    system: frozenset[str],
    readers: Mapping[str, list[str]],
) -> tuple[Topic, ...]:
    names = {name for each in masters for name in each.topics}
    return tuple(
        _topic(name, state, masters, facts, kind_of(name, system), readers.get(name, []))
        for name in sorted(names)
    )


def _topic(
    name: str,
    state: ClusterState,
    masters: list[BrokerState],
    facts: RoundFacts,
    kind: str,
    groups: list[str],
) -> Topic:
    queues = tuple(_queues(each, name) for each in masters if name in each.topics)
    read = [
        extent
        for each in masters
        if each.answered and (extent := each.extents.get(name)) is not None
        and name not in each.failed_topics
    ]  # fmt: skip
    missing = tuple(each.at.name for each in masters if _lacks_topic(each, name))
    is_partial = bool(missing)
    counted = state.ledger.counted(SeriesKey(name), facts.days.today, facts.days.yesterday)
    newest_ms = max((each.last_ms for each in read), default=0)
    settings = {(q.read, q.write, q.perm, q.is_ordered, q.attributes) for q in queues}
    attributes = dict(next((q.attributes for q in queues if q.attributes), ()))
    return Topic(
        name=name,
        kind=kind,
        message_type=attributes.get(_MESSAGE_TYPE, ""),
        is_ordered=any(q.is_ordered for q in queues),
        queues=queues,
        settings_differ=len(settings) > 1,
        missing=missing,
        as_of_ms=min((each.read_ms for each in read), default=None),
        in_per_s=at_least((each.per_s for each in read), is_partial=is_partial),
        today=None if not read else count_at_least([counted.today], is_partial=is_partial),
        yesterday=counted.yesterday,
        stored=count_at_least((each.stored for each in read), is_partial=is_partial),
        last_message_ms=newest_ms or None,
        groups=tuple(sorted(groups)),
    )


def _queues(broker: BrokerState, topic: str) -> TopicQueues:
    config, extent = broker.topics[topic], broker.extents.get(topic)
    is_read = broker.answered and extent is not None and topic not in broker.failed_topics
    return TopicQueues(
        broker=broker.at.name,
        read=config.read_queue_count,
        write=config.write_queue_count,
        perm=config.perm,
        is_ordered=config.order,
        attributes=tuple(sorted((config.attributes or {}).items())),
        produced=extent.produced if is_read and extent is not None else None,
        stored=extent.stored if is_read and extent is not None else None,
    )


def _lacks_topic(broker: BrokerState, topic: str) -> bool:
    """Whether a topic is on a broker, or may be, and its figures are not known."""
    if broker.is_known and topic not in broker.topics:
        return False
    return not broker.answered or topic not in broker.extents or topic in broker.failed_topics


# -- groups ----------------------------------------------------------------------------------------


def _groups(
    state: ClusterState, masters: list[BrokerState], facts: RoundFacts
) -> tuple[Group, ...]:
    names = {name for each in masters for name in each.groups}
    return tuple(_group(name, state, masters, facts) for name in sorted(names))


def _group(name: str, state: ClusterState, masters: list[BrokerState], facts: RoundFacts) -> Group:
    configs = [(each.at.name, each.groups[name]) for each in masters if name in each.groups]
    missing = tuple(each.at.name for each in masters if _lacks_group(each, name))
    found = state.members.get(name)
    view = found.connection if found is not None else None
    subscriptions = filters_of(view.subscriptions.values()) if view is not None else {}
    by_topic: dict[str, list[tuple[BrokerState, Progress]]] = {}
    for each in masters:
        if each.answered:
            for topic, progress in each.progress.get(name, {}).items():
                by_topic.setdefault(topic, []).append((each, progress))
    topics = tuple(
        _group_topic(name, topic, state, parts, missing, facts)
        for topic, parts in sorted(by_topic.items())
        if _is_read(topic, subscriptions, is_online=view is not None)
    )
    ages = [each for each in topics if each.oldest_age_ms is not None]
    oldest = max(ages, key=lambda each: each.oldest_age_ms or 0, default=None)
    is_partial = bool(missing) or any(each.missing for each in topics)
    letters = DLQ_TOPIC_PREFIX + name
    letter_extents = [
        extent
        for each in masters
        if each.answered and (extent := each.extents.get(letters)) is not None
    ]
    lacks_letters = any(_lacks_topic(each, letters) for each in masters)
    counted = state.ledger.counted(SeriesKey(letters), facts.days.today, facts.days.yesterday)
    has_letters = any(letters in each.topics for each in masters)
    settings = {
        (c.consume_enable, c.retry_max_times, c.retry_queue_count, c.consume_broadcast_enable,
         bool(c.consume_orderly))
        for _, c in configs
    }  # fmt: skip
    return Group(
        name=name,
        is_internal=is_internal_group(name),
        brokers=tuple(broker for broker, _ in configs),
        is_enabled=all(config.consume_enable for _, config in configs),
        settings_differ=len(settings) > 1,
        retry_max=max(config.retry_max_times for _, config in configs),
        missing=missing,
        topics=topics,
        lag=count_at_least((each.lag for each in topics), is_partial=is_partial),
        consumed_per_s=at_least((each.consumed_per_s for each in topics), is_partial=is_partial),
        oldest_age_ms=oldest.oldest_age_ms if oldest is not None else None,
        oldest_is_minimum=oldest.oldest_is_minimum if oldest is not None else False,
        consumed_today=_all_or_none(each.consumed_today for each in topics),
        consumed_yesterday=_all_or_none(each.consumed_yesterday for each in topics),
        resets_today=_all_or_none(each.resets_today for each in topics),
        dead_letters=_letters(
            (each.stored for each in letter_extents), has_letters, is_partial=lacks_letters
        ),
        dead_letters_today=_letters([counted.today], has_letters, is_partial=lacks_letters),
        dead_letters_produced=_letters(
            (each.produced for each in letter_extents), has_letters, is_partial=lacks_letters
        ),
        members=None if found is None or found.problem else _members(view.connections)
        if view is not None else (),
        members_ms=found.read_ms if found is not None else None,
        members_problem=found.problem if found is not None else "",
        model=model_name(view.message_model) or "" if view is not None else "",
        consume_type=view.consume_type or "" if view is not None else "",
        subscriptions=tuple(sorted(subscriptions.items())),
        contradictions=_contradictions(name, state),
        duplicate_ids=_duplicates(name, state, masters),
    )  # fmt: skip


def _letters(values: Iterable[int | None], has_letters: bool, *, is_partial: bool) -> int | None:
    """A figure of the dead letters: 0 if no broker has the topic and all are known."""
    if not has_letters and not is_partial:
        return 0
    return count_at_least(values, is_partial=is_partial)


def _all_or_none(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if not found or None in found else sum(each or 0 for each in found)


def _lacks_group(broker: BrokerState, group: str) -> bool:
    """Whether a group is on a broker, or may be, and its progress is not known."""
    if broker.is_known and group not in broker.groups:
        return False
    return not broker.answered or not broker.has_progress


def _is_read(topic: str, subscriptions: Mapping[str, str], *, is_online: bool) -> bool:
    """Whether a topic with a committed offset counts: not if the members have left it."""
    return (
        not is_online
        or not subscriptions
        or topic in subscriptions
        or topic.startswith(RETRY_TOPIC_PREFIX)
    )


def _group_topic(
    group: str,
    topic: str,
    state: ClusterState,
    parts: list[tuple[BrokerState, Progress]],
    missing: tuple[str, ...],
    facts: RoundFacts,
) -> GroupTopic:
    lags: list[int] = []
    unread = list(missing)
    age_ms, is_minimum = None, False
    for broker, progress in parts:
        extent = broker.extents.get(topic)
        if extent is None or topic in broker.failed_topics:
            unread.append(broker.at.name)
            continue
        lag = lag_of(progress.committed, extent.ends)
        lags.append(lag)
        if lag:
            found = broker.recordings[topic].oldest(progress.committed, facts.steady_ms)
            if found is not None:
                # No message of the backlog is newer than the newest of the topic.
                least_ms = max(facts.as_of_ms - extent.last_ms, 0) if extent.last_ms else 0
                here_ms = max(found.age_ms, least_ms) if found.is_minimum else found.age_ms
                # The offsets were read after the round began.
                here_ms = max(here_ms, 0)
                if age_ms is None or here_ms > age_ms:
                    age_ms, is_minimum = here_ms, found.is_minimum
    counted = state.ledger.counted(SeriesKey(topic, group), facts.days.today, facts.days.yesterday)
    is_partial = bool(unread)
    return GroupTopic(
        topic=topic,
        lag=count_at_least(lags, is_partial=is_partial),
        consumed_per_s=at_least((each.per_s for _, each in parts), is_partial=bool(missing)),
        oldest_age_ms=age_ms,
        oldest_is_minimum=is_minimum,
        committed=sum(max(each, 0) for _, part in parts for each in part.committed),
        consumed_today=counted.today,
        consumed_yesterday=counted.yesterday,
        resets_today=counted.resets_today,
        missing=tuple(sorted(set(unread))),
    )


def lag_of(committed: Offsets, ends: Offsets) -> int:
    """Messages not consumed; a queue without an offset counts from 0, as in RocketMQ."""
    if len(committed) == len(ends) and NO_OFFSET not in committed:
        lag = sum(ends) - sum(committed)
        if all(map(int.__ge__, ends, committed)):
            return lag
    total = 0
    for queue_id, end in enumerate(ends):
        done = committed[queue_id] if queue_id < len(committed) else 0
        total += max(end - max(done, 0), 0)
    return total


# -- members ---------------------------------------------------------------------------------------


def _members(connections: Iterable[Connection]) -> tuple[Member, ...]:
    found = {
        each.client_id or "": Member(
            client_id=each.client_id or "",
            address=each.client_addr or "",
            language=each.language or "",
            version=version_name(each.version),
        )
        for each in connections
    }
    return tuple(found[client_id] for client_id in sorted(found))


def _contradictions(group: str, state: ClusterState) -> tuple[Contradiction, ...]:
    found = state.members.get(group)
    if found is None or found.connection is None:
        return ()
    conflicts = reported_conflicts([found.connection])
    return tuple(
        Contradiction(topic=each.topic, sides=tuple(sorted(each.sides.items())))
        for each in conflicts
    )


def _duplicates(group: str, state: ClusterState, masters: list[BrokerState]) -> tuple[str, ...]:
    found = state.members.get(group)
    if found is None or found.connection is None or not masters:
        return ()
    return tuple(duplicate_client_ids({masters[0].at: found.connection}))


def _producers(masters: list[BrokerState]) -> tuple[ProducerGroup, ...] | None:
    if all(each.producers is None for each in masters):
        return None
    clients: dict[str, dict[str, ProducerInfo]] = {}
    for each in masters:
        for group, found in (each.producers or {}).items():
            by_id = clients.setdefault(group, {})
            for client in found:
                by_id.setdefault(client.client_id or "", client)
    return tuple(
        ProducerGroup(
            name=group,
            members=tuple(
                Member(
                    client_id=client_id,
                    address=client.remote_ip or "",
                    language=client.language or "",
                    version=version_name(client.version),
                )
                for client_id, client in sorted(by_id.items())
            ),
        )
        for group, by_id in sorted(clients.items())
    )


# -- totals and warnings ---------------------------------------------------------------------------


def totals(brokers: Iterable[Broker], topics: Iterable[Topic], groups: Iterable[Group]) -> Totals:
    """The cluster in one line. Also for a part of it, such as the names of one tenant."""
    known = list(brokers)
    masters = [each for each in known if each.is_master]
    up = {each.name for each in masters if each.answered}
    down = sorted({each.name for each in known} - up)
    is_partial = bool(down)
    shown = [each for each in groups if not each.is_internal]
    return Totals(
        brokers_known=len(known),
        brokers_answered=sum(each.answered for each in known),
        masters_missing=tuple(down),
        in_per_s=at_least((each.in_per_s for each in masters), is_partial=is_partial),
        out_per_s=at_least((each.out_per_s for each in masters), is_partial=is_partial),
        in_today=count_at_least((each.in_today for each in masters), is_partial=is_partial),
        out_today=count_at_least((each.out_today for each in masters), is_partial=is_partial),
        topics=sum(each.kind == NORMAL for each in topics),
        groups=len(shown),
        groups_behind=sum(bool(each.lag) for each in shown),
        groups_unknown=sum(each.lag is None and bool(each.missing) for each in shown),
        lag=count_at_least((each.lag for each in shown), is_partial=is_partial),
        dead_letters_today=count_at_least(
            (each.dead_letters_today for each in shown), is_partial=is_partial
        ),
        disk_ratio_max=max(
            (each.disk_ratio for each in known if each.disk_ratio is not None), default=None
        ),
    )


def _warnings(state: ClusterState) -> list[str]:
    """One line for each broker that did not answer, and one for all unread topics of a broker."""
    lines: list[str] = []
    for _, each in sorted(state.brokers.items()):
        if not each.answered:
            lines.append(f"{each.at.label} ({each.at.address}): {each.problem}")
        elif not each.is_registered:
            lines.append(f"{each.at.label} ({each.at.address}): answers, but is not registered")
        if each.answered and each.failed_topics:
            topic, reason = next(iter(sorted(each.failed_topics.items())))
            others = len(each.failed_topics) - 1
            more = f" and {others:,} other topics" if others else ""
            lines.append(f"{each.at.label}: offsets of {topic}{more} could not be read: {reason}")
    return lines
