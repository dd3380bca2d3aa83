"""Routes limited to one zone."""

from tianzhou.namesrv.zones import only_zone
from tianzhou.protocol.bodies.route import BrokerData, QueueData, TopicRouteData


def broker(name: str, zone: str | None, *ids: int) -> BrokerData:
    addresses = {broker_id: f"{name}:{broker_id}" for broker_id in ids}
    return BrokerData(cluster="c", broker_name=name, addresses=addresses, zone_name=zone)


def test_groups_of_other_zones_are_left_out() -> None:
    route = TopicRouteData(
        queues=[QueueData(broker_name=name) for name in ("near", "far", "nowhere", "orphan")],
        brokers=[
            broker("near", "North", 0, 1),
            broker("far", "south", 0),
            broker("nowhere", None, 0),
            broker("orphan", "south", 1),
        ],
        filter_servers={"near:0": ["f:1"], "far:0": ["f:2"], "orphan:1": ["f:3"]},
        order_conf="near:1",
    )
    kept = only_zone(route, "north")
    assert [each.broker_name for each in kept.brokers] == ["near", "orphan"]
    assert [queue.broker_name for queue in kept.queues] == ["near", "orphan"]
    assert kept.filter_servers == {"near:0": ["f:1"], "orphan:1": ["f:3"]}
    assert kept.order_conf == "near:1"
