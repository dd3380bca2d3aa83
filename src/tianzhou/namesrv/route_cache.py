"""Encoded route answers, kept until something they show changes.

A client asks for the routes of its topics every 30 seconds, and nearly always nothing has changed;
so a query is a look-up, and a route is encoded once per change and dialect. When a broker with
thousands of topics comes or goes, all their routes change at once: they are put together from
pieces (a group, the queues of a topic in a group) that are themselves encoded once.

What is kept is bounded by bytes; the oldest answers go first.
"""

from collections.abc import Callable, Collection, Iterable

from tianzhou.protocol import bodies
from tianzhou.protocol.bodies import Body
from tianzhou.protocol.bodies.route import TopicRouteData

_PIECES_MAX = 20_000


class RouteCache:
    """Answers by topic, in each of the two JSON dialects."""

    def __init__(self, route: Callable[[str], TopicRouteData | None], limit_bytes: int) -> None:
        self.route = route
        """The route of a topic, not encoded."""
        self._limit_bytes = limit_bytes
        self._kept: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
        self._pieces = (_Pieces(standard=False), _Pieces(standard=True))
        self.kept_bytes = 0

    def answer(self, topic: str, *, standard: bool) -> bytes | None:
        """The encoded route of a topic, None if there is none."""
        kept = self._kept[standard].get(topic)
        return kept if kept is not None else self._encode(topic, standard)

    def _encode(self, topic: str, standard: bool) -> bytes | None:
        route = self.route(topic)
        if route is None:
            return None
        answer = self._pieces[standard].put_together(route)
        if len(answer) <= self._limit_bytes:
            self._kept[standard][topic] = answer
            self.kept_bytes += len(answer)
            self._make_room()
        return answer

    def _make_room(self) -> None:
        while self.kept_bytes > self._limit_bytes:
            fuller = max(self._kept, key=len)
            self._drop(fuller, next(iter(fuller)))

    def forget(self, topics: Collection[str]) -> None:
        """Drop answers that are no longer true."""
        for kept in self._kept:
            if kept:
                for topic in topics:
                    self._drop(kept, topic)

    def clear(self) -> None:
        """Drop every answer."""
        for kept in self._kept:
            kept.clear()
        self.kept_bytes = 0

    def _drop(self, kept: dict[str, bytes], topic: str) -> None:
        self.kept_bytes -= len(kept.pop(topic, b""))


class _Pieces:
    """Encoded parts of routes. The registry hands out one object per state of a part, so the object
    itself is the key; it is held here as long as its bytes are.
    """

    def __init__(self, *, standard: bool) -> None:
        self._standard = standard
        self._encoded: dict[int, tuple[Body, bytes]] = {}

    def put_together(self, route: TopicRouteData) -> bytes:
        """What `bodies.encode` makes of a route."""
        members = [
            b'"brokerDatas":[' + b",".join(self._all(route.brokers)) + b"]",
            b'"filterServerTable":' + self._encode(route.filter_servers),
            b'"queueDatas":[' + b",".join(self._all(route.queues)) + b"]",
        ]
        if route.order_conf is not None:
            members.insert(2, b'"orderTopicConf":' + self._encode(route.order_conf))
        if route.mappings is not None:
            members.append(b'"topicQueueMappingByBroker":' + self._encode(route.mappings))
        return b"{" + b",".join(members) + b"}"

    def _all(self, parts: Iterable[Body]) -> list[bytes]:
        return [self._piece(part) for part in parts]

    def _piece(self, part: Body) -> bytes:
        found = self._encoded.get(id(part))
        if found is None:
            if len(self._encoded) >= _PIECES_MAX:
                self._encoded.clear()
            found = self._encoded[id(part)] = (part, self._encode(part))
        return found[1]

    def _encode(self, value: object) -> bytes:
        return bodies.encode(value, standard=self._standard)
