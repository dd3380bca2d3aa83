"""The registry against a model of RocketMQ's rules, with random operations in any order.

The model has the tables of RocketMQ and scans all of them for every operation. After each step
every route must be equal, and every cached response equal to a new one.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tianzhou.namesrv.registrations import BrokerIdentity, BrokerTopics
from tianzhou.namesrv.registry import Registry
from tianzhou.namesrv.route_cache import RouteCache
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.route import QueueData, TopicRouteData
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig
from tianzhou.remoting.scheduler import at_once

CLUSTER = "DefaultCluster"
NAMES = ["broker-a", "broker-b"]
ADDRS = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
TOPICS = ["t0", "t1", "t2", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"]
CONNECTIONS = ["c0", "c1", "c2"]
TIMEOUT_MS = 100

names = st.sampled_from(NAMES)
addrs = st.sampled_from(ADDRS)
topics = st.sampled_from(TOPICS)
connections = st.sampled_from(CONNECTIONS)
perms = st.sampled_from([2, 4, 6, 7])
topic_tables = st.dictionaries(topics, st.tuples(st.integers(1, 2), perms), max_size=4)

filter_server_lists = st.sampled_from([None, [], ["10.0.0.9:1"]])
zones = st.sampled_from([None, "north"])

Queue = tuple[int, int]
"""Queue count and permission."""


@dataclass(frozen=True)
class Said:
    """One registration. Versions are a counter and a state version."""

    name: str
    broker_id: int
    addr: str
    table: dict[str, Queue]
    version: tuple[int, int]
    connection: str
    acting: bool | None
    zone: str | None
    timeout_ms: int | None
    filter_servers: list[str] | None
    exact: bool


registrations = st.builds(
    Said,
    name=names,
    broker_id=st.integers(0, 2),
    addr=addrs,
    table=topic_tables,
    version=st.tuples(st.integers(1, 2), st.integers(0, 1)),
    connection=connections,
    acting=st.sampled_from([None, False, True]),
    zone=zones,
    timeout_ms=st.sampled_from([None, 10, 1_000]),
    filter_servers=filter_server_lists,
    exact=st.sampled_from([False, False, False, True]),
)


@dataclass
class ModelBroker:
    name: str
    version: tuple[int, int]
    connection: str
    heard_ms: int
    timeout_ms: int | None
    ha_addr: str
    filter_servers: list[str]


@dataclass
class ModelGroup:
    addrs: dict[int, str] = field(default_factory=dict[int, str])
    acting: bool = False
    zone: str | None = None


class Model:
    """RocketMQ's tables."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, Queue]] = {}
        self.groups: dict[str, ModelGroup] = {}
        self.brokers: dict[str, ModelBroker] = {}

    def register(
        self,
        identity: BrokerIdentity,
        said: "Said",
        now_ms: int,
    ) -> tuple[str | None, str | None] | None:
        name, addr, broker_id = identity.name, identity.addr, identity.broker_id
        table, version = said.table, said.version
        group = self.groups.get(name)
        holder = group.addrs.get(broker_id) if group else None
        if holder is not None and holder != addr and self.brokers[holder].version[1] > version[1]:
            self.drop(addr)
            return None, None
        if holder is None and len(table) == 1:
            return None
        known = self.brokers.get(addr)
        if known is not None and known.name != name:
            self.drop(addr)
            known = None
        group = self.groups.setdefault(name, ModelGroup())
        first = broker_id not in group.addrs
        for other_id in [i for i, each in group.addrs.items() if each == addr and i != broker_id]:
            del group.addrs[other_id]
        group.addrs[broker_id] = addr
        group.acting, group.zone = bool(identity.acting_master), identity.zone
        prime = identity.acting_master is not None and broker_id == min(group.addrs)
        if broker_id == 0 or prime:
            if said.exact:
                for topic in TOPICS:
                    if topic not in table:
                        self.topics.get(topic, {}).pop(name, None)
            for topic, (count, perm) in table.items():
                queues = self.topics.setdefault(topic, {})
                if first or known is None or known.version != version or name not in queues:
                    wiped = broker_id != 0 and group.acting
                    queues[name] = (count, perm & ~2 if wiped else perm)
        before = known.filter_servers if known else []
        self.brokers[addr] = ModelBroker(
            name,
            version,
            said.connection,
            now_ms,
            identity.timeout_ms,
            identity.ha_addr,
            before if said.filter_servers is None else said.filter_servers,
        )
        master = group.addrs.get(0)
        if broker_id == 0 or master is None:
            return None, None
        return master, self.brokers[master].ha_addr

    def drop(self, addr: str) -> None:
        broker = self.brokers.pop(addr, None)
        group = self.groups.get(broker.name) if broker else None
        if broker is None or group is None or addr not in group.addrs.values():
            return
        group.addrs = {i: each for i, each in group.addrs.items() if each != addr}
        if not group.addrs:
            del self.groups[broker.name]
        for queues in self.topics.values():
            if broker.name in queues and not group.addrs:
                del queues[broker.name]
            elif broker.name in queues and group.acting and 0 not in group.addrs:
                count, perm = queues[broker.name]
                queues[broker.name] = (count, perm & ~2)

    def set_perms(self, name: str, *, write: bool) -> int:
        count = 0
        for queues in self.topics.values():
            if name in queues:
                queues[name] = (queues[name][0], 6 if write else queues[name][1] & ~2)
                count += 1
        return count

    def route(self, topic: str, *, acting_master: bool) -> Any:  # noqa: ANN401 - as plain as it gets
        queues = self.topics.get(topic)
        if not queues:
            return None
        brokers: list[tuple[str, dict[int, str], bool, str | None]] = []
        filter_servers: dict[str, list[str]] = {}
        for name in sorted(queues):
            group = self.groups[name]
            shown = dict(group.addrs)
            may_act = acting_master and not topic.startswith("rmq_sys_SYNC_BROKER_MEMBER_")
            if may_act and group.acting and 0 not in shown and not queues[name][1] & 2:
                shown[0] = shown.pop(min(shown))
            brokers.append((name, shown, group.acting, group.zone))
            for addr in group.addrs.values():
                if self.brokers[addr].filter_servers:
                    filter_servers[addr] = self.brokers[addr].filter_servers
        return [(name, *queues[name]) for name in sorted(queues)], brokers, filter_servers


def plain(route: TopicRouteData | None) -> Any:  # noqa: ANN401 - as plain as it gets
    if route is None:
        return None
    return (
        [(queue.broker_name, queue.read_queue_count, queue.perm) for queue in route.queues],
        [
            (each.broker_name, each.addresses, each.enable_acting_master, each.zone_name)
            for each in route.brokers
        ],
        route.filter_servers,
    )


class RegistryMachine(RuleBasedStateMachine):
    """Does the same to both."""

    def __init__(self) -> None:
        super().__init__()
        self.acting_master = False
        # Space for a few responses only, so that eviction happens.
        self.cache = RouteCache(self.fresh, 2_000)
        self.registry = Registry(self.cache.forget)
        self.model = Model()
        self.said: list[Said] = []
        self.now_ms = 0

    def fresh(self, topic: str) -> TopicRouteData | None:
        return self.registry.route(topic, acting_master=self.acting_master)

    @rule(said=registrations)
    def register(self, said: Said) -> None:
        self.said.append(said)
        self.say(said)

    @rule(which=st.integers(0, 2), connection=connections)
    def register_again(self, which: int, connection: str) -> None:
        """Brokers register every 30 seconds, sometimes on a new connection."""
        if self.said:
            self.say(replace(self.recent(which), connection=connection))

    @rule(which=st.integers(0, 2), filter_servers=filter_server_lists, zone=zones)
    def register_alike(
        self, which: int, filter_servers: list[str] | None, zone: str | None
    ) -> None:
        if self.said:
            self.say(replace(self.recent(which), filter_servers=filter_servers, zone=zone))

    def recent(self, which: int) -> Said:
        return self.said[-1 - which % min(len(self.said), 3)]

    def say(self, said: Said) -> None:
        identity = BrokerIdentity(
            cluster=CLUSTER,
            name=said.name,
            broker_id=said.broker_id,
            addr=said.addr,
            ha_addr=f"{said.addr}-ha",
            zone=said.zone,
            acting_master=said.acting,
            timeout_ms=said.timeout_ms,
        )
        counter, state_version = said.version
        listed = BrokerTopics(
            version=DataVersion(timestamp=0, counter=counter, state_version=state_version),
            topics={
                topic: TopicConfig(
                    topic_name=topic, read_queue_count=count, write_queue_count=count, perm=perm
                )
                for topic, (count, perm) in said.table.items()
            },
            mappings={},
            filter_servers=said.filter_servers,
        )
        digest = repr((sorted(said.table.items()), said.version, said.filter_servers)).encode()
        expected = self.model.register(identity, said, self.now_ms)
        answer = None
        if not said.exact:
            answer = self.registry.renew(identity, digest, said.connection, self.now_ms)
        if answer is None:
            answer = at_once(
                self.registry.register(
                    identity,
                    listed,
                    digest,
                    said.connection,
                    self.now_ms,
                    delete_missing=said.exact,
                )
            )
        assert (answer and (answer.master_addr, answer.ha_addr)) == expected

    @rule(name=names, addr=addrs)
    def unregister(self, name: str, addr: str) -> None:
        at_once(self.registry.unregister(name, addr))
        broker = self.model.brokers.get(addr)
        if broker is not None and broker.name == name:
            self.model.drop(addr)

    @rule(connection=connections)
    def close(self, connection: str) -> None:
        gone = {dropped.broker.addr for dropped in at_once(self.registry.close(connection))}
        expected = {a for a, b in self.model.brokers.items() if b.connection == connection}
        assert gone == expected
        for addr in sorted(expected):
            self.model.drop(addr)

    @rule(passed_ms=st.sampled_from([1, 5, 10, 50, 100]))
    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        gone = {each.broker.addr for each in at_once(self.registry.expire(self.now_ms, TIMEOUT_MS))}
        expected = [
            addr
            for addr, broker in self.model.brokers.items()
            if broker.heard_ms + (TIMEOUT_MS if broker.timeout_ms is None else broker.timeout_ms)
            < self.now_ms
        ]
        assert gone == set(expected)
        for addr in expected:
            self.model.drop(addr)

    @rule(addr=addrs)
    def heartbeat(self, addr: str) -> None:
        self.registry.heartbeat(CLUSTER, addr, self.now_ms)
        if addr in self.model.brokers:
            self.model.brokers[addr].heard_ms = self.now_ms

    @rule(name=names, write=st.booleans())
    def set_perms(self, name: str, write: bool) -> None:
        change = self.registry.add_write_perm if write else self.registry.wipe_write_perm
        assert at_once(change(name)) == self.model.set_perms(name, write=write)

    @rule(topic=topics, cluster=st.sampled_from([None, CLUSTER, "elsewhere"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.registry.delete_topic(topic, cluster)
        if cluster != "elsewhere":
            self.model.topics.pop(topic, None)

    @rule(topic=topics, name=names, perm=perms)
    def register_topic(self, topic: str, name: str, perm: int) -> None:
        queue = QueueData(broker_name=name, read_queue_count=3, write_queue_count=3, perm=perm)
        unknown = self.registry.register_topic(topic, [queue])
        assert (unknown is None) == (name in self.model.groups)
        if unknown is None:
            self.model.topics.setdefault(topic, {})[name] = (3, perm)

    @rule(acting_master=st.booleans())
    def support_acting_master(self, acting_master: bool) -> None:
        self.acting_master = acting_master
        self.cache.clear()

    @invariant()
    def routes_are_those_of_the_model(self) -> None:
        for topic in TOPICS:
            expected = self.model.route(topic, acting_master=self.acting_master)
            assert plain(self.fresh(topic)) == expected

    @invariant()
    def cached_answers_are_true(self) -> None:
        for topic in TOPICS:
            route = self.fresh(topic)
            for standard in (False, True):
                fresh = None if route is None else bodies.encode(route, standard=standard)
                assert self.cache.answer(topic, standard=standard) == fresh

    @invariant()
    def lists_are_those_of_the_model(self) -> None:
        live = {topic for topic, queues in self.model.topics.items() if queues}
        assert set(self.registry.topic_names()) == live
        assert set(self.registry.topics_of_cluster(CLUSTER)) == live
        for name in NAMES:
            group = self.model.groups.get(name)
            assert self.registry.members(name) == (group.addrs if group else {})
        assert set(self.registry.brokers()) == set(self.model.groups)
        clusters = {CLUSTER: set(self.model.groups)} if self.model.groups else {}
        assert {c: set(n) for c, n in self.registry.clusters().items()} == clusters


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
