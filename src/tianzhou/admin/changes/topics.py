"""Planning changes of topics: where a topic is, who uses it, which queues are drained.

Removing queues takes two steps, or messages are lost for their consumers: first producers stop
writing to them (write queues), and when every group has consumed them consumers stop reading them
(read queues). `drain` says how far that is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, Gathered, gather_any, run_limited
from tianzhou.admin.topics import extents
from tianzhou.client.sending.send_request import check_name_of_topic
from tianzhou.errors import MessageRefused, TargetError, TianzhouError
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    INTERNAL_TOPIC_PREFIXES,
    ORDER_TOPIC_NAMESPACE,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    is_system_topic,
)
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import TopicOffset
from tianzhou.protocol.bodies.topics import TopicConfig

QUEUES_MAX = 1024
"""Most queues of a topic on one broker that a plan accepts; brokers have their own limits."""
_ALL_NAMESERVERS = "nameservers"


# -- names -----------------------------------------------------------------------------------------


def check_new_topic(name: str, reserved: Iterable[str] = ()) -> None:
    """Raises TargetError for a name that a new topic cannot have."""
    try:
        check_name_of_topic(name)
    except MessageRefused as e:
        raise TargetError(str(e)) from e
    check_own_topic(name, reserved)


def check_own_topic(name: str, reserved: Iterable[str] = ()) -> None:
    """Raises TargetError for topics of RocketMQ itself, which no one may change or delete.

    `reserved` are the names of clusters and brokers, which have a topic each.
    """
    if is_reserved_topic(name) or name in set(reserved):
        raise TargetError(f"topic {name} belongs to RocketMQ itself; it cannot be changed here")
    if name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        group = name.partition("%")[2].partition("%")[2]
        raise TargetError(
            f"topic {name} belongs to the consumer group {group}; it is created and deleted "
            "with the group"
        )


def is_reserved_topic(topic: str) -> bool:
    """Whether every broker makes this topic itself."""
    return (
        is_system_topic(topic)
        or topic.startswith(INTERNAL_TOPIC_PREFIXES)
        or topic.endswith(REPLY_TOPIC_SUFFIX)
    )


async def reserved_names(admin: Admin) -> set[str]:
    """The names of clusters and brokers."""
    info = await admin.clusters.info()
    return {*info.clusters, *info.brokers}


# -- where it is -----------------------------------------------------------------------------------


async def topic_on_masters(admin: Admin, topic: str) -> Gathered[TopicConfig | None]:
    """The settings of a topic on each master of the cluster; None: the broker does not have it."""
    brokers = choose(await admin.clusters.info(), masters=True)
    return await gather_any(brokers, lambda at: admin.topics.config(at, topic))


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """The result of a change of a topic on brokers and nameservers."""

    brokers: Gathered[None]
    nameservers: Mapping[str, TianzhouError] = field(default_factory=dict[str, TianzhouError])
    """Failures by address."""


async def put_topic(
    admin: Admin, configs: Mapping[BrokerRef, TopicConfig], *, ordered_on: Iterable[BrokerRef] = ()
) -> TopicChanged:
    """Create or change a topic on some brokers, and its order configuration in the nameservers.

    `ordered_on` are further brokers that have the ordered topic. A server that fails does not stop
    the others.
    """
    (topic,) = {config.topic_name or "" for config in configs.values()}
    is_ordered = any(config.order for config in configs.values())
    failures: dict[str, TianzhouError] = {}
    if not is_ordered:
        # Before the brokers: they mark every topic as ordered that the nameserver lists.
        try:
            await remove_order(admin, topic)
        except TianzhouError as e:
            failures[_ALL_NAMESERVERS] = e
    done = await gather_any(configs, lambda at: admin.topics.put(at, configs[at]))
    if is_ordered and done.responses:
        counts = {at.name: configs[at].write_queue_count for at in done.responses}
        try:
            for at in ordered_on:
                config = await admin.topics.config(at, topic)
                if config is not None:
                    counts.setdefault(at.name, config.write_queue_count)
            await store_order(admin, topic, counts)
        except TianzhouError as e:
            failures[_ALL_NAMESERVERS] = e
    return TopicChanged(done, failures)


async def delete_topic(admin: Admin, topic: str, brokers: Iterable[BrokerRef]) -> TopicChanged:
    """Delete a topic on brokers, then its routes and its order configuration in all nameservers."""
    done = await gather_any(brokers, lambda at: admin.topics.delete_on(at, topic))
    failures: dict[str, TianzhouError] = {}
    if done.responses and not done.failures:
        for address in admin.namesrv.addresses:
            try:
                for cluster in sorted({at.cluster for at in done.responses}):
                    await admin.topics.delete_route(address, topic, cluster)
            except TianzhouError as e:
                failures[address] = e
        if not failures:
            await remove_order(admin, topic)
    return TopicChanged(done, failures)


async def store_order(admin: Admin, topic: str, queue_counts: Mapping[str, int]) -> str:
    """Store the queues of an ordered topic by broker name, so that consumers agree on them."""
    text = ";".join(f"{name}:{count}" for name, count in sorted(queue_counts.items()))
    await admin.namesrv.put(ORDER_TOPIC_NAMESPACE, topic, text)
    return text


async def remove_order(admin: Admin, topic: str) -> None:
    """Remove the order configuration of a topic, if it has one."""
    if await admin.namesrv.value(ORDER_TOPIC_NAMESPACE, topic) is not None:
        await admin.namesrv.remove(ORDER_TOPIC_NAMESPACE, topic)


# -- who uses it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupUse:
    """A group that consumes a topic."""

    group: str
    lag_count: int | None
    """None: unknown."""
    members: int | None
    """Members on line; None: unknown."""


@dataclass(frozen=True, slots=True)
class TopicUse:
    """What a topic holds and who consumes it."""

    stored_count: int | None
    """Messages that can be read; None if a broker did not answer."""
    last_message_ms: int | None
    """None: there is none, or it is unknown."""
    groups: tuple[GroupUse, ...] = ()
    warnings: tuple[str, ...] = ()
    queues: tuple[tuple[MessageQueue, TopicOffset], ...] = field(default=())

    @property
    def online(self) -> tuple[GroupUse, ...]:
        """The groups with members on line, or perhaps with members."""
        return tuple(each for each in self.groups if each.members is None or each.members > 0)


async def topic_use(admin: Admin, topic: str, brokers: Iterable[BrokerRef]) -> TopicUse:
    """What a topic holds on these brokers, and the groups that consume it there."""
    on = list(brokers)
    stats = await gather_any(on, lambda at: admin.topics.stats_on(at, topic))
    warnings = list(stats.warnings)
    try:
        names = await admin.topics.groups(topic)
    except TianzhouError as e:
        names = []
        warnings.append(f"the groups of {topic} could not be read: {e}")
    queues = extents(stats)
    times = [each.last_update_timestamp for _, each in queues]
    is_complete = not stats.failures
    return TopicUse(
        stored_count=sum(each.max_offset - each.min_offset for _, each in queues)
        if is_complete
        else None,
        last_message_ms=max((ms for ms in times if ms > 0), default=None) if is_complete else None,
        groups=tuple(await run_limited(names, lambda name: group_use(admin, name, topic, on))),
        warnings=tuple(warnings),
        queues=tuple(queues),
    )


async def group_use(admin: Admin, group: str, topic: str, brokers: Iterable[BrokerRef]) -> GroupUse:
    """The backlog and the members of a group on a topic."""
    on = list(brokers)
    progress = await gather_any(on, lambda at: admin.groups.progress_on(at, group, topic))
    views = await gather_any(on, lambda at: admin.groups.connection(at, group))
    lag = sum(
        max(each.broker_offset - each.consumer_offset, 0)
        for stats in progress.responses.values()
        for queue, each in stats.offsets.items()
        if queue.topic == topic
    )
    members = {
        connection.client_id
        for view in views.responses.values()
        if view is not None
        for connection in view.connections
    }
    return GroupUse(
        group,
        None if progress.failures else lag,
        None if views.failures and not members else len(members),
    )


# -- removing queues -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueDrain:
    """A queue that producers no longer write to and consumers still read."""

    broker_name: str
    queue_id: int
    stored_count: int
    left: tuple[tuple[str, int], ...]
    """(group, messages that it has not consumed) for each group of the topic."""

    @property
    def left_count(self) -> int:
        """Of the slowest group; without groups what the queue holds."""
        return max((count for _, count in self.left), default=self.stored_count)


@dataclass(frozen=True, slots=True)
class Drain:
    """How far the queues of a topic are drained that are to be removed."""

    queues: tuple[QueueDrain, ...]
    warnings: tuple[str, ...] = ()
    """Why it is not known for all of them."""

    @property
    def left_count(self) -> int:
        return sum(each.left_count for each in self.queues)

    @property
    def is_done(self) -> bool:
        """Whether the queues can be removed without a loss for any group."""
        return not self.warnings and self.left_count == 0


async def drain(
    admin: Admin, topic: str, reads: Mapping[BrokerRef, range], groups: Iterable[str]
) -> Drain:
    """How far some queues are drained; `reads` are the ids of the queues to remove by broker."""
    wanted = {at: ids for at, ids in reads.items() if ids}
    names = sorted(groups)
    stats = await gather_any(wanted, lambda at: admin.topics.stats_on(at, topic))
    warnings = list(stats.warnings)
    extent = {(queue.broker_name, queue.queue_id): each for queue, each in extents(stats)}
    pairs = [(at, group) for at in stats.responses for group in names]

    async def committed(pair: tuple[BrokerRef, str]) -> dict[int, int | None] | str:
        at, group = pair
        try:
            ids = wanted[at]
            values = [await admin.offsets.committed(at, group, topic, each) for each in ids]
            return dict(zip(ids, values, strict=True))
        except TianzhouError as e:
            return f"{at.label}: the offsets of {group} could not be read: {e}"

    answers = dict(zip(pairs, await run_limited(pairs, committed), strict=True))
    warnings += [each for each in answers.values() if isinstance(each, str)]
    queues: list[QueueDrain] = []
    for at in sorted(stats.responses):
        for queue_id in wanted[at]:
            ends = extent.get((at.name, queue_id))
            if ends is None:
                continue
            left: list[tuple[str, int]] = []
            for group in names:
                offsets = answers[at, group]
                if isinstance(offsets, str):
                    continue
                start = max(offsets.get(queue_id) or 0, ends.min_offset)
                left.append((group, max(ends.max_offset - start, 0)))
            stored = ends.max_offset - ends.min_offset
            queues.append(QueueDrain(at.name, queue_id, stored, tuple(left)))
    return Drain(tuple(queues), tuple(warnings))
