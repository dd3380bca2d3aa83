"""The tables of a nameserver: brokers, their topics, and the routes derived from them.

Plain data and no clock: callers pass `now_ms`. Nothing here is written to disk; a nameserver starts
with empty tables, and brokers register every 30 seconds.

    group   the brokers of one name: a master (id 0) and its slaves, which share topics
    broker  one process of a group, identified by cluster and address, tied to one connection
    topic   the groups that have it; the queues of a topic in a group are one shared `QueueData`

Rules of RocketMQ that are easy to miss:

- Topics come from the master; in a group without one, from a 5.x slave with the lowest id.
- An unchanged registration (same DataVersion) adds missing topics and changes no others, so a wiped
  permission stays wiped until the broker's own topic table changes.
- A registration that lists a single topic adds to an earlier one, and is rejected as the first.
- If two brokers claim one id, the one with the lower state version is ignored.

Over 500 lines: every change touches brokers, groups, topics and clusters together, and these
methods keep the four tables consistent.
"""

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tianzhou.names import MASTER_ID, PERM_READ, PERM_WRITE
from tianzhou.namesrv.registrations import (
    Address,
    BrokerIdentity,
    BrokerTopics,
    Dropped,
    MinIdNotice,
    Registered,
)
from tianzhou.protocol.bodies.route import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from tianzhou.protocol.bodies.topics import DataVersion

MEMBER_SYNC_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Routes of topics with this prefix list the actual brokers of a group, never an acting master."""

_UNUSED_QUEUES_MAX = 64
_MAPPINGS_MAX = 64
_FORGET_BATCH = 500

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that grows with the topics of a broker, and may be paused at each step. Until it ends the
registry may be read, but not changed by other work."""


# -- tables ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """The brokers of one name. `epoch` counts changes after which `renew` is not enough."""

    cluster: str
    name: str
    addrs: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None
    queues: dict[str, QueueData] = field(default_factory=dict)
    interned: dict[tuple[int, int, int, int], QueueData] = field(default_factory=dict)
    epoch: int = 0
    data: dict[bool, BrokerData] = field(default_factory=dict)

    def as_data(self, *, acting: bool = False) -> BrokerData:
        """The group as clients see it, with the lowest id as master if it is `acting`.

        Returns the same object until the group changes.
        """
        data = self.data.get(acting)
        if data is None:
            acting_id = min(self.addrs) if acting else None
            data = self.data[acting] = BrokerData(
                cluster=self.cluster,
                broker_name=self.name,
                addresses={
                    MASTER_ID if broker_id == acting_id else broker_id: addr
                    for broker_id, addr in self.addrs.items()
                },
                zone_name=self.zone,
                enable_acting_master=self.acting_master,
            )
        return data

    def has_acting_master_for(self, topic: str) -> bool:
        """Whether a slave acts as master: the group has no master, and the topic is read-only."""
        return (
            self.acting_master
            and MASTER_ID not in self.addrs
            and not self.queues[topic].perm & PERM_WRITE
        )

    def queue_data(self, read: int, write: int, perm: int, sys_flag: int) -> QueueData:
        """The shared QueueData with these numbers: most topics of a broker are alike."""
        key = (read, write, perm, sys_flag)
        queue = self.interned.get(key)
        if queue is None:
            if len(self.interned) > _UNUSED_QUEUES_MAX + len(self.queues):
                self.interned = {_numbers(used): used for used in self.queues.values()}
            queue = self.interned[key] = QueueData(
                broker_name=self.name,
                read_queue_count=read,
                write_queue_count=write,
                perm=perm,
                topic_sys_flag=sys_flag,
            )
        return queue

    def with_perm(self, queue: QueueData, perm: int) -> QueueData:
        read, write, _, sys_flag = _numbers(queue)
        return self.queue_data(read, write, perm, sys_flag)


def _numbers(queue: QueueData) -> tuple[int, int, int, int]:
    return (queue.read_queue_count, queue.write_queue_count, queue.perm, queue.topic_sys_flag)


def same_version(one: DataVersion, other: DataVersion) -> bool:
    """Whether two versions are equal. Brokers before 5.0 send no state version, which means 0."""
    return (
        one.timestamp == other.timestamp
        and one.counter == other.counter
        and (one.state_version or 0) == (other.state_version or 0)
    )


@dataclass(slots=True)
class _Broker:
    """A registered broker; its last registration or heartbeat was at `seen_ms`."""

    identity: BrokerIdentity
    connection: Hashable
    seen_ms: int
    version: DataVersion
    filter_servers: tuple[str, ...]
    digest: bytes
    epoch: int


@dataclass(slots=True)
class _Topic:
    """The groups that have a topic, in order of registration; they share the string `name`."""

    name: str
    groups: tuple[_Group, ...] = ()
    mappings: dict[str, TopicQueueMappingInfo] | None = None


class Sizes(NamedTuple):
    """Sizes of the tables, now or after a change; 0 for tables that the change does not grow."""

    topics: int = 0
    routes: int = 0
    """Topics of all groups, a topic counted for each of its groups."""
    brokers: int = 0
    filter_servers: int = 0
    """Of one broker."""


class Registry:
    """All brokers and topics. `forget` is called with the names of topics whose routes changed.

    `check_growth` is called with the new sizes before tables grow; it raises to reject the change.
    """

    def __init__(
        self,
        forget: Callable[[Collection[str]], None],
        check_growth: Callable[[Sizes, str], None] = lambda sizes, what: None,
    ) -> None:
        self._forget = forget
        self._check_growth = check_growth
        self._route_count = 0
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._brokers: dict[Address, _Broker] = {}
        self._by_connection: dict[Hashable, set[Address]] = {}

    @property
    def sizes(self) -> Sizes:
        """Of the tables now."""
        return Sizes(len(self._topics), self._route_count, len(self._brokers))

    # -- registering ------------------------------------------------------------------------------

    def renew(
        self, identity: BrokerIdentity, digest: bytes, connection: Hashable, now_ms: int
    ) -> Registered | None:
        """Extend a registration that is exactly as before; None if it is not.

        `digest` is a hash of the topics, so that they need not be decoded.
        """
        broker = self._brokers.get(identity.address)
        group = self._groups.get(identity.name)
        if (
            broker is None
            or group is None
            or broker.digest != digest
            or broker.identity != identity
            or broker.epoch != group.epoch
            or group.addrs.get(identity.broker_id) != identity.addr
        ):
            return None
        broker.seen_ms = now_ms
        self._connect(broker, connection)
        return self._registered(group, identity)

    def register(
        self,
        identity: BrokerIdentity,
        reported: BrokerTopics,
        digest: bytes,
        connection: Hashable,
        now_ms: int,
        *,
        delete_missing: bool = False,
    ) -> Steps[Registered | None]:
        """Add or update a broker; None if its first registration lists a single topic.

        With `delete_missing`, topics that the registration does not list are deleted.
        """
        newer = self._newer_version(identity, reported)
        if newer is not None:
            yield from self._drop(identity.address)
            return Registered(ignored=True, newer_version=newer)
        group = self._groups.get(identity.name)
        known_as = group.addrs.get(identity.broker_id) if group else None
        if known_as is None and len(reported.topics) == 1:
            return None
        yield from self._check_registration(group, identity, reported)
        broker = self._brokers.get(identity.address)
        if broker is not None and broker.identity.name != identity.name:
            # It returns under another name.
            yield from self._drop(identity.address)
        displaced = self._displaced(identity, known_as)
        new = identity.address not in self._brokers
        group, min_id_before = yield from self._join(identity)
        yield from self._apply_topics(
            group, identity, reported, first=known_as is None, delete_missing=delete_missing
        )
        yield from self._store_broker(group, identity, reported, digest, connection, now_ms)
        notice = None
        if min_id_before is not None and identity.broker_id < min_id_before:
            notice = _notice(group, offline_addr=None, ha_addr=identity.ha_addr)
        registered = self._registered(group, identity)
        return registered._replace(notice=notice, new=new, displaced=displaced)

    def _displaced(self, identity: BrokerIdentity, known_as: str | None) -> str | None:
        """The previous address of the id, if the broker there is still registered."""
        if known_as == identity.addr:
            return None
        brokers = (broker.identity for broker in self._brokers.values())
        alive = any(each.name == identity.name and each.addr == known_as for each in brokers)
        return known_as if alive else None

    def _check_registration(
        self, group: _Group | None, identity: BrokerIdentity, reported: BrokerTopics
    ) -> Steps[None]:
        known = {} if group is None else group.queues
        route_count = new_count = 0
        for name in reported.topics:
            yield
            if name not in known:
                route_count += 1
                new_count += name not in self._topics
        is_new = identity.address not in self._brokers
        sizes = Sizes(
            topics=len(self._topics) + new_count if new_count else 0,
            routes=self._route_count + route_count if route_count else 0,
            brokers=len(self._brokers) + 1 if is_new else 0,
            filter_servers=len(reported.filter_servers or ()),
        )
        self._check_growth(sizes, f"broker {identity.name} at {identity.addr}")

    def _newer_version(self, identity: BrokerIdentity, reported: BrokerTopics) -> int | None:
        """The state version of another broker with this id, if it is larger."""
        group = self._groups.get(identity.name)
        holder_addr = group.addrs.get(identity.broker_id) if group else None
        if holder_addr is None or holder_addr == identity.addr:
            return None
        holder = self._brokers.get((identity.cluster, holder_addr))
        if holder is None:
            return None
        version = holder.version.state_version or 0
        return version if version > (reported.version.state_version or 0) else None

    def _join(self, identity: BrokerIdentity) -> Steps[tuple[_Group, int | None]]:
        """Add a broker to its group; returns the group and the lowest id before."""
        group = self._groups.get(identity.name)
        if group is None:
            group = self._groups[identity.name] = _Group(identity.cluster, identity.name)
        self._clusters.setdefault(identity.cluster, {})[identity.name] = None
        min_id_before = min(group.addrs, default=None)
        # A slave may become master at the same address: one address has one id.
        addrs = {
            broker_id: addr
            for broker_id, addr in group.addrs.items()
            if addr != identity.addr or broker_id == identity.broker_id
        }
        addrs[identity.broker_id] = identity.addr
        after = (addrs, bool(identity.acting_master), identity.zone)
        if after != (group.addrs, group.acting_master, group.zone):
            group.addrs, group.acting_master, group.zone = after
            group.epoch += 1
            yield from self._changed(group)
        return group, min_id_before

    def _apply_topics(
        self,
        group: _Group,
        identity: BrokerIdentity,
        reported: BrokerTopics,
        *,
        first: bool,
        delete_missing: bool,
    ) -> Steps[None]:
        is_master = identity.broker_id == MASTER_ID
        is_first_slave = (
            not is_master
            and identity.acting_master is not None
            and identity.broker_id == min(group.addrs)
        )
        if not is_master and not is_first_slave:
            return
        if delete_missing and not reported.mappings:
            for name in list(group.queues):
                yield
                if name not in reported.topics:
                    self._remove_topic(group, name)
        broker = self._brokers.get(identity.address)
        changed = first or broker is None or not same_version(broker.version, reported.version)
        perm_mask = ~PERM_WRITE if is_first_slave and group.acting_master else ~0
        for name, topic in reported.topics.items():
            yield
            if changed or name not in group.queues:
                queue = group.queue_data(
                    topic.read_queue_count,
                    topic.write_queue_count,
                    topic.perm & perm_mask,
                    topic.topic_sys_flag,
                )
                self._put_queue(group, name, queue)
        if changed:
            yield from self._apply_mappings(reported.mappings)

    def _apply_mappings(self, mappings: Mapping[str, TopicQueueMappingInfo]) -> Steps[None]:
        for name, mapping in mappings.items():
            yield
            topic = self._topics.get(name)
            # A mapping for a topic without queues would never be part of a route.
            if topic is not None and mapping.broker_name in self._groups:
                known = topic.mappings or {}
                if len(known) >= _MAPPINGS_MAX:  # a few brokers that left may return
                    known = {name: each for name, each in known.items() if name in self._groups}
                topic.mappings = known | {mapping.broker_name: mapping}
                self._forget((name,))

    def _store_broker(
        self,
        group: _Group,
        identity: BrokerIdentity,
        reported: BrokerTopics,
        digest: bytes,
        connection: Hashable,
        now_ms: int,
    ) -> Steps[None]:
        before = self._brokers.get(identity.address)
        known = before.filter_servers if before else ()
        filter_servers = (
            known if reported.filter_servers is None else tuple(reported.filter_servers)
        )
        if filter_servers != known:
            yield from self._forget_all(group)
        broker = _Broker(
            identity=identity,
            connection=before.connection if before else connection,
            seen_ms=now_ms,
            version=reported.version,
            filter_servers=filter_servers,
            digest=digest,
            epoch=group.epoch,
        )
        self._brokers[identity.address] = broker
        self._connect(broker, connection)

    def _connect(self, broker: _Broker, connection: Hashable) -> None:
        """Tie a broker to its latest connection; closing an older one does not remove it."""
        address = broker.identity.address
        if broker.connection != connection:
            self._disconnect(broker)
            broker.connection = connection
        self._by_connection.setdefault(connection, set()).add(address)

    def _disconnect(self, broker: _Broker) -> None:
        addresses = self._by_connection.get(broker.connection)
        if addresses is not None:
            addresses.discard(broker.identity.address)
            if not addresses:
                del self._by_connection[broker.connection]

    def _registered(self, group: _Group, identity: BrokerIdentity) -> Registered:
        master_addr = group.addrs.get(MASTER_ID)
        if identity.broker_id == MASTER_ID or master_addr is None:
            return Registered()
        master = self._brokers.get((identity.cluster, master_addr))
        return Registered(master_addr, master.identity.ha_addr) if master else Registered()

    def _changed(self, group: _Group) -> Steps[None]:
        group.data = {}
        yield from self._forget_all(group)

    def _forget_all(self, group: _Group) -> Steps[None]:
        names = list(group.queues)
        for at in range(0, len(names), _FORGET_BATCH):
            self._forget(names[at : at + _FORGET_BATCH])
            yield

    # -- queues of topics -------------------------------------------------------------------------

    def _put_queue(self, group: _Group, name: str, queue: QueueData) -> None:
        before = group.queues.get(name)
        if before is queue:
            return
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
        if before is None:
            topic.groups = (*topic.groups, group)
            self._route_count += 1
        group.queues[topic.name] = queue
        self._forget((name,))

    def _remove_topic(self, group: _Group, name: str) -> None:
        if group.queues.pop(name, None) is None:
            return
        self._route_count -= 1
        group.epoch += 1
        topic = self._topics[name]
        topic.groups = tuple(other for other in topic.groups if other is not group)
        if not topic.groups:
            del self._topics[name]
        self._forget((name,))

    def register_topic(self, name: str, queues: Iterable[QueueData]) -> str | None:
        """Add queues of one topic; if a broker is unknown, adds none and returns its name."""
        queues = list(queues)
        for queue in queues:
            if queue.broker_name not in self._groups:
                return str(queue.broker_name)
        if queues:
            names = {str(queue.broker_name) for queue in queues}
            new_count = sum(name not in self._groups[each].queues for each in names)
            sizes = Sizes(
                topics=len(self._topics) + 1 if name not in self._topics else 0,
                routes=self._route_count + new_count if new_count else 0,
            )
            self._check_growth(sizes, f"topic {name}")
        for queue in queues:
            group = self._groups[str(queue.broker_name)]
            self._put_queue(group, name, group.with_perm(queue, queue.perm))
        return None

    def delete_topic(self, name: str, cluster: str | None = None) -> None:
        """Remove a topic, in one cluster or all; a broker that has it registers it again."""
        topic = self._topics.get(name)
        for group in topic.groups if topic else ():
            if not cluster or group.name in self._clusters.get(cluster, {}):
                self._remove_topic(group, name)

    def wipe_write_perm(self, broker_name: str) -> Steps[int]:
        """Make all topics of a group read-only; returns their number."""
        return self._set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Steps[int]:
        """Make all topics of a group readable and writable; returns their number."""
        return self._set_perms(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _set_perms(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        for name, queue in list(group.queues.items()):
            yield
            self._put_queue(group, name, group.with_perm(queue, change(queue.perm)))
        return len(group.queues)

    # -- leaving ----------------------------------------------------------------------------------

    def unregister(self, name: str, addr: str) -> Steps[list[Dropped]]:
        """Remove a broker that unregisters."""
        return self._drop_all(
            (broker, 0)
            for broker in self._brokers.values()
            if broker.identity.addr == addr and broker.identity.name == name
        )

    def close(self, connection: Hashable) -> Steps[list[Dropped]]:
        """Remove the brokers of a closed connection."""
        addresses = sorted(self._by_connection.get(connection, ()))
        return self._drop_all((self._brokers[address], 0) for address in addresses)

    def expire(self, now_ms: int, timeout_ms: int) -> Steps[list[Dropped]]:
        """Remove brokers that were silent for longer than their own time-out, or `timeout_ms`."""
        silent: list[tuple[_Broker, int]] = []
        for broker in self._brokers.values():
            own_ms, silent_ms = broker.identity.timeout_ms, now_ms - broker.seen_ms
            if silent_ms > (timeout_ms if own_ms is None else own_ms):
                silent.append((broker, silent_ms))
        return self._drop_all(silent)

    def _drop_all(self, brokers: Iterable[tuple[_Broker, int]]) -> Steps[list[Dropped]]:
        dropped: list[Dropped] = []
        for broker, silent_ms in list(brokers):
            notice = yield from self._drop(broker.identity.address)
            dropped.append(Dropped(broker.identity, broker.connection, silent_ms, notice))
        return dropped

    def _drop(self, address: Address) -> Steps[MinIdNotice | None]:
        broker = self._brokers.pop(address, None)
        if broker is None:
            return None
        self._disconnect(broker)
        gone = broker.identity
        group = self._groups.get(gone.name)
        if group is None:
            return None  # Another broker had replaced it, and has left since.
        others = [
            other.identity for other in self._brokers.values() if other.identity.name == gone.name
        ]
        yield from self._leave_cluster(group, gone.cluster, others)
        if gone.addr not in group.addrs.values() or gone.addr in {each.addr for each in others}:
            return None  # Another broker replaced it, or it has registered in another cluster.
        return (yield from self._leave(group, gone.addr))

    def _leave_cluster(
        self, group: _Group, cluster: str, others: list[BrokerIdentity]
    ) -> Steps[None]:
        """Remove a group from a cluster in which it has no broker any more."""
        if not others or cluster in {other.cluster for other in others}:
            return
        self._remove_from_cluster(group, cluster)
        group.cluster = others[0].cluster
        yield from self._changed(group)

    def _remove_from_cluster(self, group: _Group, cluster: str) -> None:
        names = self._clusters.get(cluster, {})
        names.pop(group.name, None)
        if not names:
            self._clusters.pop(cluster, None)

    def _leave(self, group: _Group, addr: str) -> Steps[MinIdNotice | None]:
        was_min = group.addrs.get(min(group.addrs)) == addr
        group.addrs = {broker_id: each for broker_id, each in group.addrs.items() if each != addr}
        group.epoch += 1
        yield from self._changed(group)
        if not group.addrs:
            yield from self._remove_group(group)
            return None
        if not group.acting_master:
            return None
        if min(group.addrs) > MASTER_ID:
            # A slave that acts as master serves reads only.
            yield from self.wipe_write_perm(group.name)
        return _notice(group, offline_addr=addr, ha_addr=None) if was_min else None

    def _remove_group(self, group: _Group) -> Steps[None]:
        for name in list(group.queues):
            yield
            self._remove_topic(group, name)
        del self._groups[group.name]
        for cluster in list(self._clusters):
            self._remove_from_cluster(group, cluster)

    # -- heartbeats -------------------------------------------------------------------------------

    def heartbeat(self, cluster: str, addr: str, now_ms: int) -> None:
        """Reset the time of silence of a broker, if it is registered."""
        broker = self._brokers.get((cluster, addr))
        if broker is not None:
            broker.seen_ms = now_ms

    def version_of(self, cluster: str, addr: str) -> DataVersion | None:
        """The version of the last topic table that a broker registered."""
        broker = self._brokers.get((cluster, addr))
        return broker.version if broker else None

    # -- queries ----------------------------------------------------------------------------------

    def route(self, name: str, *, acting_master: bool = False) -> TopicRouteData | None:
        """The route of a topic; `acting_master` lets a group without master list a slave as one."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        # Sorted, so that a client that changes to another nameserver gets an equal route.
        # A group whose last broker is being removed has no address.
        groups = sorted((each for each in topic.groups if each.addrs), key=lambda each: each.name)
        if not groups:
            return None
        may_act = acting_master and not name.startswith(MEMBER_SYNC_TOPIC_PREFIX)
        return TopicRouteData(
            queues=[group.queues[name] for group in groups],
            brokers=[
                group.as_data(acting=may_act and group.has_acting_master_for(name))
                for group in groups
            ],
            filter_servers=self._filter_servers(groups),
            mappings=topic.mappings,
        )

    def _filter_servers(self, groups: list[_Group]) -> dict[str, list[str]]:
        return {
            addr: list(broker.filter_servers)
            for group in groups
            for addr in group.addrs.values()
            if (broker := self._brokers.get((group.cluster, addr))) and broker.filter_servers
        }

    def topic_names(self) -> list[str]:
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> Iterator[str]:
        seen: set[str] = set()
        for broker_name in list(self._clusters.get(cluster, {})):
            group = self._groups.get(broker_name)
            for name in list(group.queues) if group else ():
                if name not in seen:
                    seen.add(name)
                    yield name

    def unit_topics(self, mask: int, wanted: int) -> Iterator[str | None]:
        """Topics whose system flag in their first group, masked, equals `wanted`.

        Yields None for other topics, so that the caller can pause there, too.
        """
        for topic in list(self._topics.values()):
            # A topic that was deleted meanwhile has no groups.
            flag = topic.groups[0].queues[topic.name].topic_sys_flag if topic.groups else 0
            yield topic.name if topic.groups and flag & mask == wanted else None

    def clusters(self) -> dict[str, list[str]]:
        """The broker names of each cluster."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def brokers(self) -> dict[str, BrokerData]:
        """All groups by name."""
        return {name: group.as_data() for name, group in self._groups.items()}

    def members(self, broker_name: str) -> dict[int, str]:
        """The addresses of a group by broker id."""
        group = self._groups.get(broker_name)
        return dict(group.addrs) if group else {}


def _notice(group: _Group, offline_addr: str | None, ha_addr: str | None) -> MinIdNotice:
    min_id = min(group.addrs)
    is_for_all = offline_addr is not None or len(group.addrs) == 1
    targets = tuple(
        addr for broker_id, addr in group.addrs.items() if is_for_all or broker_id != min_id
    )
    return MinIdNotice(min_id, group.addrs[min_id], offline_addr, ha_addr, targets)
