"""How fast a consumer pulls and consumes, per topic, over the last minute.

Counts go into ten-second boxes, a call for each pull and each handler; reading adds up the boxes
that are not too old. This is what `mqadmin consumerStatus` and consoles show.
"""

from dataclasses import dataclass, field

from tianzhou.protocol.bodies.clients import ConsumeStatus

_BOX_MS = 10_000
_BOX_COUNT = 6
_WINDOW_S = _BOX_MS * _BOX_COUNT / 1000
_TOPICS_MAX = 10_000
"""Brokers name the topics of messages; beyond so many, counting begins anew."""


@dataclass(slots=True)
class _Box:
    number: int = -1
    pull_count: int = 0
    pulled_count: int = 0
    pull_ms: int = 0
    call_count: int = 0
    done_count: int = 0
    failed_count: int = 0
    consume_ms: int = 0


@dataclass(slots=True)
class _Topic:
    boxes: list[_Box] = field(default_factory=lambda: [_Box() for _ in range(_BOX_COUNT)])
    failed_count: int = 0

    def box(self, now_ms: int) -> _Box:
        number = now_ms // _BOX_MS
        box = self.boxes[number % _BOX_COUNT]
        if box.number != number:
            box = self.boxes[number % _BOX_COUNT] = _Box(number)
        return box


class Rates:
    """Counters by topic."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def _topic(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            found = self._topics[topic] = _Topic()
        return found

    def pulled(self, topic: str, message_count: int, started_ms: int, now_ms: int) -> None:
        """A pull brought messages."""
        box = self._topic(topic).box(now_ms)
        box.pull_count += 1
        box.pulled_count += message_count
        box.pull_ms += now_ms - started_ms

    def consumed(
        self, topic: str, done_count: int, failed_count: int, started_ms: int, now_ms: int
    ) -> None:
        """A handler ended."""
        counters = self._topic(topic)
        counters.failed_count += failed_count
        box = counters.box(now_ms)
        box.call_count += 1
        box.done_count += done_count
        box.failed_count += failed_count
        box.consume_ms += now_ms - started_ms

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """Rates of the last minute; failures since the start."""
        counters = self._topic(topic)
        newest = now_ms // _BOX_MS
        boxes = [each for each in counters.boxes if newest - _BOX_COUNT < each.number <= newest]
        pulls = sum(each.pull_count for each in boxes)
        calls = sum(each.call_count for each in boxes)
        return ConsumeStatus(
            pull_ms=sum(each.pull_ms for each in boxes) / max(pulls, 1),
            pull_tps=sum(each.pulled_count for each in boxes) / _WINDOW_S,
            consume_ms=sum(each.consume_ms for each in boxes) / max(calls, 1),
            consume_ok_tps=sum(each.done_count for each in boxes) / _WINDOW_S,
            consume_failed_tps=sum(each.failed_count for each in boxes) / _WINDOW_S,
            consume_failed_count=counters.failed_count,
        )
