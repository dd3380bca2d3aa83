"""The queues of a route response."""

import pytest

from tianzhou.client.connection.routes import (
    addresses_for_reading,
    broker_addresses,
    route_of,
    template_route,
    vip_address,
)
from tianzhou.client.queues import Queue
from tianzhou.errors import MessageRefused, RouteNotFound
from tianzhou.protocol.bodies.route import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)


def brokers(*names: str, slave_only: tuple[str, ...] = ()) -> list[BrokerData]:
    masters = [BrokerData(broker_name=name, addresses={0: f"{name}:1"}) for name in names]
    slaves = [BrokerData(broker_name=name, addresses={1: f"{name}:2"}) for name in slave_only]
    return [*masters, *slaves]


def queues(name: str, write: int = 2, read: int = 2, perm: int = 6) -> QueueData:
    return QueueData(
        broker_name=name, write_queue_count=write, read_queue_count=read, perm=perm
    )  # fmt: skip


def test_sorted_by_broker_and_queue() -> None:
    data = TopicRouteData(queues=[queues("b", 1), queues("a", 2)], brokers=brokers("b", "a"))
    assert route_of("t", data).writable == (
        Queue("t", "a", 0),
        Queue("t", "a", 1),
        Queue("t", "b", 0),
    )


def test_written_only_where_a_master_may_be_written_to() -> None:
    data = TopicRouteData(
        queues=[queues("a", perm=4), queues("b"), queues("c"), queues("gone")],
        brokers=brokers("a", "b", slave_only=("c",)),
    )
    route = route_of("t", data)
    assert {queue.broker_name for queue in route.writable} == {"b"}
    assert {queue.broker_name for queue in route.readable} == {"a", "b", "c", "gone"}


def test_read_and_write_counts_differ() -> None:
    data = TopicRouteData(queues=[queues("a", write=1, read=3, perm=6)], brokers=brokers("a"))
    route = route_of("t", data)
    assert (len(route.writable), len(route.readable)) == (1, 3)
    blind = TopicRouteData(queues=[queues("a", perm=2)], brokers=brokers("a"))
    assert route_of("t", blind).readable == ()


def test_order_configuration_names_the_queues() -> None:
    data = TopicRouteData(order_conf="b:2;a:1;", queues=[queues("a", 8)], brokers=brokers("a", "b"))
    route = route_of("t", data)
    assert route.is_ordered
    assert route.writable == (Queue("t", "b", 0), Queue("t", "b", 1), Queue("t", "a", 0))


@pytest.mark.parametrize("conf", ["a", "a:", ":4", "a:x", "a:-1", "a:4;b"])
def test_unreadable_order_configuration(conf: str) -> None:
    with pytest.raises(RouteNotFound, match="order configuration"):
        route_of("t", TopicRouteData(order_conf=conf, brokers=brokers("a")))


def test_template_gives_no_more_queues_than_wanted_or_there() -> None:
    data = TopicRouteData(queues=[queues("a", 8, 8), queues("b", 2, 2)], brokers=brokers("a", "b"))
    route = template_route("new", data, 4)
    assert route.is_template
    assert [queue.broker_name for queue in route.writable] == ["a"] * 4 + ["b"] * 2
    assert {queue.topic for queue in route.writable} == {"new"}


def test_absurd_counts_are_cut() -> None:
    data = TopicRouteData(queues=[queues("a", 2**31 - 1, 0)], brokers=brokers("a"))
    assert len(route_of("t", data).writable) == 65_536


def test_addresses() -> None:
    data = TopicRouteData(
        brokers=[BrokerData(broker_name="a", addresses={0: "m:1", 2: "s:2"}), BrokerData()]
    )
    assert broker_addresses(data) == {"a": {0: "m:1", 2: "s:2"}}
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert vip_address("[::1]:10911") == "[::1]:10909"


@pytest.mark.parametrize(
    ("broker_id", "expected"),
    [
        (0, ["m:1", "s:2", "s:3"]),
        (2, ["s:2", "m:1", "s:3"]),
        (1, ["s:2", "m:1", "s:3"]),  # replaced by the next slave, as by Java's clients
        (5, ["m:1", "s:2", "s:3"]),
    ],
)
def test_addresses_for_reading(broker_id: int, expected: list[str]) -> None:
    found = addresses_for_reading({4: "s:3", 2: "s:2", 0: "m:1"}, broker_id)
    assert found == [(address, address != "m:1") for address in expected]


def test_addresses_for_reading_without_a_master() -> None:
    assert addresses_for_reading({1: "s:2"}, 0) == [("s:2", True)]
    assert addresses_for_reading({}, 0) == []


def test_static_topics_are_refused_with_the_reason() -> None:
    """Logical queues differ from those of brokers: messages sent to those would not be consumed."""
    mapping = TopicQueueMappingInfo(topic="t", broker_name="a", queue_count=8)
    data = TopicRouteData(queues=[queues("a")], brokers=brokers("a"), mappings={"a": mapping})
    with pytest.raises(MessageRefused) as refused:
        route_of("t", data)
    text = str(refused.value)
    assert "topic t: it is a static topic" in text
    assert "this client does not support mappings" in text
    assert not refused.value.retriable
