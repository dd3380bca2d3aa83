"""The tables of a nameserver: brokers, their topics, and the routes that follow from them.

Plain data and no clock: callers pass `now_ms`. Nothing here is written to disk; a nameserver that
starts knows nothing and learns from the brokers, which register every 30 seconds.

    group   the brokers of one name: a master (id 0) and its slaves, which share topics
    broker  one process of a group, known by cluster and address, alive on one connection
    topic   the groups that have it; the queues of a topic in a group are one shared `QueueData`

Rules that are RocketMQ's and easy to miss:

- Topics come from the master; where a group has none, from a 5.x slave with the lowest id.
- An unchanged registration (same DataVersion) adds topics that are missing and touches no others,
  so a permission that was wiped stays wiped until the broker's own topic table changes.
- A registration that lists a single topic is an addition to an earlier one, never a first one.
- If two brokers claim one id, the one with the lower state version is ignored.

One file over 500 lines: every change touches brokers, groups, topics and clusters together, and
these methods keep the four tables consistent.
"""

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tianzhou.names import MASTER_ID, PERM_READ, PERM_WRITE
from tianzhou.namesrv.registrations import (
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
"""Topics of this prefix show the brokers of a group as they are, never an acting master."""

_SPARE_QUEUES_MAX = 64
_MAPPINGS_KEPT = 64
_FORGOTTEN_TOGETHER = 500

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that grows with the topics of a broker may be paused at each step. Nothing else may change
the registry in between; it may be asked."""

Address = tuple[str, str]
"""Cluster and address: what tells brokers apart."""


# -- what is kept ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """The brokers of one name. `epoch` counts what may make an unchanged registration matter."""

    cluster: str
    name: str
    addrs: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None
    queues: dict[str, QueueData] = field(default_factory=dict)
    spare: dict[tuple[int, int, int, int], QueueData] = field(default_factory=dict)
    epoch: int = 0
    data: dict[bool, BrokerData] = field(default_factory=dict)

    def as_data(self, *, acting: bool = False) -> BrokerData:
        """The group as clients see it, the lowest id shown as master if it is `acting`.

        The same object until something changes.
        """
        found = self.data.get(acting)
        if found is None:
            acting_id = min(self.addrs) if acting else None
            found = self.data[acting] = BrokerData(
                cluster=self.cluster,
                broker_name=self.name,
                addresses={
                    MASTER_ID if broker_id == acting_id else broker_id: addr
                    for broker_id, addr in self.addrs.items()
                },
                zone_name=self.zone,
                enable_acting_master=self.acting_master,
            )
        return found

    def has_acting_master_for(self, topic: str) -> bool:
        """Whether a slave acts as master: there is none, and nothing can be written."""
        return (
            self.acting_master
            and MASTER_ID not in self.addrs
            and not self.queues[topic].perm & PERM_WRITE
        )

    def queue_data(self, read: int, write: int, perm: int, sys_flag: int) -> QueueData:
        """The one QueueData of this group with these numbers: most topics of a broker are alike."""
        key = (read, write, perm, sys_flag)
        found = self.spare.get(key)
        if found is None:
            if len(self.spare) > _SPARE_QUEUES_MAX + len(self.queues):
                self.spare = {_numbers(queue): queue for queue in self.queues.values()}
            found = self.spare[key] = QueueData(
                broker_name=self.name,
                read_queue_count=read,
                write_queue_count=write,
                perm=perm,
                topic_sys_flag=sys_flag,
            )
        return found

    def with_perm(self, queue: QueueData, perm: int) -> QueueData:
        read, write, _, sys_flag = _numbers(queue)
        return self.queue_data(read, write, perm, sys_flag)


def _numbers(queue: QueueData) -> tuple[int, int, int, int]:
    return (queue.read_queue_count, queue.write_queue_count, queue.perm, queue.topic_sys_flag)


def same_version(one: DataVersion, other: DataVersion) -> bool:
    """Brokers before 5.0 send no state version, which means 0."""
    return (
        one.timestamp == other.timestamp
        and one.counter == other.counter
        and (one.state_version or 0) == (other.state_version or 0)
    )


@dataclass(slots=True)
class _Broker:
    """A broker that has registered and was heard of at `heard_ms`."""

    identity: BrokerIdentity
    connection: Hashable
    heard_ms: int
    version: DataVersion
    filter_servers: tuple[str, ...]
    digest: bytes
    epoch: int


@dataclass(slots=True)
class _Topic:
    """The groups that have a topic, in the order they came; all of them share the string `name`."""

    name: str
    groups: tuple[_Group, ...] = ()
    mappings: dict[str, TopicQueueMappingInfo] | None = None


class Sizes(NamedTuple):
    """How large tables of a registry are, or would become; 0 for those that would not grow."""

    topics: int = 0
    routes: int = 0
    """Topics of all groups, a topic counted for each of its groups."""
    brokers: int = 0
    filter_servers: int = 0
    """Of one broker."""


class Registry:
    """All brokers and topics. `forget` is called with the names of topics whose routes changed.

    `check_growth` is called before tables grow, with their sizes then, and raises what refuses it.
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
        return Sizes(
            topics=len(self._topics), routes=self._route_count, brokers=len(self._brokers)
        )  # fmt: skip

    # -- registering ------------------------------------------------------------------------------

    def renew(
        self, identity: BrokerIdentity, digest: bytes, connection: Hashable, now_ms: int
    ) -> Registered | None:
        """Note that a broker lives, if it says exactly what it said before; None if it does not.

        `digest` stands for the topics of the registration, which need not be read for this.
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
        broker.heard_ms = now_ms
        self._connect(broker, connection)
        return self._registered(group, identity)

    def register(
        self,
        identity: BrokerIdentity,
        said: BrokerTopics,
        digest: bytes,
        connection: Hashable,
        now_ms: int,
        *,
        delete_missing: bool = False,
    ) -> Steps[Registered | None]:
        """Take a broker in, or take what has changed; None if it must first list all its topics.

        `delete_missing` makes the registration the whole truth: topics it does not list are gone.
        """
        if self._is_outdated(identity, said):
            yield from self._drop(identity.address)
            return Registered(ignored=True)
        group = self._groups.get(identity.name)
        known_as = group.addrs.get(identity.broker_id) if group else None
        if known_as is None and len(said.topics) == 1:
            return None
        yield from self._check_registration(group, identity, said)
        yield from self._leave_other_group(identity)
        displaced = self._displaced(identity, known_as)
        new = identity.address not in self._brokers
        group, min_id_before = yield from self._join(identity)
        yield from self._take_topics(
            group, identity, said, first=known_as is None, exact=delete_missing
        )
        yield from self._take_broker(group, identity, said, digest, connection, now_ms)
        notice = None
        if min_id_before is not None and identity.broker_id < min_id_before:
            notice = _notice(group, offline_addr=None, ha_addr=identity.ha_addr)
        registered = self._registered(group, identity)
        return registered._replace(notice=notice, new=new, displaced=displaced)

    def _displaced(self, identity: BrokerIdentity, known_as: str | None) -> str | None:
        """The address that the id had until now, if a broker lives there."""
        if known_as is None or known_as == identity.addr:
            return None
        alive = (broker.identity for broker in self._brokers.values())
        names = {each.name for each in alive if each.addr == known_as}
        return known_as if identity.name in names else None

    def _check_registration(
        self, group: _Group | None, identity: BrokerIdentity, said: BrokerTopics
    ) -> Steps[None]:
        known = {} if group is None else group.queues
        route_count = new_count = 0
        for name in said.topics:
            yield
            if name not in known:
                route_count += 1
                new_count += name not in self._topics
        is_new = identity.address not in self._brokers
        sizes = Sizes(
            topics=len(self._topics) + new_count if new_count else 0,
            routes=self._route_count + route_count if route_count else 0,
            brokers=len(self._brokers) + 1 if is_new else 0,
            filter_servers=len(said.filter_servers or ()),
        )
        self._check_growth(sizes, f"broker {identity.name} at {identity.addr}")

    def _is_outdated(self, identity: BrokerIdentity, said: BrokerTopics) -> bool:
        group = self._groups.get(identity.name)
        holder_addr = group.addrs.get(identity.broker_id) if group else None
        if holder_addr is None or holder_addr == identity.addr:
            return False
        holder = self._brokers.get((identity.cluster, holder_addr))
        if holder is None:
            return False
        return (holder.version.state_version or 0) > (said.version.state_version or 0)

    def _leave_other_group(self, identity: BrokerIdentity) -> Steps[None]:
        """A broker that comes back under another name is gone from where it was."""
        broker = self._brokers.get(identity.address)
        if broker is not None and broker.identity.name != identity.name:
            yield from self._drop(identity.address)

    def _join(self, identity: BrokerIdentity) -> Steps[tuple[_Group, int | None]]:
        """The group with this broker in it, and the lowest id before it came."""
        group = self._groups.get(identity.name)
        if group is None:
            group = self._groups[identity.name] = _Group(identity.cluster, identity.name)
        self._clusters.setdefault(identity.cluster, {})[identity.name] = None
        min_id_before = min(group.addrs, default=None)
        # A slave that becomes master keeps its address: one address has one id.
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

    def _take_topics(
        self,
        group: _Group,
        identity: BrokerIdentity,
        said: BrokerTopics,
        *,
        first: bool,
        exact: bool,
    ) -> Steps[None]:
        is_master = identity.broker_id == MASTER_ID
        is_prime_slave = (
            not is_master
            and identity.acting_master is not None
            and identity.broker_id == min(group.addrs)
        )
        if not is_master and not is_prime_slave:
            return
        if exact and not said.mappings:
            for name in list(group.queues):
                yield
                if name not in said.topics:
                    self._remove_topic(group, name)
        broker = self._brokers.get(identity.address)
        changed = first or broker is None or not same_version(broker.version, said.version)
        perm_mask = ~PERM_WRITE if is_prime_slave and group.acting_master else ~0
        for name, topic in said.topics.items():
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
            yield from self._take_mappings(said.mappings)

    def _take_mappings(self, mappings: Mapping[str, TopicQueueMappingInfo]) -> Steps[None]:
        for name, mapping in mappings.items():
            yield
            topic = self._topics.get(name)
            # A mapping for a topic without queues could never be part of an answer.
            if topic is not None and mapping.broker_name in self._groups:
                known = topic.mappings or {}
                if len(known) >= _MAPPINGS_KEPT:  # brokers that are gone may come back, a few
                    known = {name: each for name, each in known.items() if name in self._groups}
                topic.mappings = known | {mapping.broker_name: mapping}
                self._forget((name,))

    def _take_broker(
        self,
        group: _Group,
        identity: BrokerIdentity,
        said: BrokerTopics,
        digest: bytes,
        connection: Hashable,
        now_ms: int,
    ) -> Steps[None]:
        before = self._brokers.get(identity.address)
        filter_servers = before.filter_servers if before else ()
        if said.filter_servers is not None:
            filter_servers = tuple(said.filter_servers)
        if filter_servers != (before.filter_servers if before else ()):
            yield from self._forget_all(group)
        broker = _Broker(
            identity=identity,
            connection=before.connection if before else connection,
            heard_ms=now_ms,
            version=said.version,
            filter_servers=filter_servers,
            digest=digest,
            epoch=group.epoch,
        )
        self._brokers[identity.address] = broker
        self._connect(broker, connection)

    def _connect(self, broker: _Broker, connection: Hashable) -> None:
        """Tie a broker to the connection it spoke on last; the end of an older one is nothing."""
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
        if identity.broker_id == MASTER_ID:
            return Registered()
        master_addr = group.addrs.get(MASTER_ID)
        if master_addr is None:
            return Registered()
        master = self._brokers.get((identity.cluster, master_addr))
        return Registered(master_addr, master.identity.ha_addr) if master else Registered()

    def _changed(self, group: _Group) -> Steps[None]:
        group.data = {}
        yield from self._forget_all(group)

    def _forget_all(self, group: _Group) -> Steps[None]:
        names = list(group.queues)
        for at in range(0, len(names), _FORGOTTEN_TOGETHER):
            self._forget(names[at : at + _FORGOTTEN_TOGETHER])
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
        """Add queues of one topic; returns the name of a broker nobody knows, then adds none."""
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
        """Forget a topic, in one cluster or everywhere; brokers that have it bring it back."""
        topic = self._topics.get(name)
        for group in topic.groups if topic else ():
            if not cluster or group.name in self._clusters.get(cluster, {}):
                self._remove_topic(group, name)

    def wipe_write_perm(self, broker_name: str) -> Steps[int]:
        """Make all topics of a group read-only; returns how many it has."""
        return self._set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Steps[int]:
        """Make all topics of a group readable and writable; returns how many it has."""
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
        """Forget a broker that unregisters."""
        leaving = [
            broker
            for broker in self._brokers.values()
            if broker.identity.addr == addr and broker.identity.name == name
        ]
        return (yield from self._dropped([(broker, 0) for broker in leaving]))

    def close(self, connection: Hashable) -> Steps[list[Dropped]]:
        """Forget the brokers of a connection that has ended."""
        addresses = sorted(self._by_connection.get(connection, ()))
        return (yield from self._dropped([(self._brokers[address], 0) for address in addresses]))

    def expire(self, now_ms: int, timeout_ms: int) -> Steps[list[Dropped]]:
        """Forget brokers silent for too long: `timeout_ms`, or what they named themselves."""
        silent = [
            (broker, now_ms - broker.heard_ms)
            for broker in self._brokers.values()
            if now_ms - broker.heard_ms > _own_or(broker.identity.timeout_ms, timeout_ms)
        ]
        return (yield from self._dropped(silent))

    def _dropped(self, brokers: list[tuple[_Broker, int]]) -> Steps[list[Dropped]]:
        found: list[Dropped] = []
        for broker, silent_ms in brokers:
            notice = yield from self._drop(broker.identity.address)
            found.append(Dropped(broker.identity, broker.connection, silent_ms, notice))
        return found

    def _drop(self, address: Address) -> Steps[MinIdNotice | None]:
        broker = self._brokers.pop(address, None)
        if broker is None:
            return None
        self._disconnect(broker)
        gone = broker.identity
        group = self._groups.get(gone.name)
        if group is None:
            return None  # It had lost its id to another broker, which has left since.
        others = [
            other.identity for other in self._brokers.values() if other.identity.name == gone.name
        ]
        yield from self._leave_cluster(group, gone.cluster, others)
        if gone.addr not in group.addrs.values() or gone.addr in {each.addr for each in others}:
            return None  # It had lost its id, or has registered in another cluster meanwhile.
        return (yield from self._leave(group, gone.addr))

    def _leave_cluster(
        self, group: _Group, cluster: str, others: list[BrokerIdentity]
    ) -> Steps[None]:
        """Take a group out of a cluster in which none of its brokers is left."""
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
        """Note that a broker lives, if it is known."""
        broker = self._brokers.get((cluster, addr))
        if broker is not None:
            broker.heard_ms = now_ms

    def version_of(self, cluster: str, addr: str) -> DataVersion | None:
        """The version of the topic table that a broker registered last."""
        broker = self._brokers.get((cluster, addr))
        return broker.version if broker else None

    # -- asking -----------------------------------------------------------------------------------

    def route(self, name: str, *, acting_master: bool = False) -> TopicRouteData | None:
        """Where a topic is; `acting_master` lets a group without master show a slave as one."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        # In one order on every nameserver, so that clients that ask another one see no change.
        # A group whose last broker is leaving has no address any more.
        there = (group for group in topic.groups if group.addrs)
        groups = sorted(there, key=lambda group: group.name)
        if not groups:
            return None
        may_act = acting_master and not name.startswith(MEMBER_SYNC_TOPIC_PREFIX)
        brokers = [
            group.as_data(acting=may_act and group.has_acting_master_for(name)) for group in groups
        ]
        return TopicRouteData(
            queues=[group.queues[name] for group in groups],
            brokers=brokers,
            filter_servers=self._filter_servers(groups),
            mappings=topic.mappings,
        )

    def _filter_servers(self, groups: list[_Group]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for group in groups:
            for addr in group.addrs.values():
                broker = self._brokers.get((group.cluster, addr))
                if broker is not None and broker.filter_servers:
                    found[addr] = list(broker.filter_servers)
        return found

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
        """Topics whose system flag, as the first of their groups has it, has these bits of a mask.

        None stands for another topic, so that the caller may pause there, too.
        """
        for topic in list(self._topics.values()):
            # One that was deleted since has no groups any more.
            flag = topic.groups[0].queues[topic.name].topic_sys_flag if topic.groups else 0
            yield topic.name if topic.groups and flag & mask == wanted else None

    def clusters(self) -> dict[str, list[str]]:
        """The names of the brokers of each cluster."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def brokers(self) -> dict[str, BrokerData]:
        """Every group by its name."""
        return {name: group.as_data() for name, group in self._groups.items()}

    def members(self, broker_name: str) -> dict[int, str]:
        """The addresses of a group by broker id."""
        group = self._groups.get(broker_name)
        return dict(group.addrs) if group else {}


def _own_or(own_ms: int | None, default_ms: int) -> int:
    return default_ms if own_ms is None else own_ms


def _notice(group: _Group, offline_addr: str | None, ha_addr: str | None) -> MinIdNotice:
    min_id = min(group.addrs)
    everyone = offline_addr is not None or len(group.addrs) == 1
    targets = tuple(
        addr for broker_id, addr in group.addrs.items() if everyone or broker_id != min_id
    )
    return MinIdNotice(min_id, group.addrs[min_id], offline_addr, ha_addr, targets)
