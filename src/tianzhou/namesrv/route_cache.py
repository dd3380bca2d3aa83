"""Caches encoded routes until they change.

A client queries the routes of its topics every 30 seconds, and nearly always nothing has changed:
a query is a lookup, and a route is encoded once per change and JSON dialect. When a broker with
thousands of topics registers or leaves, all their routes change at once: they are assembled from
fragments (a group, the queues of a topic in a group) that are themselves encoded once.

The cache is limited in bytes; the oldest routes are evicted first.
"""

from collections.abc import Callable, Collection

from tianzhou.protocol import bodies
from tianzhou.protocol.bodies import Body
from tianzhou.protocol.bodies.route import TopicRouteData

_FRAGMENTS_MAX = 20_000


class RouteCache:
    """Encoded routes by topic, in each of the two JSON dialects."""

    def __init__(self, route: Callable[[str], TopicRouteData | None], limit_bytes: int) -> None:
        self.route = route
        """The route of a topic, not encoded."""
        self._limit_bytes = limit_bytes
        self._encoded: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
        self._encoders = (_RouteEncoder(standard=False), _RouteEncoder(standard=True))
        self.kept_bytes = 0

    def answer(self, topic: str, *, standard: bool) -> bytes | None:
        """The encoded route of a topic, None if there is none."""
        cached = self._encoded[standard].get(topic)
        return cached if cached is not None else self._encode(topic, standard)

    def _encode(self, topic: str, standard: bool) -> bytes | None:
        route = self.route(topic)
        if route is None:
            return None
        body = self._encoders[standard].encode(route)
        if len(body) <= self._limit_bytes:
            self._encoded[standard][topic] = body
            self.kept_bytes += len(body)
            while self.kept_bytes > self._limit_bytes:
                larger = max(self._encoded, key=len)
                self._drop(larger, next(iter(larger)))
        return body

    def forget(self, topics: Collection[str]) -> None:
        """Drop the routes of these topics, which have changed."""
        for encoded in self._encoded:
            if encoded:
                for topic in topics:
                    self._drop(encoded, topic)

    def clear(self) -> None:
        """Drop all routes."""
        for encoded in self._encoded:
            encoded.clear()
        self.kept_bytes = 0

    def _drop(self, encoded: dict[str, bytes], topic: str) -> None:
        self.kept_bytes -= len(encoded.pop(topic, b""))


class _RouteEncoder:
    """Caches encoded fragments of routes. The registry returns the same object for a fragment until
    it changes, so its id is the key. The entry holds the object, so that the id is not reused.
    """

    def __init__(self, *, standard: bool) -> None:
        self._standard = standard
        self._fragments: dict[int, tuple[Body, bytes]] = {}

    def encode(self, route: TopicRouteData) -> bytes:
        """The same bytes as `bodies.encode`."""
        members = [
            b'"brokerDatas":[' + b",".join(map(self._fragment, route.brokers)) + b"]",
            b'"filterServerTable":' + self._encode(route.filter_servers),
            b'"queueDatas":[' + b",".join(map(self._fragment, route.queues)) + b"]",
        ]
        if route.order_conf is not None:
            members.insert(2, b'"orderTopicConf":' + self._encode(route.order_conf))
        if route.mappings is not None:
            members.append(b'"topicQueueMappingByBroker":' + self._encode(route.mappings))
        return b"{" + b",".join(members) + b"}"

    def _fragment(self, body: Body) -> bytes:
        cached = self._fragments.get(id(body))
        if cached is None:
            if len(self._fragments) >= _FRAGMENTS_MAX:
                self._fragments.clear()
            cached = self._fragments[id(body)] = (body, self._encode(body))
        return cached[1]

    def _encode(self, value: object) -> bytes:
        return bodies.encode(value, standard=self._standard)
