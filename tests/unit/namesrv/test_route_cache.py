"""The cache of encoded routes: invalidation and eviction."""

from tianzhou.namesrv.route_cache import RouteCache
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.route import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)


class Routes:
    """Routes that record each query."""

    def __init__(self) -> None:
        self.queried: list[str] = []
        self.known = {f"t{number}": make_route(f"broker-{number}") for number in range(10)}

    def __call__(self, topic: str) -> TopicRouteData | None:
        self.queried.append(topic)
        return self.known.get(topic)


def make_route(broker_name: str) -> TopicRouteData:
    return TopicRouteData(
        queues=[QueueData(broker_name=broker_name, read_queue_count=8, perm=6)],
        brokers=[BrokerData(cluster="c", broker_name=broker_name, addresses={0: "a:1", 2: "b:1"})],
    )


def test_the_second_query_is_served_from_the_cache() -> None:
    routes = Routes()
    cache = RouteCache(routes, 10_000)
    first = cache.answer("t1", standard=True)
    assert first == bodies.encode(routes.known["t1"], standard=True)
    assert cache.answer("t1", standard=True) is first
    assert routes.queried == ["t1"]


def test_dialects_are_cached_separately() -> None:
    routes = Routes()
    cache = RouteCache(routes, 10_000)
    assert cache.answer("t1", standard=False) == bodies.encode(routes.known["t1"])
    assert b'"brokerAddrs":{"0":"a:1","2":"b:1"}' in (cache.answer("t1", standard=True) or b"")
    assert b'"brokerAddrs":{0:"a:1",2:"b:1"}' in (cache.answer("t1", standard=False) or b"")


def test_every_field_of_a_route_is_encoded_as_by_bodies_encode() -> None:
    route = TopicRouteData(
        order_conf='broker-a:4;"x"',
        queues=[QueueData(broker_name="b", perm=6), QueueData(broker_name="a", perm=4)],
        brokers=[],
        filter_servers={"b:1": ["f:1"], "a:1": []},
        mappings={"a": TopicQueueMappingInfo(topic="t", broker_name="a", current_ids={1: 2, 0: 1})},
    )
    cache = RouteCache(lambda _: route, 10_000)
    for standard in (False, True):
        assert cache.answer("t", standard=standard) == bodies.encode(route, standard=standard)


def test_a_topic_without_route_is_not_cached() -> None:
    routes = Routes()
    cache = RouteCache(routes, 10_000)
    assert cache.answer("new", standard=True) is None
    routes.known["new"] = make_route("broker-new")
    assert cache.answer("new", standard=True) is not None


def test_forgotten_routes_are_encoded_again() -> None:
    routes = Routes()
    cache = RouteCache(routes, 10_000)
    for topic in ("t1", "t2"):
        cache.answer(topic, standard=True)
        cache.answer(topic, standard=False)
    routes.known["t1"] = make_route("broker-moved")
    routes.queried.clear()
    cache.forget(["t1", "never queried"])
    assert b"broker-moved" in (cache.answer("t1", standard=True) or b"")
    assert b"broker-moved" in (cache.answer("t1", standard=False) or b"")
    cache.answer("t2", standard=True)
    assert routes.queried == ["t1", "t1"]


def test_the_oldest_routes_are_evicted_first() -> None:
    routes = Routes()
    size = len(bodies.encode(routes.known["t0"], standard=True))
    cache = RouteCache(routes, 3 * size)
    for number in range(10):
        cache.answer(f"t{number}", standard=True)
        assert cache.kept_bytes <= 3 * size
    routes.queried.clear()
    for topic in ("t7", "t8", "t9", "t0"):
        cache.answer(topic, standard=True)
    assert routes.queried == ["t0"]


def test_a_route_larger_than_the_cache_is_returned_but_not_cached() -> None:
    routes = Routes()
    cache = RouteCache(routes, 10)
    assert cache.answer("t1", standard=True) == cache.answer("t1", standard=True)
    assert routes.queried == ["t1", "t1"]
    assert cache.kept_bytes == 0


def test_clear_drops_all_routes() -> None:
    routes = Routes()
    cache = RouteCache(routes, 10_000)
    cache.answer("t1", standard=True)
    cache.answer("t1", standard=False)
    cache.clear()
    assert cache.kept_bytes == 0
    cache.answer("t1", standard=True)
    assert routes.queried == ["t1", "t1", "t1"]
