"""Selection of brokers."""

import pytest

from tianzhou.admin.clusters import brokers_of, choose, masters_of
from tianzhou.admin.fanout import BrokerRef
from tianzhou.errors import TargetError
from tianzhou.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData

A = BrokerData(cluster="c1", broker_name="a", addresses={0: "h:1", 1: "h:2"})
B = BrokerData(cluster="c2", broker_name="b", addresses={0: "h:3"})
INFO = ClusterInfo(brokers={"b": B, "a": A}, clusters={"c1": ["a"], "c2": ["b"]})


def names(found: list[BrokerRef]) -> list[str]:
    return [at.label for at in found]


def test_brokers_are_sorted() -> None:
    assert names(choose(INFO)) == ["a", "a[1]", "b"]
    assert names(choose(INFO, masters=True)) == ["a", "b"]


def test_brokers_by_cluster_name_and_address() -> None:
    assert names(choose(INFO, cluster="c2")) == ["b"]
    assert names(choose(INFO, broker="a")) == ["a", "a[1]"]
    assert names(choose(INFO, broker="h:2")) == ["a[1]"]
    assert names(choose(INFO, broker="h:2", masters=True)) == ["a[1]"], "an address is meant"


def test_unregistered_address_can_be_used() -> None:
    (found,) = choose(INFO, broker="far:10911")
    assert (found.address, found.is_master) == ("far:10911", True)


@pytest.mark.parametrize(
    ("cluster", "broker", "told"),
    [
        ("c3", None, "there is no cluster 'c3'; registered: c1, c2"),
        (None, "x", "there is no broker 'x'; registered: a, b"),
    ],
)
def test_error_lists_existing_names(cluster: str | None, broker: str | None, told: str) -> None:
    with pytest.raises(TargetError, match=told):
        choose(INFO, cluster=cluster, broker=broker)


def test_empty_cluster() -> None:
    with pytest.raises(TargetError, match="no broker is registered"):
        choose(ClusterInfo())


def test_slave_is_used_for_topic_without_master() -> None:
    slave = BrokerData(cluster="c", broker_name="s", addresses={1: "h:9"})
    route = TopicRouteData(brokers=[slave, A])
    assert names(masters_of(route)) == ["a", "s[1]"]
    assert brokers_of(BrokerData(broker_name="x")) == []
