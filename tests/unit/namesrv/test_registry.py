"""The registry: registrations of brokers, the routes derived from them, and their removal."""

from collections.abc import Collection

import pytest

from tianzhou.namesrv.registrations import (
    BrokerIdentity,
    BrokerTopics,
    MinIdNotice,
    Registered,
)
from tianzhou.namesrv.registry import MEMBER_SYNC_TOPIC_PREFIX, Registry
from tianzhou.protocol.bodies.route import QueueData, TopicQueueMappingInfo, TopicRouteData
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig
from tianzhou.remoting.scheduler import at_once

SYSTEM = ("TBW102", "SELF_TEST_TOPIC")
"""Topics that every broker has; a registration of a single topic has a special meaning."""


class World:
    """A registry, the topics whose routes changed, and short methods to use it."""

    def __init__(self) -> None:
        self.forgotten: set[str] = set()
        self.registry = Registry(self._forget)
        self.now_ms = 1_000

    def _forget(self, topics: Collection[str]) -> None:
        self.forgotten.update(topics)

    def register(
        self,
        name: str = "broker-a",
        broker_id: int = 0,
        addr: str = "10.0.0.1:10911",
        topics: Collection[str] = ("orders",),
        *,
        cluster: str = "DefaultCluster",
        connection: str = "connection-1",
        version: int = 1,
        state_version: int | None = None,
        acting_master: bool | None = None,
        zone: str | None = None,
        timeout_ms: int | None = None,
        perm: int = 6,
        queue_count: int = 8,
        sys_flag: int = 0,
        filter_servers: list[str] | None = None,
        mappings: dict[str, TopicQueueMappingInfo] | None = None,
        delete_missing: bool = False,
        alone: bool = False,
        digest: bytes = b"",
    ) -> Registered | None:
        configs = {
            topic: TopicConfig(
                topic_name=topic,
                read_queue_count=queue_count,
                write_queue_count=queue_count,
                perm=perm,
                topic_sys_flag=sys_flag,
            )
            for topic in (*(() if alone else SYSTEM), *topics)
        }
        reported = BrokerTopics(
            version=DataVersion(timestamp=0, counter=version, state_version=state_version),
            topics=configs,
            mappings=mappings or {},
            filter_servers=filter_servers,
        )
        identity = BrokerIdentity(
            cluster=cluster,
            name=name,
            broker_id=broker_id,
            addr=addr,
            ha_addr=f"{addr}-ha",
            zone=zone,
            acting_master=acting_master,
            timeout_ms=timeout_ms,
        )
        return at_once(
            self.registry.register(
                identity, reported, digest, connection, self.now_ms, delete_missing=delete_missing
            )
        )

    def route(self, topic: str = "orders", *, acting_master: bool = False) -> TopicRouteData:
        route = self.registry.route(topic, acting_master=acting_master)
        assert route is not None
        return route

    def perm(self, topic: str = "orders") -> int:
        return self.route(topic).queues[0].perm

    def addresses(self, topic: str = "orders", *, acting_master: bool = False) -> dict[int, str]:
        addresses = self.route(topic, acting_master=acting_master).brokers[0].addresses
        assert addresses is not None
        return addresses


@pytest.fixture
def world() -> World:
    return World()


# -- registering ----------------------------------------------------------------------------------


def test_a_registered_topic_has_a_route(world: World) -> None:
    assert world.register() == Registered(new=True)
    route = world.route()
    assert route.queues == [
        QueueData(
            broker_name="broker-a", read_queue_count=8, write_queue_count=8, perm=6,
            topic_sys_flag=0,
        )
    ]  # fmt: skip
    (broker,) = route.brokers
    assert (broker.cluster, broker.broker_name, broker.addresses) == (
        "DefaultCluster",
        "broker-a",
        {0: "10.0.0.1:10911"},
    )
    assert broker.enable_acting_master is False
    assert route.filter_servers == {}
    assert route.mappings is None


def test_an_unknown_topic_has_no_route(world: World) -> None:
    world.register()
    assert world.registry.route("payments") is None


def test_routes_list_brokers_by_name_in_any_order_of_registration(world: World) -> None:
    world.register("broker-b", addr="10.0.0.2:10911")
    world.register("broker-a", addr="10.0.0.1:10911")
    route = world.route()
    assert [queue.broker_name for queue in route.queues] == ["broker-a", "broker-b"]
    assert [broker.broker_name for broker in route.brokers] == ["broker-a", "broker-b"]


def test_a_slave_adds_its_address_and_no_topics(world: World) -> None:
    world.register()
    answer = world.register(broker_id=1, addr="10.0.0.9:10911", topics=["orders", "strange"])
    assert answer == Registered(master_addr="10.0.0.1:10911", ha_addr="10.0.0.1:10911-ha", new=True)
    assert world.addresses() == {0: "10.0.0.1:10911", 1: "10.0.0.9:10911"}
    assert world.registry.route("strange") is None


def test_a_slave_before_5_0_without_master_registers_no_topics(world: World) -> None:
    assert world.register(broker_id=1) == Registered(new=True)
    assert world.registry.route("orders") is None
    assert world.registry.members("broker-a") == {1: "10.0.0.1:10911"}


def test_the_first_slave_of_5_x_without_master_registers_its_topics(world: World) -> None:
    world.register(broker_id=2, addr="10.0.0.2:10911", acting_master=False, topics=["late"])
    world.register(broker_id=3, addr="10.0.0.3:10911", acting_master=False, topics=["later"])
    assert world.perm("late") == 6
    assert world.registry.route("later") is None


def test_a_slave_that_becomes_master_has_one_address(world: World) -> None:
    world.register()
    world.register(broker_id=1, addr="10.0.0.9:10911")
    world.register(broker_id=0, addr="10.0.0.9:10911", version=2)
    assert world.addresses() == {0: "10.0.0.9:10911"}


def test_a_first_registration_of_one_topic_is_refused_and_leaves_nothing(world: World) -> None:
    assert world.register(alone=True) is None
    assert world.registry.brokers() == {}
    assert world.registry.clusters() == {}
    world.register()
    assert world.register(alone=True, topics=["extra"], version=2) == Registered()
    assert world.perm("extra") == 6
    assert world.perm("orders") == 6


def test_of_two_brokers_with_one_id_the_lower_state_version_is_ignored(world: World) -> None:
    world.register(addr="10.0.0.1:10911", state_version=5)
    answer = world.register(addr="10.0.0.2:10911", state_version=4, connection="connection-2")
    assert answer == Registered(ignored=True, newer_version=5)
    assert world.addresses() == {0: "10.0.0.1:10911"}
    assert world.registry.version_of("DefaultCluster", "10.0.0.2:10911") is None


def test_of_two_brokers_with_one_id_and_state_version_the_later_one_is_registered(
    world: World,
) -> None:
    world.register(addr="10.0.0.1:10911", connection="connection-1")
    world.register(addr="10.0.0.2:10911", connection="connection-2")
    assert world.addresses() == {0: "10.0.0.2:10911"}
    at_once(world.registry.close("connection-1"))
    assert world.addresses() == {0: "10.0.0.2:10911"}
    at_once(world.registry.close("connection-2"))
    assert world.registry.brokers() == {}
    at_once(world.registry.close("connection-1"))


def test_a_replaced_broker_can_leave_after_its_group_was_removed(world: World) -> None:
    world.register(addr="10.0.0.1:10911", connection="connection-1")
    world.register(addr="10.0.0.2:10911", connection="connection-2")
    at_once(world.registry.close("connection-2"))
    assert [gone.broker.addr for gone in at_once(world.registry.close("connection-1"))] == [
        "10.0.0.1:10911"
    ]
    assert world.registry.brokers() == {}


# -- changes --------------------------------------------------------------------------------------


def test_a_changed_version_changes_topics(world: World) -> None:
    world.register()
    world.forgotten.clear()
    world.register(version=2, queue_count=16)
    assert world.route().queues[0].read_queue_count == 16
    assert "orders" in world.forgotten


def test_an_unchanged_version_changes_no_topic_but_adds_missing_ones(world: World) -> None:
    world.register()
    world.forgotten.clear()
    world.register(queue_count=16, topics=["orders", "new"])
    assert world.route().queues[0].read_queue_count == 8
    assert world.route("new").queues[0].read_queue_count == 16
    assert world.forgotten == {"new"}


def test_a_missing_state_version_equals_zero(world: World) -> None:
    world.register(state_version=None)
    world.register(state_version=0, queue_count=16)
    assert world.route().queues[0].read_queue_count == 8


def test_only_routes_of_changed_topics_are_invalidated(world: World) -> None:
    world.register(topics=["a", "b"])
    world.forgotten.clear()
    world.register(topics=["a", "b", "c"], version=2)
    assert world.forgotten == {"c"}


def test_a_new_address_changes_every_route_of_its_group(world: World) -> None:
    world.register(topics=["a"])
    world.register("broker-b", addr="10.0.0.2:10911", topics=["b"])
    world.forgotten.clear()
    world.register(addr="10.0.0.7:10911", topics=["a"], connection="connection-7")
    assert world.forgotten == {"a", *SYSTEM}


def test_topics_no_longer_listed_stay_without_delete_missing(world: World) -> None:
    world.register(topics=["a", "b"])
    world.register(topics=["a"], version=2)
    assert world.registry.route("b") is not None
    world.register(topics=["a"], version=3, delete_missing=True)
    assert world.registry.route("b") is None
    assert world.registry.route("a") is not None


def test_equal_queues_of_a_group_are_one_object(world: World) -> None:
    world.register(topics=["a", "b"])
    world.register("broker-b", addr="10.0.0.2:10911", topics=["a"])
    assert world.route("a").queues[0] is world.route("b").queues[0]
    assert world.route("a").queues[0] is not world.route("a").queues[1]


def test_unused_queue_data_is_evicted(world: World) -> None:
    for version in range(500):
        world.register(version=version, queue_count=version)
    # Not visible from outside.
    (group,) = world.registry._groups.values()  # pyright: ignore[reportPrivateUsage]
    assert len(group.interned) < 100


# -- renewing -------------------------------------------------------------------------------------


IDENTITY = BrokerIdentity(
    cluster="DefaultCluster", name="broker-a", broker_id=0, addr="10.0.0.1:10911",
    ha_addr="10.0.0.1:10911-ha",
)  # fmt: skip


def test_an_unchanged_registration_is_renewed_without_decoding_topics(world: World) -> None:
    world.register(digest=b"same")
    world.forgotten.clear()
    assert world.registry.renew(IDENTITY, b"same", "connection-2", 9_000) == Registered()
    assert world.forgotten == set()
    assert at_once(world.registry.expire(now_ms=129_000, timeout_ms=120_000)) == []
    assert at_once(world.registry.close("connection-1")) == []
    assert len(at_once(world.registry.close("connection-2"))) == 1


def test_a_changed_or_unknown_registration_is_not_renewed(world: World) -> None:
    assert world.registry.renew(IDENTITY, b"same", "connection-1", 1) is None
    world.register(digest=b"same")
    assert world.registry.renew(IDENTITY, b"other", "connection-1", 1) is None


def test_a_registration_is_not_renewed_when_a_topic_was_deleted_meanwhile(world: World) -> None:
    world.register(digest=b"same")
    world.registry.delete_topic("orders")
    assert world.registry.renew(IDENTITY, b"same", "connection-1", 1) is None
    world.register(digest=b"same")
    assert world.registry.route("orders") is not None


def test_a_registration_is_not_renewed_when_its_group_changed_meanwhile(world: World) -> None:
    world.register(digest=b"same")
    world.register(broker_id=1, addr="10.0.0.9:10911")
    assert world.registry.renew(IDENTITY, b"same", "connection-1", 1) is None


def test_a_replaced_broker_is_not_renewed(world: World) -> None:
    world.register(digest=b"same", connection="connection-1")
    world.register(addr="10.0.0.2:10911", connection="connection-2")
    at_once(world.registry.close("connection-2"))
    world.register(addr="10.0.0.3:10911", connection="connection-3")
    assert world.registry.renew(IDENTITY, b"same", "connection-1", 1) is None
    world.register(digest=b"same", connection="connection-1")
    assert world.addresses() == {0: "10.0.0.1:10911"}


# -- removal --------------------------------------------------------------------------------------


def test_closing_a_connection_removes_its_broker(world: World) -> None:
    world.register(topics=["a"])
    world.register("broker-b", addr="10.0.0.2:10911", topics=["a"], connection="connection-2")
    (gone,) = at_once(world.registry.close("connection-1"))
    assert (gone.broker.name, gone.broker.addr) == ("broker-a", "10.0.0.1:10911")
    assert [queue.broker_name for queue in world.route("a").queues] == ["broker-b"]
    at_once(world.registry.close("connection-2"))
    assert world.registry.topic_names() == []
    assert world.registry.clusters() == {}


def test_a_broker_on_a_new_connection_survives_the_end_of_the_old_one(world: World) -> None:
    world.register(connection="old")
    world.register(connection="new")
    assert at_once(world.registry.close("old")) == []
    assert world.registry.route("orders") is not None
    assert len(at_once(world.registry.close("new"))) == 1
    assert world.registry.route("orders") is None


def test_closing_a_connection_removes_all_its_brokers(world: World) -> None:
    world.register()
    world.register("broker-b", addr="10.0.0.2:10911")
    assert len(at_once(world.registry.close("connection-1"))) == 2
    assert world.registry.brokers() == {}


def test_a_silent_broker_is_dropped_after_the_time_out(world: World) -> None:
    world.register()
    assert at_once(world.registry.expire(now_ms=121_000, timeout_ms=120_000)) == []
    (gone,) = at_once(world.registry.expire(now_ms=121_001, timeout_ms=120_000))
    assert gone.silent_ms == 120_001
    assert gone.connection == "connection-1"
    assert world.registry.route("orders") is None


def test_a_broker_may_send_its_own_time_out(world: World) -> None:
    world.register(timeout_ms=10_000)
    assert len(at_once(world.registry.expire(now_ms=11_001, timeout_ms=120_000))) == 1


def test_a_heartbeat_prevents_the_time_out(world: World) -> None:
    world.register()
    world.registry.heartbeat("DefaultCluster", "10.0.0.1:10911", 50_000)
    world.registry.heartbeat("DefaultCluster", "10.9.9.9:10911", 50_000)
    assert at_once(world.registry.expire(now_ms=170_000, timeout_ms=120_000)) == []


def test_unregistering_removes_the_named_broker_only(world: World) -> None:
    world.register()
    assert at_once(world.registry.unregister("broker-b", "10.0.0.1:10911")) == []
    assert at_once(world.registry.unregister("broker-a", "10.0.0.2:10911")) == []
    assert len(at_once(world.registry.unregister("broker-a", "10.0.0.1:10911"))) == 1
    assert world.registry.route("orders") is None


def test_without_acting_masters_topics_stay_writable_when_the_master_leaves(world: World) -> None:
    world.register(connection="master")
    world.register(broker_id=1, addr="10.0.0.9:10911", connection="slave")
    (gone,) = at_once(world.registry.close("master"))
    assert gone.notice is None
    assert world.addresses() == {1: "10.0.0.9:10911"}
    assert world.perm() == 6


def test_a_broker_that_returns_under_another_name_has_left_its_old_group(world: World) -> None:
    world.register("broker-a", topics=["a"])
    world.register("broker-b", topics=["b"], connection="connection-2")
    assert list(world.registry.brokers()) == ["broker-b"]
    assert world.registry.route("a") is None


def test_a_broker_that_returns_in_another_cluster_has_left_the_old_one(world: World) -> None:
    world.register(cluster="old", connection="connection-1")
    world.register(cluster="new", connection="connection-2")
    at_once(world.registry.close("connection-1"))
    assert world.registry.clusters() == {"new": ["broker-a"]}
    assert world.route().brokers[0].cluster == "new"
    at_once(world.registry.close("connection-2"))
    assert world.registry.clusters() == {}


# -- acting masters -------------------------------------------------------------------------------


def acting_pair(world: World) -> None:
    world.register(acting_master=True, connection="master")
    world.register(broker_id=2, addr="10.0.0.9:10911", acting_master=True, connection="slave")


def test_when_the_master_leaves_its_group_is_read_only_and_notified(world: World) -> None:
    acting_pair(world)
    (gone,) = at_once(world.registry.close("master"))
    assert gone.notice == MinIdNotice(
        min_id=2,
        min_addr="10.0.0.9:10911",
        offline_addr="10.0.0.1:10911",
        ha_addr=None,
        targets=("10.0.0.9:10911",),
    )
    assert world.perm() == 4


def test_the_first_slave_is_shown_as_master_where_that_is_supported(world: World) -> None:
    acting_pair(world)
    at_once(world.registry.close("master"))
    assert world.addresses(acting_master=True) == {0: "10.0.0.9:10911"}
    assert world.addresses(acting_master=False) == {2: "10.0.0.9:10911"}


def test_a_slave_does_not_act_while_the_topic_can_be_written(world: World) -> None:
    acting_pair(world)
    at_once(world.registry.close("master"))
    at_once(world.registry.add_write_perm("broker-a"))
    assert world.addresses(acting_master=True) == {2: "10.0.0.9:10911"}


def test_member_topics_never_list_an_acting_master(world: World) -> None:
    topic = f"{MEMBER_SYNC_TOPIC_PREFIX}broker-a"
    world.register(broker_id=2, acting_master=True, topics=[topic], perm=4)
    assert world.addresses(topic, acting_master=True) == {2: "10.0.0.1:10911"}


def test_topics_of_an_acting_slave_are_read_only(world: World) -> None:
    world.register(broker_id=2, acting_master=True)
    assert world.perm() == 4


def test_a_master_that_returns_is_writable_and_its_slaves_are_notified(world: World) -> None:
    acting_pair(world)
    at_once(world.registry.close("master"))
    answer = world.register(acting_master=True, connection="master-2")
    assert answer is not None
    assert answer.notice == MinIdNotice(
        min_id=0,
        min_addr="10.0.0.1:10911",
        offline_addr=None,
        ha_addr="10.0.0.1:10911-ha",
        targets=("10.0.0.9:10911",),
    )
    assert world.perm() == 6
    assert world.addresses(acting_master=True) == {0: "10.0.0.1:10911", 2: "10.0.0.9:10911"}


def test_a_slave_that_leaves_causes_no_notice(world: World) -> None:
    acting_pair(world)
    (gone,) = at_once(world.registry.close("slave"))
    assert gone.notice is None
    assert world.perm() == 6


# -- permissions and topics -----------------------------------------------------------------------


def test_wiped_write_permission_stays_wiped_until_topics_change(world: World) -> None:
    world.register(topics=["a", "b"])
    assert at_once(world.registry.wipe_write_perm("broker-a")) == 4
    assert world.perm("a") == 4
    world.register(topics=["a", "b"])
    assert world.perm("a") == 4
    world.register(topics=["a", "b"], version=2)
    assert world.perm("a") == 6


def test_added_write_permission_is_read_and_write(world: World) -> None:
    world.register(perm=1)
    assert at_once(world.registry.add_write_perm("broker-a")) == 3
    assert world.perm() == 6


def test_changing_permissions_of_an_unknown_broker_changes_no_topics(world: World) -> None:
    assert at_once(world.registry.wipe_write_perm("broker-x")) == 0
    assert at_once(world.registry.add_write_perm("broker-x")) == 0


def test_queues_of_a_single_topic_can_be_added(world: World) -> None:
    world.register()
    queue = QueueData(broker_name="broker-a", read_queue_count=2, write_queue_count=2, perm=6)
    assert world.registry.register_topic("single", [queue]) is None
    assert world.route("single").queues == [queue]


def test_queues_on_an_unknown_broker_add_nothing(world: World) -> None:
    world.register()
    good = QueueData(broker_name="broker-a", read_queue_count=2, write_queue_count=2, perm=6)
    bad = QueueData(broker_name="broker-x", read_queue_count=2, write_queue_count=2, perm=6)
    assert world.registry.register_topic("single", [good, bad]) == "broker-x"
    assert world.registry.route("single") is None


def test_a_deleted_topic_has_no_route_in_any_cluster(world: World) -> None:
    world.register()
    world.register("broker-b", addr="10.0.0.2:10911")
    world.registry.delete_topic("orders")
    world.registry.delete_topic("unknown")
    assert world.registry.route("orders") is None
    assert "orders" in world.forgotten


def test_a_topic_can_be_deleted_in_one_cluster(world: World) -> None:
    world.register(cluster="east")
    world.register("broker-b", addr="10.0.0.2:10911", cluster="west")
    world.registry.delete_topic("orders", "nowhere")
    assert len(world.route().queues) == 2
    world.registry.delete_topic("orders", "east")
    assert [queue.broker_name for queue in world.route().queues] == ["broker-b"]
    world.registry.delete_topic("orders", "west")
    assert world.registry.route("orders") is None


def test_static_topics_carry_their_mappings(world: World) -> None:
    mapping = TopicQueueMappingInfo(topic="orders", queue_count=4, broker_name="broker-a", epoch=1)
    world.register(mappings={"orders": mapping, "not here": mapping})
    assert world.route().mappings == {"broker-a": mapping}
    at_once(world.registry.close("connection-1"))
    world.register()
    assert world.route().mappings is None


def test_filter_servers_are_listed_by_address_until_they_are_removed(world: World) -> None:
    world.register(filter_servers=["10.0.0.1:30000"])
    assert world.route().filter_servers == {"10.0.0.1:10911": ["10.0.0.1:30000"]}
    world.register(filter_servers=None)
    assert world.route().filter_servers == {"10.0.0.1:10911": ["10.0.0.1:30000"]}
    world.forgotten.clear()
    world.register(filter_servers=[])
    assert world.route().filter_servers == {}
    assert "orders" in world.forgotten


# -- lists ----------------------------------------------------------------------------------------


def test_lists_of_topics(world: World) -> None:
    world.register(topics=["a"], cluster="east")
    world.register("broker-b", addr="10.0.0.2:10911", topics=["a", "b"], cluster="west")
    assert sorted(world.registry.topic_names()) == sorted(["a", "b", *SYSTEM])
    assert sorted(world.registry.topics_of_cluster("east")) == sorted(["a", *SYSTEM])
    assert sorted(world.registry.topics_of_cluster("west")) == sorted(["a", "b", *SYSTEM])
    assert not list(world.registry.topics_of_cluster("nowhere"))


def test_topics_by_system_flag(world: World) -> None:
    world.register(topics=["unit"], sys_flag=1, alone=False)
    assert "unit" in world.registry.unit_topics(3, 1)
    assert not any(world.registry.unit_topics(3, 2))


def test_clusters_and_brokers(world: World) -> None:
    world.register()
    world.register("broker-b", addr="10.0.0.2:10911", zone="north")
    assert world.registry.clusters() == {"DefaultCluster": ["broker-a", "broker-b"]}
    assert world.registry.brokers()["broker-b"].zone_name == "north"
    assert world.registry.members("broker-a") == {0: "10.0.0.1:10911"}
    assert world.registry.members("broker-x") == {}
